/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The file `turn` of a control block: whether the job is on its GPUs now ("on"
 * or "off"), and which devices it may open ("+195:2") and may not ("-195:0").
 *
 * The node agent writes it when it prepares a start, and at each switch; the
 * epilog takes it away with the block. So a start that no controller chose
 * (Slurm starts again what its owner requeues, or whose node failed) finds
 * none, and a step that is started while its job is off its GPUs finds "off":
 * both wait here, before anything of the user's runs.
 */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gandiva.h"

#ifndef GANDIVA_CONFINE
#define GANDIVA_CONFINE "/usr/sbin/gandiva-confine"
#endif

#define CONFINE_SECONDS 60
#define QUIET_SECONDS 3
#define FILE_MAX 8192

enum turn { TURN_UNKNOWN, TURN_OFF, TURN_ON };

static void pause_for(long milliseconds)
{
	struct timespec time = { milliseconds / 1000, milliseconds % 1000 * 1000000 };

	nanosleep(&time, NULL);
}

/* What the file says, and in `*closes` whether it names devices that are closed. */
static enum turn read_turn(int folder, bool *closes)
{
	char text[FILE_MAX + 1];
	ssize_t length = -1;
	struct stat st;
	/* O_NONBLOCK: opening a pipe must not wait for its writer. */
	int fd = openat(folder, "turn", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	*closes = false;
	if (fd < 0)
		return TURN_UNKNOWN;
	/* Replaced as a whole, and small: one read gets all of it. */
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == 0 && !(st.st_mode & 022))
		length = read(fd, text, FILE_MAX);
	close(fd);
	if (length < 0)
		return TURN_UNKNOWN;
	text[length] = '\0';
	*closes = strstr(text, " -") != NULL;
	return !strncmp(text, "on", 2) ? TURN_ON : !strncmp(text, "off", 3) ? TURN_OFF : TURN_UNKNOWN;
}

/* Run the tool; 0 when it succeeded. */
static int confine(const char *block, pid_t task)
{
	char number[16], path[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin", place[PATH_MAX];
	char name[] = GANDIVA_CONFINE;
	char *argv[] = { name, place, number, NULL };
	char *environment[] = { path, NULL };
	int status = 0, rc;
	pid_t pid;

	snprintf(number, sizeof(number), "%ld", (long) task);
	snprintf(place, sizeof(place), "%s", block);
	rc = posix_spawn(&pid, name, NULL, NULL, argv, environment);
	if (rc) {
		slurm_error("gandiva: cannot run %s: %s", name, strerror(rc));
		return -1;
	}
	for (int waited = 0; waited < CONFINE_SECONDS * 1000; waited += 2) {
		pid_t ended = waitpid(pid, &status, WNOHANG);

		if (ended == pid)
			return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -1;
		if (ended < 0 && errno != EINTR)
			return -1;
		pause_for(2);
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	slurm_error("gandiva: %s does not end", name);
	return -1;
}

/* Of a task that is not to run: made by root in slurmstepd, found by the task itself. */
static void refusal(char *name, size_t size, pid_t task)
{
	snprintf(name, size, "refused.%ld", (long) task);
}

void gandiva_confine_step(spank_t spank, const struct gandiva_args *args)
{
	char block[PATH_MAX], name[32];
	bool closes = false;
	pid_t task;
	int folder, fd;

	/* What is wrong with the block, each task says itself. */
	if (gandiva_open_block(spank, args, block, sizeof(block), &folder) || folder < 0)
		return;
	if (spank_get_item(spank, S_TASK_PID, &task) != ESPANK_SUCCESS) {
		close(folder);
		return;
	}
	refusal(name, sizeof(name), task);
	unlinkat(folder, name, 0); /* of another process with its number */
	read_turn(folder, &closes);
	if (closes && confine(block, task)) {
		fd = openat(folder, name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
		if (fd >= 0)
			close(fd);
		else
			kill(task, SIGKILL);
	}
	close(folder);
}

int gandiva_await_turn(spank_t spank, const struct gandiva_args *args, bool shares, bool *confined)
{
	char block[PATH_MAX], name[32];
	long milliseconds = 0;

	*confined = false;
	refusal(name, sizeof(name), getpid());
	for (;;) {
		enum turn turn;
		int folder;

		if (gandiva_open_block(spank, args, block, sizeof(block), &folder))
			return -1;
		if (folder >= 0 && !faccessat(folder, name, F_OK, 0)) {
			slurm_error("gandiva: cannot keep this step off the GPUs of other jobs, so it does not run: tell "
				    "the administrator (slurmd's log on this node has what %s said)", GANDIVA_CONFINE);
			close(folder);
			return -1;
		}
		turn = folder < 0 ? TURN_UNKNOWN : read_turn(folder, confined);
		if (folder >= 0)
			close(folder);
		/* Whole GPUs are Slurm's to give: what the controller has handed back to it has these. */
		if (turn == TURN_ON || (turn == TURN_UNKNOWN && !shares))
			return 0;
		if (milliseconds < QUIET_SECONDS * 1000 && milliseconds + 100 >= QUIET_SECONDS * 1000)
			slurm_error("gandiva: %s: this waits until the Gandiva controller puts it onto its GPUs",
				    turn == TURN_OFF ? "the job is off its GPUs" :
						       "nobody has prepared this start of the job");
		pause_for(milliseconds < 10000 ? 100 : 1000);
		milliseconds += 100;
	}
}
