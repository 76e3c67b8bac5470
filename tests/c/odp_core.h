/* Buffers larger than memory: section VII-E of the same paper. */
#ifndef ODP_CORE_H
#define ODP_CORE_H

#include "odp_buffer.h"
#include "odp_work.h"

/*
 * The client registers `communication` bytes and READs all of them from the server. Then it computes on random pages
 * of `computation` bytes, `passes` times as many as there are. Afterwards, outside of the measured time, it compares
 * the READ data.
 */
static inline void out_of_core(struct conn *c, size_t communication, size_t computation, int passes, int rounds,
			       enum memory memory)
{
	const size_t chunk = 1 << 20, pages = computation / PAGE;
	double start, exchanged, computed;
	struct rusage before, after;
	double waited = 0;
	uint8_t *work = client ? fresh(computation) : NULL, *expected = malloc(chunk);
	struct buffer b;
	int wrong = 0;

	start = now();
	buffer_open(&b, communication, client ? memory : PINNED);
	for (size_t at = 0; !client && at < b.len; at += chunk)
		pattern(b.at + at, b.len - at < chunk ? b.len - at : chunk, at);
	barrier();
	for (size_t at = 0; client && at < b.len; at += chunk) {
		struct ibv_sge data = part(&b, at, b.len - at < chunk ? b.len - at : chunk);
		struct ibv_send_wr wr = { .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_RDMA_READ };

		wr.send_flags = IBV_SEND_SIGNALED;
		wr.wr.rdma.remote_addr = b.far + at;
		wr.wr.rdma.rkey = b.rkey;
		post_send(c, &wr, "a READ");
		done(c->send_cq, "a READ");
	}
	exchanged = now();
	waited = waited_for_core();
	getrusage(RUSAGE_SELF, &before);
	for (int pass = 0; client && pass < passes; pass++)
		for (size_t i = 0; i < pages; i++)
			compute((uint64_t *)(work + draw(pages) * PAGE), PAGE / 8, rounds);
	computed = now();
	getrusage(RUSAGE_SELF, &after);
	waited = waited_for_core() - waited;
	for (size_t at = 0; client && at < b.len; at += chunk) {
		size_t len = b.len - at < chunk ? b.len - at : chunk;

		pattern(expected, len, at);
		wrong |= memcmp(b.at + at, expected, len) != 0;
	}
	if (client)
		print_times(memory_name[memory], exchanged - start, computed - exchanged, waited, &before, &after, wrong);
	free(expected);
	buffer_close(&b);
}

#endif
