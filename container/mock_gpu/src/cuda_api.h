/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The part of the CUDA driver API that the mock offers: names, signatures and numbers as documented for
 * CUDA 12.8 to 13.0 (the checkpoint calls appeared in 12.8 / driver 570, gpuPairs in 13.0 / driver 580). */
#ifndef MOCKGPU_CUDA_API_H
#define MOCKGPU_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

#define CUDA_VERSION 13000
#define CUDAAPI __attribute__((visibility("default")))

typedef enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEINITIALIZED = 4,
	CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_IMAGE = 200,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_OPERATING_SYSTEM = 304,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_ILLEGAL_STATE = 401,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_ILLEGAL_ADDRESS = 700,
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
	CUDA_ERROR_LAUNCH_FAILED = 719,
	CUDA_ERROR_NOT_PERMITTED = 800,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_TIMEOUT = 909,
	CUDA_ERROR_UNKNOWN = 999,
} CUresult;

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct mock_context *CUcontext;
typedef struct mock_module *CUmodule;
typedef const struct mock_function *CUfunction;
typedef struct mock_stream *CUstream;
typedef struct mock_event_handle *CUevent;
typedef struct {
	unsigned char bytes[16];
} CUuuid;

typedef enum {
	CU_PROCESS_STATE_RUNNING = 0,
	CU_PROCESS_STATE_LOCKED = 1,
	CU_PROCESS_STATE_CHECKPOINTED = 2,
	CU_PROCESS_STATE_FAILED = 3,
	CU_PROCESS_STATE_CHECKPOINTING = 4, /* in newer drivers, while a call is under way */
	CU_PROCESS_STATE_RESTORING = 5,
} CUprocessState;

typedef struct {
	unsigned int timeoutMs; /* 0 = no timeout */
	unsigned int reserved0;
	uint64_t reserved1[7];
} CUcheckpointLockArgs;

typedef struct {
	uint64_t reserved[8];
} CUcheckpointCheckpointArgs;

typedef struct {
	CUuuid oldUuid;
	CUuuid newUuid;
} CUcheckpointGpuPair;

typedef struct {
	CUcheckpointGpuPair *gpuPairs;
	unsigned int gpuPairsCount;
	char reserved[64 - sizeof(CUcheckpointGpuPair *) - sizeof(unsigned int)];
} CUcheckpointRestoreArgs;

typedef struct {
	uint64_t reserved[8];
} CUcheckpointUnlockArgs;

_Static_assert(sizeof(CUcheckpointLockArgs) == 64, "as in cuda.h");
_Static_assert(sizeof(CUcheckpointCheckpointArgs) == 64, "as in cuda.h");
_Static_assert(sizeof(CUcheckpointGpuPair) == 32, "as in cuda.h");
_Static_assert(sizeof(CUcheckpointRestoreArgs) == 64, "as in cuda.h");
_Static_assert(sizeof(CUcheckpointUnlockArgs) == 64, "as in cuda.h");

CUDAAPI CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state);
CUDAAPI CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args);
CUDAAPI CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args);
CUDAAPI CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args);
CUDAAPI CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args);
CUDAAPI CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid);

/* What no driver has. Memory that stands for more in the books, and in the time that copying it takes. */
CUDAAPI CUresult mockMemAlloc(CUdeviceptr *address, size_t bytes, uint64_t booked_bytes);
/* What an NCCL communicator takes in the current context; it goes with the context, or with Destroy. */
CUDAAPI CUresult mockCommunicatorCreate(void);
CUDAAPI CUresult mockCommunicatorDestroy(void);

#endif
