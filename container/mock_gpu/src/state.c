/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAGIC "MOCKGPU"

struct shared {
	char magic[8];
	uint32_t version;
	uint32_t size;
	_Atomic uint64_t head;    /* generation << 16 | buffer */
	_Atomic uint64_t flushed; /* history records below this number are in the file */
	_Atomic uint64_t scanned_ns;
	_Atomic uint32_t request[MG_MAX_PROCS];
	_Atomic uint32_t answer[MG_MAX_PROCS];
	_Atomic uint64_t owner[MG_BUFFERS]; /* pid << 32 | low bits of its start time; 0 = free */
	struct mg_state buffer[MG_BUFFERS];
};

static struct shared *shared;
static int history_fd = -1;
static int open_error = -1;
static pthread_mutex_t open_mutex = PTHREAD_MUTEX_INITIALIZER;

/* The change under way in this thread. */
static _Thread_local struct {
	int buffer; /* one more than its number, 0 = none */
	uint64_t head;
	uint64_t head_owner;
} tx;

const char *mg_directory(void)
{
	static char path[PATH_MAX];
	const char *env = getenv("MOCKGPU_DIR");
	const char *node = getenv("SLURMD_NODENAME");
	struct stat st;

	if (env != NULL && *env != '\0') {
		snprintf(path, sizeof(path), "%s", env);
		return path;
	}
	if (node != NULL && *node != '\0' && strchr(node, '/') == NULL) {
		snprintf(path, sizeof(path), "/var/lib/mockgpu/%s", node);
		if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
			return path;
	}
	snprintf(path, sizeof(path), "/var/lib/mockgpu");
	return path;
}

static int open_file(const char *name, int flags)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s", mg_directory(), name) >= (int)sizeof(path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	return open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0666);
}

static int open_locked(void)
{
	int fd = open_file("state.bin", O_RDWR);
	struct stat st;

	if (fd < 0)
		return errno;
	if (fstat(fd, &st) < 0 || (size_t)st.st_size != sizeof(struct shared)) {
		close(fd);
		return EPROTO;
	}
	void *map = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int error = errno;
	close(fd);
	if (map == MAP_FAILED)
		return error;
	struct shared *candidate = map;
	if (memcmp(candidate->magic, MAGIC, sizeof(candidate->magic)) != 0 || candidate->version != MG_VERSION ||
	    candidate->size != sizeof(struct mg_state)) {
		munmap(map, sizeof(struct shared));
		return EPROTO;
	}
	history_fd = open_file("history.bin", O_RDWR);
	if (history_fd < 0) {
		error = errno;
		munmap(map, sizeof(struct shared));
		return error;
	}
	shared = candidate;
	return 0;
}

int mg_open(void)
{
	pthread_mutex_lock(&open_mutex);
	if (shared == NULL)
		open_error = open_locked();
	int error = open_error;
	pthread_mutex_unlock(&open_mutex);
	return error;
}

/* --- changes ----------------------------------------------------------------------------------- */

static uint64_t my_tag(void)
{
	static _Atomic uint64_t tag;
	uint64_t t = atomic_load_explicit(&tag, memory_order_relaxed);

	if ((pid_t)(t >> 32) != getpid()) { /* first call, or first after a fork */
		t = (uint64_t)getpid() << 32 | (uint32_t)mg_start_time(getpid());
		atomic_store_explicit(&tag, t, memory_order_relaxed);
	}
	return t;
}

static bool tag_dead(uint64_t tag)
{
	return (uint32_t)mg_start_time((int)(tag >> 32)) != (uint32_t)tag;
}

static unsigned head_buffer(uint64_t head)
{
	return (unsigned)(head & 0xffff) % MG_BUFFERS;
}

static unsigned claim_buffer(void)
{
	uint64_t tag = my_tag();

	for (unsigned round = 0;; round++) {
		for (unsigned i = 0; i < MG_BUFFERS; i++) {
			uint64_t owner = atomic_load(&shared->owner[i]);
			if (owner == 0 && atomic_compare_exchange_strong(&shared->owner[i], &owner, tag))
				return i;
		}
		/* All taken: some belong to processes that died in the middle of a change. */
		for (unsigned i = 0; i < MG_BUFFERS; i++) {
			uint64_t owner = atomic_load(&shared->owner[i]);
			if (owner == 0 || i == head_buffer(atomic_load(&shared->head)) || !tag_dead(owner))
				continue;
			if (i != head_buffer(atomic_load(&shared->head)) &&
			    atomic_compare_exchange_strong(&shared->owner[i], &owner, tag))
				return i;
		}
		if (round > 2)
			usleep(1000);
		else
			sched_yield();
	}
}

static void copy_state(struct mg_state *to, const struct mg_state *from)
{
	memcpy(to, from, offsetof(struct mg_state, procs));
	/* A torn copy is noticed afterwards, but must not lead out of the arrays before. */
	if (to->proc_count > MG_MAX_PROCS)
		to->proc_count = 0;
	if (to->client_count > MG_MAX_CLIENTS)
		to->client_count = 0;
	if (to->pending_count > MG_MAX_PENDING)
		to->pending_count = 0;
	memcpy(to->procs, from->procs, to->proc_count * sizeof(to->procs[0]));
	memcpy(to->clients, from->clients, to->client_count * sizeof(to->clients[0]));
	memcpy(to->pending, from->pending, to->pending_count * sizeof(to->pending[0]));
}

/* Copies the newest state; returns the head it is from. */
static uint64_t copy_head(struct mg_state *to, uint64_t *owner)
{
	for (;;) {
		uint64_t head = atomic_load(&shared->head);
		unsigned from = head_buffer(head);
		if (owner != NULL)
			*owner = atomic_load(&shared->owner[from]);
		copy_state(to, &shared->buffer[from]);
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load(&shared->head) == head)
			return head;
	}
}

/* Any process may write these records, several may, and one that was stopped in here may do so hours
 * later: they are always the same bytes at the same place. */
static void flush_history(struct mg_state *s)
{
	uint64_t first = s->history_next - s->pending_count;

	if (s->pending_count > 0 && atomic_load(&shared->flushed) < s->history_next) {
		size_t size = s->pending_count * sizeof(s->pending[0]);
		ssize_t n = pwrite(history_fd, s->pending, size, (off_t)(first * sizeof(s->pending[0])));
		if (n != (ssize_t)size) {
			s->history_dropped += s->pending_count;
		} else {
			uint64_t seen = atomic_load(&shared->flushed);
			while (seen < s->history_next &&
			       !atomic_compare_exchange_weak(&shared->flushed, &seen, s->history_next))
				;
		}
	}
	s->pending_count = 0;
}

struct mg_state *mg_begin(void)
{
	if (tx.buffer == 0)
		tx.buffer = (int)claim_buffer() + 1;
	struct mg_state *s = &shared->buffer[tx.buffer - 1];
	tx.head = copy_head(s, &tx.head_owner);
	flush_history(s);
	mg_advance_all(s, mg_now());
	return s;
}

void mg_abort(void)
{
	if (tx.buffer != 0)
		atomic_store(&shared->owner[tx.buffer - 1], 0);
	tx.buffer = 0;
}

bool mg_commit(void)
{
	uint64_t expected = tx.head;
	uint64_t next = ((tx.head >> 16) + 1) << 16 | (uint64_t)(tx.buffer - 1);

	if (!atomic_compare_exchange_strong(&shared->head, &expected, next))
		return false;
	/* The buffer is the head now and no longer ours to touch, the former head is free. It may already
	 * have been taken over by somebody who found its owner dead: then leave it alone. */
	uint64_t owner = tx.head_owner;
	atomic_compare_exchange_strong(&shared->owner[head_buffer(tx.head)], &owner, 0);
	tx.buffer = 0;
	return true;
}

void mg_snapshot(struct mg_state *out)
{
	copy_head(out, NULL);
	mg_advance_all(out, mg_now());
}

/* --- making it ---------------------------------------------------------------------------------- */

static void configure(struct mg_state *s, const struct mg_state *config)
{
	uint64_t next = s->history_next, last = s->last_event_ns;
	uint32_t serial = s->next_serial, op = s->next_op_id;

	memcpy(s, config, offsetof(struct mg_state, procs));
	s->history_base = s->history_next = next;
	s->last_event_ns = last;
	s->next_serial = serial + 1;
	s->next_op_id = op + 1;
	s->next_fault_id = 1;
	for (unsigned i = 0; i < s->gpu_count; i++)
		s->gpus[i].clock_ns = mg_now();
}

int mg_create(const struct mg_state *config)
{
	char path[PATH_MAX], temporary[PATH_MAX + 8];
	const char *dir = mg_directory();

	snprintf(path, sizeof(path), "%s", dir);
	for (char *slash = path + 1; *path != '\0'; slash++) {
		if (*slash != '/' && *slash != '\0')
			continue;
		char c = *slash;
		*slash = '\0';
		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			return errno;
		*slash = c;
		if (c == '\0')
			break;
	}
	if (snprintf(path, sizeof(path), "%s/memory", dir) < (int)sizeof(path) && mkdir(path, 0777) == 0)
		(void)!chmod(path, 01777); /* contents of device memory: each file belongs to its process */
	/* Processes that have it mapped keep seeing the same file where the layout allows. */
	if (mg_open() == 0) {
		struct mg_state *s;
		do {
			s = mg_begin();
			configure(s, config);
		} while (!mg_commit());
		return 0;
	}
	int fd = open_file("history.bin", O_RDWR | O_CREAT | O_TRUNC);
	if (fd < 0 || fchmod(fd, 0666) < 0)
		return errno;
	close(fd);
	fd = open_file("state.new", O_RDWR | O_CREAT | O_TRUNC);
	if (fd < 0 || fchmod(fd, 0666) < 0 || ftruncate(fd, sizeof(struct shared)) < 0)
		return errno;
	struct shared *map = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return errno;
	close(fd);
	configure(&map->buffer[0], config);
	map->owner[0] = 1;
	map->head = 1 << 16;
	map->version = MG_VERSION;
	map->size = sizeof(struct mg_state);
	memcpy(map->magic, MAGIC, sizeof(map->magic));
	munmap(map, sizeof(struct shared));
	snprintf(path, sizeof(path), "%s/state.bin", dir);
	snprintf(temporary, sizeof(temporary), "%s/state.new", dir);
	if (rename(temporary, path) < 0)
		return errno;
	return mg_open();
}

/* --- requests between processes ----------------------------------------------------------------- */

_Atomic uint32_t *mg_request_word(unsigned slot)
{
	return &shared->request[slot];
}

_Atomic uint32_t *mg_answer_word(unsigned slot)
{
	return &shared->answer[slot];
}

void mg_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
	struct timespec t = { .tv_sec = (time_t)(timeout_ns / 1000000000ull),
			      .tv_nsec = (long)(timeout_ns % 1000000000ull) };

	syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

void mg_futex_wake(_Atomic uint32_t *word)
{
	atomic_fetch_add(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* --- processes, what they hold ------------------------------------------------------------------- */

int mg_find_proc(const struct mg_state *s, int pid, uint64_t start_time)
{
	for (unsigned i = 0; i < s->proc_count; i++)
		if (s->procs[i].in_use && s->procs[i].pid == pid &&
		    (start_time == 0 || s->procs[i].start_time == start_time))
			return (int)i;
	return -1;
}

int mg_add_proc(struct mg_state *s)
{
	unsigned i = 0;

	while (i < s->proc_count && s->procs[i].in_use)
		i++;
	if (i == MG_MAX_PROCS)
		return -1;
	if (i == s->proc_count)
		s->proc_count++;
	memset(&s->procs[i], 0, sizeof(s->procs[i]));
	s->procs[i].in_use = 1;
	s->procs[i].serial = s->next_serial++;
	return (int)i;
}

int mg_find_client(const struct mg_state *s, unsigned proc, unsigned gpu)
{
	for (unsigned i = 0; i < s->client_count; i++)
		if (s->clients[i].in_use && s->clients[i].proc == proc && s->clients[i].gpu == gpu)
			return (int)i;
	return -1;
}

bool mg_has_context(const struct mg_state *s, unsigned proc)
{
	for (unsigned i = 0; i < s->client_count; i++)
		if (s->clients[i].in_use && s->clients[i].proc == proc)
			return true;
	return false;
}

int mg_add_client(struct mg_state *s, unsigned proc, unsigned gpu)
{
	unsigned i = 0;

	while (i < s->client_count && s->clients[i].in_use)
		i++;
	if (i == MG_MAX_CLIENTS)
		return -1;
	if (i == s->client_count)
		s->client_count++;
	memset(&s->clients[i], 0, sizeof(s->clients[i]));
	s->clients[i].in_use = 1;
	s->clients[i].proc = (uint16_t)proc;
	s->clients[i].gpu = (uint16_t)gpu;
	return (int)i;
}

uint64_t mg_context_bytes(const struct mg_state *s, const struct mg_client *c)
{
	return c->contexts * s->context_bytes + c->communicators * s->communicator_bytes;
}

uint64_t mg_client_bytes(const struct mg_client *c)
{
	return c->context_bytes + c->memory_bytes + c->leaked_bytes;
}

uint64_t mg_used_bytes(const struct mg_state *s, unsigned gpu)
{
	uint64_t used = s->gpus[gpu].leaked_bytes;

	for (unsigned i = 0; i < s->client_count; i++)
		if (s->clients[i].in_use && s->clients[i].gpu == gpu)
			used += mg_client_bytes(&s->clients[i]);
	return used;
}

void mg_event(struct mg_state *s, enum mg_event_kind kind, const struct mg_proc *proc, unsigned gpu,
	      int64_t delta, uint64_t held, uint64_t aux)
{
	if (s->pending_count == MG_MAX_PENDING) {
		s->history_dropped++;
		return;
	}
	uint64_t now = mg_real();
	s->last_event_ns = now > s->last_event_ns ? now : s->last_event_ns + 1;
	s->pending[s->pending_count++] = (struct mg_event){
		.sequence = s->history_next++,
		.time_ns = s->last_event_ns,
		.pid = proc->pid,
		.uid = proc->uid,
		.job = proc->job,
		.serial = proc->serial,
		.kind = (uint16_t)kind,
		.gpu = (uint16_t)gpu,
		.delta = delta,
		.held = held,
		.aux = aux,
	};
}

void mg_busy_event(struct mg_state *s, struct mg_client *c)
{
	uint64_t now = mg_real();

	if (c->busy_ns > 0)
		mg_event(s, MG_EVENT_BUSY, &s->procs[c->proc], c->gpu, (int64_t)c->busy_ns, mg_client_bytes(c),
			 now > c->busy_since ? now - c->busy_since : 0);
	c->busy_ns = 0;
	c->busy_since = now;
}

void mg_remove_client(struct mg_state *s, unsigned client, enum mg_event_kind kind, uint64_t now_ns)
{
	struct mg_client *c = &s->clients[client];
	uint64_t bytes = mg_client_bytes(c);

	mg_advance(s, c->gpu, now_ns);
	mg_busy_event(s, c);
	c->context_bytes = c->memory_bytes = c->leaked_bytes = c->host_bytes = 0;
	mg_event(s, kind, &s->procs[c->proc], c->gpu, -(int64_t)bytes, 0, mg_used_bytes(s, c->gpu));
	c->in_use = 0;
	while (s->client_count > 0 && !s->clients[s->client_count - 1].in_use)
		s->client_count--;
}

void mg_remove_proc(struct mg_state *s, unsigned proc, enum mg_event_kind kind, uint64_t now_ns)
{
	for (unsigned i = 0; i < s->client_count; i++)
		if (s->clients[i].in_use && s->clients[i].proc == proc)
			mg_remove_client(s, i, kind, now_ns);
	s->procs[proc].in_use = 0;
	while (s->proc_count > 0 && !s->procs[s->proc_count - 1].in_use)
		s->proc_count--;
}

void mg_reap(bool force)
{
	/* Looking into /proc takes microseconds per process: outside of the change, so that the change itself
	 * stays short and rarely has to be made again. */
	struct dead {
		int pid, tid;
		uint64_t start_time;
	} dead[MG_MAX_PROCS];
	unsigned count = 0;
	uint64_t now = mg_now(), scanned = atomic_load(&shared->scanned_ns);
	uint32_t namespace = mg_pid_namespace();

	if (!force && now < scanned + 5000000)
		return;
	atomic_store(&shared->scanned_ns, now);
	for (;;) {
		uint64_t head = atomic_load(&shared->head);
		const struct mg_state *s = &shared->buffer[head_buffer(head)];
		struct dead all[MG_MAX_PROCS];
		unsigned n = 0;
		for (unsigned i = 0; i < s->proc_count && i < MG_MAX_PROCS; i++)
			if (s->procs[i].in_use && s->procs[i].pid_namespace == namespace)
				all[n++] = (struct dead){ s->procs[i].pid, s->procs[i].restore_tid,
							 s->procs[i].start_time };
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load(&shared->head) != head)
			continue;
		for (unsigned i = 0; i < n; i++)
			if (all[i].pid != getpid() && (mg_start_time(all[i].pid) != all[i].start_time ||
						       !mg_thread_lives(all[i].pid, all[i].tid)))
				dead[count++] = all[i];
		break;
	}
	for (unsigned i = 0; i < count; i++) {
		struct mg_state *s;
		int slot;
		do {
			s = mg_begin();
			slot = mg_find_proc(s, dead[i].pid, dead[i].start_time);
			if (slot < 0) {
				mg_abort();
				break;
			}
			mg_remove_proc(s, (unsigned)slot, MG_EVENT_REAP, mg_now());
		} while (!mg_commit());
	}
}

bool mg_asker_dead(const struct mg_proc *p)
{
	return p->op_pid_namespace == mg_pid_namespace() && mg_start_time(p->op_pid) != p->op_start_time;
}

bool mg_drop_request(struct mg_state *s, struct mg_proc *p)
{
	p->op = MG_OP_NONE;
	if (p->state == MG_CHECKPOINTING)
		p->state = MG_LOCKED;
	if (p->state == MG_RESTORING)
		p->state = MG_CHECKPOINTED;
	if (s->killed_caller_harmless)
		return false;
	p->stuck = MG_STUCK_OUT_OF_SYNC;
	return true;
}

struct mg_fault *mg_fault(struct mg_state *s, enum mg_fault_kind kind, int pid, uint32_t job, int gpu,
			  const char *call)
{
	for (unsigned i = 0; i < MG_MAX_FAULTS; i++) {
		struct mg_fault *f = &s->faults[i];
		if (f->kind != (uint32_t)kind || f->remaining == 0 || (f->pid != 0 && f->pid != pid) ||
		    (f->job != 0 && f->job != job) || (f->gpu >= 0 && gpu >= 0 && f->gpu != gpu) ||
		    (f->call[0] != '\0' && (call == NULL || strcmp(f->call, call) != 0)))
			continue;
		if (f->remaining > 0)
			f->remaining--;
		return f;
	}
	return NULL;
}

/* --- history ------------------------------------------------------------------------------------- */

size_t mg_history_read(const struct mg_state *s, uint64_t first, struct mg_event *out, size_t count)
{
	uint64_t in_file = s->history_next - s->pending_count;
	size_t n = 0;

	while (n < count && first + n < in_file) {
		size_t want = (size_t)(in_file - first - n) < count - n ? (size_t)(in_file - first - n) : count - n;
		ssize_t got = pread(history_fd, out + n, want * sizeof(*out), (off_t)((first + n) * sizeof(*out)));
		if (got < (ssize_t)sizeof(*out))
			return n;
		n += (size_t)got / sizeof(*out);
	}
	while (n < count && first + n >= in_file && first + n < s->history_next) {
		out[n] = s->pending[first + n - in_file];
		n++;
	}
	return n;
}

void mg_history_clear(void)
{
	struct mg_state *s;
	unsigned from = 0;
	uint64_t base;

	do { /* what is held now is where the new history starts */
		s = mg_begin();
		base = s->history_base = s->history_next;
		s->history_dropped = 0;
		for (from = 0; from < s->client_count && s->pending_count < MG_MAX_PENDING; from++) {
			struct mg_client *c = &s->clients[from];
			c->busy_ns = 0;
			c->busy_since = mg_real();
			if (c->in_use && mg_client_bytes(c) > 0)
				mg_event(s, MG_EVENT_HELD, &s->procs[c->proc], c->gpu, 0, mg_client_bytes(c),
					 mg_used_bytes(s, c->gpu));
		}
	} while (!mg_commit());
	/* Give the disk space back; the record numbers go on. */
	off_t old = (off_t)(base * sizeof(struct mg_event)) & ~(off_t)4095;
	if (old > 0)
		(void)!fallocate(history_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, old);
}
