/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Plays kernels on one mock GPU in made-up time. Input, one per line:
 *   speed X            the GPU's speed
 *   start T C D S      at T ms client C starts a kernel of D ms with share S per cent
 *   look T             print at T ms: vtime in µs, busy time in µs, for each running client "C:end in ms"
 */
#include "../../../container/mock_gpu/src/state.h"

#include <stdio.h>

#define MS 1000000ull

static struct mg_state s;

int main(void)
{
	unsigned long long t, client, duration, share;
	char line[128];

	s.gpu_count = 1;
	s.gpus[0].speed = 1.0;
	while (fgets(line, sizeof(line), stdin) != NULL) {
		if (sscanf(line, "speed %lf", &s.gpus[0].speed) == 1)
			continue;
		if (sscanf(line, "start %llu %llu %llu %llu", &t, &client, &duration, &share) == 4) {
			struct mg_client *c = &s.clients[client];
			mg_advance(&s, 0, t * MS);
			if (!c->in_use || !mg_kernel_running(&s, (unsigned)client))
				c->kernel_end = s.gpus[0].vtime_ns;
			c->in_use = 1;
			c->share = (uint32_t)share;
			c->kernel_end += duration * MS;
			if (s.client_count <= client)
				s.client_count = (uint32_t)client + 1;
		} else if (sscanf(line, "look %llu", &t) == 1) {
			mg_advance(&s, 0, t * MS);
			printf("%llu %llu", (unsigned long long)s.gpus[0].vtime_ns / 1000,
			       (unsigned long long)s.gpus[0].busy_ns / 1000);
			for (unsigned i = 0; i < s.client_count; i++)
				if (mg_kernel_running(&s, i))
					printf(" %u:%llu", i, (unsigned long long)(mg_kernel_finish(&s, i, t * MS) + MS / 2) / MS);
			printf(" util=%u\n", mg_ring_percent(&s.gpus[0].ring, t * MS));
		}
	}
	return 0;
}
