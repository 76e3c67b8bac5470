/* Messages and receives of oracle.c: what becomes of a message, and which completions are right. */
#ifndef ORACLE_RECEIVES_H
#define ORACLE_RECEIVES_H

#include "oracle_services.h"

/* What becomes of a request that the sender's side allows. */
struct outcome {
	/* Of the sender's completion. */
	enum ibv_wc_status status;
	/* It takes a receive; nothing of it arrives. */
	int takes, lost;
	/* The status of the receive that it takes, 0 for a success; the receiver enters the error state. */
	enum ibv_wc_status failing;
	int receiver_fails;
};

/* Nothing is on its way if a receive of the receiver is not GOOD, or if none is free. */
static inline struct outcome outcome_of(struct qp *to, enum ibv_wr_opcode opcode)
{
	struct outcome ok = { 0 }, lost = { .lost = 1 };
	int rc = transport(to) == RC;
	enum fits fits;

	if (!rc && !listens(to))
		return lost;
	if (!takes_receive(opcode))
		return ok;
	if (!to->receives->free)
		return rc ? (struct outcome){ .status = IBV_WC_RNR_RETRY_EXC_ERR } : lost;
	ok.takes = 1;
	fits = to->receives->odd ? receive_at(to->receives, 0)->fits : GOOD;
	if (fits == GOOD || !is_send_op(opcode))
		return ok;
	/* IBTA 9.9.3.1: with UC and UD a message that is too long is dropped, with an SRQ it costs the receive. */
	if (fits == TOO_SHORT && !rc && !is_shared(to))
		return lost;
	ok.failing = fits == TOO_SHORT ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR;
	ok.receiver_fails = rc || fits == WRONG_KEY;
	if (rc)
		ok.status = fits == TOO_SHORT ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR;
	return ok;
}

/* The SRQ has fewer receives than its limit: an event, once. */
static inline void check_limit(struct model *m)
{
	if (m->shared.free < m->limit) {
		m->limit = 0;
		m->limit_events++;
	}
}

/* A message will take a receive. */
static inline void arrives(struct model *m, struct qp *from, struct qp *to, struct message message,
			   const struct outcome *outcome)
{
	struct messages *messages = &to->messages[from->index];

	to->receives->free--;
	if (to->receives == &m->shared)
		check_limit(m);
	if (outcome->failing)
		to->failing = outcome->failing;
	else
		messages->at[(messages->first + messages->count++) % MOST] = message;
	if (outcome->receiver_fails)
		enters_error(m, to);
}

static inline struct qp *by_number(struct model *m, uint32_t number)
{
	for (int i = 0; i < QPS; i++)
		if (m->qp[i].qp->qp_num == number)
			return &m->qp[i];
	return NULL;
}

/* The network header of a datagram has the GID as source and as destination. */
static inline int is_grh(const struct model *m, const unsigned char *header)
{
	if (header[0] >> 4 == 6)
		return !memcmp(header + 8, m->gid.raw, 16) && !memcmp(header + 24, m->gid.raw, 16);
	return header[20] == 0x45 && !memcmp(header + 32, m->gid.raw + 12, 4) &&
	       !memcmp(header + 36, m->gid.raw + 12, 4);
}

/* A receive has succeeded: it must be that of the oldest message of its sender. */
static inline void received(struct model *m, struct qp *qp, const struct receive *receive, const struct ibv_wc *wc)
{
	int ud = transport(qp) == UD;
	struct qp *from = ud ? by_number(m, wc->src_qp) : &m->qp[qp->index ^ 1];
	const unsigned char *at = m->received[receive->slot];
	struct messages *messages;
	struct message *message;
	int is_send;

	if (!check(from != NULL, "src_qp %#x", wc->src_qp))
		return;
	messages = &qp->messages[from->index];
	if (!check(messages->count, "a message of qp %d that is not due", from->index))
		return;
	message = &messages->at[messages->first++ % MOST];
	messages->count--;
	is_send = is_send_op(message->opcode);
	note("message %u of qp %d", message->number, from->index);
	check(wc->opcode == (is_send ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM), "opcode %d", wc->opcode);
	check(wc->byte_len == (unsigned)(ud ? GRH + SIZE : SIZE), "length %u", wc->byte_len);
	check(!!(wc->wc_flags & IBV_WC_WITH_IMM) == has_immediate(message->opcode) &&
	      !!(wc->wc_flags & IBV_WC_GRH) == ud, "flags %#x", wc->wc_flags);
	check(!has_immediate(message->opcode) || wc->imm_data == message->number, "immediate data %u", wc->imm_data);
	check(!ud || is_grh(m, at), "GRH");
	if (!is_send)
		at = m->memory[1][message->slot];
	check(has_moved(at + (ud ? GRH : 0), message->number, SIZE), "bytes of message %u", message->number);
}

static inline void receive_completed(struct model *m, int cq, struct qp *qp, const struct ibv_wc *wc)
{
	struct receives *receives = qp->receives;
	struct receive *receive = NULL;
	unsigned at = 0;

	while (at < receives->count && (receive = receive_at(receives, at))->id != wc->wr_id)
		at++;
	if (!check(at < receives->count && !receive->done, "a receive that is not due") ||
	    !check(receives == &m->shared || at == 0, "a receive out of order") || !check(cq == qp->recv_cq, "in CQ %d", cq))
		return;
	receive->done = 1;
	/* Several QPs take receives from an SRQ, in order. Their completions have that order within a CQ. */
	if (receives == &m->shared) {
		check(wc->wr_id >> 8 >= m->last_shared[cq], "receives of the SRQ out of order");
		m->last_shared[cq] = wc->wr_id >> 8;
	}
	if (wc->status == IBV_WC_SUCCESS) {
		if (check(!receive->flushed, "a flushed receive succeeds"))
			received(m, qp, receive, wc);
	} else if (receive->flushed) {
		check(wc->status == IBV_WC_WR_FLUSH_ERR, "status %d of a receive that is flushed", wc->status);
		receives->flushed--;
	} else {
		check(wc->status == qp->failing, "status %d, not %d", wc->status, qp->failing);
		qp->failing = 0;
	}
	for (; receives->count && receive_at(receives, 0)->done; receives->count--) {
		receives->odd -= receive_at(receives, 0)->fits != GOOD;
		receives->first++;
	}
}

static inline void send_completed(struct model *m, int cq, struct qp *qp, const struct ibv_wc *wc)
{
	static const enum ibv_wc_opcode opcodes[] = {
		[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,    [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
		[IBV_WR_SEND] = IBV_WC_SEND,		    [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
		[IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,	    [IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD,
	};
	struct due *due = &qp->send.due[qp->send.first % MOST];
	uint64_t before, after;

	if (!check(qp->send.count, "a completion that is not due") ||
	    !check(due->id == wc->wr_id, "out of order: wanted number %u", (unsigned)(due->id >> 8)) ||
	    !check(cq == qp->send_cq, "in CQ %d", cq) ||
	    !check(wc->status == due->status, "status %d, not %d", wc->status, due->status))
		return;
	qp->send.first++;
	qp->send.count--;
	if (wc->status != IBV_WC_SUCCESS)
		return;
	check(wc->opcode == opcodes[due->opcode], "opcode %d", wc->opcode);
	if (due->opcode == IBV_WR_RDMA_READ)
		check(has_moved(m->memory[0][due->slot], due->number, SIZE), "bytes of READ %u", due->number);
	if (due->opcode == IBV_WR_RDMA_WRITE && transport(qp) == RC)
		check(has_moved(m->memory[1][due->slot], due->number, SIZE), "bytes of WRITE %u", due->number);
	if (due->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		memset(&before, due->number * 7 + 1, 8);
		memcpy(&after, m->memory[1][due->slot], 8);
		check(has_moved(m->memory[0][due->slot], due->number, 8) && after == before + due->number, "atomic %u",
		      due->number);
	}
}

static inline void completed(struct model *m, int cq, const struct ibv_wc *wc)
{
	unsigned index = wc->wr_id >> 1 & 127;
	int is_send = wc->wr_id & 1;
	struct qp *qp = by_number(m, wc->qp_num);

	note("completion %s qp_num %#x number %u of %u status %d", is_send ? "send" : "receive", wc->qp_num,
	     (unsigned)(wc->wr_id >> 8), index, wc->status);
	if (!check(qp && (index == (unsigned)qp->index || (index == QPS && is_shared(qp) && !is_send)), "QP of wr_id %llx",
		   (unsigned long long)wc->wr_id))
		return;
	is_send ? send_completed(m, cq, qp, wc) : receive_completed(m, cq, qp, wc);
}

#endif
