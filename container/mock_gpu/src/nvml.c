/* SPDX-License-Identifier: GPL-2.0-or-later */
/* libnvidia-ml.so.1: what monitoring asks of NVML, answered from the node's shared state. */
#include "state.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

typedef int nvmlReturn_t;
enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_ALREADY_INITIALIZED = 5,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_INSUFFICIENT_POWER = 8,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_TIMEOUT = 10,
	NVML_ERROR_IRQ_ISSUE = 11,
	NVML_ERROR_LIBRARY_NOT_FOUND = 12,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_ERROR_CORRUPTED_INFOROM = 14,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_RESET_REQUIRED = 16,
	NVML_ERROR_OPERATING_SYSTEM = 17,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_ERROR_UNKNOWN = 999,
};

typedef struct device *nvmlDevice_t;

/* A handle points at one of these. */
static struct device {
	unsigned gpu;
} devices[MG_MAX_GPUS];

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned references;
static unsigned visible[MG_MAX_GPUS], visible_count;
static struct mg_state state; /* the last look at the node */

/* --- every call starts and ends here -------------------------------------------------------------------- */

/* Looks at the node, with the mutex held on success. reap: dead processes must not show. */
static nvmlReturn_t look(const char *call, int gpu, bool reap)
{
	int64_t hang_seconds = 0, error = 0;
	bool lost = false;

	pthread_mutex_lock(&mutex);
	if (references == 0) {
		pthread_mutex_unlock(&mutex);
		return NVML_ERROR_UNINITIALIZED;
	}
	mg_reap(reap);
	mg_snapshot(&state);
	for (unsigned i = 0; i < MG_MAX_FAULTS; i++) {
		const struct mg_fault *f = &state.faults[i];
		if ((f->gpu >= 0 && f->gpu != gpu) || (f->call[0] != '\0' && strcmp(f->call, call) != 0) ||
		    f->remaining == 0 || f->pid != 0 || f->job != 0)
			continue;
		if (f->kind == MG_FAULT_NVML_HANG)
			hang_seconds = f->value;
		else if (f->kind == MG_FAULT_NVML_ERROR)
			error = f->value;
		else if (f->kind == MG_FAULT_GPU_LOST && gpu >= 0)
			lost = true;
		else
			continue;
		if (f->remaining > 0) { /* count it down for everybody */
			struct mg_state *s;
			do
				s = mg_begin();
			while (mg_fault(s, f->kind, 0, 0, gpu, call) != NULL && !mg_commit());
			mg_abort();
		}
	}
	if (hang_seconds > 0) {
		pthread_mutex_unlock(&mutex);
		mg_sleep_until(mg_now() + (uint64_t)hang_seconds * 1000000000ull);
		pthread_mutex_lock(&mutex);
		mg_snapshot(&state);
	}
	nvmlReturn_t result = lost ? NVML_ERROR_GPU_IS_LOST : (nvmlReturn_t)error;
	if (result != NVML_SUCCESS)
		pthread_mutex_unlock(&mutex);
	return result;
}

static nvmlReturn_t done(nvmlReturn_t result)
{
	pthread_mutex_unlock(&mutex);
	return result;
}

static bool valid(nvmlDevice_t device)
{
	return device >= devices && device < devices + MG_MAX_GPUS;
}

#define LOOK_SYSTEM()                                                    \
	do {                                                             \
		nvmlReturn_t looked = look(__func__, -1, false);         \
		if (looked != NVML_SUCCESS)                              \
			return looked;                                   \
	} while (0)

#define LOOK_DEVICE(device, argument, reap)                              \
	do {                                                             \
		if (!valid(device) || (argument) == NULL)                \
			return references == 0 ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_INVALID_ARGUMENT; \
		nvmlReturn_t looked = look(__func__, (int)(device)->gpu, reap); \
		if (looked != NVML_SUCCESS)                              \
			return looked;                                   \
	} while (0)

/* A call whose answer is a constant or simple expression over `gpu`. */
#define SIMPLE(name, type, expression)                                   \
	API nvmlReturn_t name(nvmlDevice_t device, type *value)          \
	{                                                                \
		LOOK_DEVICE(device, value, false);                       \
		const struct mg_gpu *gpu = &state.gpus[device->gpu];     \
		(void)gpu;                                               \
		*value = (type)(expression);                             \
		return done(NVML_SUCCESS);                               \
	}

#define UNSUPPORTED(name)                                                \
	API nvmlReturn_t name(void)                                      \
	{                                                                \
		return references == 0 ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_NOT_SUPPORTED; \
	}

static nvmlReturn_t text(char *out, unsigned length, const char *value)
{
	if (out == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(value) + 1 > length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, value, strlen(value) + 1);
	return NVML_SUCCESS;
}

/* --- library and system ------------------------------------------------------------------------------------ */

API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
	(void)flags;
	pthread_mutex_lock(&mutex);
	if (mg_open() != 0) {
		pthread_mutex_unlock(&mutex);
		return NVML_ERROR_DRIVER_NOT_LOADED;
	}
	if (references++ == 0) {
		mg_snapshot(&state);
		uint32_t allowed = mg_allowed_gpus(state.gpu_count);
		for (unsigned i = 0; i < MG_MAX_GPUS; i++)
			devices[i].gpu = i;
		visible_count = mg_enumerate(&state, allowed, visible);
	}
	pthread_mutex_unlock(&mutex);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlShutdown(void)
{
	pthread_mutex_lock(&mutex);
	nvmlReturn_t result = references == 0 ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS;
	if (references > 0)
		references--;
	pthread_mutex_unlock(&mutex);
	return result;
}

API const char *nvmlErrorString(nvmlReturn_t result)
{
	static const char *const names[] = { "Success", "Uninitialized", "Invalid Argument", "Not Supported",
		"Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
		"Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
		"NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
		"GPU requires reset", "GPU access blocked by the operating system" };

	if (result >= 0 && (size_t)result < sizeof(names) / sizeof(names[0]))
		return names[result];
	return result == NVML_ERROR_ARGUMENT_VERSION_MISMATCH ? "Argument version mismatch" : "Unknown Error";
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	LOOK_SYSTEM();
	return done(text(version, length, state.driver_version));
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
	char value[40];

	LOOK_SYSTEM();
	snprintf(value, sizeof(value), "13.%s", state.driver_version);
	return done(text(version, length, value));
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	if (version == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	LOOK_SYSTEM();
	*version = 13000;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
	char path[32], value[64] = "";

	LOOK_SYSTEM();
	snprintf(path, sizeof(path), "/proc/%u/comm", pid);
	FILE *f = fopen(path, "re");
	if (f == NULL)
		return done(NVML_ERROR_NOT_FOUND);
	if (fgets(value, sizeof(value), f) != NULL)
		value[strcspn(value, "\n")] = '\0';
	fclose(f);
	return done(text(name, length, value));
}

/* --- finding devices ------------------------------------------------------------------------------------------ */

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
	if (count == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	LOOK_SYSTEM();
	*count = visible_count; /* in a job's cgroup only the job's GPUs are there */
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
	return nvmlDeviceGetCount_v2(count);
}

static nvmlReturn_t handle(unsigned gpu, nvmlDevice_t *device)
{
	for (unsigned i = 0; i < MG_MAX_FAULTS; i++)
		if (state.faults[i].kind == MG_FAULT_GPU_LOST &&
		    (state.faults[i].gpu < 0 || (unsigned)state.faults[i].gpu == gpu))
			return NVML_ERROR_GPU_IS_LOST;
	*device = &devices[gpu];
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	if (device == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	LOOK_SYSTEM();
	return done(index < visible_count ? handle(visible[index], device) : NVML_ERROR_INVALID_ARGUMENT);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	char candidate[48];

	if (uuid == NULL || device == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	LOOK_SYSTEM();
	for (unsigned i = 0; i < visible_count; i++) {
		mg_uuid_text(state.gpus[visible[i]].uuid, candidate);
		if (strcmp(candidate, uuid) == 0)
			return done(handle(visible[i], device));
	}
	return done(NVML_ERROR_NOT_FOUND);
}

static void bus_id(unsigned gpu, char out[36])
{
	memcpy(out, "0000", 4);
	mg_bus_id(&state.gpus[gpu], out + 4);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	char candidate[36];

	if (id == NULL || device == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	LOOK_SYSTEM();
	for (unsigned i = 0; i < visible_count; i++) {
		bus_id(visible[i], candidate);
		if (strcasecmp(candidate, id) == 0 || strcasecmp(candidate + 4, id) == 0)
			return done(handle(visible[i], device));
	}
	return done(NVML_ERROR_NOT_FOUND);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
	LOOK_DEVICE(device, index, false);
	for (unsigned i = 0; i < visible_count; i++)
		if (visible[i] == device->gpu)
			*index = i;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
	LOOK_DEVICE(device, name, false);
	return done(text(name, length, state.gpus[device->gpu].name));
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
	char value[48];

	LOOK_DEVICE(device, uuid, false);
	mg_uuid_text(state.gpus[device->gpu].uuid, value);
	return done(text(uuid, length, value));
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
	char value[30];

	LOOK_DEVICE(device, serial, false);
	const unsigned char *u = state.gpus[device->gpu].uuid;
	snprintf(value, sizeof(value), "15%02u%02u%02u%05u", u[0] % 100u, u[1] % 100u, u[2] % 100u, device->gpu);
	return done(text(serial, length, value));
}

typedef struct {
	char busIdLegacy[16];
	unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	LOOK_DEVICE(device, pci, false);
	memset(pci, 0, sizeof(*pci));
	char id[36];
	bus_id(device->gpu, id);
	memcpy(pci->busId, id, sizeof(pci->busId));
	memcpy(pci->busIdLegacy, pci->busId + 4, 13);
	pci->bus = 0x07 + state.gpus[device->gpu].place * 8;
	pci->pciDeviceId = 0x20b210de;
	pci->pciSubSystemId = 0x147f10de;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetPciInfo_v3(device, pci);
}

SIMPLE(nvmlDeviceGetMinorNumber, unsigned, device->gpu)
SIMPLE(nvmlDeviceGetBrand, unsigned, 14 /* NVIDIA */)
SIMPLE(nvmlDeviceGetComputeMode, unsigned, 0 /* default */)
SIMPLE(nvmlDeviceGetPersistenceMode, unsigned, 1)
SIMPLE(nvmlDeviceGetDisplayMode, unsigned, 0)
SIMPLE(nvmlDeviceGetDisplayActive, unsigned, 0)
SIMPLE(nvmlDeviceGetMultiGpuBoard, unsigned, 0)
SIMPLE(nvmlDeviceGetMaxMigDeviceCount, unsigned, 0)
SIMPLE(nvmlDeviceGetBoardId, unsigned, (7 + gpu->place * 8) << 8)
SIMPLE(nvmlDeviceGetArchitecture, unsigned,
       strstr(gpu->name, "H100") || strstr(gpu->name, "H200") ? 9 : strstr(gpu->name, "A100") ? 7 : 5)
SIMPLE(nvmlDeviceGetNumGpuCores, unsigned, 6912)

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	LOOK_DEVICE(device, major, false);
	const char *name = state.gpus[device->gpu].name;
	*major = strstr(name, "H100") || strstr(name, "H200") ? 9 : strstr(name, "A100") ? 8 : 7;
	if (minor != NULL)
		*minor = 0;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	LOOK_DEVICE(device, current, false);
	*current = 0;
	if (pending != NULL)
		*pending = 0;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig)
{
	LOOK_DEVICE(device, is_mig, false);
	*is_mig = 0;
	return done(NVML_SUCCESS);
}

/* --- memory, processes, load ------------------------------------------------------------------------------------- */

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	LOOK_DEVICE(device, memory, true);
	memory->total = state.gpus[device->gpu].total_bytes;
	memory->used = mg_used_bytes(&state, device->gpu);
	memory->free = memory->used < memory->total ? memory->total - memory->used : 0;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	LOOK_DEVICE(device, memory, true);
	if (memory->version != (sizeof(*memory) | 2u << 24))
		return done(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	memory->total = state.gpus[device->gpu].total_bytes;
	memory->reserved = 0;
	memory->used = mg_used_bytes(&state, device->gpu);
	memory->free = memory->used < memory->total ? memory->total - memory->used : 0;
	return done(NVML_SUCCESS);
}

typedef struct {
	unsigned long long bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
	LOOK_DEVICE(device, memory, false);
	memory->bar1Total = 128 * MG_GIB;
	memory->bar1Used = 4 * MG_MIB;
	memory->bar1Free = memory->bar1Total - memory->bar1Used;
	return done(NVML_SUCCESS);
}

typedef struct {
	unsigned pid;
	unsigned long long usedGpuMemory;
	unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
							  nvmlProcessInfo_t *processes)
{
	LOOK_DEVICE(device, count, true);
	unsigned room = processes == NULL ? 0 : *count, n = 0;
	for (unsigned i = 0; i < state.client_count; i++) {
		const struct mg_client *c = &state.clients[i];
		/* A checkpointed process has let go of the device and is not listed. */
		if (!c->in_use || c->gpu != device->gpu || mg_client_bytes(c) == 0)
			continue;
		if (n < room)
			processes[n] = (nvmlProcessInfo_t){
				.pid = (unsigned)state.procs[c->proc].pid,
				.usedGpuMemory = mg_client_bytes(c),
				.gpuInstanceId = 0xffffffff,
				.computeInstanceId = 0xffffffff,
			};
		n++;
	}
	for (unsigned i = 0; state.init_only_listed && i < state.proc_count; i++) {
		const struct mg_proc *p = &state.procs[i];
		if (!p->in_use || (p->visible & 1u << device->gpu) == 0 || mg_has_context(&state, i))
			continue;
		if (n < room)
			processes[n] = (nvmlProcessInfo_t){
				.pid = (unsigned)p->pid,
				.gpuInstanceId = 0xffffffff,
				.computeInstanceId = 0xffffffff,
			};
		n++;
	}
	*count = n;
	return done(n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
							  nvmlProcessInfo_t *processes)
{
	return nvmlDeviceGetComputeRunningProcesses_v3(device, count, processes);
}

API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, void *processes)
{
	(void)processes;
	LOOK_DEVICE(device, count, false);
	*count = 0;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, void *processes)
{
	(void)processes;
	LOOK_DEVICE(device, count, false);
	*count = 0;
	return done(NVML_SUCCESS);
}

typedef struct {
	unsigned gpu, memory;
} nvmlUtilization_t;

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	LOOK_DEVICE(device, utilization, false);
	utilization->gpu = mg_ring_percent(&state.gpus[device->gpu].ring, mg_now());
	utilization->memory = utilization->gpu / 2;
	return done(NVML_SUCCESS);
}

typedef struct {
	unsigned pid;
	unsigned long long timeStamp;
	unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
						 unsigned *count, unsigned long long last_seen_us)
{
	LOOK_DEVICE(device, count, true);
	unsigned long long now_us = mg_real() / 1000;
	unsigned room = samples == NULL ? 0 : *count, n = 0;
	for (unsigned i = 0; i < state.client_count && now_us > last_seen_us; i++) {
		const struct mg_client *c = &state.clients[i];
		unsigned percent;
		if (!c->in_use || c->gpu != device->gpu || (percent = mg_ring_percent(&c->ring, mg_now())) == 0)
			continue;
		if (n < room)
			samples[n] = (nvmlProcessUtilizationSample_t){
				.pid = (unsigned)state.procs[c->proc].pid,
				.timeStamp = now_us,
				.smUtil = percent,
				.memUtil = percent / 2,
			};
		n++;
	}
	*count = n;
	return done(n == 0 ? NVML_ERROR_NOT_FOUND : n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
	LOOK_DEVICE(device, percent, false);
	*percent = 0;
	if (period_us != NULL)
		*period_us = 167000;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
	return nvmlDeviceGetEncoderUtilization(device, percent, period_us);
}

/* --- health -------------------------------------------------------------------------------------------------------- */

static unsigned busy_percent(unsigned gpu)
{
	return mg_ring_percent(&state.gpus[gpu].ring, mg_now());
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
	(void)sensor;
	LOOK_DEVICE(device, celsius, false);
	*celsius = 32 + busy_percent(device->gpu) * 2 / 5;
	return done(NVML_SUCCESS);
}

typedef struct {
	unsigned version, sensorType;
	int temperature;
} nvmlTemperature_t;

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
	LOOK_DEVICE(device, temperature, false);
	temperature->temperature = (int)(32 + busy_percent(device->gpu) * 2 / 5);
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned kind, unsigned *celsius)
{
	LOOK_DEVICE(device, celsius, false);
	*celsius = kind == 0 ? 92 : 89;
	return done(NVML_SUCCESS);
}

SIMPLE(nvmlDeviceGetPowerUsage, unsigned, 60000 + busy_percent(device->gpu) * 3300)
SIMPLE(nvmlDeviceGetEnforcedPowerLimit, unsigned, 400000)
SIMPLE(nvmlDeviceGetPowerManagementLimit, unsigned, 400000)
SIMPLE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, 400000)
SIMPLE(nvmlDeviceGetPowerManagementMode, unsigned, 1)
SIMPLE(nvmlDeviceGetPerformanceState, unsigned, 0)
SIMPLE(nvmlDeviceGetPowerState, unsigned, 0)
SIMPLE(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, busy_percent(device->gpu) == 0 ? 1 : 0)
SIMPLE(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, busy_percent(device->gpu) == 0 ? 1 : 0)
SIMPLE(nvmlDeviceGetTotalEnergyConsumption, unsigned long long,
       gpu->busy_ns / 1000000 * 330 / 1000 + mg_now() / 1000000 * 60 / 1000)
SIMPLE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 4)
SIMPLE(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 4)
SIMPLE(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 16)
SIMPLE(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
SIMPLE(nvmlDeviceGetPcieReplayCounter, unsigned, 0)

API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *kb_per_s)
{
	(void)counter;
	LOOK_DEVICE(device, kb_per_s, false);
	*kb_per_s = 0;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
	LOOK_DEVICE(device, mhz, false);
	*mhz = type == 2 ? 1593 : busy_percent(device->gpu) > 0 ? 1410 : 210;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
	LOOK_DEVICE(device, mhz, false);
	*mhz = type == 2 ? 1593 : 1410;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	LOOK_DEVICE(device, current, false);
	*current = 1;
	if (pending != NULL)
		*pending = 1;
	return done(NVML_SUCCESS);
}

static unsigned long long ecc_errors(unsigned gpu)
{
	for (unsigned i = 0; i < MG_MAX_FAULTS; i++) {
		const struct mg_fault *f = &state.faults[i];
		if (f->kind == MG_FAULT_ECC && (f->gpu < 0 || (unsigned)f->gpu == gpu))
			return (unsigned long long)f->value;
	}
	return 0;
}

/* error_type: 0 corrected, 1 uncorrected; the injected ones are uncorrected. */
API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned error_type, unsigned counter,
					     unsigned long long *count)
{
	(void)counter;
	LOOK_DEVICE(device, count, false);
	*count = error_type == 1 ? ecc_errors(device->gpu) : 0;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned error_type, unsigned counter,
						 unsigned location, unsigned long long *count)
{
	(void)counter;
	LOOK_DEVICE(device, count, false);
	*count = error_type == 1 && location == 2 /* device memory */ ? ecc_errors(device->gpu) : 0;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *pending)
{
	LOOK_DEVICE(device, pending, false);
	*pending = 0;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
					   unsigned *pending, unsigned *failed)
{
	LOOK_DEVICE(device, corrected, false);
	*corrected = *uncorrected = *pending = *failed = 0;
	return done(NVML_SUCCESS);
}

/* --- topology: pairs under one switch, each half of the GPUs on one socket ---------------------------------------- */

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned *level)
{
	LOOK_DEVICE(one, level, false);
	if (!valid(other))
		return done(NVML_ERROR_INVALID_ARGUMENT);
	unsigned half = (state.gpu_count + 1) / 2;
	*level = one == other			       ? 0 /* internal */
		 : one->gpu / 2 == other->gpu / 2      ? 10 /* one switch */
		 : one->gpu / half == other->gpu / half ? 40 /* one NUMA node */
							: 50 /* across sockets */;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned index, unsigned *status)
{
	(void)index;
	LOOK_DEVICE(one, status, false);
	*status = valid(other) ? 0 : 6;
	return done(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node)
{
	LOOK_DEVICE(device, node, false);
	*node = device->gpu / ((state.gpu_count + 1) / 2);
	return done(NVML_SUCCESS);
}

UNSUPPORTED(nvmlDeviceGetFanSpeed)
UNSUPPORTED(nvmlDeviceGetNvLinkState)
UNSUPPORTED(nvmlDeviceGetAccountingMode)
UNSUPPORTED(nvmlDeviceGetCpuAffinity)
UNSUPPORTED(nvmlDeviceGetVbiosVersion)
UNSUPPORTED(nvmlDeviceGetBoardPartNumber)
UNSUPPORTED(nvmlDeviceGetSamples)
UNSUPPORTED(nvmlDeviceGetFieldValues)
UNSUPPORTED(nvmlDeviceGetGpuInstanceId)
UNSUPPORTED(nvmlDeviceGetMigDeviceHandleByIndex)
