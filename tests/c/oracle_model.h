/* The model of oracle.c: what of the objects decides about results, and the completions that are due. */
#ifndef ORACLE_MODEL_H
#define ORACLE_MODEL_H

#include "check.h"
#include "setup.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { QPS = 4, CQS = 2, SLOTS = 256, SIZE = 64, MAX_SGE = 8, MOST = 512 };

/* A completion that is due. */
struct due {
	uint64_t id;
	enum ibv_wc_status status;
	enum ibv_wr_opcode opcode;
	unsigned slot, number;
};

/* In the order in which they come. `certain`: so many of them come without further calls. */
struct queue {
	struct due due[MOST];
	unsigned first, count, certain;
};

struct qp {
	struct ibv_qp *qp;
	enum ibv_qp_state state;
	struct queue send, receive;
	unsigned max_send_wr, max_recv_wr;
	int index, max_send_sge, max_recv_sge, send_cq, recv_cq;
	/* Receives that no message has taken. */
	unsigned free_receives;
};

struct model {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq[CQS];
	struct ibv_mr *mr;
	struct qp qp[QPS];
	/* Pairs with both QPs in RTS, and nothing lost. */
	int connected[QPS / 2];
	union ibv_gid gid;
	int gid_index;
	unsigned number;
	/* Local buffers, remote buffers, receive buffers. */
	unsigned char memory[3][SLOTS][SIZE] __attribute__((aligned(64)));
};

static char notes[1 << 16];
static size_t noted;
static uint64_t random_state;

static inline unsigned pick(unsigned below)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (random_state >> 20) % below;
}

__attribute__((format(printf, 1, 2))) static inline void note(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (noted + 200 < sizeof notes) {
		noted += vsnprintf(notes + noted, 190, format, args);
		noted += sprintf(notes + noted, "\n");
	}
	va_end(args);
}

static inline uint64_t id_of(const struct qp *qp, int is_send, unsigned number)
{
	return (uint64_t)number << 8 | qp->index << 1 | is_send;
}

static inline void push(struct queue *queue, struct due due)
{
	queue->due[(queue->first + queue->count++) % MOST] = due;
}

static inline struct due *entry(struct queue *queue, unsigned at)
{
	return &queue->due[(queue->first + at) % MOST];
}

/* Everything in the queue ends; what had no other end is flushed. */
static inline void flush(struct queue *queue)
{
	for (; queue->certain < queue->count; queue->certain++)
		entry(queue, queue->certain)->status = IBV_WC_WR_FLUSH_ERR;
}

/* A QP enters the error state: later requests and unused receives are flushed. Requests before have their status. */
static inline void enters_error(struct model *m, struct qp *qp)
{
	qp->state = IBV_QPS_ERR;
	qp->send.certain = qp->send.count;
	flush(&qp->receive);
	qp->free_receives = 0;
	m->connected[qp->index / 2] = 0;
}

/* A QP is reset: nothing of it completes any more. */
static inline void resets(struct model *m, struct qp *qp)
{
	qp->send.count = qp->send.certain = qp->receive.count = qp->receive.certain = qp->free_receives = 0;
	qp->state = IBV_QPS_RESET;
	m->connected[qp->index / 2] = 0;
}

/* A message takes the oldest free receive. */
static inline void arrives(struct qp *to, unsigned number, unsigned slot)
{
	struct due *receive = entry(&to->receive, to->receive.certain++);

	to->free_receives--;
	receive->opcode = IBV_WR_RDMA_WRITE_WITH_IMM + 100;
	receive->number = number;
	(void)slot;
}

static inline int is_due(struct model *m)
{
	int due = 0;

	for (int i = 0; i < QPS; i++)
		due += m->qp[i].send.count + m->qp[i].receive.certain;
	return due;
}

/* What a request moves depends on its number. */
static inline void fill(struct model *m, unsigned slot, unsigned number, enum ibv_wr_opcode opcode)
{
	int from_remote = opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;

	memset(m->memory[!from_remote][slot], 0xee, SIZE);
	memset(m->memory[from_remote][slot], number * 7 + 1, SIZE);
}

/* Whether a buffer has what a request has moved. */
static inline int is_full(const unsigned char *buffer, unsigned number, int size)
{
	for (int i = 0; i < size; i++)
		if (buffer[i] != (unsigned char)(number * 7 + 1))
			return 0;
	return 1;
}

static inline void compare(struct model *m, const struct due *due)
{
	uint64_t before, after;

	if (due->opcode == IBV_WR_RDMA_READ)
		check(is_full(m->memory[0][due->slot], due->number, SIZE), "bytes of READ %u", due->number);
	if (due->opcode == IBV_WR_RDMA_WRITE)
		check(is_full(m->memory[1][due->slot], due->number, SIZE), "bytes of WRITE %u", due->number);
	if (due->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		memset(&before, due->number * 7 + 1, 8);
		memcpy(&after, m->memory[1][due->slot], 8);
		check(is_full(m->memory[0][due->slot], due->number, 8) && after == before + due->number, "atomic %u",
		      due->number);
	}
}

static inline void completed(struct model *m, int cq, const struct ibv_wc *wc)
{
	struct qp *qp = &m->qp[wc->wr_id >> 1 & 127];
	int is_send = wc->wr_id & 1;
	struct queue *queue;
	struct due *due;

	if (!check((wc->wr_id >> 1 & 127) < QPS, "wr_id %llx", (unsigned long long)wc->wr_id))
		return;
	queue = is_send ? &qp->send : &qp->receive;
	due = entry(queue, 0);
	note("completion qp %d %s number %u status %d", qp->index, is_send ? "send" : "receive",
	     (unsigned)(wc->wr_id >> 8), wc->status);
	if (!check(is_send ? queue->count : queue->certain, "a completion that is not due") ||
	    !check(due->id == wc->wr_id, "out of order: wanted number %u", (unsigned)(due->id >> 8)) ||
	    !check(cq == (is_send ? qp->send_cq : qp->recv_cq), "in CQ %d", cq) ||
	    !check(wc->status == due->status, "status %d, not %d", wc->status, due->status) ||
	    !check(wc->qp_num == qp->qp->qp_num, "qp_num"))
		return;
	if (wc->status == IBV_WC_SUCCESS && is_send)
		compare(m, due);
	if (wc->status == IBV_WC_SUCCESS && !is_send)
		check(wc->byte_len == SIZE && is_full(m->memory[2][due->slot], due->number, SIZE), "bytes of SEND %u",
		      due->number);
	queue->first++;
	queue->count--;
	if (queue->certain)
		queue->certain--;
}

static inline int mask_of(enum ibv_qp_state state)
{
	switch (state) {
	case IBV_QPS_INIT: return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	case IBV_QPS_RTR:
		return IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	case IBV_QPS_RTS:
		return IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		       IBV_QP_MAX_QP_RD_ATOMIC;
	default: return IBV_QP_STATE;
	}
}

/* The transitions of IBTA 10.3.1 for which mask_of has all that is needed. */
static inline int may_go(enum ibv_qp_state from, enum ibv_qp_state to)
{
	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		/* As in Linux. */
		return to == IBV_QPS_RESET || from != IBV_QPS_RESET;
	return to == from + 1 || (from == IBV_QPS_INIT && to == IBV_QPS_INIT);
}

static inline void create_qp(struct model *m, struct qp *qp)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { 1 + pick(8), 1 + pick(8), 1 + pick(3), 1 + pick(3), 0 } };

	/* Each CQ has a QP. */
	qp->send_cq = qp->index % CQS;
	qp->recv_cq = pick(CQS);
	init.send_cq = m->cq[qp->send_cq];
	init.recv_cq = m->cq[qp->recv_cq];
	qp->qp = ibv_create_qp(m->pd, &init);
	if (!check(qp->qp != NULL, "create_qp"))
		exit(1);
	qp->max_send_wr = init.cap.max_send_wr;
	qp->max_recv_wr = init.cap.max_recv_wr;
	qp->max_send_sge = init.cap.max_send_sge;
	qp->max_recv_sge = init.cap.max_recv_sge;
	qp->state = IBV_QPS_RESET;
}

static inline void begin(struct model *m, uint64_t seed)
{
	struct ibv_context *context = m->context;

	random_state = (seed + 1) * 0x9e3779b97f4a7c15;
	noted = 0;
	notes[0] = 0;
	memset(m, 0, sizeof *m);
	m->context = context;
	m->gid_index = best_gid(context, 1);
	check(!ibv_query_gid(context, 1, m->gid_index, &m->gid), "GID");
	m->pd = ibv_alloc_pd(context);
	m->mr = ibv_reg_mr(m->pd, m->memory, sizeof m->memory,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC);
	for (int i = 0; i < CQS; i++)
		m->cq[i] = ibv_create_cq(context, MOST, NULL, NULL, 0);
	if (!check(m->pd && m->mr && m->cq[0] && m->cq[1], "set-up"))
		exit(1);
	for (int i = 0; i < QPS; i++) {
		m->qp[i].index = i;
		create_qp(m, &m->qp[i]);
	}
}

/* In random order, again where an object is still needed. */
static inline void end(struct model *m)
{
	for (int left = QPS + CQS + 2, gone[QPS + CQS + 2] = { 0 }; left && !failed;) {
		int which = pick(QPS + CQS + 2), result;

		if (which < QPS)
			result = ibv_destroy_qp(m->qp[which].qp);
		else if (which < QPS + CQS)
			result = ibv_destroy_cq(m->cq[which - QPS]);
		else
			result = which == QPS + CQS ? ibv_dereg_mr(m->mr) : ibv_dealloc_pd(m->pd);
		check(gone[which] ? result == EINVAL : result == 0 || (result == EBUSY && which >= QPS), "end: %d: %d", which,
		      result);
		if (!result)
			gone[which] = 1, left--;
	}
}

#endif
