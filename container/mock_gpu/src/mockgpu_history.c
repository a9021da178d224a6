/* SPDX-License-Identifier: GPL-2.0-or-later */
/* mockgpu history, mockgpu overlaps: who held what, and where two jobs did at once. */
#include "mockgpu.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const event_names[MG_EVENT_KINDS] = {
	[MG_EVENT_CONTEXT_CREATE] = "context-create",
	[MG_EVENT_CONTEXT_DESTROY] = "context-destroy",
	[MG_EVENT_ALLOC] = "alloc",
	[MG_EVENT_FREE] = "free",
	[MG_EVENT_LOCK] = "lock",
	[MG_EVENT_UNLOCK] = "unlock",
	[MG_EVENT_CHECKPOINT] = "checkpoint",
	[MG_EVENT_RESTORE] = "restore",
	[MG_EVENT_RESTORE_FAILED] = "restore-failed",
	[MG_EVENT_REAP] = "reap",
	[MG_EVENT_EXIT] = "exit",
	[MG_EVENT_BUSY] = "busy",
	[MG_EVENT_HELD] = "held",
};

/* Reads the history piece by piece; NULL at its end. */
struct reader {
	struct mg_state state;
	struct mg_event events[512];
	size_t count, next;
	uint64_t position;
};

static struct reader *open_history(void)
{
	struct reader *r = calloc(1, sizeof(*r));

	if (r == NULL)
		fail("out of memory");
	mg_snapshot(&r->state);
	r->position = r->state.history_base;
	if (r->state.history_dropped > 0)
		fprintf(stderr, "mockgpu: the history lacks %u events\n", r->state.history_dropped);
	return r;
}

static const struct mg_event *next_event(struct reader *r)
{
	if (r->next == r->count) {
		r->count = mg_history_read(&r->state, r->position, r->events, sizeof(r->events) / sizeof(r->events[0]));
		r->next = 0;
		if (r->count == 0)
			return NULL;
		r->position += r->count;
	}
	return &r->events[r->next++];
}

static void print_time(uint64_t ns)
{
	time_t seconds = (time_t)(ns / 1000000000ull);
	struct tm tm;
	char text[32];

	localtime_r(&seconds, &tm);
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
	printf("%s.%06llu", text, (unsigned long long)(ns % 1000000000ull / 1000));
}

struct filter {
	bool json;
	uint64_t since_ns, min_bytes;
	int gpu;
	int64_t job;
};

static void parse_filter(int argc, char **argv, struct filter *f)
{
	static const struct option options[] = {
		{ "json", no_argument, NULL, 'J' },	 { "since", required_argument, NULL, 's' },
		{ "gpu", required_argument, NULL, 'g' }, { "job", required_argument, NULL, 'j' },
		{ "min-bytes", required_argument, NULL, 'm' }, { NULL, 0, NULL, 0 },
	};
	int option;

	*f = (struct filter){ .gpu = -1, .job = -1 };
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		char *end = NULL;
		switch (option) {
		case 'J':
			f->json = true;
			continue;
		case 's':
			f->since_ns = strtoull(optarg, &end, 10);
			break;
		case 'g':
			f->gpu = (int)strtol(optarg, &end, 10);
			break;
		case 'j':
			f->job = strtoll(optarg, &end, 10);
			break;
		case 'm':
			f->min_bytes = strtoull(optarg, &end, 10);
			if (strcmp(end, "KiB") == 0 || strcmp(end, "MiB") == 0 || strcmp(end, "GiB") == 0) {
				f->min_bytes *= *end == 'K' ? MG_KIB : *end == 'M' ? MG_MIB : MG_GIB;
				end += 3;
			}
			break;
		default:
			exit(2);
		}
		if (end == optarg || *end != '\0')
			fail("not a number: %s", optarg);
	}
	if (optind < argc)
		fail("what is %s? (see mockgpu --help)", argv[optind]);
}

int history_command(int argc, char **argv)
{
	struct filter filter;
	const struct mg_event *e;
	bool first = true;

	parse_filter(argc, argv, &filter);
	struct reader *r = open_history();
	if (filter.json)
		printf("[");
	else
		printf("%-26s %-3s %-8s %-8s %-6s %-15s %12s %12s %12s\n", "TIME", "GPU", "JOB", "PID", "UID", "EVENT",
		       "CHANGE_KIB", "HELD_KIB", "GPU_KIB");
	while ((e = next_event(r)) != NULL) {
		if (e->time_ns < filter.since_ns || (filter.gpu >= 0 && e->gpu != filter.gpu) ||
		    (filter.job >= 0 && e->job != filter.job))
			continue;
		const char *name = e->kind < MG_EVENT_KINDS && event_names[e->kind] ? event_names[e->kind] : "unknown";
		bool busy = e->kind == MG_EVENT_BUSY;
		if (filter.json) {
			printf("%s\n{\"sequence\": %llu, \"time_ns\": %llu, \"event\": \"%s\", \"gpu\": %u, \"job_id\": %u, "
			       "\"pid\": %d, \"uid\": %u, \"process\": %u, ",
			       first ? "" : ",", (unsigned long long)e->sequence, (unsigned long long)e->time_ns, name,
			       e->gpu, e->job, e->pid, e->uid, e->serial);
			if (busy)
				printf("\"busy_ns\": %lld, \"window_ns\": %llu, \"held_bytes\": %llu}", (long long)e->delta,
				       (unsigned long long)e->aux, (unsigned long long)e->held);
			else
				printf("\"change_bytes\": %lld, \"held_bytes\": %llu, \"gpu_used_bytes\": %llu}",
				       (long long)e->delta, (unsigned long long)e->held, (unsigned long long)e->aux);
			first = false;
			continue;
		}
		print_time(e->time_ns);
		printf(" %-3u %-8u %-8d %-6u %-15s", e->gpu, e->job, e->pid, e->uid, name);
		if (busy)
			printf(" %lld of %llu ms\n", (long long)e->delta / 1000000, (unsigned long long)e->aux / 1000000);
		else
			printf(" %+12lld %12llu %12llu\n", (long long)e->delta / 1024, (unsigned long long)e->held / 1024,
			       (unsigned long long)e->aux / 1024);
	}
	if (filter.json)
		printf("\n]\n");
	free(r);
	return 0;
}

/* --- overlaps ---------------------------------------------------------------------------------------------------- */

/* Who holds memory: a job, or, by itself, a process of no job. */
struct owner {
	uint32_t job;
	uint32_t serial; /* of the process; 0 for a job */
	int32_t pid;     /* the same */
};

struct holder { /* a process on a GPU */
	uint32_t serial;
	struct owner owner;
	unsigned gpu;
	uint64_t bytes;
};

struct overlap {
	unsigned gpu;
	struct owner owner[2];
	uint64_t start_ns, end_ns; /* end 0 = still */
	uint64_t peak_bytes[2];
};

static struct holder *holders;
static size_t holder_count, holder_room;
static struct overlap *overlaps;
static size_t overlap_count, overlap_room;

static void *grow(void *array, size_t *room, size_t size)
{
	*room = *room == 0 ? 64 : *room * 2;
	array = realloc(array, *room * size);
	if (array == NULL)
		fail("out of memory");
	return array;
}

static bool same(struct owner one, struct owner other)
{
	return one.job == other.job && one.serial == other.serial;
}

static uint64_t owner_bytes(unsigned gpu, struct owner owner)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < holder_count; i++)
		if (holders[i].gpu == gpu && same(holders[i].owner, owner))
			sum += holders[i].bytes;
	return sum;
}

static struct overlap *open_overlap(unsigned gpu, struct owner one, struct owner other)
{
	for (size_t i = overlap_count; i-- > 0;) {
		struct overlap *o = &overlaps[i];
		if (o->end_ns == 0 && o->gpu == gpu && ((same(o->owner[0], one) && same(o->owner[1], other)) ||
							(same(o->owner[0], other) && same(o->owner[1], one))))
			return o;
	}
	return NULL;
}

/* What an owner holds on gpu has changed at this time: open, widen or close its overlaps there. */
static void update(unsigned gpu, struct owner owner, uint64_t time_ns, uint64_t min_bytes)
{
	uint64_t mine = owner_bytes(gpu, owner);

	for (size_t i = 0; i < holder_count; i++) {
		struct owner other = holders[i].owner;
		if (holders[i].gpu != gpu || same(other, owner))
			continue;
		uint64_t theirs = owner_bytes(gpu, other);
		struct overlap *o = open_overlap(gpu, owner, other);
		if (mine <= min_bytes || theirs <= min_bytes) {
			if (o != NULL)
				o->end_ns = time_ns;
			continue;
		}
		if (o == NULL) {
			if (overlap_count == overlap_room)
				overlaps = grow(overlaps, &overlap_room, sizeof(*overlaps));
			o = &overlaps[overlap_count++];
			*o = (struct overlap){ .gpu = gpu, .owner = { other, owner }, .start_ns = time_ns };
		}
		for (unsigned k = 0; k < 2; k++) {
			uint64_t bytes = same(o->owner[k], owner) ? mine : theirs;
			if (bytes > o->peak_bytes[k])
				o->peak_bytes[k] = bytes;
		}
	}
}

static void apply(const struct mg_event *e, uint64_t min_bytes)
{
	struct owner owner = { .job = e->job };
	size_t i = 0;

	if (e->kind == MG_EVENT_BUSY || e->kind == MG_EVENT_RESTORE_FAILED)
		return;
	if (e->job == 0)
		owner = (struct owner){ .serial = e->serial, .pid = e->pid };
	/* A restore may have moved the process: forget what it held elsewhere only when told so (it is told:
	 * the checkpoint has set it to nothing). */
	while (i < holder_count && (holders[i].serial != e->serial || holders[i].gpu != e->gpu))
		i++;
	if (i == holder_count) {
		if (e->held == 0)
			return;
		if (holder_count == holder_room)
			holders = grow(holders, &holder_room, sizeof(*holders));
		holders[holder_count++] = (struct holder){ .serial = e->serial, .owner = owner, .gpu = e->gpu };
	}
	holders[i].bytes = e->held;
	update(e->gpu, owner, e->time_ns, min_bytes);
	if (e->held == 0)
		holders[i] = holders[--holder_count];
}

static void print_owner(const struct owner *owner, uint64_t peak_bytes)
{
	if (owner->job != 0)
		printf("job %u (%llu MiB)", owner->job, (unsigned long long)(peak_bytes / MG_MIB));
	else
		printf("process %d of no job (%llu MiB)", owner->pid, (unsigned long long)(peak_bytes / MG_MIB));
}

int overlaps_command(int argc, char **argv)
{
	struct filter filter;
	const struct mg_event *e;
	size_t shown = 0;

	parse_filter(argc, argv, &filter);
	struct reader *r = open_history();
	while ((e = next_event(r)) != NULL)
		apply(e, filter.min_bytes);
	if (filter.json)
		printf("[");
	for (size_t i = 0; i < overlap_count; i++) {
		const struct overlap *o = &overlaps[i];
		if (o->end_ns != 0 && o->end_ns <= filter.since_ns)
			continue;
		if (filter.json) {
			printf("%s\n{\"gpu\": %u, \"job_ids\": [%u, %u], \"pids_of_no_job\": [%d, %d], \"start_ns\": %llu, "
			       "\"end_ns\": ",
			       shown ? "," : "", o->gpu, o->owner[0].job, o->owner[1].job, o->owner[0].pid,
			       o->owner[1].pid, (unsigned long long)o->start_ns);
			if (o->end_ns == 0)
				printf("null");
			else
				printf("%llu", (unsigned long long)o->end_ns);
			printf(", \"peak_bytes\": [%llu, %llu]}", (unsigned long long)o->peak_bytes[0],
			       (unsigned long long)o->peak_bytes[1]);
		} else {
			printf("GPU %u: ", o->gpu);
			print_owner(&o->owner[0], o->peak_bytes[0]);
			printf(" and ");
			print_owner(&o->owner[1], o->peak_bytes[1]);
			printf(" from ");
			print_time(o->start_ns);
			if (o->end_ns == 0) {
				printf(" on\n");
			} else {
				printf(" to ");
				print_time(o->end_ns);
				printf(", %.6f s\n", (double)(o->end_ns - o->start_ns) / 1e9);
			}
		}
		shown++;
	}
	if (filter.json)
		printf("\n]\n");
	free(r);
	return shown > 0 ? 1 : 0;
}
