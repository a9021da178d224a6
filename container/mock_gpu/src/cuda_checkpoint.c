/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The caller's side of the checkpoint API: a request is left in the target's entry of the shared state,
 * the target's restore thread carries it out (cuda.c) and leaves the answer there. A process that is
 * stopped or frozen therefore does not answer, as with the real driver. */
#include "cuda_api.h"
#include "state.h"

#include <string.h>
#include <unistd.h>

static CUresult find(struct mg_state *s, int pid, int *slot)
{
	if (pid <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	*slot = mg_find_proc(s, pid, 0);
	if (*slot < 0) { /* a thread of the process will do */
		int group = mg_thread_group(pid);
		if (group < 0)
			return CUDA_ERROR_INVALID_VALUE; /* no such process */
		*slot = mg_find_proc(s, group, 0);
	}
	if (*slot < 0)
		return CUDA_ERROR_NOT_INITIALIZED; /* not a CUDA process */
	if (geteuid() != 0 && geteuid() != s->procs[*slot].uid)
		return CUDA_ERROR_NOT_PERMITTED;
	return CUDA_SUCCESS;
}

static CUresult look(int pid, struct mg_proc *out)
{
	int slot;

	if (mg_open() != 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	mg_reap(true);
	struct mg_state *s = mg_begin();
	CUresult result = find(s, pid, &slot);
	if (result == CUDA_SUCCESS)
		*out = s->procs[slot];
	mg_abort();
	return result;
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
	struct mg_proc proc;

	if (state == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = look(pid, &proc);
	if (result == CUDA_SUCCESS)
		*state = (CUprocessState)proc.state;
	return result;
}

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	struct mg_proc proc;

	if (tid == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = look(pid, &proc);
	if (result == CUDA_SUCCESS)
		*tid = proc.restore_tid;
	return result;
}

/* What must be true before a request is accepted. */
static CUresult admissible(const struct mg_state *s, int slot, enum mg_op op)
{
	const struct mg_proc *p = &s->procs[slot];

	if (p->stuck == MG_STUCK_OUT_OF_SYNC)
		return CUDA_ERROR_OPERATING_SYSTEM;
	switch (op) {
	case MG_OP_LOCK:
		if (p->state != MG_RUNNING)
			return CUDA_ERROR_ILLEGAL_STATE;
		return mg_has_context(s, (unsigned)slot) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
	case MG_OP_CHECKPOINT:
	case MG_OP_UNLOCK:
		return p->state == MG_LOCKED ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
	case MG_OP_RESTORE:
		if (p->state != MG_CHECKPOINTED)
			return CUDA_ERROR_ILLEGAL_STATE;
		return p->stuck ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* Turns UUID pairs into map[old GPU] = new GPU. The driver has recorded every GPU the process could open,
 * used or not, and a map that moves anything must say where each of them goes. Drivers are also reported to
 * want every GPU of the node in it, and to refuse to move a process with a narrowed CUDA_VISIBLE_DEVICES:
 * those are the strict ones. */
static CUresult read_pairs(const struct mg_state *s, int slot, const CUcheckpointRestoreArgs *args, int8_t *map)
{
	uint32_t targets = 0;
	bool moves = false;

	memset(map, -1, MG_MAX_GPUS);
	for (unsigned i = 0; i < args->gpuPairsCount; i++) {
		int from = -1, to = -1;
		for (unsigned g = 0; g < s->gpu_count; g++) {
			if (memcmp(s->gpus[g].uuid, args->gpuPairs[i].oldUuid.bytes, 16) == 0)
				from = (int)g;
			if (memcmp(s->gpus[g].uuid, args->gpuPairs[i].newUuid.bytes, 16) == 0)
				to = (int)g;
		}
		if (from < 0 || to < 0 || map[from] >= 0 || (targets & 1u << to) != 0)
			return CUDA_ERROR_INVALID_VALUE;
		if (strcmp(s->gpus[from].name, s->gpus[to].name) != 0 ||
		    s->gpus[from].total_bytes != s->gpus[to].total_bytes)
			return CUDA_ERROR_INVALID_VALUE; /* not the same chip type */
		map[from] = (int8_t)to;
		targets |= 1u << to;
		moves = moves || from != to;
	}
	if (moves && s->strict_device_map && s->procs[slot].visible != s->procs[slot].allowed)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned g = 0; g < s->gpu_count; g++)
		if (moves && (s->strict_device_map || (s->procs[slot].allowed & 1u << g) != 0) && map[g] < 0)
			return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < s->client_count; i++)
		if (s->clients[i].in_use && s->clients[i].proc == slot && map[s->clients[i].gpu] < 0)
			return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult request(int pid, enum mg_op op, uint64_t timeout_ms, const CUcheckpointRestoreArgs *args)
{
	struct mg_state *s;
	uint32_t id = 0, serial = 0;
	int slot = -1;
	CUresult result;
	uint64_t deadline = timeout_ms == 0 ? UINT64_MAX : mg_now() + timeout_ms * 1000000;

	for (;;) { /* leave the request; while somebody else's is under way, wait for its end */
		mg_reap(true);
		s = mg_begin();
		result = find(s, pid, &slot);
		struct mg_proc *p = &s->procs[slot];
		if (result == CUDA_SUCCESS && p->op != MG_OP_NONE && !mg_asker_dead(p)) {
			mg_abort();
			if (mg_now() >= deadline)
				return CUDA_ERROR_NOT_READY;
			mg_sleep_until(mg_now() + 2000000);
			continue;
		}
		if (result == CUDA_SUCCESS && p->op != MG_OP_NONE && mg_drop_request(s, p)) {
			if (!mg_commit())
				continue;
			return CUDA_ERROR_OPERATING_SYSTEM;
		}
		if (result == CUDA_SUCCESS)
			result = admissible(s, slot, op);
		if (result != CUDA_SUCCESS) {
			mg_abort();
			return result;
		}
		p->op_mapped = args != NULL && args->gpuPairsCount > 0;
		if (p->op_mapped) {
			result = args->gpuPairs == NULL ? CUDA_ERROR_INVALID_VALUE :
							  read_pairs(s, slot, args, p->op_map);
			if (result != CUDA_SUCCESS) {
				mg_abort();
				return result;
			}
		}
		if (timeout_ms == 0 && op != MG_OP_LOCK && s->operation_timeout_ms > 0)
			deadline = mg_now() + s->operation_timeout_ms * 1000000ull;
		p->op = op;
		p->op_id = id = ++s->next_op_id;
		p->op_started = 0;
		p->op_pid = getpid();
		p->op_pid_namespace = mg_pid_namespace();
		p->op_start_time = mg_start_time(getpid());
		serial = p->serial;
		if (mg_commit())
			break;
	}
	mg_futex_wake(mg_request_word((unsigned)slot));
	for (;;) {
		uint32_t seen = atomic_load(mg_answer_word((unsigned)slot));
		mg_reap(false);
		s = mg_begin();
		struct mg_proc *p = &s->procs[slot];
		if ((unsigned)slot >= s->proc_count || !p->in_use || p->serial != serial) {
			mg_abort();
			return CUDA_ERROR_INVALID_VALUE; /* it died meanwhile */
		}
		if (p->op_done_id == id) {
			result = (CUresult)p->op_result;
			mg_abort();
			return result;
		}
		if (p->op_id != id) { /* answered, and somebody else's request has come since */
			mg_abort();
			return CUDA_ERROR_UNKNOWN;
		}
		/* Take it back in time: then it has not happened and will not happen. */
		if (mg_now() >= deadline && !p->op_started) {
			p->op = MG_OP_NONE;
			if (!mg_commit())
				continue;
			mg_futex_wake(mg_request_word((unsigned)slot));
			return op == MG_OP_LOCK ? CUDA_ERROR_NOT_READY : CUDA_ERROR_TIMEOUT;
		}
		mg_abort();
		uint64_t now = mg_now(), left = deadline > now ? deadline - now : 1000000;
		mg_futex_wait(mg_answer_word((unsigned)slot), seen, left < 50000000 ? left : 50000000);
	}
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
	if (mg_open() != 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	return request(pid, MG_OP_LOCK, args == NULL ? 0 : args->timeoutMs, NULL);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
	(void)args;
	if (mg_open() != 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	return request(pid, MG_OP_CHECKPOINT, 0, NULL);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
	if (mg_open() != 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	return request(pid, MG_OP_RESTORE, 0, args);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
	(void)args;
	if (mg_open() != 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	return request(pid, MG_OP_UNLOCK, 0, NULL);
}
