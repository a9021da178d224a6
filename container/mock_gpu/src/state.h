/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What every process on a node knows about its mock GPUs: one small state, shared through one file.
 *
 * There is no lock that a process could hold while it is stopped, frozen or killed (Slurm does all three
 * to jobs, at any instruction). A change is made on a private copy and published with one compare-and-swap
 * on the "head" word; whoever loses the race starts again from the new head. A half-made change is never
 * seen and never has to be repaired.
 *
 *     do {
 *         s = mg_begin();
 *         ... read and change *s ...
 *     } while (!mg_commit());
 */
#ifndef MOCKGPU_STATE_H
#define MOCKGPU_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MG_VERSION 3
#define MG_MAX_GPUS 16
#define MG_MAX_PROCS 256
#define MG_MAX_CLIENTS 512
#define MG_MAX_FAULTS 16
#define MG_MAX_PENDING 64
#define MG_BUFFERS 64

#define MG_KIB ((uint64_t)1 << 10)
#define MG_MIB ((uint64_t)1 << 20)
#define MG_GIB ((uint64_t)1 << 30)
#define MG_PAGE (2 * MG_MIB) /* the driver hands out device memory in 2 MiB pages */

/* Busy time over the last second, in eight buckets of 125 ms. */
#define MG_RING_BUCKETS 8
#define MG_RING_NS 125000000ull
struct mg_ring {
	uint64_t bucket; /* number of the newest bucket: monotonic time / MG_RING_NS */
	uint32_t busy_us[MG_RING_BUCKETS];
};

/* A GPU is known by its number here, which is its minor number: the N of /dev/nvidiaN. */
struct mg_gpu {
	char name[64];
	uint32_t place; /* on the PCI bus: NVML and CUDA count in this order */
	unsigned char uuid[16];
	uint64_t total_bytes;
	uint64_t leaked_bytes; /* nobody's: left by an injected fault */
	double speed;          /* reference microseconds done per microsecond */
	uint64_t vtime_ns;     /* progress of a kernel running since the beginning of time; see gpu_clock.c */
	uint64_t clock_ns;     /* CLOCK_MONOTONIC to which vtime_ns belongs */
	uint64_t busy_ns;      /* time with at least one kernel running */
	struct mg_ring ring;
};

/* The values are CUprocessState's. */
enum mg_proc_state {
	MG_RUNNING = 0,
	MG_LOCKED = 1,
	MG_CHECKPOINTED = 2,
	MG_FAILED = 3,
	MG_CHECKPOINTING = 4,
	MG_RESTORING = 5,
	MG_PROC_STATES
};

/* Why no further checkpoint call works on a process. */
enum mg_stuck {
	MG_NOT_STUCK = 0,
	MG_STUCK_RESTORE,    /* a restore ran out of memory (driver 580) */
	MG_STUCK_OUT_OF_SYNC /* whoever made a call was killed in the middle of it */
};

enum mg_op { MG_OP_NONE = 0, MG_OP_LOCK, MG_OP_CHECKPOINT, MG_OP_RESTORE, MG_OP_UNLOCK };

/* A process that has called cuInit. */
struct mg_proc {
	uint32_t in_use;
	int32_t pid;
	uint64_t start_time; /* field 22 of /proc/PID/stat: a pid may come again, the pair does not */
	uint32_t uid;
	uint32_t job; /* of Slurm, 0 outside a job */
	uint32_t serial;
	uint32_t pid_namespace; /* only processes of the same one can tell whether it lives */
	int32_t restore_tid;
	uint32_t allowed; /* bit i: the process may open /dev/nvidia<i> */
	uint32_t visible; /* and what CUDA_VISIBLE_DEVICES leaves of it */
	uint16_t state;   /* enum mg_proc_state */
	uint16_t stuck;   /* enum mg_stuck */
	/* The request under way, put here by another process, answered by our service thread. */
	uint32_t op; /* enum mg_op */
	uint32_t op_id;
	uint32_t op_started; /* past the point of no return: can no longer be taken back */
	int32_t op_pid;      /* who asks */
	uint32_t op_pid_namespace;
	uint64_t op_start_time;
	uint32_t op_done_id;
	int32_t op_result; /* CUresult of op_done_id */
	int8_t op_map[MG_MAX_GPUS]; /* restore: old GPU -> new GPU, -1 = not in the list */
	uint32_t op_mapped;         /* pairs were given */
	char comm[16];
};

/* What one process has on one GPU. */
struct mg_client {
	uint32_t in_use;
	uint16_t proc;
	uint16_t gpu;
	uint32_t contexts;
	uint32_t communicators;
	uint32_t share; /* of the running kernel, per cent */
	uint64_t context_bytes; /* with communicators */
	uint64_t memory_bytes;
	uint64_t host_bytes;   /* moved to host memory by a checkpoint */
	uint64_t leaked_bytes; /* still on the GPU although a checkpoint has moved it (injected fault) */
	uint64_t kernel_end;   /* in the GPU's vtime; running while it is ahead of it */
	uint64_t busy_ns;      /* since busy_since */
	uint64_t busy_since;   /* CLOCK_REALTIME */
	struct mg_ring ring;   /* busy time times share */
};

enum mg_fault_kind {
	MG_FAULT_NONE = 0,
	MG_FAULT_LOCK_TIMEOUT,
	MG_FAULT_CHECKPOINT_FAIL,
	MG_FAULT_RESTORE_FAIL,
	MG_FAULT_UNLOCK_FAIL,
	MG_FAULT_CHECKPOINT_LEAK,
	MG_FAULT_FREE_LEAK,
	MG_FAULT_ALLOC_FAIL,
	MG_FAULT_NVML_ERROR,
	MG_FAULT_NVML_HANG,
	MG_FAULT_GPU_LOST,
	MG_FAULT_ECC,
	MG_FAULT_COPY_RATE,
	MG_FAULT_SPEED,
	MG_FAULT_KINDS
};

struct mg_fault {
	uint32_t kind; /* enum mg_fault_kind, 0 = free */
	uint32_t id;
	int32_t pid;       /* 0 = any */
	uint32_t job;      /* 0 = any */
	int32_t gpu;       /* -1 = any */
	int32_t remaining; /* times it still strikes, -1 = until cleared */
	int64_t value;
	uint32_t fatal;
	char call[44]; /* NVML: only in this call; empty = in all */
};

enum mg_event_kind {
	MG_EVENT_NONE = 0,
	MG_EVENT_CONTEXT_CREATE,
	MG_EVENT_CONTEXT_DESTROY,
	MG_EVENT_ALLOC,
	MG_EVENT_FREE,
	MG_EVENT_LOCK,
	MG_EVENT_UNLOCK,
	MG_EVENT_CHECKPOINT,
	MG_EVENT_RESTORE,
	MG_EVENT_RESTORE_FAILED,
	MG_EVENT_REAP, /* the process died without a word */
	MG_EVENT_EXIT, /* the process ended and let go of what it held */
	MG_EVENT_BUSY, /* delta = nanoseconds with a kernel running, aux = of how many */
	MG_EVENT_HELD, /* first in a cleared history: what was held at that time */
	MG_EVENT_KINDS
};

/* One line of the history; the history file is an array of these. */
struct mg_event {
	uint64_t sequence;
	uint64_t time_ns; /* CLOCK_REALTIME, strictly increasing */
	int32_t pid;
	uint32_t uid;
	uint32_t job;
	uint32_t serial; /* of the process: tells two with the same pid apart */
	uint16_t kind;
	uint16_t gpu;
	uint32_t reserved;
	int64_t delta;      /* bytes */
	uint64_t held;      /* bytes this process holds on this GPU from now on */
	uint64_t aux;       /* bytes in use on this GPU by everybody from now on */
};
_Static_assert(sizeof(struct mg_event) == 64, "one history record is 64 bytes");

struct mg_state {
	/* configuration */
	uint32_t gpu_count;
	uint32_t operation_timeout_ms; /* checkpoint, restore, unlock of a frozen process; 0 = wait for ever */
	uint64_t context_bytes;
	uint64_t communicator_bytes;
	uint64_t copy_rate; /* bytes/s host <-> device, 0 = unlimited */
	uint32_t strict_device_map; /* 1 = a moving map names every GPU of the node, and nothing is narrowed */
	uint32_t killed_caller_harmless; /* 1 = a call whose maker was killed is dropped and does no harm */
	uint32_t init_only_listed; /* NVML lists processes that have no context, with zero bytes */
	uint32_t jobs_by_environment; /* there is no Slurm: SLURM_JOB_ID tells the job */
	uint32_t restore_oom_fails; /* restore without memory: 1 = state FAILED, 0 = stuck as with driver 580 */
	char driver_version[20];
	char node[64];
	/* counters */
	uint32_t next_serial;
	uint32_t next_op_id;
	uint32_t next_fault_id;
	uint32_t history_dropped;
	uint64_t last_event_ns;
	uint64_t history_base; /* first record that counts */
	uint64_t history_next;
	struct mg_gpu gpus[MG_MAX_GPUS];
	struct mg_fault faults[MG_MAX_FAULTS];
	/* in use up to these counts; free slots in between are possible */
	uint32_t proc_count;
	uint32_t client_count;
	uint32_t pending_count;
	uint32_t reserved;
	struct mg_proc procs[MG_MAX_PROCS];
	struct mg_client clients[MG_MAX_CLIENTS];
	/* records history_next - pending_count .. history_next - 1: the next change writes them to the file */
	struct mg_event pending[MG_MAX_PENDING];
};

/* --- the shared file (state.c) ------------------------------------------------------------------ */

/* Folder of this node: $MOCKGPU_DIR, /var/lib/mockgpu/$SLURMD_NODENAME if it exists, /var/lib/mockgpu. */
const char *mg_directory(void);

/* Maps the state of this node once per process. 0, or an errno. */
int mg_open(void);

/* Makes the folder's files, or puts *config into existing ones, forgetting everything else. */
int mg_create(const struct mg_state *config);

struct mg_state *mg_begin(void);
bool mg_commit(void);
void mg_abort(void);

/* A consistent copy, with the GPU clocks brought forward to now. */
void mg_snapshot(struct mg_state *out);

/* Removes processes that have died. Not forced, it looks at most every 5 ms per node. */
void mg_reap(bool force);

/* Futex words per process slot: a request is there; an answer is there. */
_Atomic uint32_t *mg_request_word(unsigned slot);
_Atomic uint32_t *mg_answer_word(unsigned slot);
void mg_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns);
void mg_futex_wake(_Atomic uint32_t *word);

/* Copies history records [first, first + count) into out; returns how many there are. */
size_t mg_history_read(const struct mg_state *s, uint64_t first, struct mg_event *out, size_t count);
void mg_history_clear(void);

/* --- inside a change --------------------------------------------------------------------------- */

void mg_event(struct mg_state *s, enum mg_event_kind kind, const struct mg_proc *proc, unsigned gpu,
	      int64_t delta, uint64_t held, uint64_t aux);
int mg_find_proc(const struct mg_state *s, int pid, uint64_t start_time); /* slot or -1; 0 = any start */
int mg_add_proc(struct mg_state *s);
int mg_find_client(const struct mg_state *s, unsigned proc, unsigned gpu);
bool mg_has_context(const struct mg_state *s, unsigned proc); /* on any GPU */
int mg_add_client(struct mg_state *s, unsigned proc, unsigned gpu);
/* What its contexts and communicators take while they are on the GPU. */
uint64_t mg_context_bytes(const struct mg_state *s, const struct mg_client *c);
uint64_t mg_client_bytes(const struct mg_client *c);                   /* on the GPU */
uint64_t mg_used_bytes(const struct mg_state *s, unsigned gpu);        /* by everybody */
void mg_remove_client(struct mg_state *s, unsigned client, enum mg_event_kind kind, uint64_t now_ns);
void mg_remove_proc(struct mg_state *s, unsigned proc, enum mg_event_kind kind, uint64_t now_ns);
void mg_busy_event(struct mg_state *s, struct mg_client *c);
/* Whoever left the request in this entry is gone. */
bool mg_asker_dead(const struct mg_proc *p);
/* Takes back the request of somebody who is gone; true when the process is out of sync from now on. */
bool mg_drop_request(struct mg_state *s, struct mg_proc *p);
/* The fault that strikes, or NULL. Counts down a limited one, so call it inside a change. */
struct mg_fault *mg_fault(struct mg_state *s, enum mg_fault_kind kind, int pid, uint32_t job, int gpu,
			  const char *call);

/* --- GPU time (gpu_clock.c) -------------------------------------------------------------------- */

void mg_advance(struct mg_state *s, unsigned gpu, uint64_t now_ns);
void mg_advance_all(struct mg_state *s, uint64_t now_ns);
/* When the kernels of this client end if no further one starts; now_ns or less when none runs. */
uint64_t mg_kernel_finish(const struct mg_state *s, unsigned client, uint64_t now_ns);
bool mg_kernel_running(const struct mg_state *s, unsigned client);
unsigned mg_ring_percent(const struct mg_ring *ring, uint64_t now_ns);

/* --- the system (system.c) --------------------------------------------------------------------- */

uint64_t mg_now(void);  /* CLOCK_MONOTONIC, ns */
uint64_t mg_real(void); /* CLOCK_REALTIME, ns */
void mg_sleep_until(uint64_t monotonic_ns);
/* Start time of a live process; 0 when it is dead, a zombie or unknown. */
uint64_t mg_start_time(int pid);
/* Whether the restore thread is there (0: not started yet): an exec leaves the process, but ends CUDA in it. */
bool mg_thread_lives(int pid, int tid);
int mg_thread_group(int tid); /* the process of a thread, or -1 */
uint32_t mg_pid_namespace(void);
/* Bit i: this process may open /dev/nvidia<i> ($MOCKGPU_DEV_DIR instead of /dev for tests). */
uint32_t mg_allowed_gpus(unsigned count);
/* The GPUs that a process which begins to look now finds, in PCI order; returns how many. */
unsigned mg_enumerate(const struct mg_state *s, uint32_t allowed, unsigned out[MG_MAX_GPUS]);
/* 0000:07:00.0, as CUDA writes it; NVML has four zeros more before it. */
void mg_bus_id(const struct mg_gpu *gpu, char out[32]);
void mg_uuid_text(const unsigned char uuid[16], char out[48]); /* GPU-xxxxxxxx-… */
/* The Slurm job that this process belongs to, 0 for none: as its control group or a slurmstepd above it says,
 * which are root's. What the environment says counts only on a node that was set up without Slurm. */
uint32_t mg_job_id(bool by_environment);

#endif
