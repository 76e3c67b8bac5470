/* The figures of "Designing MPI Library with On-Demand Paging (ODP) of InfiniBand", section III. */
#ifndef ODP_FIGURES_H
#define ODP_FIGURES_H

#include "odp_counters.h"
#include "odp_measure.h"

#define LARGEST ((size_t)1 << 20)

/* Figure 2: latency and bandwidth over the size, all sizes with one buffer that was not touched before. */
static inline void sweeps(struct conn *c, int count)
{
	for (int m = PINNED; m <= ON_DEMAND; m++) {
		double times[count];
		struct buffer b;

		buffer_open(&b, LARGEST, m);
		for (size_t len = 1; len <= LARGEST; len *= 2) {
			long before = page_faults();
			double us = ping_pong(c, &b, len, count, times), first = times[0];

			if (client)
				printf("{\"what\":\"latency\",\"memory\":\"%s\",\"bytes\":%zu,\"average\":%.4f,\"first\":%.3f,"
				       "\"median\":%.4f,\"faults\":%ld}\n", memory_name[m], len, us, first,
				       median(times, count), before < 0 ? -1 : page_faults() - before);
		}
		buffer_close(&b);
		buffer_open(&b, LARGEST, m);
		for (size_t len = 1; len <= LARGEST; len *= 2) {
			size_t total = len * count < 64 << 20 ? len * count : 64 << 20;
			double rate = throughput(c, &b, len, total, 64);

			if (client)
				printf("{\"what\":\"bandwidth\",\"memory\":\"%s\",\"bytes\":%zu,\"value\":%.6g}\n",
				       memory_name[m], len, rate);
		}
		buffer_close(&b);
	}
}

/* Figure 3 (a): the first iterations of 1 MiB. */
static inline void iterations(struct conn *c)
{
	enum { COUNT = 20, TRIES = 5 };

	for (int m = PINNED; m <= ON_DEMAND; m++) {
		double times[TRIES][COUNT], column[TRIES];

		for (int t = 0; t < TRIES; t++) {
			struct buffer b;

			buffer_open(&b, LARGEST, m);
			ping_pong(c, &b, LARGEST, COUNT, times[t]);
			buffer_close(&b);
		}
		for (int i = 0; client && i < COUNT; i++) {
			for (int t = 0; t < TRIES; t++)
				column[t] = times[t][i];
			printf("{\"what\":\"iteration\",\"memory\":\"%s\",\"number\":%d,\"value\":%.3f}\n", memory_name[m],
			       i + 1, median(column, TRIES));
		}
	}
}

/* Figure 3 (b): the cost of a prefetch for its caller, five times over the same memory, without and with waiting. */
static inline void prefetch_costs(struct conn *c)
{
	enum { TIMES = 5, TRIES = 9 };

	(void)c;
	for (size_t len = 2; len <= LARGEST; len *= 2)
		for (int wait = 0; wait < 2; wait++) {
			double averages[TRIES], first[TRIES];

			for (int t = 0; t < TRIES; t++) {
				struct buffer b;
				double start, once = 0;

				buffer_open(&b, len, ON_DEMAND);
				start = now();
				for (int i = 0; i < TIMES; i++) {
					prefetch(&b, len, wait);
					if (i == 0)
						once = now() - start;
				}
				averages[t] = (now() - start) / TIMES * 1e6;
				first[t] = once * 1e6;
				buffer_close(&b);
			}
			if (client)
				printf("{\"what\":\"prefetch\",\"bytes\":%zu,\"waits\":%s,\"average\":%.3f,\"first\":%.3f}\n",
				       len, wait ? "true" : "false", median(averages, TRIES), median(first, TRIES));
		}
}

/* Figure 3 (c): a message between cold buffers and a short reply, with a prefetch at either side, at both or at
 * none. */
static inline void sides(struct conn *c, int tries)
{
	static const char *const scheme[] = { "none", "sender", "receiver", "both" };
	struct buffer reply;

	buffer_open(&reply, PAGE, PINNED);
	for (size_t len = 2; len <= LARGEST; len *= 2) {
		double times[4][tries];

		for (int t = 0; t < tries; t++)
			for (int s = 0; s < 4; s++) {
				struct buffer b;
				struct ibv_sge small = part(&reply, 0, 8), message;
				double start;

				buffer_open(&b, len, ON_DEMAND);
				message = part(&b, 0, len);
				post_recv(c, 0, client ? &small : &message, 1, "a message");
				if (s & (client ? 1 : 2))
					prefetch(&b, len, 1);
				barrier();
				start = now();
				if (client)
					start_send(c, message);
				done(c->recv_cq, "a message");
				if (!client)
					start_send(c, small);
				times[s][t] = (now() - start) * 1e6;
				done(c->send_cq, "a message");
				buffer_close(&b);
			}
		for (int s = 0; client && s < 4; s++)
			printf("{\"what\":\"sides\",\"prefetch\":\"%s\",\"bytes\":%zu,\"value\":%.3f}\n", scheme[s], len,
			       median(times[s], tries));
	}
	buffer_close(&reply);
}

#endif
