/* Buffers larger than memory: section VII-E of the same paper. */
#ifndef ODP_CORE_H
#define ODP_CORE_H

#include "odp_buffer.h"

/* Work on a page that stays within the cache: so many rounds of a hash over its words. */
static inline void compute(uint64_t *page, int rounds)
{
	uint64_t x = page[0];

	for (int r = 0; r < rounds; r++)
		for (int i = 0; i < PAGE / 8; i++)
			page[i] = x = (x ^ page[i]) * 0x9e3779b97f4a7c15 + r;
}

/*
 * The client registers `communication` bytes and exchanges all of them with the server; then it computes over
 * `computation` bytes, `passes` times from end to end. What was exchanged is compared afterwards, out of the time.
 */
static inline void out_of_core(struct conn *c, size_t communication, size_t computation, int passes, int rounds,
			       enum memory memory)
{
	const size_t chunk = 1 << 20;
	double start, exchanged, computed;
	uint8_t *work = client ? fresh(computation) : NULL, *expected = malloc(chunk);
	struct buffer b;
	int wrong = 0;

	start = now();
	buffer_open(&b, communication, client ? memory : PINNED);
	for (size_t at = 0; !client && at < b.len; at += chunk)
		pattern(b.at + at, b.len - at < chunk ? b.len - at : chunk, at);
	barrier();
	for (size_t at = 0; client && at < b.len; at += chunk) {
		struct ibv_sge piece = part(&b, at, b.len - at < chunk ? b.len - at : chunk);
		struct ibv_send_wr wr = { .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_READ };

		wr.send_flags = IBV_SEND_SIGNALED;
		wr.wr.rdma.remote_addr = b.far + at;
		wr.wr.rdma.rkey = b.rkey;
		post_send(c, &wr, "a READ");
		done(c->send_cq, "a READ");
	}
	exchanged = now();
	for (int pass = 0; client && pass < passes; pass++)
		for (size_t at = 0; at < computation; at += PAGE)
			compute((uint64_t *)(work + at), rounds);
	computed = now();
	for (size_t at = 0; client && at < b.len; at += chunk) {
		size_t len = b.len - at < chunk ? b.len - at : chunk;

		pattern(expected, len, at);
		wrong |= memcmp(b.at + at, expected, len) != 0;
	}
	if (client)
		printf("{\"what\":\"out of core\",\"memory\":\"%s\",\"exchange\":%.3f,\"compute\":%.3f,\"wrong\":%s}\n",
		       memory_name[memory], exchanged - start, computed - exchanged, wrong ? "true" : "false");
	free(expected);
	buffer_close(&b);
}

#endif
