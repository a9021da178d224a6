/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The command mockgpu: sets up a node's mock GPUs, shows them, breaks them. */
#include "mockgpu.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
	"usage: mockgpu [--dir DIR] COMMAND [OPTIONS]\n"
	"\n"
	"The mock GPUs of one node. Its state is in DIR: by default $MOCKGPU_DIR, else\n"
	"/var/lib/mockgpu/$SLURMD_NODENAME if that exists, else /var/lib/mockgpu.\n"
	"Sizes take KiB, MiB, GiB, rates the same per second.\n"
	"\n"
	"commands:\n"
	"  init              set the node up, or set it up anew (whoever uses it loses its GPUs)\n"
	"    --gpus N                  number of GPUs (4; at most 16)\n"
	"    --minors N[,N…]           the minor number (the N of /dev/nvidiaN, and of all options here) of each\n"
	"                              GPU in PCI order, which is NVML's and CUDA's (0,1,2,…)\n"
	"    --model NAME[,NAME…]      k80, p100, v100, t4, l4, a100, h100, h200, or any NVML name (a100);\n"
	"                              the last one counts for the rest\n"
	"    --memory SIZE[,SIZE…]     memory per GPU (that of the model; 80GiB for other names)\n"
	"    --memory-mib N[,N…]       the same in MiB\n"
	"    --speed X[,X…]            speed against the reference GPU (1.0)\n"
	"    --context-memory SIZE     what a CUDA context takes (400MiB)\n"
	"    --communicator-memory SIZE  what an NCCL communicator takes in a context (600MiB)\n"
	"    --copy-rate RATE          host <-> device, checkpoint and restore; 0 = takes no time (0)\n"
	"    --operation-timeout-ms N  checkpoint, restore or unlock of a frozen process fails after this\n"
	"                              time; 0 = waits for ever, as the real driver does (10000)\n"
	"    --device-map lenient|strict  strict: a restore that moves a process is INVALID_VALUE unless its map\n"
	"                              names every GPU of the node and CUDA_VISIBLE_DEVICES did not narrow\n"
	"                              what the process sees, as drivers are reported to be (lenient)\n"
	"    --restore-oom stuck|failed  a restore that finds too little memory leaves the process\n"
	"                              CHECKPOINTED and never restorable (stuck, as driver 580 does) or\n"
	"                              FAILED\n"
	"    --killed-caller out-of-sync|harmless  what becomes of a process when whoever made a checkpoint call\n"
	"                              on it was killed before the answer: no later call works until it ends,\n"
	"                              or nothing at all (out-of-sync)\n"
	"    --init-only hidden|listed  whether NVML lists processes that only called cuInit, with zero bytes,\n"
	"                              on each GPU that they see (listed)\n"
	"    --jobs slurm|environment  how a process's job is known: by its control group or a slurmstepd above\n"
	"                              it; environment: by GANDIVA_TRIAL, or by SLURM_JOB_ID where there is\n"
	"                              neither, for tests without Slurm (slurm)\n"
	"    --driver VERSION          driver version (580.95.05)\n"
	"    --node NAME               what the GPUs' UUIDs are made of ($SLURMD_NODENAME, else the name of DIR,\n"
	"                              or of the host where DIR is /var/lib/mockgpu)\n"
	"  show [--json]     GPUs, the processes on them, faults\n"
	"  history [--json] [--since NS] [--gpu N] [--job ID]\n"
	"                    every change of who holds how much memory on which GPU\n"
	"  overlaps [--json] [--since NS] [--min-bytes SIZE]\n"
	"                    times at which two Slurm jobs, or a job and a process of none, held memory on one\n"
	"                    GPU at the same instant, more than --min-bytes each (0); exit status 1 when there\n"
	"                    are any\n"
	"  clear-history     forget the history; what is held at this moment is its new beginning\n"
	"  inject FAULT [--gpu N] [--pid PID] [--job ID] [--value V] [--count N] [--call NAME] [--fatal]\n"
	"                    break something: for all GPUs, processes and jobs, or those named; until\n"
	"                    cleared, or --count times. Prints the fault's number.\n"
	"    lock-timeout              lock never succeeds, as if a kernel never ended\n"
	"    checkpoint-fail           checkpoint fails, process stays LOCKED; with --fatal it is FAILED\n"
	"    restore-fail              restore fails, process stays CHECKPOINTED; with --fatal it is FAILED\n"
	"    unlock-fail               unlock fails\n"
	"    checkpoint-leak           checkpoint succeeds, but V bytes (all) stay on the GPU\n"
	"    free-leak                 V bytes (all) of what is freed stay on the GPU and belong to nobody\n"
	"    alloc-fail                cuMemAlloc says out of memory\n"
	"    nvml-error                NVML calls (or only --call) return V (999)\n"
	"    nvml-hang                 NVML calls (or only --call) take V seconds (5)\n"
	"    gpu-lost                  the GPU has fallen off the bus: whoever has found it gets errors, whoever\n"
	"                              looks from now on finds one GPU less, and counts those behind it anew;\n"
	"                              --value 1: NVML still counts it, and gives no handle\n"
	"    ecc                       V uncorrected memory errors (1)\n"
	"    copy-rate                 copies, checkpoint and restore run at V per second (100MiB)\n"
	"    speed                     kernels run at V per cent of the GPU's speed (50)\n"
	"  inject --list | --clear [NUMBER]\n"
	"                    list the faults; mend one, or all, and take leaked memory back\n"
	"\n"
	"exit status: 0, or 1 (overlaps found), or 2 (wrong use, no such node)\n";

void fail(const char *format, ...)
{
	va_list arguments;

	fputs("mockgpu: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(2);
}

void json_string(const char *text)
{
	putchar('"');
	for (; *text != '\0'; text++) {
		unsigned char c = (unsigned char)*text;
		if (c == '"' || c == '\\')
			printf("\\%c", c);
		else if (c < 0x20 || c >= 0x7f) /* a process's name may be any bytes */
			printf("\\u%04x", c);
		else
			putchar(c);
	}
	putchar('"');
}

static uint64_t parse_number(const char *text, const char *what)
{
	char *end;

	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (end == text || *end != '\0' || errno != 0 || *text == '-')
		fail("%s: not a number: %s", what, text);
	return value;
}

static uint64_t parse_size(const char *text, const char *what)
{
	static const struct {
		const char *unit;
		uint64_t bytes;
	} units[] = { { "", 1 },	   { "B", 1 },		 { "KiB", MG_KIB }, { "K", MG_KIB }, { "MiB", MG_MIB },
		      { "M", MG_MIB }, { "GiB", MG_GIB }, { "G", MG_GIB } };
	char *end;
	double value = strtod(text, &end);

	if (end != text && value >= 0 && value < 1e15)
		for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
			if (strcmp(end, units[i].unit) == 0)
				return (uint64_t)(value * (double)units[i].bytes + 0.5);
	fail("%s: not a size such as 300MiB or 80GiB: %s", what, text);
}

/* 0 for the first word, 1 for the second. */
static uint32_t one_of(const char *text, const char *first, const char *second, const char *what)
{
	if (strcmp(text, first) != 0 && strcmp(text, second) != 0)
		fail("%s: %s or %s, not %s", what, first, second, text);
	return strcmp(text, second) == 0;
}

/* The i-th item of a comma-separated list; beyond its end the last one. */
static void list_item(const char *list, unsigned i, char *out, size_t size)
{
	const char *comma;

	while (i-- > 0 && (comma = strchr(list, ',')) != NULL)
		list = comma + 1;
	size_t length = strcspn(list, ",");
	if (length == 0 || length >= size)
		fail("an empty or too long item in a list: %s", list);
	memcpy(out, list, length);
	out[length] = '\0';
}

static const struct {
	const char *slug, *name;
	unsigned memory_mib;
} models_known[] = {
	{ "k80", "Tesla K80", 11441 },
	{ "p100", "Tesla P100-SXM2-16GB", 16384 },
	{ "v100", "Tesla V100-SXM2-32GB", 32768 },
	{ "t4", "Tesla T4", 15360 },
	{ "l4", "NVIDIA L4", 23034 },
	{ "a100", "NVIDIA A100-SXM4-80GB", 81920 },
	{ "h100", "NVIDIA H100 80GB HBM3", 81559 },
	{ "h200", "NVIDIA H200", 143771 },
};

static void choose_model(struct mg_gpu *g, const char *text)
{
	snprintf(g->name, sizeof(g->name), "%s", text);
	g->total_bytes = 80 * MG_GIB;
	for (size_t i = 0; i < sizeof(models_known) / sizeof(models_known[0]); i++)
		if (strcmp(text, models_known[i].slug) == 0 || strcmp(text, models_known[i].name) == 0) {
			snprintf(g->name, sizeof(g->name), "%s", models_known[i].name);
			g->total_bytes = models_known[i].memory_mib * MG_MIB;
		}
}

/* What tells this node from others: in one container there may be many. */
static const char *default_node(char *buf, size_t size)
{
	const char *node = getenv("SLURMD_NODENAME"), *dir = mg_directory(), *base = strrchr(dir, '/');

	if (node != NULL && *node != '\0')
		return node;
	base = base == NULL ? dir : base + 1;
	if (*base != '\0' && strcmp(base, "mockgpu") != 0)
		snprintf(buf, size, "%s", base);
	else
		gethostname(buf, size - 1);
	return buf;
}

static void make_uuid(unsigned char uuid[16], const char *node, unsigned gpu)
{
	for (unsigned half = 0; half < 2; half++) { /* FNV-1a over node, GPU and half */
		uint64_t hash = 14695981039346656037ull + half;
		for (const char *c = node; *c != '\0'; c++)
			hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
		hash = (hash ^ (gpu + 1)) * 1099511628211ull;
		hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9ull;
		hash ^= hash >> 32;
		memcpy(uuid + half * 8, &hash, 8);
	}
	uuid[6] = (unsigned char)((uuid[6] & 0x0f) | 0x40); /* version 4, as NVIDIA's look */
	uuid[8] = (unsigned char)((uuid[8] & 0x3f) | 0x80);
}

/* Puts each GPU to its place on the bus; minors NULL: in the order of their numbers. */
static void place_gpus(struct mg_state *config, const char *minors)
{
	uint32_t placed = 0;
	char item[64];

	for (unsigned place = 0; place < config->gpu_count; place++) {
		uint64_t minor = place;
		if (minors != NULL) {
			list_item(minors, place, item, sizeof(item));
			minor = parse_number(item, "--minors");
		}
		if (minor >= config->gpu_count || (placed & 1u << minor) != 0)
			fail("--minors: each number from 0 to %u once, not %s", config->gpu_count - 1, minors);
		placed |= 1u << minor;
		config->gpus[minor].place = place;
	}
}

static int init_command(int argc, char **argv)
{
	static const struct option options[] = {
		{ "gpus", required_argument, NULL, 'g' },
		{ "minors", required_argument, NULL, 'p' },
		{ "model", required_argument, NULL, 'm' },
		{ "memory", required_argument, NULL, 'M' },
		{ "memory-mib", required_argument, NULL, 'N' },
		{ "speed", required_argument, NULL, 's' },
		{ "context-memory", required_argument, NULL, 'c' },
		{ "copy-rate", required_argument, NULL, 'r' },
		{ "operation-timeout-ms", required_argument, NULL, 't' },
		{ "device-map", required_argument, NULL, 'D' },
		{ "restore-oom", required_argument, NULL, 'o' },
		{ "killed-caller", required_argument, NULL, 'k' },
		{ "init-only", required_argument, NULL, 'i' },
		{ "communicator-memory", required_argument, NULL, 'C' },
		{ "jobs", required_argument, NULL, 'j' },
		{ "driver", required_argument, NULL, 'd' },
		{ "node", required_argument, NULL, 'n' },
		{ NULL, 0, NULL, 0 },
	};
	static struct mg_state config;
	const char *minors = NULL, *models = "a100", *memory = NULL, *memory_mib = NULL, *speeds = "1.0", *driver = "580.95.05";
	char name[64] = "localhost", item[64];
	const char *node = default_node(name, sizeof(name));
	int option;

	config.gpu_count = 4;
	config.context_bytes = 400 * MG_MIB;
	config.communicator_bytes = 600 * MG_MIB;
	config.init_only_listed = 1;
	config.operation_timeout_ms = 10000;
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'g':
			config.gpu_count = (uint32_t)parse_number(optarg, "--gpus");
			break;
		case 'p':
			minors = optarg;
			break;
		case 'm':
			models = optarg;
			break;
		case 'M':
			memory = optarg;
			break;
		case 'N':
			memory_mib = optarg;
			break;
		case 's':
			speeds = optarg;
			break;
		case 'c':
			config.context_bytes = parse_size(optarg, "--context-memory");
			break;
		case 'r':
			config.copy_rate = parse_size(optarg, "--copy-rate");
			break;
		case 't':
			config.operation_timeout_ms = (uint32_t)parse_number(optarg, "--operation-timeout-ms");
			break;
		case 'D':
			config.strict_device_map = one_of(optarg, "lenient", "strict", "--device-map");
			break;
		case 'o':
			config.restore_oom_fails = one_of(optarg, "stuck", "failed", "--restore-oom");
			break;
		case 'k':
			config.killed_caller_harmless = one_of(optarg, "out-of-sync", "harmless", "--killed-caller");
			break;
		case 'i':
			config.init_only_listed = one_of(optarg, "hidden", "listed", "--init-only");
			break;
		case 'C':
			config.communicator_bytes = parse_size(optarg, "--communicator-memory");
			break;
		case 'j':
			config.jobs_by_environment = one_of(optarg, "slurm", "environment", "--jobs");
			break;
		case 'd':
			driver = optarg;
			break;
		case 'n':
			node = optarg;
			break;
		default:
			return 2;
		}
	}
	if (optind < argc)
		fail("init: what is %s? (see mockgpu --help)", argv[optind]);
	if (config.gpu_count < 1 || config.gpu_count > MG_MAX_GPUS)
		fail("--gpus: 1 to %d", MG_MAX_GPUS);
	if (strlen(driver) >= sizeof(config.driver_version) || strlen(node) >= sizeof(config.node))
		fail("--driver or --node is too long");
	snprintf(config.driver_version, sizeof(config.driver_version), "%s", driver);
	snprintf(config.node, sizeof(config.node), "%s", node);
	place_gpus(&config, minors);
	for (unsigned i = 0; i < config.gpu_count; i++) {
		struct mg_gpu *g = &config.gpus[i];
		list_item(models, i, item, sizeof(item));
		choose_model(g, item);
		if (memory != NULL) {
			list_item(memory, i, item, sizeof(item));
			g->total_bytes = parse_size(item, "--memory");
		}
		if (memory_mib != NULL) {
			list_item(memory_mib, i, item, sizeof(item));
			g->total_bytes = parse_number(item, "--memory-mib") * MG_MIB;
		}
		list_item(speeds, i, item, sizeof(item));
		g->speed = strtod(item, NULL);
		if (!(g->speed > 0.0 && g->speed < 1e6))
			fail("--speed: not a positive number: %s", item);
		make_uuid(g->uuid, node, i);
	}
	int error = mg_create(&config);
	if (error != 0)
		fail("%s: %s", mg_directory(), strerror(error));
	return 0;
}

/* --- show --------------------------------------------------------------------------------------------------- */

static const char *const state_names[MG_PROC_STATES] = { "running", "locked",	 "checkpointed",
							 "failed",  "checkpointing", "restoring" };

/* The checkpoint call under way on a process, by enum mg_op. */
static const char *const call_names[] = { "", "lock", "checkpoint", "restore", "unlock" };

static const char *state_name(const struct mg_proc *p)
{
	return p->state < MG_PROC_STATES ? state_names[p->state] : "unknown";
}

static const char *const fault_names[MG_FAULT_KINDS] = {
	[MG_FAULT_LOCK_TIMEOUT] = "lock-timeout",
	[MG_FAULT_CHECKPOINT_FAIL] = "checkpoint-fail",
	[MG_FAULT_RESTORE_FAIL] = "restore-fail",
	[MG_FAULT_UNLOCK_FAIL] = "unlock-fail",
	[MG_FAULT_CHECKPOINT_LEAK] = "checkpoint-leak",
	[MG_FAULT_FREE_LEAK] = "free-leak",
	[MG_FAULT_ALLOC_FAIL] = "alloc-fail",
	[MG_FAULT_NVML_ERROR] = "nvml-error",
	[MG_FAULT_NVML_HANG] = "nvml-hang",
	[MG_FAULT_GPU_LOST] = "gpu-lost",
	[MG_FAULT_ECC] = "ecc",
	[MG_FAULT_COPY_RATE] = "copy-rate",
	[MG_FAULT_SPEED] = "speed",
};

static void open_node(void)
{
	int error = mg_open();

	if (error == EPROTO)
		fail("%s: made by another version of mockgpu; run mockgpu init", mg_directory());
	if (error != 0)
		fail("no mock GPUs in %s: %s; run mockgpu init", mg_directory(), strerror(error));
}

static void show_json(const struct mg_state *s)
{
	char uuid[48];

	printf("{\"directory\": ");
	json_string(mg_directory());
	printf(", \"driver_version\": ");
	json_string(s->driver_version);
	printf(", \"context_bytes\": %llu, \"gpus\": [", (unsigned long long)s->context_bytes);
	for (unsigned i = 0; i < s->gpu_count; i++) {
		const struct mg_gpu *g = &s->gpus[i];
		mg_uuid_text(g->uuid, uuid);
		printf("%s\n  {\"index\": %u, \"place\": %u, \"uuid\": \"%s\", \"model\": ", i == 0 ? "" : ",", i, g->place,
		       uuid);
		json_string(g->name);
		printf(", \"total_bytes\": %llu, \"used_bytes\": %llu, \"leaked_bytes\": %llu, \"speed\": %g, "
		       "\"utilization_percent\": %u, \"busy_ns\": %llu}",
		       (unsigned long long)g->total_bytes, (unsigned long long)mg_used_bytes(s, i),
		       (unsigned long long)g->leaked_bytes, g->speed, mg_ring_percent(&g->ring, mg_now()),
		       (unsigned long long)g->busy_ns);
	}
	printf("], \"processes\": [");
	for (unsigned i = 0, first = 1; i < s->proc_count; i++) {
		const struct mg_proc *p = &s->procs[i];
		if (!p->in_use)
			continue;
		printf("%s\n  {\"pid\": %d, \"start_time\": %llu, \"uid\": %u, \"job_id\": %u, \"name\": ",
		       first ? "" : ",", p->pid, (unsigned long long)p->start_time, p->uid, p->job);
		first = 0;
		json_string(p->comm);
		printf(", \"state\": \"%s\", \"call\": \"%s\", \"stuck\": %s, \"gpus\": [", state_name(p),
		       call_names[p->op % 5], p->stuck ? "true" : "false");
		for (unsigned k = 0, first_client = 1; k < s->client_count; k++) {
			const struct mg_client *c = &s->clients[k];
			if (!c->in_use || c->proc != i)
				continue;
			printf("%s{\"gpu\": %u, \"contexts\": %u, \"used_bytes\": %llu, \"host_bytes\": %llu, "
			       "\"kernel_running\": %s, \"utilization_percent\": %u}",
			       first_client ? "" : ", ", c->gpu, c->contexts, (unsigned long long)mg_client_bytes(c),
			       (unsigned long long)c->host_bytes, mg_kernel_running(s, k) ? "true" : "false",
			       mg_ring_percent(&c->ring, mg_now()));
			first_client = 0;
		}
		printf("]}");
	}
	printf("], \"faults\": [");
	for (unsigned i = 0, first = 1; i < MG_MAX_FAULTS; i++) {
		const struct mg_fault *f = &s->faults[i];
		if (f->kind == 0 || f->remaining == 0)
			continue;
		printf("%s\n  {\"number\": %u, \"fault\": \"%s\", \"gpu\": %d, \"pid\": %d, \"job_id\": %u, \"value\": %lld, "
		       "\"remaining\": %d, \"call\": \"%s\"}",
		       first ? "" : ",", f->id, fault_names[f->kind], f->gpu, f->pid, f->job, (long long)f->value,
		       f->remaining, f->call);
		first = 0;
	}
	printf("], \"history\": {\"first\": %llu, \"next\": %llu, \"dropped\": %u}}\n",
	       (unsigned long long)s->history_base, (unsigned long long)s->history_next, s->history_dropped);
}

static void show_faults(const struct mg_state *s)
{
	for (unsigned i = 0; i < MG_MAX_FAULTS; i++) {
		const struct mg_fault *f = &s->faults[i];
		if (f->kind == 0 || f->remaining == 0)
			continue;
		printf("fault %u: %s", f->id, fault_names[f->kind]);
		if (f->gpu >= 0)
			printf(" gpu=%d", f->gpu);
		if (f->pid != 0)
			printf(" pid=%d", f->pid);
		if (f->job != 0)
			printf(" job=%u", f->job);
		if (f->value != 0)
			printf(" value=%lld", (long long)f->value);
		if (f->remaining > 0)
			printf(" count=%d", f->remaining);
		if (f->call[0] != '\0')
			printf(" call=%s", f->call);
		printf("%s\n", f->fatal ? " fatal" : "");
	}
}

static void show_table(const struct mg_state *s)
{
	char uuid[48];

	printf("%-3s %-24s %-40s %10s %10s %5s\n", "GPU", "MODEL", "UUID", "USED_MIB", "TOTAL_MIB", "UTIL%");
	for (unsigned i = 0; i < s->gpu_count; i++) {
		mg_uuid_text(s->gpus[i].uuid, uuid);
		printf("%-3u %-24s %-40s %10llu %10llu %5u\n", i, s->gpus[i].name, uuid,
		       (unsigned long long)(mg_used_bytes(s, i) / MG_MIB),
		       (unsigned long long)(s->gpus[i].total_bytes / MG_MIB), mg_ring_percent(&s->gpus[i].ring, mg_now()));
	}
	printf("\n%-8s %-6s %-8s %-16s %-13s %-3s %10s %10s %5s\n", "PID", "UID", "JOB", "NAME", "STATE", "GPU",
	       "USED_MIB", "HOST_MIB", "UTIL%");
	for (unsigned i = 0; i < s->proc_count; i++) {
		const struct mg_proc *p = &s->procs[i];
		bool any = false;
		if (!p->in_use)
			continue;
		for (unsigned k = 0; k < s->client_count; k++) {
			const struct mg_client *c = &s->clients[k];
			if (!c->in_use || c->proc != i)
				continue;
			any = true;
			printf("%-8d %-6u %-8u %-16s %-13s %-3u %10llu %10llu %5u\n", p->pid, p->uid, p->job, p->comm,
			       p->stuck ? "stuck" : state_name(p), c->gpu,
			       (unsigned long long)(mg_client_bytes(c) / MG_MIB),
			       (unsigned long long)(c->host_bytes / MG_MIB), mg_ring_percent(&c->ring, mg_now()));
		}
		if (!any)
			printf("%-8d %-6u %-8u %-16s %-13s %-3s %10d %10d %5d\n", p->pid, p->uid, p->job, p->comm,
			       state_name(p), "-", 0, 0, 0);
	}
	show_faults(s);
}

static int show_command(int argc, char **argv)
{
	static struct mg_state s;
	bool json = argc == 2 && strcmp(argv[1], "--json") == 0;

	if (argc > 1 && !json)
		fail("show takes only --json");
	open_node();
	mg_reap(true);
	mg_snapshot(&s);
	if (json)
		show_json(&s);
	else
		show_table(&s);
	return 0;
}

/* --- inject ------------------------------------------------------------------------------------------------- */

static int clear_faults(const char *number)
{
	uint32_t id = number == NULL ? 0 : (uint32_t)parse_number(number, "--clear");
	struct mg_state *s;

	do {
		s = mg_begin();
		for (unsigned i = 0; i < MG_MAX_FAULTS; i++)
			if (id == 0 || s->faults[i].id == id)
				memset(&s->faults[i], 0, sizeof(s->faults[i]));
		for (unsigned i = 0; id == 0 && i < s->gpu_count; i++)
			s->gpus[i].leaked_bytes = 0;
		for (unsigned i = 0; id == 0 && i < s->client_count; i++) {
			struct mg_client *c = &s->clients[i];
			if (!c->in_use || c->leaked_bytes == 0)
				continue;
			int64_t gone = -(int64_t)c->leaked_bytes;
			c->leaked_bytes = 0;
			mg_event(s, MG_EVENT_FREE, &s->procs[c->proc], c->gpu, gone, mg_client_bytes(c),
				 mg_used_bytes(s, c->gpu));
		}
	} while (!mg_commit());
	return 0;
}

static int inject_command(int argc, char **argv)
{
	static const struct option options[] = {
		{ "gpu", required_argument, NULL, 'g' },   { "pid", required_argument, NULL, 'p' },
		{ "job", required_argument, NULL, 'j' },   { "value", required_argument, NULL, 'v' },
		{ "count", required_argument, NULL, 'n' }, { "call", required_argument, NULL, 'c' },
		{ "fatal", no_argument, NULL, 'f' },	   { "clear", no_argument, NULL, 'C' },
		{ "list", no_argument, NULL, 'l' },	   { NULL, 0, NULL, 0 },
	};
	static const int64_t default_values[MG_FAULT_KINDS] = {
		[MG_FAULT_NVML_ERROR] = 999, [MG_FAULT_NVML_HANG] = 5, [MG_FAULT_ECC] = 1,
		[MG_FAULT_COPY_RATE] = 100 * (int64_t)MG_MIB, [MG_FAULT_SPEED] = 50,
	};
	static struct mg_state snapshot;
	struct mg_fault fault = { .gpu = -1, .remaining = -1, .value = -1 };
	bool clear = false;
	int option;

	open_node();
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'g':
			fault.gpu = (int32_t)parse_number(optarg, "--gpu");
			break;
		case 'p':
			fault.pid = (int32_t)parse_number(optarg, "--pid");
			break;
		case 'j':
			fault.job = (uint32_t)parse_number(optarg, "--job");
			break;
		case 'v':
			fault.value = (int64_t)parse_size(optarg, "--value");
			break;
		case 'n':
			fault.remaining = (int32_t)parse_number(optarg, "--count");
			break;
		case 'c':
			if (strlen(optarg) >= sizeof(fault.call))
				fail("--call: too long");
			snprintf(fault.call, sizeof(fault.call), "%s", optarg);
			break;
		case 'f':
			fault.fatal = 1;
			break;
		case 'C':
			clear = true;
			break;
		case 'l':
			mg_snapshot(&snapshot);
			show_faults(&snapshot);
			return 0;
		default:
			return 2;
		}
	}
	if (clear)
		return clear_faults(optind < argc ? argv[optind] : NULL);
	if (optind != argc - 1)
		fail("inject: name one fault (see mockgpu --help)");
	for (uint32_t kind = 1; kind < MG_FAULT_KINDS; kind++)
		if (strcmp(argv[optind], fault_names[kind]) == 0)
			fault.kind = kind;
	if (fault.kind == 0)
		fail("inject: no such fault: %s (see mockgpu --help)", argv[optind]);
	if (fault.value < 0)
		fault.value = default_values[fault.kind];
	struct mg_state *s;
	unsigned slot;
	uint32_t id;
	do {
		s = mg_begin();
		for (slot = 0; slot < MG_MAX_FAULTS; slot++)
			if (s->faults[slot].kind == 0 || s->faults[slot].remaining == 0)
				break;
		if (slot == MG_MAX_FAULTS) {
			mg_abort();
			fail("inject: %d faults are there already; clear some", MG_MAX_FAULTS);
		}
		if (fault.gpu >= (int32_t)s->gpu_count) {
			mg_abort();
			fail("inject: no GPU %d", fault.gpu);
		}
		id = fault.id = s->next_fault_id++;
		s->faults[slot] = fault;
	} while (!mg_commit());
	printf("%u\n", id);
	return 0;
}

int main(int argc, char **argv)
{
	while (argc > 2 && strcmp(argv[1], "--dir") == 0) {
		setenv("MOCKGPU_DIR", argv[2], 1);
		argc -= 2;
		argv += 2;
	}
	if (argc < 2) {
		fputs(help, stderr);
		return 2;
	}
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
			fputs(help, stdout);
			return 0;
		}
	const char *command = argv[1];
	argc--;
	argv++;
	if (strcmp(command, "init") == 0)
		return init_command(argc, argv);
	if (strcmp(command, "show") == 0)
		return show_command(argc, argv);
	if (strcmp(command, "inject") == 0)
		return inject_command(argc, argv);
	if (strcmp(command, "history") == 0 || strcmp(command, "overlaps") == 0) {
		open_node();
		mg_reap(true);
		return *command == 'h' ? history_command(argc, argv) : overlaps_command(argc, argv);
	}
	if (strcmp(command, "clear-history") == 0) {
		open_node();
		mg_reap(true);
		mg_history_clear();
		return 0;
	}
	fail("no such command: %s (see mockgpu --help)", command);
}
