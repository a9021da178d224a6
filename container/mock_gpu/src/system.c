/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "state.h"

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

void mg_uuid_text(const unsigned char u[16], char out[48])
{
	snprintf(out, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
		 u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

uint32_t mg_job_id(void)
{
	const char *text = getenv("SLURM_JOB_ID");

	return text == NULL ? 0 : (uint32_t)strtoul(text, NULL, 10);
}
