/* SPDX-License-Identifier: GPL-2.0-or-later */
/* cuda-checkpoint: the command line of NVIDIA's utility (version 580) on the mock driver. */
#include "cuda_api.h"
#include "state.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
	"CUDA checkpoint and restore utility (mock).\n\n"
	"Operations:\n"
	"--get-state --pid <pid>\n"
	"	Prints the current checkpoint state of the process specified by <pid>\n\n"
	"--action lock | checkpoint | restore | unlock --pid <pid> [--timeout <ms>] [--device-map <uuids>]\n"
	"	Performs the specified action on <pid>.\n"
	"	--timeout: how long a lock may take. --device-map: oldUuid=newUuid,... for restore\n\n"
	"--toggle --pid <pid>\n"
	"	Toggles the CUDA state in the specified process between the running and checkpointed states\n\n"
	"--get-restore-tid --pid <pid>\n"
	"	Retrieves the CUDA restore thread ID of the process specified by <pid>\n";

static const char *describe(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_INVALID_VALUE:
		return "invalid argument";
	case CUDA_ERROR_OUT_OF_MEMORY:
		return "out of memory";
	case CUDA_ERROR_NOT_INITIALIZED:
		return "initialization error";
	case CUDA_ERROR_NOT_READY:
		return "device not ready";
	case CUDA_ERROR_ILLEGAL_STATE:
		return "the operation cannot be performed in the present state";
	case CUDA_ERROR_OPERATING_SYSTEM:
		return "OS call failed or operation not supported on this OS";
	case CUDA_ERROR_NOT_PERMITTED:
		return "operation not permitted";
	case CUDA_ERROR_TIMEOUT:
		return "wait operation timed out";
	default:
		return "unknown error";
	}
}

static int parse_uuid(const char *text, CUuuid *uuid)
{
	unsigned n = 0;

	if (strncmp(text, "GPU-", 4) == 0)
		text += 4;
	for (; *text != '\0' && *text != '=' && *text != ',' && n < 32; text++) {
		if (*text == '-')
			continue;
		const char *digits = "0123456789abcdef", *digit = strchr(digits, *text | 0x20);
		if (digit == NULL)
			return -1;
		unsigned char value = (unsigned char)(digit - digits);
		uuid->bytes[n / 2] = (unsigned char)(n % 2 == 0 ? value << 4 : uuid->bytes[n / 2] | value);
		n++;
	}
	return n == 32 ? 0 : -1;
}

static CUresult restore(int pid, const char *map)
{
	CUcheckpointGpuPair pairs[MG_MAX_GPUS];
	CUcheckpointRestoreArgs args = { .gpuPairs = pairs };

	memset(pairs, 0, sizeof(pairs));
	while (map != NULL && *map != '\0') {
		const char *equals = strchr(map, '=');
		if (equals == NULL || args.gpuPairsCount == MG_MAX_GPUS ||
		    parse_uuid(map, &pairs[args.gpuPairsCount].oldUuid) < 0 ||
		    parse_uuid(equals + 1, &pairs[args.gpuPairsCount].newUuid) < 0)
			return CUDA_ERROR_INVALID_VALUE;
		args.gpuPairsCount++;
		map = strchr(equals, ',');
		map = map == NULL ? NULL : map + 1;
	}
	return cuCheckpointProcessRestore(pid, args.gpuPairsCount > 0 ? &args : NULL);
}

static CUresult act(const char *action, int pid, unsigned timeout_ms, const char *map)
{
	CUcheckpointLockArgs lock = { .timeoutMs = timeout_ms };

	if (strcmp(action, "lock") == 0)
		return cuCheckpointProcessLock(pid, &lock);
	if (strcmp(action, "checkpoint") == 0)
		return cuCheckpointProcessCheckpoint(pid, NULL);
	if (strcmp(action, "restore") == 0)
		return restore(pid, map);
	if (strcmp(action, "unlock") == 0)
		return cuCheckpointProcessUnlock(pid, NULL);
	fprintf(stderr, "cuda-checkpoint: unknown action %s\n", action);
	exit(1);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "get-state", no_argument, NULL, 's' },  { "get-restore-tid", no_argument, NULL, 'r' },
		{ "toggle", no_argument, NULL, 'g' },	  { "action", required_argument, NULL, 'a' },
		{ "pid", required_argument, NULL, 'p' },  { "timeout", required_argument, NULL, 't' },
		{ "device-map", required_argument, NULL, 'd' }, { "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	static const char *const states[] = { "running", "locked", "checkpointed", "failed" };
	const char *action = NULL, *map = NULL;
	int option, operation = 0, pid = 0;
	unsigned timeout_ms = 0;

	while ((option = getopt_long(argc, argv, "a:p:t:d:h", options, NULL)) != -1) {
		switch (option) {
		case 's':
		case 'r':
		case 'g':
			operation = option;
			break;
		case 'a':
			operation = option;
			action = optarg;
			break;
		case 'p':
			pid = atoi(optarg);
			break;
		case 't':
			timeout_ms = (unsigned)strtoul(optarg, NULL, 10);
			break;
		case 'd':
			map = optarg;
			break;
		case 'h':
			fputs(help, stdout);
			return 0;
		default:
			return 1;
		}
	}
	CUprocessState state = CU_PROCESS_STATE_RUNNING;
	CUresult result;
	int tid = 0;
	const char *what = "perform the operation on";
	switch (operation) {
	case 's':
		result = cuCheckpointProcessGetState(pid, &state);
		what = "get the state of";
		if (result == CUDA_SUCCESS)
			puts(states[state]);
		break;
	case 'r':
		result = cuCheckpointProcessGetRestoreThreadId(pid, &tid);
		what = "get the restore thread of";
		if (result == CUDA_SUCCESS)
			printf("%d\n", tid);
		break;
	case 'g':
		result = cuCheckpointProcessGetState(pid, &state);
		if (result == CUDA_SUCCESS) {
			bool running = state == CU_PROCESS_STATE_RUNNING;
			result = act(running ? "lock" : "restore", pid, 0, NULL);
			if (result == CUDA_SUCCESS)
				result = act(running ? "checkpoint" : "unlock", pid, 0, NULL);
		}
		what = "toggle";
		break;
	case 'a':
		what = action;
		result = act(action, pid, timeout_ms, map);
		break;
	default:
		fputs(help, stderr);
		return 1;
	}
	if (result != CUDA_SUCCESS)
		fprintf(stderr, "Could not %s process ID %d: \"%s\"\n", what, pid, describe(result));
	return result == CUDA_SUCCESS ? 0 : 1;
}
