/* SPDX-License-Identifier: GPL-2.0-or-later */
/* How long kernels take when several processes use one GPU.
 *
 * Each running kernel uses a share (per cent) of the GPU. As long as the shares sum up to 100 or less all
 * run at full speed; above that all slow down alike, by sum/100. Because the slow-down is common to all,
 * one virtual clock per GPU suffices: a kernel of d reference nanoseconds that starts at virtual time v
 * ends at v + d. Nobody has to run for a kernel to end: whoever looks next moves the clock past the ends
 * that lie in between, so a stopped process's kernel ends in time, as on a real GPU. */
#include "state.h"

#include <math.h>

static double rate(double speed, uint32_t load)
{
	return load > 100 ? speed * 100.0 / load : speed;
}

static void ring_add(struct mg_ring *ring, uint64_t from_ns, uint64_t to_ns, double weight)
{
	while (from_ns < to_ns) {
		uint64_t bucket = from_ns / MG_RING_NS;
		uint64_t until = (bucket + 1) * MG_RING_NS;
		if (until > to_ns)
			until = to_ns;
		if (bucket > ring->bucket) {
			uint64_t gap = bucket - ring->bucket;
			for (uint64_t i = 1; i <= gap && i <= MG_RING_BUCKETS; i++)
				ring->busy_us[(ring->bucket + i) % MG_RING_BUCKETS] = 0;
			ring->bucket = bucket;
		}
		ring->busy_us[bucket % MG_RING_BUCKETS] += (uint32_t)((double)(until - from_ns) * weight / 1000.0);
		/* Only the last second counts: skip over what lies before. */
		uint64_t last = to_ns / MG_RING_NS;
		if (bucket + MG_RING_BUCKETS < last)
			from_ns = (last - MG_RING_BUCKETS) * MG_RING_NS;
		else
			from_ns = until;
	}
}

unsigned mg_ring_percent(const struct mg_ring *ring, uint64_t now_ns)
{
	/* The seven full buckets before the one under way, and that one. */
	uint64_t now = now_ns / MG_RING_NS, sum_us = 0;

	for (unsigned i = 0; i < MG_RING_BUCKETS; i++) {
		uint64_t bucket = now - i;
		if (bucket <= ring->bucket && bucket + MG_RING_BUCKETS > ring->bucket)
			sum_us += ring->busy_us[bucket % MG_RING_BUCKETS];
	}
	uint64_t span_us = ((MG_RING_BUCKETS - 1) * MG_RING_NS + now_ns % MG_RING_NS) / 1000;
	uint64_t percent = (sum_us * 100 + span_us / 2) / span_us;
	return percent > 100 ? 100 : (unsigned)percent;
}

static double gpu_speed(const struct mg_state *s, unsigned gpu)
{
	double speed = s->gpus[gpu].speed;

	for (unsigned i = 0; i < MG_MAX_FAULTS; i++) {
		const struct mg_fault *f = &s->faults[i];
		if (f->kind == MG_FAULT_SPEED && (f->gpu < 0 || (unsigned)f->gpu == gpu) && f->value > 0)
			speed *= (double)f->value / 100.0;
	}
	return speed;
}

bool mg_kernel_running(const struct mg_state *s, unsigned client)
{
	const struct mg_client *c = &s->clients[client];

	return c->kernel_end > s->gpus[c->gpu].vtime_ns;
}

void mg_advance(struct mg_state *s, unsigned gpu, uint64_t now_ns)
{
	struct mg_gpu *g = &s->gpus[gpu];
	double speed = gpu_speed(s, gpu);

	while (g->clock_ns < now_ns) {
		uint32_t load = 0;
		uint64_t next_end = UINT64_MAX;
		for (unsigned i = 0; i < s->client_count; i++) {
			const struct mg_client *c = &s->clients[i];
			if (c->in_use && c->gpu == gpu && c->kernel_end > g->vtime_ns) {
				load += c->share;
				if (c->kernel_end < next_end)
					next_end = c->kernel_end;
			}
		}
		if (load == 0) {
			g->clock_ns = now_ns;
			break;
		}
		double r = rate(speed, load);
		uint64_t span = now_ns - g->clock_ns;
		uint64_t to_end = (uint64_t)ceil((double)(next_end - g->vtime_ns) / r);
		bool ends = to_end <= span;
		uint64_t step = ends ? to_end : span;
		for (unsigned i = 0; i < s->client_count; i++) {
			struct mg_client *c = &s->clients[i];
			if (c->in_use && c->gpu == gpu && c->kernel_end > g->vtime_ns) {
				double weight = c->share / (load > 100 ? (double)load : 100.0);
				ring_add(&c->ring, g->clock_ns, g->clock_ns + step, weight);
				c->busy_ns += step;
			}
		}
		ring_add(&g->ring, g->clock_ns, g->clock_ns + step, 1.0);
		g->busy_ns += step;
		g->clock_ns += step;
		g->vtime_ns = ends ? next_end : g->vtime_ns + (uint64_t)((double)step * r);
	}
}

void mg_advance_all(struct mg_state *s, uint64_t now_ns)
{
	for (unsigned i = 0; i < s->gpu_count; i++)
		mg_advance(s, i, now_ns);
}

uint64_t mg_kernel_finish(const struct mg_state *s, unsigned client, uint64_t now_ns)
{
	const struct mg_client *mine = &s->clients[client];
	const struct mg_gpu *g = &s->gpus[mine->gpu];
	double speed = gpu_speed(s, mine->gpu);
	uint64_t v = g->vtime_ns, t = g->clock_ns;

	while (v < mine->kernel_end) {
		uint32_t load = 0;
		uint64_t next_end = UINT64_MAX;
		for (unsigned i = 0; i < s->client_count; i++) {
			const struct mg_client *c = &s->clients[i];
			if (c->in_use && c->gpu == mine->gpu && c->kernel_end > v) {
				load += c->share;
				if (c->kernel_end < next_end)
					next_end = c->kernel_end;
			}
		}
		t += (uint64_t)ceil((double)(next_end - v) / rate(speed, load));
		v = next_end;
	}
	return t > now_ns ? t : now_ns;
}
