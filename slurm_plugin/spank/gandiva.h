/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Gandiva's SPANK plugin: what its files share.
 *
 *   spank_gandiva.c  what Slurm calls, handed on by context
 *   args.c           the words after the plugin's name in plugstack.conf
 *   options.c        the --gandiva flags: registering, checking, remembering
 *   local.c          inside sbatch, salloc and srun, as the user, before submission
 *   remote.c         inside slurmstepd, in each task just before exec
 *   turn.c           whether the job is on its GPUs now, and the devices of a new step
 *   visible.c        which of the job's GPUs it may use now
 */
#ifndef GANDIVA_H
#define GANDIVA_H

#include <stdbool.h>
#include <stddef.h>

#include <slurm/spank.h>

/* --- args.c -------------------------------------------------------------- */

struct gandiva_args {
	char jobside[1024]; /* folder that holds the Python package */
	char run_dir[512];  /* root of the control blocks; may hold %n */
	bool default_on;    /* jobs are Gandiva's unless --no-gandiva */
};

/* Returns 0, or -1 after a message that names the wrong word. */
int gandiva_args_parse(int argc, char **argv, struct gandiva_args *args);

/* --- options.c ----------------------------------------------------------- */

enum gandiva_option {
	OPT_GANDIVA,
	OPT_NO_GANDIVA,
	OPT_WEIGHT,
	OPT_GPUS,
	OPT_PACK,
	OPT_MIGRATE,
	OPT_SUSPEND,
	OPT_GPU_TYPES,
	OPT_MODEL,
	OPT_SEARCH,
	OPT_COUNT
};

/* Slurm wants them registered in every context in which they may turn up. */
int gandiva_options_register(spank_t spank);

/* The value given, "" for a flag without one, or NULL when it was not given. */
const char *gandiva_option(enum gandiva_option option);

/* Any flag that asks for time-slicing. */
bool gandiva_options_ask(void);

/* Its name as the user writes it, without the dashes. */
const char *gandiva_option_name(enum gandiva_option option);

/* What this plugin sets in the environment of a Gandiva job, ended by NULL. Jobs that it submits inherit it. */
extern const char *const gandiva_job_variables[];

/* --- local.c ------------------------------------------------------------- */

/* In slurm_spank_init, before the command looks at its environment. */
void gandiva_local_init(spank_context_t context);

int gandiva_local_post_opt(spank_t spank, spank_context_t context);

/* --- remote.c ------------------------------------------------------------ */

int gandiva_remote_task_init(spank_t spank, const struct gandiva_args *args);

/* Opens the control block of a job: see remote.c. */
int gandiva_open_block(spank_t spank, const struct gandiva_args *args, char *path, size_t size, int *folder);

/* --- turn.c --------------------------------------------------------------- */

/*
 * As root, before the tasks of a step run: closes the GPUs that are not the job's
 * now. Where that fails the task refuses to run: an error here would drain the node.
 */
void gandiva_confine_step(spank_t spank, const struct gandiva_args *args);

/*
 * As the task's user: return only when the job is on its GPUs. `shares`: a job
 * that holds GPUs as shards, which waits for its control block too. `*confined`:
 * others of its GPUs are closed to it, so that what it can open counts from 0.
 */
int gandiva_await_turn(spank_t spank, const struct gandiva_args *args, bool shares, bool *confined);

/* --- visible.c ----------------------------------------------------------- */

#define GANDIVA_MAX_GPUS 256

struct gandiva_visible {
	bool present;   /* false: no file, the job uses all its GPUs */
	unsigned count;
	unsigned positions[GANDIVA_MAX_GPUS];
};

/*
 * Read the file `visible` of a control block whose folder is open as `folder`.
 * Returns 0, or -1 with a text for people in `problem`.
 */
int gandiva_visible_read(int folder, struct gandiva_visible *visible, char *problem, size_t size);

/* Parse its content. Same returns. */
int gandiva_visible_parse(const char *text, size_t length, struct gandiva_visible *visible, char *problem, size_t size);

/*
 * Positions count the job's GPUs. A step may have been given some of them only:
 * turn them into positions in the step's list, by the physical numbers in both.
 * Same returns; -1 when the job's turn is on a GPU that the step does not have.
 */
int gandiva_visible_for_step(const char *job_gpus, const char *step_gpus, struct gandiva_visible *visible,
			     char *problem, size_t size);

/*
 * The chosen items of a comma-separated list, in the order chosen. Same
 * returns; -1 when a position is beyond the list or `out` is too small.
 */
int gandiva_visible_narrow(const char *list, const struct gandiva_visible *visible, char *out, size_t out_size,
			   char *problem, size_t size);

#endif
