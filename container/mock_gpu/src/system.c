/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static uint64_t clock_ns(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

uint64_t mg_now(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

uint64_t mg_real(void)
{
	return clock_ns(CLOCK_REALTIME);
}

void mg_sleep_until(uint64_t monotonic_ns)
{
	struct timespec t = { .tv_sec = (time_t)(monotonic_ns / 1000000000ull),
			      .tv_nsec = (long)(monotonic_ns % 1000000000ull) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

/* Reads a small file of /proc; the length, or -1 with errno. */
static ssize_t read_small(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -1;
	ssize_t n = read(fd, buf, size - 1);
	int error = errno;
	close(fd);
	errno = error;
	if (n >= 0)
		buf[n] = '\0';
	return n;
}

uint64_t mg_start_time(int pid)
{
	char path[32], buf[1024];

	if (pid <= 0 || (kill(pid, 0) < 0 && errno == ESRCH))
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	if (read_small(path, buf, sizeof(buf)) < 0)
		return 0;
	char *field = strrchr(buf, ')'); /* the name may contain blanks and brackets */
	if (field == NULL || field[1] == '\0')
		return 0;
	field += 2; /* field 3, the state */
	if (*field == 'Z' || *field == 'X')
		return 0;
	for (int i = 3; i < 22; i++) {
		field = strchr(field, ' ');
		if (field == NULL)
			return 0;
		field++;
	}
	return strtoull(field, NULL, 10);
}

bool mg_thread_lives(int pid, int tid)
{
	char path[48];

	snprintf(path, sizeof(path), "/proc/%d/task/%d", pid, tid);
	return tid == 0 || access(path, F_OK) == 0;
}

int mg_thread_group(int tid)
{
	char path[32], buf[2048];

	snprintf(path, sizeof(path), "/proc/%d/status", tid);
	if (read_small(path, buf, sizeof(buf)) < 0)
		return -1;
	const char *line = strstr(buf, "\nTgid:");
	return line == NULL ? -1 : atoi(line + 6);
}

uint32_t mg_pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) == 0 ? (uint32_t)st.st_ino : 0;
}

uint32_t mg_allowed_gpus(unsigned count)
{
	const char *dir = getenv("MOCKGPU_DEV_DIR");
	uint32_t mask = 0;

	if (dir == NULL || *dir == '\0')
		dir = "/dev";
	for (unsigned i = 0; i < count; i++) {
		char path[512];
		snprintf(path, sizeof(path), "%s/nvidia%u", dir, i);
		int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
		if (fd >= 0)
			close(fd);
		/* A node that is there and allowed, but has no driver behind it, gives ENXIO. */
		if (fd >= 0 || (errno != EPERM && errno != EACCES && errno != ENOENT && errno != ENOTDIR))
			mask |= 1u << i;
	}
	return mask;
}

unsigned mg_enumerate(const struct mg_state *s, uint32_t allowed, unsigned out[MG_MAX_GPUS])
{
	for (unsigned i = 0; i < MG_MAX_FAULTS; i++) {
		const struct mg_fault *f = &s->faults[i];
		if (f->kind == MG_FAULT_GPU_LOST && f->remaining != 0 && f->value == 0 && f->pid == 0 && f->job == 0)
			allowed &= f->gpu < 0 ? 0 : ~(1u << f->gpu);
	}
	unsigned count = 0;
	for (unsigned place = 0; place < s->gpu_count; place++)
		for (unsigned i = 0; i < s->gpu_count; i++)
			if (s->gpus[i].place == place && (allowed & 1u << i) != 0)
				out[count++] = i;
	return count;
}

void mg_bus_id(const struct mg_gpu *gpu, char out[32])
{
	snprintf(out, 32, "0000:%02X:00.0", 0x07 + gpu->place * 8);
}

void mg_uuid_text(const unsigned char u[16], char out[48])
{
	snprintf(out, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
		 u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

/* What comes after a word in a text; NULL without it. */
static const char *after(const char *text, const char *word)
{
	const char *found = strstr(text, word);

	return found == NULL ? NULL : found + strlen(word);
}

/* "slurmstepd: [12.batch]" is the title of Slurm's own process for a step; only root can set it for root's. */
static uint32_t job_of_stepd(int pid)
{
	char path[48], buf[256];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d", pid);
	if (stat(path, &st) < 0 || st.st_uid != 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	if (read_small(path, buf, sizeof(buf)) < 0 || strcmp(buf, "slurmstepd\n") != 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/cmdline", pid);
	if (read_small(path, buf, sizeof(buf)) < 0 || strncmp(buf, "slurmstepd: [", 13) != 0)
		return 0;
	return (uint32_t)strtoul(buf + 13, NULL, 10);
}

static uint32_t job_of_parents(int pid)
{
	char path[32], buf[2048];

	while (pid > 1) {
		uint32_t job = job_of_stepd(pid);
		if (job != 0)
			return job;
		snprintf(path, sizeof(path), "/proc/%d/status", pid);
		if (read_small(path, buf, sizeof(buf)) < 0)
			return 0;
		const char *parent = after(buf, "\nPPid:");
		pid = parent == NULL ? 0 : atoi(parent);
	}
	return 0;
}

/* Slurm 26.05 names the group by an id of its own instead: then a slurmstepd in that group tells the job. */
static uint32_t job_of_sluid(const char *sluid)
{
	char path[300], buf[4096];
	uint32_t job = 0;
	struct dirent *entry;
	DIR *proc = opendir("/proc");

	while (job == 0 && proc != NULL && (entry = readdir(proc)) != NULL) {
		int pid = atoi(entry->d_name);
		uint32_t candidate = pid > 0 ? job_of_stepd(pid) : 0;
		if (candidate == 0)
			continue;
		snprintf(path, sizeof(path), "/proc/%d/cgroup", pid);
		if (read_small(path, buf, sizeof(buf)) > 0 && strstr(buf, sluid) != NULL)
			job = candidate;
	}
	if (proc != NULL)
		closedir(proc);
	return job;
}

/* …/slurm[_NODE]/uid_1000/job_12/… (version 1), …/[NODE_]slurmstepd.scope/job_12/… or …/s<13 characters>/… */
static uint32_t job_of_cgroup(void)
{
	char buf[8192];
	uint32_t job = 0;

	if (read_small("/proc/self/cgroup", buf, sizeof(buf)) < 0)
		return 0;
	for (char *line = strtok(buf, "\n"); line != NULL && job == 0; line = strtok(NULL, "\n")) {
		if (strstr(line, "/user.slice/") != NULL || strstr(line, "/user@") != NULL)
			continue; /* a user can name groups there */
		const char *scope = after(line, "slurmstepd.scope/"), *uid = after(line, "/uid_");
		char sluid[16] = "";
		if (scope != NULL && strncmp(scope, "job_", 4) == 0)
			job = (uint32_t)strtoul(scope + 4, NULL, 10);
		else if (scope != NULL && sscanf(scope, "%14[s0-9A-Z]", sluid) == 1 && strlen(sluid) == 14)
			job = job_of_sluid(sluid);
		else if (uid != NULL && strstr(line, "/slurm") != NULL && after(uid, "/job_") != NULL)
			job = (uint32_t)strtoul(after(uid, "/job_"), NULL, 10);
	}
	return job;
}

uint32_t mg_job_id(bool by_environment)
{
	const char *trial = by_environment ? getenv("GANDIVA_TRIAL") : NULL;
	const char *text = by_environment ? getenv("SLURM_JOB_ID") : NULL;
	uint32_t job = job_of_cgroup();

	/* Trials are apart, whatever job they are all part of. */
	if (trial != NULL)
		return (uint32_t)strtoul(trial, NULL, 10);

	if (job == 0)
		job = job_of_parents(getppid());
	return job == 0 && text != NULL ? (uint32_t)strtoul(text, NULL, 10) : job;
}
