/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Does for the SPANK plugin what Slurm does, as far as its tests need it:
 *
 *   fake_slurm PLUGIN CONTEXT [-a PLUGSTACK_WORD]... [-o OPTION[=VALUE]]... [-i ITEM=NUMBER]...
 *
 * CONTEXT: local (srun), allocator (sbatch, salloc) or remote (slurmstepd).
 * Calls init, the options' callbacks, init_post_opt and, in remote,
 * task_post_fork (with its own pid) and task_init,
 * on this process's own environment; prints messages on standard error and the
 * resulting environment, one variable a line, on standard output. Exits 1 when
 * the plugin refused.
 */

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

static spank_context_t context_now;
static struct spank_option registered[64];
static unsigned registered_count;
static long job_id = 7, step_id = 0, task_id = 0;

void slurm_error(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	fputs("error: ", stderr);
	vfprintf(stderr, format, ap);
	fputc('\n', stderr);
	va_end(ap);
}

void slurm_info(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	fputs("info: ", stderr);
	vfprintf(stderr, format, ap);
	fputc('\n', stderr);
	va_end(ap);
}

const char *spank_strerror(spank_err_t err)
{
	return err == ESPANK_SUCCESS ? "Success" : "Failure";
}

spank_context_t spank_context(void)
{
	return context_now;
}

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
	(void) spank;
	if (registered_count == 64 || !option->name || !option->usage)
		return ESPANK_BAD_ARG;
	registered[registered_count++] = *option;
	return ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
	spank_err_t rc = ESPANK_SUCCESS;
	va_list ap;

	(void) spank;
	va_start(ap, item);
	if (item == S_JOB_ID)
		*va_arg(ap, uint32_t *) = (uint32_t) job_id;
	else if (item == S_JOB_STEPID)
		*va_arg(ap, uint32_t *) = (uint32_t) step_id;
	else if (item == S_TASK_PID)
		*va_arg(ap, pid_t *) = getpid();
	else if (item == S_TASK_ID)
		*va_arg(ap, int *) = (int) task_id;
	else
		rc = ESPANK_BAD_ARG;
	va_end(ap);
	return rc;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *buffer, int length)
{
	const char *value = getenv(name);

	(void) spank;
	/* slurmstepd has it in its own environment; in the step's it comes late (26.05). */
	if (!value || !strcmp(name, "SLURMD_NODENAME"))
		return ESPANK_ENV_NOEXIST;
	if (strlen(value) >= (size_t) length)
		return ESPANK_NOSPACE;
	strcpy(buffer, value);
	return ESPANK_SUCCESS;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	(void) spank;
	return setenv(name, value, overwrite) ? ESPANK_ERROR : ESPANK_SUCCESS;
}

spank_err_t spank_unsetenv(spank_t spank, const char *name)
{
	(void) spank;
	return unsetenv(name) ? ESPANK_ERROR : ESPANK_SUCCESS;
}

spank_err_t spank_job_control_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	char mark[256];

	(void) spank;
	snprintf(mark, sizeof(mark), "JOB_CONTROL_%s", name);
	return setenv(mark, value, overwrite) ? ESPANK_ERROR : ESPANK_SUCCESS;
}

static void die(const char *text)
{
	fprintf(stderr, "fake_slurm: %s\n", text);
	exit(2);
}

static int give_option(char *word, int remote)
{
	char *value = strchr(word, '=');

	if (value)
		*value++ = '\0';
	for (unsigned i = 0; i < registered_count; i++)
		if (!strcmp(registered[i].name, word))
			return registered[i].cb(registered[i].val, value, remote);
	die("no such option");
	return -1;
}

static spank_f *function(void *plugin, const char *name)
{
	/* As POSIX suggests: ISO C knows no way from an object's address to a function's. */
	union {
		void *object;
		spank_f *function;
	} symbol = { .object = dlsym(plugin, name) };

	return symbol.function;
}

int main(int argc, char **argv)
{
	extern char **environ;
	char *words[32], *options[32];
	int word_count = 0, option_count = 0;
	void *plugin;
	bool remote;
	spank_f *init, *post_opt, *post_fork, *task_init;

	if (argc < 3)
		die("usage: fake_slurm PLUGIN CONTEXT ...");
	for (int i = 3; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "-a") && word_count < 32)
			words[word_count++] = argv[i + 1];
		else if (!strcmp(argv[i], "-o") && option_count < 32)
			options[option_count++] = argv[i + 1];
		else if (!strcmp(argv[i], "-i") && !strncmp(argv[i + 1], "job=", 4))
			job_id = atol(argv[i + 1] + 4);
		else if (!strcmp(argv[i], "-i") && !strncmp(argv[i + 1], "step=", 5))
			step_id = atol(argv[i + 1] + 5);
		else if (!strcmp(argv[i], "-i") && !strncmp(argv[i + 1], "task=", 5))
			task_id = atol(argv[i + 1] + 5);
		else
			die("unknown argument");
	}
	remote = !strcmp(argv[2], "remote");
	context_now = remote ? S_CTX_REMOTE : !strcmp(argv[2], "local") ? S_CTX_LOCAL : S_CTX_ALLOCATOR;

	plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (!plugin)
		die(dlerror());
	if (!dlsym(plugin, "plugin_name") || strcmp(dlsym(plugin, "plugin_type"), "spank"))
		die("not a SPANK plugin");
	init = function(plugin, "slurm_spank_init");
	post_opt = function(plugin, "slurm_spank_init_post_opt");
	post_fork = function(plugin, "slurm_spank_task_post_fork");
	task_init = function(plugin, "slurm_spank_task_init");

	if (init(NULL, word_count, words))
		return 1;
	for (int i = 0; i < option_count; i++) {
		/* slurmstepd logs a refused option and goes on. */
		if (give_option(options[i], remote) && !remote)
			return 1;
	}
	if (post_opt(NULL, word_count, words))
		return 1;
	if (remote && (post_fork(NULL, word_count, words) || task_init(NULL, word_count, words)))
		return 1;
	for (char **variable = environ; *variable; variable++)
		puts(*variable);
	return 0;
}
