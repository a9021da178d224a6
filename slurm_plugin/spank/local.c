/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Inside sbatch, salloc (allocator context) and srun (local context), as the
 * user. Values and contradictions were refused as they were met; what is left
 * is what only the whole command shows, and srun's steps of Gandiva jobs.
 *
 * A Gandiva job asks for `gpu` but holds its GPUs as `shard`. A step gets all
 * that its job has, unless it asks for `gpu` itself: then slurmctld refuses
 * it. So srun must not ask again for what sbatch or salloc was asked.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gandiva.h"

#define JOB_PREFIX "SLURM_SPANK_"

/* sbatch and salloc leave these in the job's environment, and srun takes them for the step. */
static const char *const gpu_requests[] = {
	"SLURM_GPUS",	      "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK",
	"SLURM_CPUS_PER_GPU", "SLURM_MEM_PER_GPU",   "SLURM_NTASKS_PER_GPU",  "SLURM_GPU_BIND",
	"SLURM_TRES_BIND",    "SLURM_GRES",
};

/* What Slurm calls the flag in an environment, after this prefix. */
static const char *variable(enum gandiva_option option, const char *prefix, char *name, size_t size)
{
	size_t length = (size_t) snprintf(name, size, "%s_SLURM_SPANK_OPTION_gandiva_", prefix);

	for (const char *p = gandiva_option_name(option); *p && length < size - 1; p++)
		name[length++] = *p == '-' ? '_' : *p;
	name[length] = '\0';
	return name;
}

/* The flag of the job that this command runs in; its batch script's environment has it. */
static const char *from_job(enum gandiva_option option)
{
	char name[128];

	return getenv(variable(option, JOB_PREFIX, name, sizeof(name)));
}

/* sbatch and salloc within a job make another one: it has the flags that it is given, and nothing of the first. */
static void forget_the_job(void)
{
	static const char *const prefixes[] = { "", JOB_PREFIX };
	char name[128];

	for (int i = 0; i < OPT_COUNT; i++)
		for (size_t k = 0; k < sizeof(prefixes) / sizeof(prefixes[0]); k++)
			unsetenv(variable(i, prefixes[k], name, sizeof(name)));
	/* salloc's shell would pass for a part of it. */
	for (const char *const *each = gandiva_job_variables; *each; each++)
		unsetenv(*each);
}

static bool in_gandiva_job(void)
{
	const char *mark = getenv("GANDIVA_JOB");

	if (mark && !strcmp(mark, "1"))
		return true;
	/* salloc's shell runs outside the job's nodes: nothing but the flags tells. */
	for (int i = 0; i < OPT_COUNT; i++)
		if (i != OPT_NO_GANDIVA && from_job(i))
			return true;
	return false;
}

/* Keep what SLURM_TRES_PER_TASK says of other resources; what it says of GPUs is done by the tasks. */
static void take_gpus_out_of_tres(void)
{
	const char *text = getenv("SLURM_TRES_PER_TASK");
	char copy[512], kept[512] = "";
	char *save = NULL;

	if (!text || strlen(text) >= sizeof(copy))
		return;
	strcpy(copy, text);
	for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
		if (!strncmp(item, "gres/gpu", 8)) {
			const char *number = strrchr(item, '=') ? strrchr(item, '=') : strrchr(item, ':');

			setenv("GANDIVA_GPUS_PER_TASK", number ? number + 1 : "1", 1);
		} else {
			if (*kept)
				strcat(kept, ",");
			strcat(kept, item);
		}
	}
	if (*kept)
		setenv("SLURM_TRES_PER_TASK", kept, 1);
	else
		unsetenv("SLURM_TRES_PER_TASK");
}

/*
 * `--gpus=a100:2` given to salloc became two GPUs of a node with the feature
 * gandiva_a100: Slurm's own types here are a100_0, a100_1, ... A step that
 * asks for the type a100 would be refused.
 */
static void take_types_out(void)
{
	static const char *const names[] = { "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET",
					     "SLURM_GPUS_PER_TASK" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *value = getenv(names[i]);
		const char *number = value ? strchr(value, ':') : NULL;

		if (number && !memchr(value, '_', (size_t) (number - value)) && !strchr(value, ',')) {
			char copy[32];

			snprintf(copy, sizeof(copy), "%s", number + 1);
			setenv(names[i], copy, 1);
		}
	}
}

void gandiva_local_init(spank_context_t context)
{
	const char *job = getenv("SLURM_JOB_ID");
	const char *per_task = getenv("SLURM_GPUS_PER_TASK");

	/* Called before these commands look at their environment. */
	if (!job || !*job)
		return;
	if (context == S_CTX_ALLOCATOR) {
		forget_the_job();
		return;
	}
	if (!in_gandiva_job()) {
		take_types_out();
		return;
	}
	if (per_task && *per_task) {
		const char *number = strrchr(per_task, ':'); /* N or TYPE:N */

		setenv("GANDIVA_GPUS_PER_TASK", number ? number + 1 : per_task, 1);
	}
	take_gpus_out_of_tres();
	for (size_t i = 0; i < sizeof(gpu_requests) / sizeof(gpu_requests[0]); i++)
		unsetenv(gpu_requests[i]);
}

/*
 * A flag of srun's command line that asks the step for GPUs, or NULL. Options
 * end at the first word that is neither an option nor (perhaps) the value of
 * the option before it; a program's own --gpus comes after that.
 */
static const char *gpu_flag(char *line, size_t length, bool gres_too)
{
	const char *before = NULL;

	for (size_t i = strlen(line) + 1; i < length; i += strlen(line + i) + 1) {
		const char *word = line + i;

		if (word[0] != '-') {
			bool value = before && before[0] == '-' && !strchr(before, '=') &&
				     (before[1] == '-' || !before[2]) && strcmp(before, "--gandiva") &&
				     strcmp(before, "--no-gandiva");
			if (!value)
				return NULL;
		} else if (!strcmp(word, "--")) {
			return NULL;
		} else if (!strncmp(word, "--gpus", 6) || !strncmp(word, "-G", 2) || !strncmp(word, "--ntasks-per-gpu", 16) ||
			   !strncmp(word, "--cpus-per-gpu", 14) || !strncmp(word, "--mem-per-gpu", 13) ||
			   (gres_too && !strncmp(word, "--gres=g", 8))) {
			return word;
		}
		before = word;
	}
	return NULL;
}

/* The words of this command, each ended by a zero byte; returns their length in all. */
static size_t command_line(char *line, size_t size)
{
	FILE *file = fopen("/proc/self/cmdline", "re");
	size_t length = 0;

	if (file) {
		length = fread(line, 1, size - 1, file);
		fclose(file);
	}
	line[length] = '\0';
	return length;
}

int gandiva_local_post_opt(spank_t spank, spank_context_t context)
{
	const char *job = getenv("SLURM_JOB_ID");
	char line[4096];
	size_t length;
	const char *flag;

	if (context != S_CTX_LOCAL)
		return 0;
	length = command_line(line, sizeof(line));

	if (!job || !*job) {
		/* srun makes a job and a step of it in one. slurmctld cannot tell it from salloc: say so. */
		spank_job_control_setenv(spank, "GANDIVA_CLIENT", "srun", 1);
		flag = gandiva_options_ask() ? gpu_flag(line, length, false) : NULL;
		if (flag) {
			slurm_error("gandiva: %.60s: srun outside a job takes the GPUs of a time-sliced job as "
				    "--gres=gpu:N only; or use sbatch or salloc", flag);
			return -1;
		}
		return 0;
	}
	for (int i = 0; i < OPT_COUNT; i++) {
		const char *value = gandiva_option(i);
		const char *inherited = from_job(i);

		/*
		 * The flags are the job's: taking others here would look as if a step
		 * could change its job's weight. Slurm hands the job's flags to its steps
		 * through the environment, as if they had been given here.
		 */
		if (value && !(inherited && (!*value || !strcmp(inherited, value)))) {
			slurm_error("gandiva: --%s: srun starts a step of job %.20s, which has its own setting; "
				    "give it to sbatch, salloc, or an srun outside a job",
				    gandiva_option_name(i), job);
			return -1;
		}
	}
	flag = in_gandiva_job() ? gpu_flag(line, length, true) : NULL;
	if (flag)
		slurm_info("gandiva: steps of a time-sliced job get its GPUs by themselves: if Slurm refuses this "
			   "step, leave out %.60s", flag);
	return 0;
}
