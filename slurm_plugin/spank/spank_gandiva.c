/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What Slurm calls, handed on by context. See gandiva.h for the other files.
 *
 * Options are registered in init(), in every context: slurmstepd takes an
 * option only if it was registered there too.
 */

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#include "gandiva.h"

#define VISIBLE __attribute__((visibility("default")))

/* The definitions of slurm/spank.h's SPANK_PLUGIN(gandiva, 1), which knows nothing of visibility. */
VISIBLE extern const char plugin_name[];
VISIBLE extern const char plugin_type[];
VISIBLE extern const unsigned int plugin_version;
VISIBLE extern const unsigned int spank_plugin_version;
SPANK_PLUGIN(gandiva, 1)

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 5, 0)
/* A fault of this plugin is the job's trouble: without this Slurm drains the node. */
VISIBLE extern int slurm_spank_init_failure_mode;
int slurm_spank_init_failure_mode = ESPANK_JOB_FAILURE;
#endif

VISIBLE extern spank_f slurm_spank_init;
VISIBLE extern spank_f slurm_spank_init_post_opt;
VISIBLE extern spank_f slurm_spank_task_init;
VISIBLE extern spank_f slurm_spank_task_post_fork;

static struct gandiva_args args;
static bool broken;

int slurm_spank_init(spank_t spank, int ac, char **av)
{
	spank_context_t context = spank_context();

	switch (context) {
	case S_CTX_LOCAL:
	case S_CTX_ALLOCATOR:
		if (gandiva_args_parse(ac, av, &args) || gandiva_options_register(spank))
			return -1;
		gandiva_local_init(context);
		return 0;
	case S_CTX_REMOTE:
		/*
		 * Older Slurms have no init_failure_mode and drain the node when this
		 * returns an error. Whatever is wrong is told in the task, where it can
		 * only fail the job.
		 */
		if (gandiva_args_parse(ac, av, &args) || gandiva_options_register(spank))
			broken = true;
		return 0;
	default:
		/* slurmd itself, prolog and epilog: nothing to do there, and nothing may fail. */
		return 0;
	}
}

int slurm_spank_init_post_opt(spank_t spank, int ac, char **av)
{
	spank_context_t context = spank_context();

	(void) ac;
	(void) av;
	if (context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR)
		return gandiva_local_post_opt(spank, context);
	return 0;
}

/*
 * Runs in the task's process, as its user, after Slurm's GRES code has set
 * CUDA_VISIBLE_DEVICES (for the batch step, for srun's steps, and per task
 * where GPUs are bound to tasks), and before TaskProlog and exec.
 */
int slurm_spank_task_init(spank_t spank, int ac, char **av)
{
	(void) ac;
	(void) av;
	if (broken) {
		slurm_error("gandiva: the plugin's setting in plugstack.conf is wrong on this node "
			    "(slurmd's log has the reason): tell the administrator");
		return -1;
	}
	return gandiva_remote_task_init(spank, &args);
}

/* Runs in slurmstepd itself, as root, once for each task; all of them wait for it before they go on. */
int slurm_spank_task_post_fork(spank_t spank, int ac, char **av)
{
	(void) ac;
	(void) av;
	if (!broken)
		gandiva_confine_step(spank, &args);
	return 0;
}
