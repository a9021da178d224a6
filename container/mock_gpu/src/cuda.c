/* SPDX-License-Identifier: GPL-2.0-or-later */
/* libcuda.so.1: the process's side of the mock driver.
 *
 * Device memory is a file without a name in the node's folder, reached only through addresses that are not
 * mapped (reading a device pointer on the host crashes, as it should); a checkpoint really moves it to
 * anonymous memory of the process. What counts against the GPU is kept in the shared state. Every call passes a gate; the restore thread closes it while another process
 * has this one locked by the checkpoint API. */
#include "cuda_api.h"
#include "state.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct extent {
	off_t start, end;
};

struct allocation {
	CUdeviceptr address;
	size_t bytes;
	uint64_t booked; /* what it stands for */
	size_t mapped;
	int file;            /* the device's memory; -1 while it is in host memory */
	unsigned char *host; /* where the file is mapped */
	unsigned char *saved;
	struct extent *extents; /* where in saved there is anything */
	size_t extent_count;
	struct mock_context *context;
	struct allocation *next;
};

struct mock_context {
	int ordinal;
	bool primary;
	unsigned references; /* primary: times retained */
	unsigned flags;
	unsigned communicators;
	uint64_t small_bytes; /* of allocations that share 2 MiB pages */
	uint64_t serial;
	struct mock_context *next;
};

struct mock_module {
	int loaded;
};

struct mock_function {
	const char *name;
	unsigned parameters;
};

struct mock_stream {
	struct mock_context *context;
};

struct mock_event_handle {
	uint64_t time_ns;
};

static struct {
	pid_t pid; /* 0 = cuInit not called */
	unsigned slot;
	uint32_t serial;
	uint32_t job;
	int count; /* visible devices */
	unsigned physical[MG_MAX_GPUS];
} me;

static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;
/* Guards contexts and allocations. Never held while sleeping. */
static pthread_mutex_t objects = PTHREAD_MUTEX_INITIALIZER;
static struct mock_context *contexts;
static struct allocation *allocations;
static struct mock_context *primary[MG_MAX_GPUS];
static CUdeviceptr next_address = 0x700000000000ull;
static uint64_t next_context_serial;

#define STACK_DEPTH 32
static _Thread_local struct mock_context *stack[STACK_DEPTH];
static _Thread_local unsigned stack_top;

/* --- the gate ------------------------------------------------------------------------------------- */

static struct {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	bool closed;
	unsigned inside;
	CUresult error; /* after a failed checkpoint or restore every call says this */
} gate = { .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static CUresult enter(void)
{
	if (me.pid == 0 || me.pid != getpid()) /* CUDA does not survive a fork */
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&gate.mutex);
	while (gate.closed)
		pthread_cond_wait(&gate.changed, &gate.mutex);
	CUresult result = gate.error;
	if (result == CUDA_SUCCESS)
		gate.inside++;
	pthread_mutex_unlock(&gate.mutex);
	return result;
}

static CUresult leave(CUresult result)
{
	pthread_mutex_lock(&gate.mutex);
	if (--gate.inside == 0)
		pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.mutex);
	return result;
}

#define ENTER()                                 \
	do {                                    \
		CUresult entered = enter();     \
		if (entered != CUDA_SUCCESS)    \
			return entered;         \
	} while (0)

static void gate_set(bool closed, CUresult error)
{
	pthread_mutex_lock(&gate.mutex);
	gate.closed = closed;
	gate.error = error;
	pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.mutex);
}

/* Waits at most timeout_ns for all calls under way to return. */
static bool gate_empty(uint64_t timeout_ns)
{
	struct timespec t;
	uint64_t until = mg_real() + timeout_ns;

	t.tv_sec = (time_t)(until / 1000000000ull);
	t.tv_nsec = (long)(until % 1000000000ull);
	pthread_mutex_lock(&gate.mutex);
	if (gate.inside > 0)
		pthread_cond_timedwait(&gate.changed, &gate.mutex, &t);
	bool empty = gate.inside == 0;
	pthread_mutex_unlock(&gate.mutex);
	return empty;
}

/* --- the restore thread ---------------------------------------------------------------------------- */

/* Our entry in a state being changed, or NULL when the node has been set up anew. */
static struct mg_proc *my_proc(struct mg_state *s)
{
	struct mg_proc *p = &s->procs[me.slot];

	return me.slot < s->proc_count && p->in_use && p->serial == me.serial ? p : NULL;
}

/* False when the request was taken back, or whoever made it was killed. */
static bool still_asked(uint32_t id)
{
	struct mg_state *s = mg_begin();
	struct mg_proc *p = my_proc(s);
	bool asked = p != NULL && p->op != MG_OP_NONE && p->op_id == id && !mg_asker_dead(p);

	mg_abort();
	return asked;
}

static bool my_client(const struct mg_state *s, unsigned i)
{
	return s->clients[i].in_use && s->clients[i].proc == me.slot;
}

static void answer(struct mg_proc *p, CUresult result)
{
	p->op_done_id = p->op_id;
	p->op_result = result;
	p->op = MG_OP_NONE;
}

/* Sleeps as long as copying these bytes takes; false when the request was taken back meanwhile. */
static bool copy_delay(uint64_t bytes, uint64_t rate, uint32_t id)
{
	if (rate == 0)
		return true;
	uint64_t until = mg_now() + (uint64_t)((double)bytes * 1e9 / (double)rate);
	while (mg_now() < until) {
		uint64_t next = mg_now() + 20000000;
		mg_sleep_until(next < until ? next : until);
		if (id != 0 && !still_asked(id))
			return false;
	}
	return true;
}

static uint64_t copy_rate(struct mg_state *s, unsigned gpu)
{
	struct mg_fault *f = mg_fault(s, MG_FAULT_COPY_RATE, me.pid, me.job, (int)gpu, NULL);

	return f != NULL ? (uint64_t)f->value : s->copy_rate;
}

static void serve_lock(uint32_t id)
{
	bool pretend_busy;
	struct mg_state *s;

	gate_set(true, CUDA_SUCCESS);
	s = mg_begin();
	pretend_busy = mg_fault(s, MG_FAULT_LOCK_TIMEOUT, me.pid, me.job, -1, NULL) != NULL;
	if (!pretend_busy || !mg_commit())
		mg_abort();
	for (;;) { /* until work already submitted is done */
		bool done = gate_empty(5000000) && !pretend_busy;
		uint64_t next = mg_now() + 20000000;
		s = mg_begin();
		for (unsigned i = 0; i < s->client_count; i++)
			if (my_client(s, i) && mg_kernel_running(s, i)) {
				uint64_t finish = mg_kernel_finish(s, i, mg_now());
				next = finish < next ? finish : next;
				done = false;
			}
		struct mg_proc *p = my_proc(s);
		if (p == NULL || p->op != MG_OP_LOCK || p->op_id != id) { /* time is up */
			bool out_of_sync = p != NULL && p->stuck == MG_STUCK_OUT_OF_SYNC;
			mg_abort();
			gate_set(out_of_sync, CUDA_SUCCESS);
			return;
		}
		if (mg_asker_dead(p)) {
			bool out_of_sync = mg_drop_request(s, p);
			if (!mg_commit())
				continue;
			gate_set(out_of_sync, CUDA_SUCCESS); /* and then nobody can open it any more */
			return;
		}
		if (!done) {
			mg_abort();
			mg_sleep_until(next);
			continue;
		}
		p->state = MG_LOCKED;
		answer(p, CUDA_SUCCESS);
		for (unsigned i = 0; i < s->client_count; i++)
			if (my_client(s, i))
				mg_event(s, MG_EVENT_LOCK, p, s->clients[i].gpu, 0, mg_client_bytes(&s->clients[i]),
					 mg_used_bytes(s, s->clients[i].gpu));
		if (mg_commit())
			return;
	}
}

/* --- where device memory is ------------------------------------------------------------------------- */

static bool map_file(struct allocation *a)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/memory", mg_directory());
	a->file = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (a->file < 0) {
		snprintf(path, sizeof(path), "%s/memory/XXXXXX", mg_directory());
		a->file = mkostemp(path, O_CLOEXEC);
		if (a->file >= 0)
			unlink(path);
	}
	if (a->file < 0)
		a->file = memfd_create("mockgpu", MFD_CLOEXEC);
	if (a->file < 0 || ftruncate(a->file, (off_t)a->mapped) < 0)
		return false;
	a->host = mmap(NULL, a->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, a->file, 0);
	if (a->host == MAP_FAILED)
		return false;
	madvise(a->host, a->mapped, MADV_DONTFORK);
	return true;
}

static void unmap_file(struct allocation *a)
{
	if (a->host != NULL && a->host != MAP_FAILED)
		munmap(a->host, a->mapped);
	if (a->file >= 0)
		close(a->file);
	a->host = NULL;
	a->file = -1;
}

static void drop_saved(struct allocation *a)
{
	if (a->saved != NULL)
		munmap(a->saved, a->mapped);
	free(a->extents);
	a->saved = NULL;
	a->extents = NULL;
	a->extent_count = 0;
}

/* Copies what was ever written to into anonymous memory of the process, and gives the device's up. */
static bool save_allocation(struct allocation *a)
{
	off_t start = 0, end;

	a->saved = mmap(NULL, a->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (a->saved == MAP_FAILED) {
		a->saved = NULL;
		return false;
	}
	madvise(a->saved, a->mapped, MADV_DONTFORK);
	madvise(a->saved, a->mapped, MADV_NOHUGEPAGE);
	while ((start = lseek(a->file, start, SEEK_DATA)) >= 0) {
		end = lseek(a->file, start, SEEK_HOLE);
		struct extent *more = realloc(a->extents, (a->extent_count + 1) * sizeof(*more));
		if (end < 0 || more == NULL)
			return false;
		a->extents = more;
		a->extents[a->extent_count++] = (struct extent){ start, end };
		for (; start < end;) {
			ssize_t n = pread(a->file, a->saved + start, (size_t)(end - start), start);
			if (n <= 0)
				return false;
			start += n;
		}
	}
	return true;
}

static bool load_allocation(struct allocation *a)
{
	if (!map_file(a))
		return false;
	for (size_t i = 0; i < a->extent_count; i++)
		for (off_t at = a->extents[i].start; at < a->extents[i].end;) {
			ssize_t n = pwrite(a->file, a->saved + at, (size_t)(a->extents[i].end - at), at);
			if (n <= 0)
				return false;
			at += n;
		}
	return true;
}

/* All device memory to host memory, or none of it. */
static bool save_memory(void)
{
	bool saved = true;

	pthread_mutex_lock(&objects);
	for (struct allocation *a = allocations; a != NULL && saved; a = a->next)
		saved = save_allocation(a);
	for (struct allocation *a = allocations; a != NULL; a = a->next)
		if (saved)
			unmap_file(a);
		else
			drop_saved(a);
	pthread_mutex_unlock(&objects);
	return saved;
}

static bool load_memory(void)
{
	bool loaded = true;

	pthread_mutex_lock(&objects);
	for (struct allocation *a = allocations; a != NULL && loaded; a = a->next)
		loaded = load_allocation(a);
	for (struct allocation *a = allocations; a != NULL; a = a->next)
		if (loaded)
			drop_saved(a);
		else
			unmap_file(a);
	pthread_mutex_unlock(&objects);
	return loaded;
}

/* Says that a call is under way: from here on it cannot be taken back. False when it was before. */
static bool begin(uint32_t id, enum mg_op op, enum mg_proc_state state)
{
	struct mg_state *s;

	do {
		s = mg_begin();
		struct mg_proc *p = my_proc(s);
		if (p == NULL || p->op != op || p->op_id != id) {
			mg_abort();
			return false;
		}
		p->op_started = 1;
		p->state = (uint16_t)state;
	} while (!mg_commit());
	return true;
}

/* The maker of the call was killed in the middle of it. */
static void cut_off(uint32_t id)
{
	struct mg_state *s;

	do {
		s = mg_begin();
		struct mg_proc *p = my_proc(s);
		if (p == NULL || p->op_id != id) {
			mg_abort();
			return;
		}
		mg_drop_request(s, p);
	} while (!mg_commit());
}

static void serve_checkpoint(uint32_t id)
{
	struct mg_state *s = mg_begin();
	uint64_t bytes = 0, rate = s->copy_rate;
	CUresult result = CUDA_SUCCESS;

	for (unsigned i = 0; i < s->client_count; i++)
		if (my_client(s, i)) {
			bytes += s->clients[i].memory_bytes;
			rate = copy_rate(s, s->clients[i].gpu);
			if (s->clients[i].communicators > 0)
				result = CUDA_ERROR_NOT_SUPPORTED; /* NCCL's memory is shared with other processes */
		}
	mg_abort();
	if (!begin(id, MG_OP_CHECKPOINT, MG_CHECKPOINTING))
		return;
	if (result == CUDA_SUCCESS && !copy_delay(bytes, rate, id)) {
		cut_off(id);
		return;
	}
	bool moved = false;
	do {
		s = mg_begin();
		struct mg_proc *p = my_proc(s);
		if (p == NULL) {
			mg_abort();
			return;
		}
		struct mg_fault *f = mg_fault(s, MG_FAULT_CHECKPOINT_FAIL, me.pid, p->job, -1, NULL);
		p->state = MG_LOCKED;
		if (f != NULL)
			result = f->fatal ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_OPERATING_SYSTEM;
		if (f != NULL && f->fatal)
			p->state = MG_FAILED;
		if (result == CUDA_SUCCESS && !moved && !(moved = save_memory()))
			result = CUDA_ERROR_OUT_OF_MEMORY;
		for (unsigned i = 0; i < s->client_count; i++) {
			struct mg_client *c = &s->clients[i];
			if (!my_client(s, i) || result != CUDA_SUCCESS)
				continue;
			uint64_t before = mg_client_bytes(c);
			struct mg_fault *leak = mg_fault(s, MG_FAULT_CHECKPOINT_LEAK, me.pid, p->job, c->gpu, NULL);
			mg_busy_event(s, c);
			c->host_bytes = c->memory_bytes;
			c->memory_bytes = c->context_bytes = 0;
			if (leak != NULL)
				c->leaked_bytes = leak->value > 0 && (uint64_t)leak->value < before ?
							  (uint64_t)leak->value : before;
			mg_event(s, MG_EVENT_CHECKPOINT, p, c->gpu, (int64_t)mg_client_bytes(c) - (int64_t)before,
				 mg_client_bytes(c), mg_used_bytes(s, c->gpu));
		}
		if (result == CUDA_SUCCESS)
			p->state = MG_CHECKPOINTED;
		answer(p, result);
	} while (!mg_commit());
	if (result == CUDA_ERROR_UNKNOWN)
		gate_set(false, CUDA_ERROR_UNKNOWN);
}

/* Takes the memory on the GPUs of the map. On success *bytes and *rate say how long the copy takes. */
static CUresult claim_for_restore(struct mg_state *s, struct mg_proc *p, uint64_t *bytes, uint64_t *rate)
{
	uint32_t allowed = mg_allowed_gpus(s->gpu_count);
	unsigned target[MG_MAX_CLIENTS];
	struct mg_fault *f = mg_fault(s, MG_FAULT_RESTORE_FAIL, me.pid, p->job, -1, NULL);

	if (f != NULL) {
		if (f->fatal)
			p->state = MG_FAILED;
		return f->fatal ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_OPERATING_SYSTEM;
	}
	for (unsigned i = 0; i < s->client_count; i++) {
		if (!my_client(s, i))
			continue;
		unsigned from = s->clients[i].gpu;
		unsigned to = target[i] = p->op_mapped ? (unsigned)p->op_map[from] : from;
		if ((allowed & 1u << to) == 0)
			return CUDA_ERROR_OPERATING_SYSTEM; /* the job's cgroup forbids the device */
		if (mg_fault(s, MG_FAULT_GPU_LOST, me.pid, p->job, (int)to, NULL) != NULL)
			return CUDA_ERROR_DEVICE_UNAVAILABLE;
	}
	for (unsigned i = 0; i < s->client_count; i++)
		if (my_client(s, i))
			s->clients[i].leaked_bytes = 0;
	for (unsigned i = 0; i < s->client_count; i++) {
		if (!my_client(s, i))
			continue;
		const struct mg_client *c = &s->clients[i];
		uint64_t need = c->host_bytes + mg_context_bytes(s, c);
		if (mg_used_bytes(s, target[i]) + need <= s->gpus[target[i]].total_bytes)
			continue;
		/* Driver 580 (NVIDIA/cuda-checkpoint issue 44): the state stays CHECKPOINTED, and no later
		 * restore works either, even with enough memory. */
		p->stuck = MG_STUCK_RESTORE;
		if (s->restore_oom_fails)
			p->state = MG_FAILED;
		for (unsigned k = 0; k < s->client_count; k++)
			if (my_client(s, k))
				mg_event(s, MG_EVENT_RESTORE_FAILED, p, target[k], 0, 0, mg_used_bytes(s, target[k]));
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*bytes = 0;
	for (unsigned i = 0; i < s->client_count; i++) {
		struct mg_client *c = &s->clients[i];
		if (!my_client(s, i))
			continue;
		*bytes += c->host_bytes;
		*rate = copy_rate(s, target[i]);
		c->gpu = (uint16_t)target[i];
		c->memory_bytes = c->host_bytes;
		c->context_bytes = mg_context_bytes(s, c);
		c->host_bytes = 0;
		c->kernel_end = 0;
		c->busy_since = mg_real();
		mg_event(s, MG_EVENT_RESTORE, p, c->gpu, (int64_t)mg_client_bytes(c), mg_client_bytes(c),
			 mg_used_bytes(s, c->gpu));
	}
	return CUDA_SUCCESS;
}

static void serve_restore(uint32_t id)
{
	uint64_t bytes = 0, rate = 0;
	int8_t map[MG_MAX_GPUS];
	bool mapped, failed;
	CUresult result;
	struct mg_state *s;
	struct mg_proc *p;

	mg_reap(true);
	do {
		s = mg_begin();
		p = my_proc(s);
		if (p == NULL || p->op != MG_OP_RESTORE || p->op_id != id) {
			mg_abort();
			return;
		}
		mapped = p->op_mapped;
		memcpy(map, p->op_map, sizeof(map));
		result = claim_for_restore(s, p, &bytes, &rate);
		failed = p->state == MG_FAILED;
		if (result == CUDA_SUCCESS) {
			p->op_started = 1;
			p->state = MG_RESTORING;
		} else {
			answer(p, result);
		}
	} while (!mg_commit());
	if (failed)
		gate_set(false, CUDA_ERROR_UNKNOWN);
	if (result != CUDA_SUCCESS)
		return;
	for (int i = 0; mapped && i < me.count; i++)
		if (map[me.physical[i]] >= 0)
			me.physical[i] = (unsigned)map[me.physical[i]];
	if (!copy_delay(bytes, rate, id)) {
		cut_off(id);
		return;
	}
	result = load_memory() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	do {
		s = mg_begin();
		p = my_proc(s);
		if (p == NULL) {
			mg_abort();
			return;
		}
		p->state = result == CUDA_SUCCESS ? MG_LOCKED : MG_FAILED;
		answer(p, result);
	} while (!mg_commit());
	if (result != CUDA_SUCCESS)
		gate_set(false, CUDA_ERROR_UNKNOWN);
}

static void serve_unlock(uint32_t id)
{
	CUresult result;
	struct mg_state *s;

	do {
		s = mg_begin();
		struct mg_proc *p = my_proc(s);
		if (p == NULL || p->op != MG_OP_UNLOCK || p->op_id != id) {
			mg_abort();
			return;
		}
		bool fails = mg_fault(s, MG_FAULT_UNLOCK_FAIL, me.pid, p->job, -1, NULL) != NULL;
		result = fails ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
		if (!fails) {
			p->state = MG_RUNNING;
			for (unsigned i = 0; i < s->client_count; i++)
				if (my_client(s, i))
					mg_event(s, MG_EVENT_UNLOCK, p, s->clients[i].gpu, 0,
						 mg_client_bytes(&s->clients[i]),
						 mg_used_bytes(s, s->clients[i].gpu));
		}
		answer(p, result);
	} while (!mg_commit());
	if (result == CUDA_SUCCESS)
		gate_set(false, CUDA_SUCCESS);
}

static void *restore_thread(void *ready)
{
	_Atomic uint32_t *request = mg_request_word(me.slot);

	pthread_setname_np(pthread_self(), "cuda-restore");
	atomic_store((_Atomic int *)ready, (int)syscall(SYS_gettid));
	for (;;) {
		uint32_t seen = atomic_load(request);
		struct mg_state *s = mg_begin();
		struct mg_proc *p = my_proc(s);
		uint32_t op = p == NULL ? MG_OP_NONE : p->op, id = p == NULL ? 0 : p->op_id;
		if (op != MG_OP_NONE && mg_asker_dead(p)) {
			mg_drop_request(s, p);
			if (!mg_commit())
				mg_abort();
			continue;
		}
		mg_abort();
		if (p == NULL) { /* the node was set up anew under us */
			gate_set(false, CUDA_ERROR_DEINITIALIZED);
			return NULL;
		}
		switch (op) {
		case MG_OP_LOCK:
			serve_lock(id);
			break;
		case MG_OP_CHECKPOINT:
			serve_checkpoint(id);
			break;
		case MG_OP_RESTORE:
			serve_restore(id);
			break;
		case MG_OP_UNLOCK:
			serve_unlock(id);
			break;
		default:
			mg_futex_wait(request, seen, 2000000000ull);
			continue;
		}
		mg_futex_wake(mg_answer_word(me.slot));
	}
}

/* --- cuInit, devices ---------------------------------------------------------------------------------- */

/* CUDA_VISIBLE_DEVICES picks from the devices that may be opened: indices or UUIDs (a beginning will do),
 * up to the first that is not valid. */
static int choose_devices(const struct mg_state *s, uint32_t allowed, unsigned *out)
{
	const char *text = getenv("CUDA_VISIBLE_DEVICES");
	unsigned all[MG_MAX_GPUS], n = mg_enumerate(s, allowed, all), count = 0;

	if (text == NULL) {
		memcpy(out, all, n * sizeof(*out));
		return (int)n;
	}
	while (*text != '\0' && count < MG_MAX_GPUS) {
		size_t length = strcspn(text, ",");
		char item[64], uuid[48], *end;
		unsigned found = MG_MAX_GPUS;
		snprintf(item, sizeof(item), "%.*s", (int)(length < 63 ? length : 63), text);
		if (strncmp(item, "GPU-", 4) == 0) {
			for (unsigned i = 0; i < n; i++) {
				mg_uuid_text(s->gpus[all[i]].uuid, uuid);
				if (strncmp(uuid, item, strlen(item)) == 0)
					found = all[i];
			}
		} else {
			long index = strtol(item, &end, 10);
			if (end != item && *end == '\0' && index >= 0 && index < (long)n)
				found = all[index];
		}
		if (found == MG_MAX_GPUS)
			break;
		for (unsigned i = 0; i < count; i++)
			if (out[i] == found)
				return 0; /* twice the same: the driver shows no device at all */
		out[count++] = found;
		text += length;
		text += *text == ',';
	}
	return (int)count;
}

static CUresult start_restore_thread(int *tid)
{
	static _Atomic int ready;
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all, old;

	ready = 0;
	sigfillset(&all); /* the job's signals are for the job's threads */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 512 * 1024);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	int error = pthread_create(&thread, &attributes, restore_thread, (void *)&ready);
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (error != 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	while ((*tid = atomic_load(&ready)) == 0)
		usleep(100);
	return CUDA_SUCCESS;
}

static CUresult init_locked(void)
{
	struct mg_state *s;
	int slot, tid = 0;

	if (me.pid != 0)
		return me.pid == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
	if (mg_open() != 0)
		return CUDA_ERROR_NO_DEVICE;
	mg_reap(true);
	uint64_t start_time = mg_start_time(getpid());
	uint32_t namespace = mg_pid_namespace();
	do {
		s = mg_begin();
		uint32_t allowed = mg_allowed_gpus(s->gpu_count);
		me.count = choose_devices(s, allowed, me.physical);
		if (me.count == 0) {
			mg_abort();
			return CUDA_ERROR_NO_DEVICE;
		}
		slot = mg_find_proc(s, getpid(), start_time); /* before an exec */
		if (slot >= 0)
			mg_remove_proc(s, (unsigned)slot, MG_EVENT_EXIT, mg_now());
		slot = mg_add_proc(s);
		if (slot < 0) {
			mg_abort();
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		struct mg_proc *p = &s->procs[slot];
		p->pid = getpid();
		p->start_time = start_time;
		p->uid = getuid();
		p->job = me.job = mg_job_id(s->jobs_by_environment);
		p->pid_namespace = namespace;
		p->allowed = allowed;
		for (int i = 0; i < me.count; i++)
			p->visible |= 1u << me.physical[i];
		FILE *comm = fopen("/proc/self/comm", "re");
		if (comm != NULL) {
			if (fgets(p->comm, sizeof(p->comm), comm) != NULL)
				p->comm[strcspn(p->comm, "\n")] = '\0';
			fclose(comm);
		}
		me.serial = p->serial;
	} while (!mg_commit());
	me.slot = (unsigned)slot;
	me.pid = getpid();
	CUresult result = start_restore_thread(&tid);
	do {
		s = mg_begin();
		struct mg_proc *p = my_proc(s);
		if (p == NULL) {
			mg_abort();
			break;
		}
		p->restore_tid = tid;
	} while (!mg_commit());
	return result;
}

CUDAAPI CUresult cuInit(unsigned int flags)
{
	if (flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&init_mutex);
	CUresult result = init_locked();
	pthread_mutex_unlock(&init_mutex);
	return result;
}

__attribute__((destructor)) static void at_exit(void)
{
	if (me.pid == 0 || me.pid != getpid())
		return;
	struct mg_state *s;
	do {
		s = mg_begin();
		if (my_proc(s) == NULL) {
			mg_abort();
			return;
		}
		mg_remove_proc(s, me.slot, MG_EVENT_EXIT, mg_now());
	} while (!mg_commit());
}

CUDAAPI CUresult cuDriverGetVersion(int *version)
{
	if (version == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*version = CUDA_VERSION;
	return CUDA_SUCCESS;
}

/* The calls about devices only read; they do not wait at the gate. */
static CUresult initialised(void)
{
	return me.pid != 0 && me.pid == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult device_info(int ordinal, struct mg_gpu *gpu)
{
	if (initialised() != CUDA_SUCCESS)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (ordinal < 0 || ordinal >= me.count)
		return CUDA_ERROR_INVALID_DEVICE;
	struct mg_state *s = mg_begin();
	*gpu = s->gpus[me.physical[ordinal]];
	mg_abort();
	return CUDA_SUCCESS;
}

CUDAAPI CUresult cuDeviceGetCount(int *count)
{
	if (count == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*count = me.count;
	return initialised();
}

CUDAAPI CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	struct mg_gpu gpu;
	CUresult result = device_info(ordinal, &gpu);

	if (device == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*device = ordinal;
	return result;
}

CUDAAPI CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
	struct mg_gpu gpu;
	CUresult result = device_info(device, &gpu);

	if (name == NULL || length <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		snprintf(name, (size_t)length, "%s", gpu.name);
	return result;
}

CUDAAPI CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	struct mg_gpu gpu;
	CUresult result = device_info(device, &gpu);

	if (uuid == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		memcpy(uuid->bytes, gpu.uuid, sizeof(uuid->bytes));
	return result;
}

CUDAAPI CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	return cuDeviceGetUuid_v2(uuid, device);
}

CUDAAPI CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	struct mg_gpu gpu;
	CUresult result = device_info(device, &gpu);

	if (bytes == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*bytes = gpu.total_bytes;
	return result;
}

CUDAAPI CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
	struct mg_gpu gpu = { .place = 0 };
	char bus_id[32];
	CUresult result = device_info(device, &gpu);

	if (text == NULL || length < 13)
		return CUDA_ERROR_INVALID_VALUE;
	mg_bus_id(&gpu, bus_id);
	if (result == CUDA_SUCCESS)
		snprintf(text, (size_t)length, "%s", bus_id);
	return result;
}

CUDAAPI CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	struct mg_gpu gpu;
	CUresult result = device_info(device, &gpu);

	if (value == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return result;
	switch (attribute) {
	case 1: /* MAX_THREADS_PER_BLOCK */
		*value = 1024;
		return CUDA_SUCCESS;
	case 10: /* WARP_SIZE */
		*value = 32;
		return CUDA_SUCCESS;
	case 16: /* MULTIPROCESSOR_COUNT */
		*value = 108;
		return CUDA_SUCCESS;
	case 20: /* COMPUTE_MODE: default */
		*value = 0;
		return CUDA_SUCCESS;
	case 33: /* PCI_BUS_ID */
		*value = (int)(0x07 + gpu.place * 8);
		return CUDA_SUCCESS;
	case 34: /* PCI_DEVICE_ID */
	case 50: /* PCI_DOMAIN_ID */
		*value = 0;
		return CUDA_SUCCESS;
	case 41: /* UNIFIED_ADDRESSING */
		*value = 1;
		return CUDA_SUCCESS;
	case 75: /* COMPUTE_CAPABILITY_MAJOR */
		*value = strstr(gpu.name, "H100") || strstr(gpu.name, "H200") ? 9 : strstr(gpu.name, "A100") ? 8 : 7;
		return CUDA_SUCCESS;
	case 76: /* COMPUTE_CAPABILITY_MINOR */
	case 83: /* MANAGED_MEMORY */
		*value = 0;
		return CUDA_SUCCESS;
	default:
		*value = 0;
		return CUDA_SUCCESS;
	}
}

/* --- contexts ------------------------------------------------------------------------------------------- */

static CUresult no_room(const struct mg_state *s, unsigned gpu, uint64_t bytes)
{
	return mg_used_bytes(s, gpu) + bytes > s->gpus[gpu].total_bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static bool lost(struct mg_state *s, unsigned gpu)
{
	return mg_fault(s, MG_FAULT_GPU_LOST, me.pid, me.job, (int)gpu, NULL) != NULL;
}

static CUresult charge_context(unsigned gpu)
{
	struct mg_state *s;

	mg_reap(true); /* the memory of a job that was just killed is free */
	do {
		s = mg_begin();
		struct mg_proc *p = my_proc(s);
		CUresult result = p == NULL ? CUDA_ERROR_DEINITIALIZED :
				  lost(s, gpu) ? CUDA_ERROR_DEVICE_UNAVAILABLE :
						 no_room(s, gpu, s->context_bytes);
		int client = -1;
		if (result == CUDA_SUCCESS) {
			client = mg_find_client(s, me.slot, gpu);
			if (client < 0) {
				client = mg_add_client(s, me.slot, gpu);
				if (client >= 0)
					s->clients[client].busy_since = mg_real();
			}
			if (client < 0)
				result = CUDA_ERROR_OUT_OF_MEMORY;
		}
		if (result != CUDA_SUCCESS) {
			mg_abort();
			return result;
		}
		struct mg_client *c = &s->clients[client];
		c->contexts++;
		c->context_bytes += s->context_bytes;
		mg_event(s, MG_EVENT_CONTEXT_CREATE, p, gpu, (int64_t)s->context_bytes, mg_client_bytes(c),
			 mg_used_bytes(s, gpu));
	} while (!mg_commit());
	return CUDA_SUCCESS;
}

static void wait_for_kernels(unsigned gpu)
{
	struct mg_state *s;

	for (;;) {
		s = mg_begin();
		int client = mg_find_client(s, me.slot, gpu);
		uint64_t now = mg_now(), finish = now;
		if (client >= 0 && my_proc(s) != NULL)
			finish = mg_kernel_finish(s, (unsigned)client, now);
		mg_abort();
		if (finish <= now)
			return;
		/* Others may start kernels (later finish) or die (earlier): look again now and then. */
		mg_sleep_until(finish < now + 250000000 ? finish : now + 250000000);
		if (finish > now + 250000000)
			mg_reap(false);
	}
}

/* Gives bytes back; contexts = 1 when they are those of a context and all that is in it. */
static void give_back(unsigned gpu, uint64_t memory, unsigned contexts_gone, unsigned communicators_gone)
{
	struct mg_state *s;

	do {
		s = mg_begin();
		struct mg_proc *p = my_proc(s);
		int client = p == NULL ? -1 : mg_find_client(s, me.slot, gpu);
		if (client < 0) {
			mg_abort();
			return;
		}
		struct mg_client *c = &s->clients[client];
		uint64_t freed = memory;
		struct mg_fault *leak = mg_fault(s, MG_FAULT_FREE_LEAK, me.pid, p->job, (int)gpu, NULL);
		c->memory_bytes -= memory < c->memory_bytes ? memory : c->memory_bytes;
		c->contexts -= contexts_gone;
		c->communicators -= communicators_gone;
		freed += c->context_bytes - mg_context_bytes(s, c);
		c->context_bytes = mg_context_bytes(s, c);
		if (leak != NULL) {
			uint64_t stays = leak->value > 0 && (uint64_t)leak->value < freed ? (uint64_t)leak->value :
											    freed;
			s->gpus[gpu].leaked_bytes += stays;
		}
		if (contexts_gone > 0 && c->contexts == 0)
			mg_busy_event(s, c);
		mg_event(s, contexts_gone > 0 ? MG_EVENT_CONTEXT_DESTROY : MG_EVENT_FREE, p, gpu, -(int64_t)freed,
			 mg_client_bytes(c), mg_used_bytes(s, gpu));
		if (c->contexts == 0) {
			c->in_use = 0;
			while (s->client_count > 0 && !s->clients[s->client_count - 1].in_use)
				s->client_count--;
		}
	} while (!mg_commit());
}

static struct mock_context *known_context(CUcontext context)
{
	for (struct mock_context *c = contexts; c != NULL; c = c->next)
		if (c == context)
			return c;
	return NULL;
}

/* The current context, or NULL. Call with the objects locked. */
static struct mock_context *current_context(void)
{
	return stack_top == 0 ? NULL : known_context(stack[stack_top - 1]);
}

static CUresult create_context(int ordinal, unsigned flags, bool is_primary, CUcontext *out)
{
	if (ordinal < 0 || ordinal >= me.count)
		return CUDA_ERROR_INVALID_DEVICE;
	struct mock_context *c = calloc(1, sizeof(*c));
	if (c == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = charge_context(me.physical[ordinal]);
	if (result != CUDA_SUCCESS) {
		free(c);
		return result;
	}
	c->ordinal = ordinal;
	c->flags = flags;
	c->primary = is_primary;
	c->serial = ++next_context_serial;
	c->next = contexts;
	contexts = c;
	*out = c;
	return CUDA_SUCCESS;
}

static uint64_t large_charge(size_t bytes)
{
	return (bytes + MG_PAGE - 1) / MG_PAGE * MG_PAGE;
}

static bool is_small(size_t bytes)
{
	return bytes < MG_MIB;
}

static uint64_t small_size(size_t bytes)
{
	return (bytes + 511) / 512 * 512;
}

/* Call with the objects locked and the context's kernels done. */
static void destroy_context(struct mock_context *c)
{
	uint64_t bytes = large_charge(c->small_bytes);

	for (struct allocation **a = &allocations; *a != NULL;) {
		struct allocation *gone = *a;
		if (gone->context != c) {
			a = &gone->next;
			continue;
		}
		if (!is_small(gone->booked))
			bytes += large_charge(gone->booked);
		unmap_file(gone);
		drop_saved(gone);
		*a = gone->next;
		free(gone);
	}
	for (struct mock_context **link = &contexts; *link != NULL; link = &(*link)->next)
		if (*link == c) {
			*link = c->next;
			break;
		}
	if (primary[c->ordinal] == c)
		primary[c->ordinal] = NULL;
	give_back(me.physical[c->ordinal], bytes, 1, c->communicators);
	free(c);
}

CUDAAPI CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	ENTER();
	if (context == NULL)
		return leave(CUDA_ERROR_INVALID_VALUE);
	pthread_mutex_lock(&objects);
	CUresult result = stack_top == STACK_DEPTH ? CUDA_ERROR_INVALID_CONTEXT :
						     create_context(device, flags, false, context);
	pthread_mutex_unlock(&objects);
	if (result == CUDA_SUCCESS)
		stack[stack_top++] = *context;
	return leave(result);
}

CUDAAPI CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned int flags, CUdevice device)
{
	(void)affinity;
	(void)count;
	return cuCtxCreate_v2(context, flags, device);
}

CUDAAPI CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device)
{
	(void)parameters;
	return cuCtxCreate_v2(context, flags, device);
}

CUDAAPI CUresult cuCtxDestroy_v2(CUcontext context)
{
	ENTER();
	pthread_mutex_lock(&objects);
	struct mock_context *c = known_context(context);
	unsigned gpu = c == NULL ? 0 : me.physical[c->ordinal];
	pthread_mutex_unlock(&objects);
	if (c == NULL || c->primary)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	wait_for_kernels(gpu);
	pthread_mutex_lock(&objects);
	if (known_context(context) != NULL)
		destroy_context(c);
	pthread_mutex_unlock(&objects);
	if (stack_top > 0 && stack[stack_top - 1] == context)
		stack_top--;
	return leave(CUDA_SUCCESS);
}

CUDAAPI CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	ENTER();
	pthread_mutex_lock(&objects);
	bool known = known_context(context) != NULL;
	pthread_mutex_unlock(&objects);
	if (!known || stack_top == STACK_DEPTH)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	stack[stack_top++] = context;
	return leave(CUDA_SUCCESS);
}

CUDAAPI CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	ENTER();
	if (stack_top == 0)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	stack_top--;
	if (context != NULL)
		*context = stack[stack_top];
	return leave(CUDA_SUCCESS);
}

CUDAAPI CUresult cuCtxSetCurrent(CUcontext context)
{
	ENTER();
	if (context == NULL) {
		if (stack_top > 0)
			stack_top--;
		return leave(CUDA_SUCCESS);
	}
	pthread_mutex_lock(&objects);
	bool known = known_context(context) != NULL;
	pthread_mutex_unlock(&objects);
	if (!known)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	if (stack_top == 0)
		stack_top = 1;
	stack[stack_top - 1] = context;
	return leave(CUDA_SUCCESS);
}

CUDAAPI CUresult cuCtxGetCurrent(CUcontext *context)
{
	if (initialised() != CUDA_SUCCESS)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (context == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*context = stack_top == 0 ? NULL : stack[stack_top - 1];
	return CUDA_SUCCESS;
}

CUDAAPI CUresult cuCtxGetDevice(CUdevice *device)
{
	ENTER();
	pthread_mutex_lock(&objects);
	struct mock_context *c = current_context();
	if (c != NULL && device != NULL)
		*device = c->ordinal;
	pthread_mutex_unlock(&objects);
	return leave(c == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS);
}

CUDAAPI CUresult cuCtxGetApiVersion(CUcontext context, unsigned int *version)
{
	(void)context;
	if (version == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*version = CUDA_VERSION;
	return initialised();
}

/* The physical GPU of the current context, or a negative number. */
static int current_gpu(void)
{
	pthread_mutex_lock(&objects);
	struct mock_context *c = current_context();
	int gpu = c == NULL ? -1 : (int)me.physical[c->ordinal];
	pthread_mutex_unlock(&objects);
	return gpu;
}

CUDAAPI CUresult cuCtxSynchronize(void)
{
	ENTER();
	int gpu = current_gpu();
	if (gpu < 0)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	wait_for_kernels((unsigned)gpu);
	return leave(CUDA_SUCCESS);
}

CUDAAPI CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	ENTER();
	if (context == NULL)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (device < 0 || device >= me.count)
		return leave(CUDA_ERROR_INVALID_DEVICE);
	CUresult result = CUDA_SUCCESS;
	pthread_mutex_lock(&objects);
	if (primary[device] == NULL)
		result = create_context(device, 0, true, &primary[device]);
	if (result == CUDA_SUCCESS) {
		primary[device]->references++;
		*context = primary[device];
	}
	pthread_mutex_unlock(&objects);
	return leave(result);
}

static CUresult release_primary(CUdevice device, bool entirely)
{
	if (device < 0 || device >= me.count)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&objects);
	struct mock_context *c = primary[device];
	bool last = c != NULL && (entirely || c->references <= 1);
	if (c != NULL && !last)
		c->references--;
	pthread_mutex_unlock(&objects);
	if (c == NULL)
		return entirely ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	if (!last)
		return CUDA_SUCCESS;
	wait_for_kernels(me.physical[device]);
	pthread_mutex_lock(&objects);
	if (primary[device] == c)
		destroy_context(c);
	pthread_mutex_unlock(&objects);
	return CUDA_SUCCESS;
}

CUDAAPI CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	ENTER();
	return leave(release_primary(device, false));
}

CUDAAPI CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return cuDevicePrimaryCtxRelease_v2(device);
}

CUDAAPI CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	ENTER();
	return leave(release_primary(device, true));
}

CUDAAPI CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	return cuDevicePrimaryCtxReset_v2(device);
}

CUDAAPI CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
	(void)flags;
	return device < 0 || device >= me.count ? CUDA_ERROR_INVALID_DEVICE : initialised();
}

CUDAAPI CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
	if (initialised() != CUDA_SUCCESS)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (device < 0 || device >= me.count)
		return CUDA_ERROR_INVALID_DEVICE;
	if (flags != NULL)
		*flags = 0;
	if (active != NULL)
		*active = primary[device] != NULL;
	return CUDA_SUCCESS;
}

/* --- memory ----------------------------------------------------------------------------------------------- */

CUDAAPI CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	ENTER();
	int gpu = current_gpu();
	if (gpu < 0)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	mg_reap(true);
	struct mg_state *s = mg_begin();
	uint64_t used = mg_used_bytes(s, (unsigned)gpu), total = s->gpus[gpu].total_bytes;
	mg_abort();
	if (free_bytes != NULL)
		*free_bytes = used < total ? total - used : 0;
	if (total_bytes != NULL)
		*total_bytes = total;
	return leave(CUDA_SUCCESS);
}

static CUresult charge_memory(unsigned gpu, uint64_t bytes)
{
	struct mg_state *s;

	mg_reap(true);
	do {
		s = mg_begin();
		struct mg_proc *p = my_proc(s);
		int client = p == NULL ? -1 : mg_find_client(s, me.slot, gpu);
		CUresult result = client < 0 ? CUDA_ERROR_DEINITIALIZED : no_room(s, gpu, bytes);
		if (result == CUDA_SUCCESS && lost(s, gpu))
			result = CUDA_ERROR_DEVICE_UNAVAILABLE;
		struct mg_fault *f = result != CUDA_SUCCESS ? NULL :
				     mg_fault(s, MG_FAULT_ALLOC_FAIL, me.pid, p->job, (int)gpu, NULL);
		if (result != CUDA_SUCCESS) {
			mg_abort();
			return result;
		}
		if (f != NULL) {
			if (mg_commit())
				return CUDA_ERROR_OUT_OF_MEMORY;
			continue;
		}
		s->clients[client].memory_bytes += bytes;
		mg_event(s, MG_EVENT_ALLOC, p, gpu, (int64_t)bytes, mg_client_bytes(&s->clients[client]),
			 mg_used_bytes(s, gpu));
		if (mg_commit())
			return CUDA_SUCCESS;
	} while (true);
}

static CUresult charge_communicator(unsigned gpu)
{
	struct mg_state *s;

	mg_reap(true);
	do {
		s = mg_begin();
		struct mg_proc *p = my_proc(s);
		int client = p == NULL ? -1 : mg_find_client(s, me.slot, gpu);
		CUresult result = client < 0 ? CUDA_ERROR_DEINITIALIZED : no_room(s, gpu, s->communicator_bytes);
		if (result != CUDA_SUCCESS) {
			mg_abort();
			return result;
		}
		struct mg_client *c = &s->clients[client];
		c->communicators++;
		c->context_bytes = mg_context_bytes(s, c);
		mg_event(s, MG_EVENT_ALLOC, p, gpu, (int64_t)s->communicator_bytes, mg_client_bytes(c),
			 mg_used_bytes(s, gpu));
	} while (!mg_commit());
	return CUDA_SUCCESS;
}

CUDAAPI CUresult mockMemAlloc(CUdeviceptr *address, size_t bytes, uint64_t booked)
{
	ENTER();
	if (address == NULL || bytes == 0 || booked < bytes)
		return leave(CUDA_ERROR_INVALID_VALUE);
	pthread_mutex_lock(&objects);
	struct mock_context *c = current_context();
	if (c == NULL) {
		pthread_mutex_unlock(&objects);
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	}
	struct allocation *a = calloc(1, sizeof(*a));
	uint64_t charge = is_small(booked) ? large_charge(c->small_bytes + small_size(booked)) - large_charge(c->small_bytes) :
					     large_charge(booked);
	CUresult result = a == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
	if (result == CUDA_SUCCESS && charge > 0)
		result = charge_memory(me.physical[c->ordinal], charge);
	if (result == CUDA_SUCCESS) {
		a->mapped = (bytes + 4095) / 4096 * 4096;
		if (!map_file(a)) {
			unmap_file(a);
			if (charge > 0)
				give_back(me.physical[c->ordinal], charge, 0, 0);
			result = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	if (result == CUDA_SUCCESS) {
		a->bytes = bytes;
		a->booked = booked;
		a->context = c;
		a->address = next_address;
		next_address += large_charge(bytes) + MG_PAGE; /* a gap, so that overruns are noticed */
		a->next = allocations;
		allocations = a;
		if (is_small(booked))
			c->small_bytes += small_size(booked);
		*address = a->address;
	} else {
		free(a);
	}
	pthread_mutex_unlock(&objects);
	return leave(result);
}

CUDAAPI CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
	return mockMemAlloc(address, bytes, bytes);
}

/* Adds one communicator to the current context, or takes one away. */
static CUresult change_communicators(bool more)
{
	CUresult result = CUDA_SUCCESS;

	ENTER();
	pthread_mutex_lock(&objects);
	struct mock_context *context = current_context();
	unsigned gpu = context == NULL ? 0 : me.physical[context->ordinal];
	if (context == NULL || (!more && context->communicators == 0))
		result = CUDA_ERROR_INVALID_CONTEXT;
	else if (more)
		result = charge_communicator(gpu);
	else
		give_back(gpu, 0, 0, 1);
	if (result == CUDA_SUCCESS)
		context->communicators += more ? 1 : -1;
	pthread_mutex_unlock(&objects);
	return leave(result);
}

CUDAAPI CUresult mockCommunicatorCreate(void)
{
	return change_communicators(true);
}

CUDAAPI CUresult mockCommunicatorDestroy(void)
{
	return change_communicators(false);
}

CUDAAPI CUresult cuMemFree_v2(CUdeviceptr address)
{
	ENTER();
	if (address == 0)
		return leave(CUDA_SUCCESS);
	int gpu = current_gpu();
	if (gpu < 0)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	wait_for_kernels((unsigned)gpu);
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&objects);
	for (struct allocation **link = &allocations; *link != NULL; link = &(*link)->next) {
		struct allocation *a = *link;
		if (a->address != address)
			continue;
		struct mock_context *c = a->context;
		uint64_t charge = large_charge(a->booked);
		if (is_small(a->booked)) {
			charge = large_charge(c->small_bytes) - large_charge(c->small_bytes - small_size(a->booked));
			c->small_bytes -= small_size(a->booked);
		}
		unmap_file(a);
		*link = a->next;
		free(a);
		if (charge > 0)
			give_back(me.physical[c->ordinal], charge, 0, 0);
		result = CUDA_SUCCESS;
		break;
	}
	pthread_mutex_unlock(&objects);
	return leave(result);
}

/* Call with the objects locked. */
static struct allocation *allocation_at(CUdeviceptr address, size_t bytes)
{
	for (struct allocation *a = allocations; a != NULL; a = a->next)
		if (address >= a->address && bytes <= a->bytes && address - a->address <= a->bytes - bytes)
			return a;
	return NULL;
}

/* The host memory behind a range of device memory, or NULL. Call with the objects locked. */
static unsigned char *behind(CUdeviceptr address, size_t bytes)
{
	struct allocation *a = allocation_at(address, bytes);

	return a == NULL ? NULL : a->host + (address - a->address);
}

/* Waits for the context's kernels and for the time that copying takes what these bytes stand for. */
static CUresult before_copy(CUdeviceptr address, size_t bytes)
{
	pthread_mutex_lock(&objects);
	struct allocation *a = allocation_at(address, bytes);
	uint64_t booked = a == NULL ? 0 : (uint64_t)((double)bytes * (double)a->booked / (double)a->bytes);
	pthread_mutex_unlock(&objects);
	int gpu = current_gpu();

	if (gpu < 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	wait_for_kernels((unsigned)gpu);
	struct mg_state *s = mg_begin();
	uint64_t rate = copy_rate(s, (unsigned)gpu);
	bool gone = lost(s, (unsigned)gpu);
	mg_abort();
	copy_delay(booked, rate, 0);
	return gone ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

CUDAAPI CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
	ENTER();
	CUresult result = before_copy(to, bytes);
	if (result != CUDA_SUCCESS)
		return leave(result);
	pthread_mutex_lock(&objects);
	unsigned char *host = behind(to, bytes);
	if (host != NULL && from != NULL)
		memcpy(host, from, bytes);
	pthread_mutex_unlock(&objects);
	return leave(host == NULL || from == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

CUDAAPI CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
	ENTER();
	CUresult result = before_copy(from, bytes);
	if (result != CUDA_SUCCESS)
		return leave(result);
	pthread_mutex_lock(&objects);
	unsigned char *host = behind(from, bytes);
	if (host != NULL && to != NULL)
		memcpy(to, host, bytes);
	pthread_mutex_unlock(&objects);
	return leave(host == NULL || to == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

CUDAAPI CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	ENTER();
	CUresult result = before_copy(0, 0); /* device to device is fast */
	if (result != CUDA_SUCCESS)
		return leave(result);
	pthread_mutex_lock(&objects);
	unsigned char *target = behind(to, bytes), *source = behind(from, bytes);
	if (target != NULL && source != NULL)
		memmove(target, source, bytes);
	pthread_mutex_unlock(&objects);
	return leave(target == NULL || source == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

CUDAAPI CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	(void)stream;
	return cuMemcpyHtoD_v2(to, from, bytes);
}

CUDAAPI CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	(void)stream;
	return cuMemcpyDtoH_v2(to, from, bytes);
}

CUDAAPI CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t count)
{
	ENTER();
	CUresult result = before_copy(0, 0);
	if (result != CUDA_SUCCESS)
		return leave(result);
	pthread_mutex_lock(&objects);
	unsigned char *host = behind(address, count);
	if (host != NULL)
		memset(host, value, count);
	pthread_mutex_unlock(&objects);
	return leave(host == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

CUDAAPI CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags)
{
	(void)flags;
	ENTER();
	if (address == NULL || bytes == 0)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (current_gpu() < 0)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	*address = NULL;
	return leave(posix_memalign(address, 4096, bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUDAAPI CUresult cuMemAllocHost_v2(void **address, size_t bytes)
{
	return cuMemHostAlloc(address, bytes, 0);
}

CUDAAPI CUresult cuMemFreeHost(void *address)
{
	ENTER();
	free(address);
	return leave(CUDA_SUCCESS);
}

/* --- streams and events: there is one queue per context, so they have little to do --------------------- */

CUDAAPI CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	(void)flags;
	ENTER();
	pthread_mutex_lock(&objects);
	struct mock_context *c = current_context();
	pthread_mutex_unlock(&objects);
	if (c == NULL || stream == NULL)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	*stream = calloc(1, sizeof(**stream));
	if (*stream == NULL)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	(*stream)->context = c;
	return leave(CUDA_SUCCESS);
}

CUDAAPI CUresult cuStreamDestroy_v2(CUstream stream)
{
	ENTER();
	free(stream);
	return leave(CUDA_SUCCESS);
}

CUDAAPI CUresult cuStreamSynchronize(CUstream stream)
{
	(void)stream;
	return cuCtxSynchronize();
}

/* --- kernels ---------------------------------------------------------------------------------------------- */

/* Any image loads; it offers these two kernels:
 *   mock_spin(uint32 microseconds, uint32 share)
 *   mock_step(uint32 microseconds, uint32 share, CUdeviceptr buffer, uint64 bytes, uint64 seed)
 * Microseconds are those of an idle GPU of speed 1; share is the per cent of the GPU that the kernel uses. */
static const struct mock_function functions[] = {
	{ "mock_spin", 2 },
	{ "mock_step", 5 },
};

CUDAAPI CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	ENTER();
	if (module == NULL || image == NULL)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (current_gpu() < 0)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	*module = calloc(1, sizeof(**module));
	return leave(*module == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
}

CUDAAPI CUresult cuModuleUnload(CUmodule module)
{
	ENTER();
	free(module);
	return leave(CUDA_SUCCESS);
}

CUDAAPI CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	ENTER();
	if (function == NULL || module == NULL || name == NULL)
		return leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
		if (strcmp(functions[i].name, name) == 0) {
			*function = &functions[i];
			return leave(CUDA_SUCCESS);
		}
	return leave(CUDA_ERROR_NOT_FOUND);
}

/* Every word depends on all words before it, on the former contents and on the seed: a step that is lost,
 * done twice or done on wrong contents shows in the result. */
static void transform(unsigned char *data, size_t bytes, uint64_t seed)
{
	uint64_t sum = seed ^ 0x9e3779b97f4a7c15ull, word;

	for (size_t i = 0; i + 8 <= bytes; i += 8) {
		memcpy(&word, data + i, 8);
		sum = sum * 6364136223846793005ull + word + 1442695040888963407ull;
		word = (word << 17 | word >> 47) ^ sum;
		memcpy(data + i, &word, 8);
	}
	for (size_t i = bytes / 8 * 8; i < bytes; i++) {
		sum = sum * 6364136223846793005ull + data[i] + 1442695040888963407ull;
		data[i] = (unsigned char)(data[i] ^ sum >> 56);
	}
}

/* Puts a kernel behind those of the same context. One of another share has to wait for them to end:
 * then the time until which to wait is in *wait_until. */
static CUresult start_kernel(unsigned gpu, uint64_t duration_ns, uint32_t share, uint64_t *wait_until)
{
	struct mg_state *s;

	*wait_until = 0;
	do {
		s = mg_begin();
		struct mg_proc *p = my_proc(s);
		int client = p == NULL ? -1 : mg_find_client(s, me.slot, gpu);
		if (client < 0 || lost(s, gpu)) {
			mg_abort();
			return client < 0 ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_DEVICE_UNAVAILABLE;
		}
		struct mg_client *c = &s->clients[client];
		bool running = mg_kernel_running(s, (unsigned)client);
		if (running && c->share != share) {
			uint64_t now = mg_now();
			*wait_until = mg_kernel_finish(s, (unsigned)client, now);
			if (*wait_until > now + 250000000)
				*wait_until = now + 250000000;
			mg_abort();
			return CUDA_SUCCESS;
		}
		if (!running)
			c->kernel_end = s->gpus[gpu].vtime_ns;
		c->kernel_end += duration_ns;
		c->share = share;
		if (mg_real() > c->busy_since + 1000000000ull)
			mg_busy_event(s, c);
	} while (!mg_commit());
	return CUDA_SUCCESS;
}

CUDAAPI CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
				unsigned int block_x, unsigned int block_y, unsigned int block_z,
				unsigned int shared_bytes, CUstream stream, void **parameters, void **extra)
{
	(void)grid_y, (void)grid_z, (void)block_y, (void)block_z, (void)shared_bytes, (void)stream, (void)extra;
	ENTER();
	if (function == NULL || parameters == NULL || grid_x == 0 || block_x == 0 || function < functions ||
	    function >= functions + sizeof(functions) / sizeof(functions[0]))
		return leave(CUDA_ERROR_INVALID_VALUE);
	int gpu = current_gpu();
	if (gpu < 0)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	uint32_t microseconds, share;
	memcpy(&microseconds, parameters[0], sizeof(microseconds));
	memcpy(&share, parameters[1], sizeof(share));
	if (share < 1 || share > 100)
		return leave(CUDA_ERROR_INVALID_VALUE);
	uint64_t wait_until;
	CUresult result;
	for (;;) {
		result = start_kernel((unsigned)gpu, (uint64_t)microseconds * 1000, share, &wait_until);
		if (wait_until == 0)
			break;
		mg_sleep_until(wait_until);
	}
	if (result == CUDA_SUCCESS && function->parameters == 5) {
		CUdeviceptr buffer;
		uint64_t bytes, seed;
		memcpy(&buffer, parameters[2], sizeof(buffer));
		memcpy(&bytes, parameters[3], sizeof(bytes));
		memcpy(&seed, parameters[4], sizeof(seed));
		pthread_mutex_lock(&objects);
		unsigned char *host = behind(buffer, bytes);
		if (host != NULL)
			transform(host, bytes, seed);
		else
			result = CUDA_ERROR_ILLEGAL_ADDRESS;
		pthread_mutex_unlock(&objects);
	}
	return leave(result);
}

/* --- errors, entry points ----------------------------------------------------------------------------------- */

static const struct {
	CUresult code;
	const char *name, *text;
} errors[] = {
	{ CUDA_SUCCESS, "CUDA_SUCCESS", "no error" },
	{ CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
	{ CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
	{ CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
	{ CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down" },
	{ CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable" },
	{ CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
	{ CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
	{ CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid" },
	{ CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
	{ CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS" },
	{ CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
	{ CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state" },
	{ CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
	{ CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready" },
	{ CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered" },
	{ CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed" },
	{ CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure" },
	{ CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted" },
	{ CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
	{ CUDA_ERROR_TIMEOUT, "CUDA_ERROR_TIMEOUT", "wait operation timed out" },
	{ CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error" },
};

CUDAAPI CUresult cuGetErrorName(CUresult error, const char **text)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].code == error) {
			*text = errors[i].name;
			return CUDA_SUCCESS;
		}
	*text = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

CUDAAPI CUresult cuGetErrorString(CUresult error, const char **text)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].code == error) {
			*text = errors[i].text;
			return CUDA_SUCCESS;
		}
	*text = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

CUDAAPI CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags);
CUDAAPI CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status);

/* The name without its version, the function, the CUDA version with which it became the one meant. */
static const struct {
	const char *name;
	void (*function)(void);
	int version;
} entry_points[] = {
#define ENTRY(name, function, version) { name, (void (*)(void))(function), version }
	ENTRY("cuInit", cuInit, 2000),
	ENTRY("cuDriverGetVersion", cuDriverGetVersion, 2020),
	ENTRY("cuDeviceGet", cuDeviceGet, 2000),
	ENTRY("cuDeviceGetCount", cuDeviceGetCount, 2000),
	ENTRY("cuDeviceGetName", cuDeviceGetName, 2000),
	ENTRY("cuDeviceGetUuid", cuDeviceGetUuid, 9020),
	ENTRY("cuDeviceGetUuid", cuDeviceGetUuid_v2, 11040),
	ENTRY("cuDeviceTotalMem", cuDeviceTotalMem_v2, 3020),
	ENTRY("cuDeviceGetPCIBusId", cuDeviceGetPCIBusId, 4010),
	ENTRY("cuDeviceGetAttribute", cuDeviceGetAttribute, 2000),
	ENTRY("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain, 7000),
	ENTRY("cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease_v2, 7000),
	ENTRY("cuDevicePrimaryCtxReset", cuDevicePrimaryCtxReset_v2, 7000),
	ENTRY("cuDevicePrimaryCtxSetFlags", cuDevicePrimaryCtxSetFlags_v2, 7000),
	ENTRY("cuDevicePrimaryCtxGetState", cuDevicePrimaryCtxGetState, 7000),
	ENTRY("cuCtxCreate", cuCtxCreate_v2, 3020),
	ENTRY("cuCtxCreate", cuCtxCreate_v3, 11040),
	ENTRY("cuCtxCreate", cuCtxCreate_v4, 12050),
	ENTRY("cuCtxDestroy", cuCtxDestroy_v2, 4000),
	ENTRY("cuCtxPushCurrent", cuCtxPushCurrent_v2, 4000),
	ENTRY("cuCtxPopCurrent", cuCtxPopCurrent_v2, 4000),
	ENTRY("cuCtxSetCurrent", cuCtxSetCurrent, 4000),
	ENTRY("cuCtxGetCurrent", cuCtxGetCurrent, 4000),
	ENTRY("cuCtxGetDevice", cuCtxGetDevice, 2000),
	ENTRY("cuCtxGetApiVersion", cuCtxGetApiVersion, 3020),
	ENTRY("cuCtxSynchronize", cuCtxSynchronize, 2000),
	ENTRY("cuMemGetInfo", cuMemGetInfo_v2, 3020),
	ENTRY("cuMemAlloc", cuMemAlloc_v2, 3020),
	ENTRY("cuMemFree", cuMemFree_v2, 3020),
	ENTRY("cuMemHostAlloc", cuMemHostAlloc, 2020),
	ENTRY("cuMemAllocHost", cuMemAllocHost_v2, 3020),
	ENTRY("cuMemFreeHost", cuMemFreeHost, 2000),
	ENTRY("cuMemcpyHtoD", cuMemcpyHtoD_v2, 3020),
	ENTRY("cuMemcpyDtoH", cuMemcpyDtoH_v2, 3020),
	ENTRY("cuMemcpyDtoD", cuMemcpyDtoD_v2, 3020),
	ENTRY("cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2, 3020),
	ENTRY("cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2, 3020),
	ENTRY("cuMemsetD8", cuMemsetD8_v2, 3020),
	ENTRY("cuStreamCreate", cuStreamCreate, 2000),
	ENTRY("cuStreamDestroy", cuStreamDestroy_v2, 4000),
	ENTRY("cuStreamSynchronize", cuStreamSynchronize, 2000),
	ENTRY("cuModuleLoadData", cuModuleLoadData, 2000),
	ENTRY("cuModuleUnload", cuModuleUnload, 2000),
	ENTRY("cuModuleGetFunction", cuModuleGetFunction, 2000),
	ENTRY("cuLaunchKernel", cuLaunchKernel, 4000),
	ENTRY("cuGetErrorName", cuGetErrorName, 6000),
	ENTRY("cuGetErrorString", cuGetErrorString, 6000),
	ENTRY("cuGetProcAddress", cuGetProcAddress, 11030),
	ENTRY("cuGetProcAddress", cuGetProcAddress_v2, 12000),
	ENTRY("cuCheckpointProcessGetState", cuCheckpointProcessGetState, 12080),
	ENTRY("cuCheckpointProcessLock", cuCheckpointProcessLock, 12080),
	ENTRY("cuCheckpointProcessCheckpoint", cuCheckpointProcessCheckpoint, 12080),
	ENTRY("cuCheckpointProcessRestore", cuCheckpointProcessRestore, 12080),
	ENTRY("cuCheckpointProcessUnlock", cuCheckpointProcessUnlock, 12080),
	ENTRY("cuCheckpointProcessGetRestoreThreadId", cuCheckpointProcessGetRestoreThreadId, 12080),
#undef ENTRY
};

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
	bool known = false;

	(void)flags;
	if (symbol == NULL || function == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*function = NULL;
	for (size_t i = 0; i < sizeof(entry_points) / sizeof(entry_points[0]); i++) {
		if (strcmp(entry_points[i].name, symbol) != 0)
			continue;
		known = true;
		if (entry_points[i].version <= version) /* later rows are newer */
			memcpy(function, &entry_points[i].function, sizeof(*function));
	}
	if (status != NULL) /* success, symbol not found, version not sufficient */
		*status = *function != NULL ? 0 : known ? 2 : 1;
	return *function != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
