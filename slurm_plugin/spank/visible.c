/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The file `visible` of a control block: which of its GPUs a job uses now.
 *
 * Only root writes it; all the same nothing is believed that a user could have
 * put there: no links, no pipes, no surprising owner, no more bytes than such
 * a file can have.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gandiva.h"

#define FILE_MAX 1024

int gandiva_visible_parse(const char *text, size_t length, struct gandiva_visible *visible, char *problem, size_t size)
{
	size_t i = 0;

	visible->present = true;
	visible->count = 0;
	if (length && text[length - 1] == '\n')
		length--;
	while (i < length) {
		unsigned value = 0;
		size_t start = i;

		for (; i < length && text[i] >= '0' && text[i] <= '9' && i - start < 3; i++)
			value = value * 10 + (unsigned) (text[i] - '0');
		if (i == start || value >= GANDIVA_MAX_GPUS || visible->count == GANDIVA_MAX_GPUS)
			break;
		for (unsigned k = 0; k < visible->count; k++) {
			if (visible->positions[k] == value) {
				snprintf(problem, size, "position %u twice", value);
				return -1;
			}
		}
		visible->positions[visible->count++] = value;
		if (i == length)
			return 0;
		if (text[i++] != ',')
			break;
	}
	snprintf(problem, size, "expected positions such as 0,1 (at byte %zu of %zu)", i, length);
	return -1;
}

int gandiva_visible_read(int folder, struct gandiva_visible *visible, char *problem, size_t size)
{
	char text[FILE_MAX + 1];
	size_t length = 0;
	struct stat st;
	int rc = -1;
	/* O_NONBLOCK: opening a pipe must not wait for its writer. */
	int fd = openat(folder, "visible", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	visible->present = false;
	visible->count = 0;
	if (fd < 0) {
		if (errno == ENOENT)
			return 0;
		snprintf(problem, size, "cannot open it: %s", strerror(errno));
		return -1;
	}
	if (fstat(fd, &st)) {
		snprintf(problem, size, "cannot stat it: %s", strerror(errno));
	} else if (!S_ISREG(st.st_mode)) {
		snprintf(problem, size, "not a regular file");
	} else if (st.st_uid != 0 || (st.st_mode & 022)) {
		snprintf(problem, size, "expected root's file that nobody else can write (owner %lu, mode %04o)",
			 (unsigned long) st.st_uid, (unsigned) (st.st_mode & 07777));
	} else {
		for (;;) {
			ssize_t n = read(fd, text + length, sizeof(text) - length);

			if (n < 0 && errno == EINTR)
				continue;
			if (n < 0) {
				snprintf(problem, size, "cannot read it: %s", strerror(errno));
				break;
			}
			length += (size_t) n;
			if (length > FILE_MAX) {
				snprintf(problem, size, "more than %d bytes", FILE_MAX);
				break;
			}
			if (n == 0) {
				rc = gandiva_visible_parse(text, length, visible, problem, size);
				break;
			}
		}
	}
	close(fd);
	return rc;
}

/* The item at a position of a comma-separated list; NULL beyond its end. */
static const char *item_at(const char *list, unsigned position, size_t *length)
{
	while (position--) {
		list = strchr(list, ',');
		if (!list)
			return NULL;
		list++;
	}
	*length = strcspn(list, ",");
	return *length ? list : NULL;
}

int gandiva_visible_for_step(const char *job_gpus, const char *step_gpus, struct gandiva_visible *visible,
			     char *problem, size_t size)
{
	for (unsigned i = 0; i < visible->count; i++) {
		size_t length, other;
		const char *wanted = item_at(job_gpus, visible->positions[i], &length);
		unsigned found = 0;
		const char *item;

		if (!wanted) {
			snprintf(problem, size, "position %u, but the job's GPUs are %.100s", visible->positions[i],
				 job_gpus);
			return -1;
		}
		for (;; found++) {
			item = item_at(step_gpus, found, &other);
			if (!item || (other == length && !memcmp(item, wanted, length)))
				break;
		}
		if (!item) {
			snprintf(problem, size,
				 "the job's turn is on GPU %.*s, but this step was given %.100s; "
				 "start steps without GPU flags, they get the job's GPUs",
				 (int) (length < 20 ? length : 20), wanted, step_gpus);
			return -1;
		}
		visible->positions[i] = found;
	}
	return 0;
}

int gandiva_visible_narrow(const char *list, const struct gandiva_visible *visible, char *out, size_t out_size,
			   char *problem, size_t size)
{
	size_t used = 0;

	if (!out_size)
		return -1;
	out[0] = '\0';
	for (unsigned i = 0; i < visible->count; i++) {
		size_t length;
		const char *item = item_at(list, visible->positions[i], &length);

		if (!item) {
			snprintf(problem, size, "position %u is beyond the GPUs %.100s", visible->positions[i], list);
			return -1;
		}
		if (used + length + 2 > out_size) {
			snprintf(problem, size, "the list of GPUs is too long");
			return -1;
		}
		if (i)
			out[used++] = ',';
		memcpy(out + used, item, length);
		used += length;
		out[used] = '\0';
	}
	return 0;
}
