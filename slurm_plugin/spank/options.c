/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The --gandiva flags.
 *
 * A value is checked when it is met, so that the user reads what is wrong
 * before anything is submitted. These checks are a courtesy only: what arrives
 * at slurmctld need not come through sbatch, and is checked there again by the
 * job_submit module.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gandiva.h"

#define VALUE_MAX 640
#define GPUS_MAX 4096

static struct {
	bool given;
	char value[VALUE_MAX];
} options[OPT_COUNT];

const char *const gandiva_job_variables[] = {
	"GANDIVA_JOB",	   "GANDIVA_CONTROL_DIR", "GANDIVA_WEIGHT", "GANDIVA_PACK",   "GANDIVA_MIGRATE",  "GANDIVA_SUSPEND",
	"GANDIVA_GPU_TYPES", "GANDIVA_MODEL",	    "GANDIVA_SEARCH", "GANDIVA_MIN_GPUS", "GANDIVA_MAX_GPUS",
	"GANDIVA_GPUS_PER_TASK", NULL,
};

static int on_option(int val, const char *optarg, int remote);

static struct spank_option table[OPT_COUNT] = {
	[OPT_GANDIVA] = { "gandiva", NULL, "share GPUs with other jobs by time-slicing", 0, OPT_GANDIVA, on_option },
	[OPT_NO_GANDIVA] = { "no-gandiva", NULL, "keep the GPUs from start to end", 0, OPT_NO_GANDIVA, on_option },
	[OPT_WEIGHT] = { "gandiva-weight", "N", "share of GPU time, 0.1 to 100 (default 1)", 1, OPT_WEIGHT, on_option },
	[OPT_GPUS] = { "gandiva-gpus", "MIN-MAX", "GPUs it may have, where the site lets jobs grow", 1,
		       OPT_GPUS, on_option },
	[OPT_PACK] = { "gandiva-pack", "yes|no", "may run beside another job on one GPU, where the site packs jobs",
		       1, OPT_PACK, on_option },
	[OPT_MIGRATE] = { "gandiva-migrate", "yes|no", "may be requeued where it cannot be suspended", 1, OPT_MIGRATE,
			  on_option },
	[OPT_SUSPEND] = { "gandiva-suspend", "cooperative|transparent|requeue", "how it yields its GPUs", 1,
			  OPT_SUSPEND, on_option },
	[OPT_GPU_TYPES] = { "gandiva-gpu-types", "LIST", "GPU models it may run on, such as a100,h100", 1,
			    OPT_GPU_TYPES, on_option },
	[OPT_MODEL] = { "gandiva-model", "NAME", "name of what is trained: runs of one name share profiles", 1,
			OPT_MODEL, on_option },
	[OPT_SEARCH] = { "gandiva-search", "NAME", "a trial of this hyper-parameter search of yours", 1, OPT_SEARCH,
			 on_option },
};

/* Not the C library's: they follow the locale. */
static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_lower(char c)
{
	return c >= 'a' && c <= 'z';
}

static bool is_upper(char c)
{
	return c >= 'A' && c <= 'Z';
}

/* N or N.N, 0.1 to 100. strtod would take 1e1, 0x1p3 and, in some locales, 1,5. */
static bool weight_ok(const char *text)
{
	unsigned whole = 0;
	unsigned tenths = 0;
	bool more = false;
	const char *p = text;

	if (!is_digit(*p) || strlen(text) > 12)
		return false;
	for (; is_digit(*p); p++) {
		whole = whole * 10 + (unsigned) (*p - '0');
		if (whole > 100)
			return false;
	}
	if (*p == '.') {
		p++;
		if (!is_digit(*p))
			return false;
		tenths = (unsigned) (*p++ - '0');
		for (; is_digit(*p); p++)
			more = more || *p != '0';
	}
	if (*p)
		return false;
	if (whole == 100)
		return tenths == 0 && !more;
	return whole > 0 || tenths > 0;
}

static const char *number(const char *p, unsigned *value)
{
	*value = 0;
	if (!is_digit(*p) || *p == '0')
		return NULL;
	for (; is_digit(*p); p++) {
		*value = *value * 10 + (unsigned) (*p - '0');
		if (*value > GPUS_MAX)
			return NULL;
	}
	return p;
}

static bool gpus_ok(const char *text)
{
	unsigned min, max;
	const char *p = number(text, &min);

	if (!p || *p != '-')
		return false;
	p = number(p + 1, &max);
	return p && !*p && min <= max;
}

static bool yes_no_ok(const char *text)
{
	return !strcmp(text, "yes") || !strcmp(text, "no");
}

static bool suspend_ok(const char *text)
{
	return !strcmp(text, "cooperative") || !strcmp(text, "transparent") || !strcmp(text, "requeue");
}

static bool name_character(char c)
{
	return c && (is_digit(c) || is_lower(c) || is_upper(c) || strchr("._+-", c));
}

/* Up to 16 different names, each of 64 characters at most. */
static bool gpu_types_ok(const char *text)
{
	char seen[16][65];
	unsigned count = 0;
	const char *p = text;

	for (;;) {
		size_t length = 0;

		while (name_character(p[length]))
			length++;
		if (length < 1 || length > 64 || count == 16)
			return false;
		memcpy(seen[count], p, length);
		seen[count][length] = '\0';
		for (unsigned i = 0; i < count; i++)
			if (!strcmp(seen[i], seen[count]))
				return false;
		count++;
		p += length;
		if (!*p)
			return true;
		if (*p++ != ',')
			return false;
	}
}

static bool name_ok(const char *text)
{
	size_t length = 0;

	while (name_character(text[length]))
		length++;
	return !text[length] && length >= 1 && length <= 64;
}

static const struct {
	bool (*ok)(const char *text);
	const char *allowed;
} rules[OPT_COUNT] = {
	[OPT_WEIGHT] = { weight_ok, "a number from 0.1 to 100" },
	[OPT_GPUS] = { gpus_ok, "MIN-MAX, such as 1-4, two numbers from 1 to 4096 with MIN not above MAX" },
	[OPT_PACK] = { yes_no_ok, "yes or no" },
	[OPT_MIGRATE] = { yes_no_ok, "yes or no" },
	[OPT_SUSPEND] = { suspend_ok, "cooperative, transparent or requeue" },
	[OPT_GPU_TYPES] = { gpu_types_ok, "up to 16 different GPU models, such as a100,h100" },
	[OPT_MODEL] = { name_ok, "1 to 64 letters, digits and . _ + -" },
	[OPT_SEARCH] = { name_ok, "1 to 64 letters, digits and . _ + -" },
};

/* A hostile or mistaken value goes into the message: no control characters, not too long. */
static void printable(const char *text, char *out, size_t size)
{
	size_t i;

	for (i = 0; text[i] && i < size - 1; i++)
		out[i] = (text[i] >= 0x20 && text[i] < 0x7f) ? text[i] : '?';
	out[i] = '\0';
}

static int contradiction(int val)
{
	if (val == OPT_NO_GANDIVA) {
		for (int i = 0; i < OPT_COUNT; i++) {
			if (i != OPT_NO_GANDIVA && options[i].given) {
				slurm_error("gandiva: --no-gandiva contradicts --%s: give one of them", table[i].name);
				return -1;
			}
		}
	} else if (options[OPT_NO_GANDIVA].given) {
		slurm_error("gandiva: --%s contradicts --no-gandiva: give one of them", table[val].name);
		return -1;
	}
	return 0;
}

static int on_option(int val, const char *optarg, int remote)
{
	/* In slurmstepd a wrong value came past sbatch; Slurm logs our refusal and goes on without the flag. */
	(void) remote;

	if (val < 0 || val >= OPT_COUNT)
		return -1;
	if (val != OPT_NO_GANDIVA && !strcmp(program_invocation_short_name, "scrontab")) {
		/* scrontab takes the flag, and then hands slurmctld nothing of it. */
		slurm_error("gandiva: --%s: a job of scrontab cannot be time-sliced: let it submit another one "
			    "(sbatch --gandiva ...)", table[val].name);
		return -1;
	}
	if (rules[val].ok) {
		if (!optarg || strlen(optarg) >= VALUE_MAX || !rules[val].ok(optarg)) {
			char shown[81];

			printable(optarg ? optarg : "", shown, sizeof(shown));
			slurm_error("gandiva: --%s=%s: expected %s", table[val].name, shown, rules[val].allowed);
			return -1;
		}
		strcpy(options[val].value, optarg);
	}
	if (contradiction(val))
		return -1;
	options[val].given = true;
	return 0;
}

int gandiva_options_register(spank_t spank)
{
	for (int i = 0; i < OPT_COUNT; i++) {
		spank_err_t rc = spank_option_register(spank, &table[i]);

		if (rc != ESPANK_SUCCESS) {
			slurm_error("gandiva: cannot register --%s: %s", table[i].name, spank_strerror(rc));
			return -1;
		}
	}
	return 0;
}

const char *gandiva_option(enum gandiva_option option)
{
	return options[option].given ? options[option].value : NULL;
}

bool gandiva_options_ask(void)
{
	for (int i = 0; i < OPT_COUNT; i++)
		if (i != OPT_NO_GANDIVA && options[i].given)
			return true;
	return false;
}

const char *gandiva_option_name(enum gandiva_option option)
{
	return table[option].name;
}
