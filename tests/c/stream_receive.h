/* The receiver of a stream. */
#ifndef STREAM_RECEIVE_H
#define STREAM_RECEIVE_H

#include "stream_run.h"

static struct receiver {
	/* Phases that have not ended. */
	int phases;
	int measuring;
	/* The last message of a phase is not acknowledged yet. */
	int last;
} receiver;

/* Counts only bytes that are measured. Those of the warm-up are compared too, for the same load. */
static inline void compare_message(uint64_t number)
{
	const uint8_t *from = stream.memory + offset_of(number);
	uint64_t differ = 0;

	for (uint64_t at = 0; at < job.size; at += 8) {
		uint64_t word = pattern_word(number, at), got = word, len = job.size - at < 8 ? job.size - at : 8;

		memcpy(&got, from + at, len);
		for (uint64_t wrong = word ^ got; wrong; wrong >>= 8)
			differ += (wrong & 0xff) != 0;
	}
	if (receiver.measuring) {
		run.checked += job.size;
		run.wrong += differ;
	}
}

static inline void receiver_measures(void)
{
	receiver.measuring = 1;
	measurement_begins();
}

static inline int take_message(const struct ibv_wc *wc)
{
	uint32_t imm = ntohl(wc->imm_data);

	if (wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM || (imm & NUMBER) != (run.messages & NUMBER))
		return run_failed(FAILED, "message %" PRIu64 " should be next, and number %u came", run.messages & NUMBER,
				  imm & NUMBER);
	/* It may come before the completion of the ACK that ends the phase before. */
	if (imm & FIRST && !receiver.measuring)
		receiver_measures();
	if (imm & FIRST ? run.messages != run.first : receiver.measuring && run.messages == run.first)
		return run_failed(FAILED, "message %u is not the first one that is measured", imm & NUMBER);
	if (job.verify)
		compare_message(run.messages);
	run.messages++;
	run.receives++;
	if (imm & LAST) {
		receiver.last = 1;
		receiver.phases--;
	}
	return 1;
}

/* Gives credits for what has been received. The receives of the next messages are posted first: the sender never finds
 * none. */
static inline int acknowledge(void)
{
	struct ibv_send_wr wr = { .wr_id = ACK, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl((uint32_t)run.messages) };

	if (!receives_again() || !post(&wr, receiver.last))
		return 0;
	run.acked = run.messages;
	run.acks++;
	receiver.last = 0;
	return 1;
}

static inline int ack_is_due(void)
{
	return (receiver.last || run.messages - run.acked >= ack_every()) && room();
}

static inline int receiver_takes(void)
{
	struct ibv_wc wc[BATCH];
	int n = completions(wc);

	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS)
			return failed_completion(&wc[i]);
		if (!(wc[i].wr_id & RECEIVE))
			retire(&wc[i]);
		else if (!take_message(&wc[i]))
			return 0;
		if (ack_is_due() && !acknowledge())
			return 0;
	}
	return n;
}

static inline void receive_stream(void)
{
	receiver = (struct receiver){ .phases = job.warm_up ? 2 : 1 };
	if (!job.warm_up)
		receiver_measures();
	while (receiver.phases || receiver.last || run.retired < run.posted) {
		/* The warm-up is over, with all of its ACKs. */
		if (!receiver.measuring && receiver.phases == 1 && !receiver.last && run.retired == run.posted)
			receiver_measures();
		if (!receiver_takes())
			return;
	}
	measurement_ends();
}

#endif
