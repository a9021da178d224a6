/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Inside slurmstepd, in the process of each task, as its user, just before exec.
 *
 * A Gandiva job is one that has a control block on this node: the node agent
 * or the prolog, both root, made it; users cannot. What the flags said is in
 * the options: Slurm hands those of sbatch and salloc on to the steps.
 */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/slurm.h>

#include "gandiva.h"

#define LIST_MAX 8192

/* Slurm sets those that the node's GRES is for; all list the same GPUs. */
static const char *const device_lists[] = { "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL" };

static int set(spank_t spank, const char *name, const char *value)
{
	spank_err_t rc = spank_setenv(spank, name, value, 1);

	if (rc == ESPANK_SUCCESS)
		return 0;
	slurm_error("gandiva: cannot set %s: %s", name, spank_strerror(rc));
	return -1;
}

/*
 * `text` with %n replaced by the node's name; -1 when that is too long or there is no usable name. The name is
 * slurmstepd's own: in the step's environment it is the user's until task_init, or not there.
 */
static int expand(const char *text, char *out, size_t size)
{
	const char *node = getenv("SLURMD_NODENAME");
	size_t used = 0;

	out[0] = '\0';
	for (const char *p = text; *p; p++) {
		const char *piece = p;
		size_t length = 1;

		if (p[0] == '%' && p[1] == 'n') {
			p++;
			if (!node || !*node ||
			    strspn(node, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") !=
				    strlen(node))
				return -1;
			piece = node;
			length = strlen(node);
		}
		if (used + length + 1 > size)
			return -1;
		memcpy(out + used, piece, length);
		used += length;
		out[used] = '\0';
	}
	return 0;
}

/*
 * The job's control block: its path, and the folder opened, or -1 in `*folder`
 * where there is none. Returns -1 for one that root did not make.
 */
int gandiva_open_block(spank_t spank, const struct gandiva_args *args, char *path, size_t size, int *folder)
{
	char root[PATH_MAX / 2];
	uint32_t job_id;
	struct stat st;
	int n;

	*folder = -1;
	if (spank_get_item(spank, S_JOB_ID, &job_id) != ESPANK_SUCCESS || expand(args->run_dir, root, sizeof(root))) {
		slurm_error("gandiva: cannot tell the job's control block from run_dir=%s", args->run_dir);
		return -1;
	}
	n = snprintf(path, size, "%s/%u", root, job_id);
	if (n < 0 || (size_t) n >= size)
		return -1;
	*folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (*folder < 0) {
		if (errno == ENOENT)
			return 0;
		slurm_error("gandiva: cannot open %s: %s", path, strerror(errno));
		return -1;
	}
	if (fstat(*folder, &st) || st.st_uid != 0 || (st.st_mode & 022)) {
		slurm_error("gandiva: %s is not root's alone: tell the administrator", path);
		close(*folder);
		*folder = -1;
		return -1;
	}
	return 0;
}

/* Keep only the chosen positions in every list of devices that Slurm has set. */
static int narrow_lists(spank_t spank, const struct gandiva_visible *visible, char *problem, size_t size)
{
	for (size_t i = 0; i < sizeof(device_lists) / sizeof(device_lists[0]); i++) {
		char list[LIST_MAX], narrowed[LIST_MAX];

		/* Not set: a step without GPUs (srun --gres=none), or a list this node does not use. */
		if (spank_getenv(spank, device_lists[i], list, sizeof(list)) != ESPANK_SUCCESS || !*list)
			continue;
		if (gandiva_visible_narrow(list, visible, narrowed, sizeof(narrowed), problem, size) ||
		    set(spank, device_lists[i], narrowed))
			return -1;
	}
	return 0;
}

static unsigned count_items(const char *list)
{
	unsigned count = *list ? 1 : 0;

	for (; *list; list++)
		count += *list == ',';
	return count;
}

static int narrow_to_turn(spank_t spank, const char *block, int folder, bool confined)
{
	struct gandiva_visible visible;
	char job_gpus[LIST_MAX], step_gpus[LIST_MAX];
	char problem[400] = "internal error";

	if (gandiva_visible_read(folder, &visible, problem, sizeof(problem)))
		goto fault;
	if (!visible.present)
		return 0;
	/* The positions count the job's GPUs; a step may have been given fewer. */
	if (!confined && spank_getenv(spank, "SLURM_JOB_GPUS", job_gpus, sizeof(job_gpus)) == ESPANK_SUCCESS && *job_gpus &&
	    spank_getenv(spank, "SLURM_STEP_GPUS", step_gpus, sizeof(step_gpus)) == ESPANK_SUCCESS && *step_gpus &&
	    gandiva_visible_for_step(job_gpus, step_gpus, &visible, problem, sizeof(problem)))
		goto fault;
	if (narrow_lists(spank, &visible, problem, sizeof(problem)))
		goto fault;
	return 0;

fault:
	slurm_error("gandiva: %s/visible: %s", block, problem);
	return -1;
}

/*
 * --gpus-per-task=N: Slurm would show each task its own GPUs. The job's GPUs
 * are not bound to tasks (they change while it runs), so it is done here.
 */
static int narrow_to_task(spank_t spank)
{
	char text[16], list[LIST_MAX], problem[400] = "internal error";
	char *end;
	unsigned long each;
	int task;
	unsigned have;
	struct gandiva_visible mine = { .present = true };

	if (spank_getenv(spank, "GANDIVA_GPUS_PER_TASK", text, sizeof(text)) != ESPANK_SUCCESS || !*text ||
	    spank_get_item(spank, S_TASK_ID, &task) != ESPANK_SUCCESS || task < 0 ||
	    spank_getenv(spank, device_lists[0], list, sizeof(list)) != ESPANK_SUCCESS)
		return 0;
	each = strtoul(text, &end, 10);
	have = count_items(list);
	if (*end || each < 1 || each > GANDIVA_MAX_GPUS || !have)
		return 0;
	/* The job may have shrunk below one GPU for each task: then they share. */
	for (unsigned i = 0; i < each && i < have; i++)
		mine.positions[mine.count++] = (unsigned) (((unsigned long) task * each + i) % have);
	if (narrow_lists(spank, &mine, problem, sizeof(problem))) {
		slurm_error("gandiva: cannot give task %d its GPUs: %s", task, problem);
		return -1;
	}
	return 0;
}

static int set_flags(spank_t spank)
{
	static const struct {
		enum gandiva_option option;
		const char *name;
	} names[] = {
		{ OPT_WEIGHT, "GANDIVA_WEIGHT" },   { OPT_PACK, "GANDIVA_PACK" },
		{ OPT_MIGRATE, "GANDIVA_MIGRATE" }, { OPT_SUSPEND, "GANDIVA_SUSPEND" },
		{ OPT_GPU_TYPES, "GANDIVA_GPU_TYPES" }, { OPT_MODEL, "GANDIVA_MODEL" },
		{ OPT_SEARCH, "GANDIVA_SEARCH" },
	};
	const char *range = gandiva_option(OPT_GPUS);

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *value = gandiva_option(names[i].option);

		/* Not given: what a job submitted from within another job inherited is not this job's. */
		if (!value)
			spank_unsetenv(spank, names[i].name);
		else if (set(spank, names[i].name, value))
			return -1;
	}
	if (!range) {
		spank_unsetenv(spank, "GANDIVA_MIN_GPUS");
		spank_unsetenv(spank, "GANDIVA_MAX_GPUS");
	} else {
		char min[16];
		size_t length = strcspn(range, "-");

		if (length >= sizeof(min) || range[length] != '-')
			return -1;
		memcpy(min, range, length);
		min[length] = '\0';
		if (set(spank, "GANDIVA_MIN_GPUS", min) || set(spank, "GANDIVA_MAX_GPUS", range + length + 1))
			return -1;
	}
	return 0;
}

static int set_python_path(spank_t spank, const char *jobside)
{
	static char old[131072], path[131072 + 2048];
	size_t length = strlen(jobside);

	if (spank_getenv(spank, "PYTHONPATH", old, sizeof(old)) != ESPANK_SUCCESS)
		old[0] = '\0';
	/* A step of a script that has it already. */
	if (!strncmp(old, jobside, length) && (old[length] == ':' || !old[length]))
		return 0;
	/* An empty item would mean the current folder. */
	snprintf(path, sizeof(path), "%s%s%s", jobside, *old ? ":" : "", old);
	return set(spank, "PYTHONPATH", path);
}

static int set_gpu_count(spank_t spank)
{
	char list[LIST_MAX], count[16];

	/* Slurm sets it for `gpu` only, and scripts start one process for each. */
	if (spank_getenv(spank, device_lists[0], list, sizeof(list)) != ESPANK_SUCCESS)
		return 0;
	snprintf(count, sizeof(count), "%u", count_items(list));
	return set(spank, "SLURM_GPUS_ON_NODE", count);
}

int gandiva_remote_task_init(spank_t spank, const struct gandiva_args *args)
{
	char block[PATH_MAX], number[16];
	uint32_t step = 0;
	bool script, shards, shares, confined;
	int folder;
	int rc = 0;

	/* A job that asked for it may run as an ordinary one, with `gpu`. */
	shards = spank_getenv(spank, "SLURM_SHARDS_ON_NODE", number, sizeof(number)) == ESPANK_SUCCESS;
	shares = shards && !gandiva_option(OPT_NO_GANDIVA) && (gandiva_options_ask() || args->default_on);
	if (gandiva_await_turn(spank, args, shares, &confined) ||
	    gandiva_open_block(spank, args, block, sizeof(block), &folder))
		return -1;
	if (folder < 0 && !shares && (gandiva_option(OPT_NO_GANDIVA) || !gandiva_options_ask())) {
		/* An ordinary job is left as it is; submitted from within a Gandiva job it must not look like that one. */
		for (const char *const *name = gandiva_job_variables; *name; name++)
			spank_unsetenv(spank, *name);
		return 0;
	}

	if (folder >= 0) {
		rc = narrow_to_turn(spank, block, folder, confined);
		close(folder);
		if (!rc)
			rc = set(spank, "GANDIVA_CONTROL_DIR", block);
	} else {
		/* A stale value from elsewhere must not pass for this job's. */
		spank_unsetenv(spank, "GANDIVA_CONTROL_DIR");
	}
	if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS)
		step = 0;
	script = step == SLURM_BATCH_SCRIPT || step == SLURM_INTERACTIVE_STEP;
	if (!rc)
		rc = set(spank, "GANDIVA_JOB", "1");
	/* Positions in CUDA_VISIBLE_DEVICES are the agent's; CUDA's own default order is by speed. */
	if (!rc)
		rc = set(spank, "CUDA_DEVICE_ORDER", "PCI_BUS_ID");
	if (!rc)
		rc = set_flags(spank);
	if (!rc && !script)
		rc = narrow_to_task(spank);
	if (!rc)
		rc = set_gpu_count(spank);
	if (!rc)
		rc = set_python_path(spank, args->jobside);
	return rc;
}
