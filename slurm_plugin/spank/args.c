/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The words after the plugin's name in plugstack.conf. */

#include <stdio.h>
#include <string.h>

#include "gandiva.h"

/* Packages have it elsewhere, and say so with -D. */
#ifndef GANDIVA_JOBSIDE
#define GANDIVA_JOBSIDE "/opt/gandiva/jobside"
#endif

static int copy_path(const char *key, const char *value, char *out, size_t size)
{
	if (value[0] != '/' || strchr(value, ':')) {
		/* A colon would cut PYTHONPATH in two. */
		slurm_error("gandiva: plugstack: %s=%s: expected an absolute path without colons", key, value);
		return -1;
	}
	if (strlen(value) >= size) {
		slurm_error("gandiva: plugstack: %s= is too long, at most %zu bytes", key, size - 1);
		return -1;
	}
	strcpy(out, value);
	return 0;
}

int gandiva_args_parse(int argc, char **argv, struct gandiva_args *args)
{
	strcpy(args->jobside, GANDIVA_JOBSIDE);
	strcpy(args->run_dir, "/run/gandiva");
	args->default_on = false;

	for (int i = 0; i < argc; i++) {
		const char *word = argv[i];

		if (!strncmp(word, "jobside=", 8)) {
			if (copy_path("jobside", word + 8, args->jobside, sizeof(args->jobside)))
				return -1;
		} else if (!strncmp(word, "run_dir=", 8)) {
			if (copy_path("run_dir", word + 8, args->run_dir, sizeof(args->run_dir)))
				return -1;
		} else if (!strcmp(word, "default=on")) {
			args->default_on = true;
		} else if (!strcmp(word, "default=off")) {
			args->default_on = false;
		} else {
			slurm_error("gandiva: plugstack: %s: expected jobside=DIR, run_dir=DIR, default=on or default=off",
				    word);
			return -1;
		}
	}
	return 0;
}
