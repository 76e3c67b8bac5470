/* The measurements of the ODP benchmark. Every line that the client prints is a JSON object; times are in µs. */
#ifndef ODP_MEASURE_H
#define ODP_MEASURE_H

#include "odp_buffer.h"

/* Ping-pong of SENDs between two buffers. Stores half of each round-trip time in `times`, unless NULL; returns the
 * average. */
static inline double ping_pong(struct conn *c, const struct buffer *b, size_t len, int count, double *times)
{
	struct ibv_sge data = part(b, 0, len);
	double start, last;

	post_recv(c, 0, &data, 1, "a ping");
	barrier();
	start = last = now();
	for (int i = 0; i < count; i++) {
		if (client)
			start_send(c, data);
		done(c->recv_cq, "a ping");
		/* No receive is posted for a message after the last one. */
		if (i + 1 < count)
			post_recv(c, 0, &data, 1, "a ping");
		if (!client)
			start_send(c, data);
		done(c->send_cq, "a pong");
		if (times) {
			times[i] = (now() - last) * 5e5;
			last = now();
		}
	}
	last = now() - start;
	barrier();
	return last / count * 5e5;
}

/* WRITEs of the client with `depth` outstanding, `total` bytes in all. Returns bytes per second. */
static inline double throughput(struct conn *c, const struct buffer *b, size_t len, size_t total, int depth)
{
	size_t count = total / len < (size_t)depth ? (size_t)depth : total / len, begun = 0;
	double start;

	barrier();
	start = now();
	if (client)
		for (size_t ended = 0; ended < count; ended++) {
			for (; begun < count && begun < ended + depth; begun++)
				start_write(c, b, 0, len, 1);
			done(c->send_cq, "a WRITE");
		}
	start = count * len / (now() - start);
	barrier();
	return start;
}

/* Measures pinned and warm ODP memory in turn. */
static inline void warm(struct conn *c, int rounds, double scale)
{
	static const size_t lat[] = { 8, 4096, 65536 }, bw[] = { 4096, 65536, 1 << 20 };
	struct buffer b[2];

	for (int m = PINNED; m <= ON_DEMAND; m++) {
		buffer_open(&b[m], 1 << 20, m);
		ping_pong(c, &b[m], 1 << 20, 8, NULL);
		throughput(c, &b[m], 1 << 20, 32 << 20, 16);
	}
	for (int round = 0; round < rounds; round++) {
		for (size_t i = 0; i < 3; i++)
			for (int turn = 0; turn < 2; turn++) {
				/* The order alternates between rounds. */
				int m = turn ^ (round & 1), count = (i == 2 ? 2000 : 8000) * scale;
				double us = ping_pong(c, &b[m], lat[i], count, NULL);

				if (client)
					printf("{\"what\":\"warm latency\",\"bytes\":%zu,\"memory\":\"%s\",\"round\":%d,"
					       "\"value\":%.4f}\n", lat[i], memory_name[m], round, us);
			}
		for (size_t i = 0; i < 3; i++)
			for (int turn = 0; turn < 2; turn++) {
				int m = turn ^ (round & 1);
				double rate = throughput(c, &b[m], bw[i], (size_t)(scale * (512 << 20)), 64);

				if (client)
					printf("{\"what\":\"warm throughput\",\"bytes\":%zu,\"memory\":\"%s\",\"round\":%d,"
					       "\"value\":%.6g}\n", bw[i], memory_name[m], round, rate);
			}
	}
	buffer_close(&b[0]);
	buffer_close(&b[1]);
}

/* The median time that the processor needs for the first access of a page. */
static inline double first_touch(int pages, int write)
{
	volatile uint8_t *at = fresh((size_t)pages * PAGE);
	double times[pages], last = now();

	for (int i = 0; i < pages; i++) {
		if (write)
			at[(size_t)i * PAGE] = 1;
		else
			(void)at[(size_t)i * PAGE];
		times[i] = (now() - last) * 1e6;
		last = now();
	}
	munmap((void *)at, (size_t)pages * PAGE);
	return median(times, pages);
}

/* WRITEs of one page each, page by page; returns the median time to completion. */
static inline double page_by_page(struct conn *c, const struct buffer *b, const struct buffer *source, int pages)
{
	double times[pages];

	for (int i = 0; client && i < pages; i++) {
		struct ibv_sge data = source ? part(source, (size_t)i * PAGE, PAGE) : part(b, 0, PAGE);
		struct ibv_send_wr wr = { .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
		double start = now();

		wr.send_flags = IBV_SEND_SIGNALED;
		wr.wr.rdma.remote_addr = b->far + (source ? 0 : (size_t)i * PAGE);
		wr.wr.rdma.rkey = b->rkey;
		post_send(c, &wr, "a WRITE");
		done(c->send_cq, "a WRITE of a page");
		times[i] = (now() - start) * 1e6;
	}
	barrier();
	return client ? median(times, pages) : 0;
}

/* Single pages: cold, warm and prefetched, at receiver and sender, compared with the processor's first access. */
static inline void cold(struct conn *c, int rounds)
{
	enum { PAGES = 64 };

	for (int round = 0; round < rounds; round++) {
		double raw_write = first_touch(PAGES, 1), raw_read = first_touch(PAGES, 0);
		double receiver, sender, warm_receiver, warm_sender, prefetched;
		struct buffer b, source;

		buffer_open(&b, PAGES * PAGE, client ? PINNED : ON_DEMAND);
		receiver = page_by_page(c, &b, NULL, PAGES);
		warm_receiver = page_by_page(c, &b, NULL, PAGES);
		buffer_open(&source, PAGES * PAGE, client ? ON_DEMAND : PINNED);
		sender = page_by_page(c, &b, &source, PAGES);
		warm_sender = page_by_page(c, &b, &source, PAGES);
		buffer_close(&source);
		buffer_close(&b);
		buffer_open(&b, PAGES * PAGE, client ? PINNED : ON_DEMAND);
		if (!client)
			prefetch(&b, b.len, 1);
		barrier();
		prefetched = page_by_page(c, &b, NULL, PAGES);
		buffer_close(&b);
		if (client)
			printf("{\"what\":\"cold\",\"round\":%d,\"raw_write\":%.3f,\"raw_read\":%.3f,\"receiver\":%.3f,"
			       "\"warm_receiver\":%.3f,\"sender\":%.3f,\"warm_sender\":%.3f,\"prefetched\":%.3f}\n",
			       round, raw_write, raw_read, receiver, warm_receiver, sender, warm_sender, prefetched);
	}
}

#endif
