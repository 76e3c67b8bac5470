/* The sender of a stream. */
#ifndef STREAM_SEND_H
#define STREAM_SEND_H

#include "stream_run.h"

static inline void write_pattern(uint64_t number)
{
	uint8_t *to = stream.memory + offset_of(number);

	for (uint64_t at = 0; at < job.size; at += 8) {
		uint64_t word = pattern_word(number, at);

		memcpy(to + at, &word, job.size - at < 8 ? job.size - at : 8);
	}
}

/* Posts the next message, with these bits in its immediate data. */
static inline int post_message(uint32_t bits)
{
	uint64_t offset = offset_of(run.messages);
	struct ibv_sge data = { (uintptr_t)stream.memory + offset, job.size, stream.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = MESSAGE, .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM };

	/* The message that had this area before is acknowledged. */
	if (job.verify)
		write_pattern(run.messages);
	wr.imm_data = htonl((run.messages & NUMBER) | bits);
	wr.wr.rdma.remote_addr = stream.far_at + offset;
	wr.wr.rdma.rkey = stream.far_rkey;
	if (!post(&wr, bits & LAST))
		return 0;
	run.messages++;
	return 1;
}

/* An ACK has the number of all messages that were received. */
static inline int take_ack(const struct ibv_wc *wc)
{
	uint32_t more = ntohl(wc->imm_data) - (uint32_t)run.acked;

	if (!(wc->wc_flags & IBV_WC_WITH_IMM) || more > run.messages - run.acked)
		return run_failed(FAILED, "an ACK is wrong: for %u more messages, with %" PRIu64 " outstanding", more,
				  run.messages - run.acked);
	run.acked += more;
	run.acks++;
	run.receives++;
	return 1;
}

/* Waits for completions and takes them. */
static inline int sender_takes(void)
{
	struct ibv_wc wc[BATCH];
	int n = completions(wc);

	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS)
			return failed_completion(&wc[i]);
		if (!(wc[i].wr_id & RECEIVE))
			retire(&wc[i]);
		else if (!take_ack(&wc[i]))
			return 0;
	}
	return n && receives_again();
}

/* Sends messages for a time, or a number of messages if that is not 0; then waits until all are acknowledged and all work
 * requests are complete. */
static inline int send_phase(uint64_t ns, uint64_t count, uint32_t first)
{
	uint64_t begin = run.messages;
	double until = now() + ns * 1e-9;
	int last = 0;

	while (!last || run.acked < run.messages || run.retired < run.posted) {
		while (!last && run.messages - run.acked < job.outstanding && room()) {
			last = count ? run.messages - begin + 1 == count : now() >= until;
			if (!post_message((run.messages == begin ? first : 0) | (last ? LAST : 0)))
				return 0;
		}
		if (!sender_takes())
			return 0;
	}
	return 1;
}

static inline void send_stream(void)
{
	uint64_t count = (job.bytes + job.size - 1) / job.size;

	if (job.warm_up && !send_phase(job.warm_up, 0, 0))
		return;
	measurement_begins();
	if (send_phase(job.time, count, FIRST))
		measurement_ends();
}

#endif
