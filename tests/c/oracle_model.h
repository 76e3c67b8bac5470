/* The model of oracle.c: what of the objects decides about results, and the completions that are due. */
#ifndef ORACLE_MODEL_H
#define ORACLE_MODEL_H

#include "check.h"
#include "setup.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* GRH: bytes before the message in a receive of UD. SHORT: bytes of a receive that no message fits in. */
enum { QPS = 4, CQS = 2, SLOTS = 256, SIZE = 64, MAX_SGE = 8, MOST = 512, GRH = 40, SHORT = 32, QKEY = 0x11223344 };

enum service { RC, UC, UD, RC_SRQ, UC_SRQ, UD_SRQ, SERVICES };

static const char *const service_names[] = { "RC", "UC", "UD", "RC with SRQ", "UC with SRQ", "UD with SRQ" };

/* The completion of a send that is due. */
struct due {
	uint64_t id;
	enum ibv_wc_status status;
	enum ibv_wr_opcode opcode;
	unsigned slot, number;
};

struct sends {
	struct due due[MOST];
	unsigned first, count;
};

/* What a receive does with the message that takes it. */
enum fits { GOOD, TOO_SHORT, WRONG_KEY };

struct receive {
	uint64_t id;
	enum fits fits;
	unsigned slot;
	/* It was flushed; its completion was polled (SRQ: those before may not be). */
	int flushed, done;
};

/* The receive queue of a QP, or an SRQ, in the order in which the receives are taken. */
struct receives {
	struct receive at[MOST];
	unsigned first, count, max_wr, max_sge;
	/* Receives that no message will take, as far as is known; those that are flushed; those that are not GOOD. */
	unsigned free, flushed, odd;
};

/* A message that will arrive. */
struct message {
	enum ibv_wr_opcode opcode;
	unsigned number, slot;
};

struct messages {
	struct message at[MOST];
	unsigned first, count;
};

struct qp {
	struct ibv_qp *qp;
	enum service service;
	enum ibv_qp_state state;
	struct sends send;
	struct receives own, *receives;
	/* By the index of their sender. */
	struct messages messages[QPS];
	unsigned max_send_wr, max_send_sge;
	int index, send_cq, recv_cq;
	/* A message fails at this QP: the status of its receive. 0: none. */
	enum ibv_wc_status failing;
	/* IBV_EVENT_QP_LAST_WQE_REACHED that are due. */
	int last_wqe;
};

/* A WRITE of UC, which completes before it arrives. */
struct unchecked {
	unsigned number, slot;
	int arrives;
};

struct model {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq[CQS];
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	struct ibv_srq *srq;
	struct receives shared;
	/* The limit of the SRQ, 0 if none is armed; events of it that are due; the last receive in each CQ. */
	unsigned limit, last_shared[CQS];
	int limit_events;
	struct qp qp[QPS];
	/* Pairs of RC with both QPs in RTS, and nothing lost. Pairs of UC: both were, and neither was reset since. */
	int connected[QPS / 2];
	union ibv_gid gid;
	int gid_index;
	uint32_t mtu;
	unsigned number;
	/* Messages may be on their way that no completion shows. */
	int unsettled;
	struct unchecked unchecked[MOST];
	unsigned unchecked_count;
	/* Local buffers, remote buffers. */
	unsigned char memory[2][SLOTS][SIZE] __attribute__((aligned(64)));
	unsigned char received[SLOTS][GRH + SIZE];
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

/* An index of QPS: a receive of the SRQ. */
static inline uint64_t id_of(int index, int is_send, unsigned number)
{
	return (uint64_t)number << 8 | index << 1 | is_send;
}

static inline void push(struct sends *sends, struct due due)
{
	sends->due[(sends->first + sends->count++) % MOST] = due;
}

static inline struct receive *receive_at(struct receives *receives, unsigned at)
{
	return &receives->at[(receives->first + at) % MOST];
}

/* A QP enters the error state: its receives are flushed, except the one that fails. Its sends have their status. */
static inline void enters_error(struct model *m, struct qp *qp)
{
	struct receives *own = &qp->own;

	if (qp->state != IBV_QPS_ERR && qp->receives != own)
		qp->last_wqe++;
	qp->state = IBV_QPS_ERR;
	for (unsigned i = qp->failing && qp->receives == own; i < own->count; i++)
		if (!receive_at(own, i)->flushed)
			receive_at(own, i)->flushed = 1, own->flushed++;
	own->free = 0;
	if (qp->service == RC || qp->service == RC_SRQ)
		m->connected[qp->index / 2] = 0;
}

/* A QP is reset: nothing of it completes any more. */
static inline void resets(struct model *m, struct qp *qp)
{
	qp->send.count = 0;
	qp->own.count = qp->own.free = qp->own.flushed = qp->own.odd = 0;
	qp->state = IBV_QPS_RESET;
	m->connected[qp->index / 2] = 0;
}

static inline int is_due(const struct model *m)
{
	int due = 0;

	for (int i = 0; i < QPS; i++) {
		const struct qp *qp = &m->qp[i];

		due += qp->send.count + qp->own.flushed + !!qp->failing;
		for (int from = 0; from < QPS; from++)
			due += qp->messages[from].count;
	}
	return due;
}

/* What a request moves depends on its number. */
static inline void fill(struct model *m, unsigned slot, unsigned number, enum ibv_wr_opcode opcode)
{
	int from_remote = opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;

	memset(m->memory[!from_remote][slot], 0xee, SIZE);
	memset(m->memory[from_remote][slot], number * 7 + 1, SIZE);
}

/* Whether a buffer has these bytes only. */
static inline int is_full(const unsigned char *buffer, unsigned char byte, int size)
{
	for (int i = 0; i < size; i++)
		if (buffer[i] != byte)
			return 0;
	return 1;
}

/* Whether a buffer has what a request has moved. */
static inline int has_moved(const unsigned char *buffer, unsigned number, int size)
{
	return is_full(buffer, number * 7 + 1, size);
}

#endif
