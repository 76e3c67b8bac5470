/* How oracle.c waits for what is under way: completions, asynchronous events, and messages that no completion shows. */
#ifndef ORACLE_DRAIN_H
#define ORACLE_DRAIN_H

#include "oracle_receives.h"
#include <fcntl.h>
#include <time.h>

/* Seconds within which a completion comes. */
#define LONG 60

/* A pair of RC, which lives as long as the device: its packets leave and arrive after those of all QPs before. */
static struct witness {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp[2];
	uint64_t word[2];
} witness;

static inline int witness_open(struct ibv_context *context)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 }, .sq_sig_all = 1 };
	int gid_index = best_gid(context, 1), error = 0;
	union ibv_gid gid;

	witness.pd = ibv_alloc_pd(context);
	init.send_cq = init.recv_cq = witness.cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	witness.mr = ibv_reg_mr(witness.pd, witness.word, sizeof witness.word,
				IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	for (int i = 0; i < 2; i++)
		witness.qp[i] = ibv_create_qp(witness.pd, &init);
	if (!witness.mr || !witness.qp[0] || !witness.qp[1] || ibv_query_gid(context, 1, gid_index, &gid))
		return 0;
	for (int i = 0; i < 2; i++)
		error |= rc_connect(witness.qp[i], rc_attr(witness.qp[!i]->qp_num, &gid, gid_index));
	return !error && !fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
}

static inline int witness_close(void)
{
	return !ibv_destroy_qp(witness.qp[0]) && !ibv_destroy_qp(witness.qp[1]) && !ibv_destroy_cq(witness.cq) &&
	       !ibv_dereg_mr(witness.mr) && !ibv_dealloc_pd(witness.pd);
}

/* Returns when all messages that left before have arrived or are lost. */
static inline void settle(struct model *m)
{
	struct ibv_sge sge = { (uintptr_t)witness.word, 8, witness.mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					.wr.rdma = { (uintptr_t)&witness.word[1], witness.mr->rkey } };
	time_t end = time(NULL) + LONG;
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	int got;

	check(!ibv_post_send(witness.qp[0], &wr, &bad), "post_send of the witness");
	while (!(got = ibv_poll_cq(witness.cq, 1, &wc)) && time(NULL) < end)
		;
	check(got == 1 && wc.status == IBV_WC_SUCCESS, "the witness: status %d", wc.status);
	for (; m->unchecked_count; m->unchecked_count--) {
		struct unchecked *write = &m->unchecked[m->unchecked_count - 1];
		unsigned char *at = m->memory[1][write->slot];

		check(write->arrives ? has_moved(at, write->number, SIZE) : is_full(at, 0xee, SIZE), "bytes of WRITE %u",
		      write->number);
	}
	m->unsettled = 0;
}

static inline void poll_all(struct model *m)
{
	struct ibv_wc wc[8];

	for (int i = 0; i < CQS; i++) {
		int count = ibv_poll_cq(m->cq[i], 8, wc);

		check(count >= 0, "poll: %d", count);
		for (int k = 0; k < count; k++)
			completed(m, i, &wc[k]);
	}
}

/* Takes the events that have come. Those of errors and of first packets are not counted. */
static inline void take_events(struct model *m)
{
	struct ibv_async_event event;

	while (!ibv_get_async_event(m->context, &event)) {
		if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED)
			check(event.element.srq == m->srq && m->limit_events-- > 0, "a limit event that is not due");
		for (int i = 0; i < QPS && event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED; i++)
			if (event.element.qp == m->qp[i].qp)
				check(m->qp[i].last_wqe-- > 0, "a last WQE event of qp %d that is not due", i);
		ibv_ack_async_event(&event);
	}
}

static inline int has_event_due(const struct model *m)
{
	int due = m->limit_events;

	for (int i = 0; i < QPS; i++)
		due += m->qp[i].last_wqe;
	return due;
}

/* Waits for all that is due, and finds that there is nothing else. */
static inline void drain(struct model *m)
{
	time_t end = time(NULL) + LONG;

	note("drain");
	while (is_due(m) && !failed && time(NULL) < end)
		poll_all(m);
	check(!is_due(m), "a completion does not come");
	if (m->unsettled || m->unchecked_count)
		settle(m);
	poll_all(m);
	do
		take_events(m);
	while (has_event_due(m) && !failed && time(NULL) < end);
	check(!has_event_due(m), "an event does not come");
	for (int i = 0; i < QPS; i++)
		check(m->qp[i].own.count == m->qp[i].own.free, "receives of qp %d", i);
	check(m->shared.count == m->shared.free, "the SRQ's receives were not taken in order");
}

#endif
