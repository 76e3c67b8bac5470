/* The services of oracle.c: their operations, the attributes of their transitions, their objects. */
#ifndef ORACLE_SERVICES_H
#define ORACLE_SERVICES_H

#include "oracle_model.h"

/* The transport without the source of receives. */
static inline enum service transport(const struct qp *qp)
{
	return qp->service % 3;
}

static inline int is_shared(const struct qp *qp)
{
	return qp->service >= RC_SRQ;
}

static inline int is_send_op(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}

static inline int has_immediate(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static inline int takes_receive(enum ibv_wr_opcode opcode)
{
	return is_send_op(opcode) || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* IBTA 9.8.2, 9.8.3, table 38. */
static inline int supports(const struct qp *qp, enum ibv_wr_opcode opcode)
{
	switch (transport(qp)) {
	case RC: return 1;
	case UC: return opcode != IBV_WR_RDMA_READ && opcode != IBV_WR_ATOMIC_FETCH_AND_ADD;
	default: return is_send_op(opcode);
	}
}

/* Whether requests that arrive are executed. */
static inline int listens(const struct qp *qp)
{
	return qp->state == IBV_QPS_RTR || qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_SQE;
}

/* All attributes that a transition to a state needs (IBTA 11.2.5.2). */
static inline int mask_of(const struct qp *qp, enum ibv_qp_state state)
{
	enum service t = transport(qp);

	switch (state) {
	case IBV_QPS_INIT:
		return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (t == UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	case IBV_QPS_RTR:
		return IBV_QP_STATE | (t == UD ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
		       (t == RC ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
	case IBV_QPS_RTS:
		return IBV_QP_STATE | IBV_QP_SQ_PSN |
		       (t == RC ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0);
	default: return IBV_QP_STATE;
	}
}

/* The transitions of IBTA 10.3.1, as Linux has them. */
static inline int may_go(const struct qp *qp, enum ibv_qp_state to, int mask)
{
	enum ibv_qp_state from = qp->state;

	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		return to == IBV_QPS_RESET || from != IBV_QPS_RESET;
	/* Nothing is required. */
	if (from == IBV_QPS_INIT && to == IBV_QPS_INIT)
		return 1;
	if (to == IBV_QPS_RTS && (from == IBV_QPS_RTS || from == IBV_QPS_SQE))
		return mask == IBV_QP_STATE;
	return to == from + 1 && mask == mask_of(qp, to);
}

static inline struct ibv_qp_attr attr_of(struct model *m, const struct qp *qp)
{
	struct ibv_qp_attr attr = rc_attr(m->qp[qp->index ^ 1].qp->qp_num, &m->gid, m->gid_index);

	attr.rnr_retry = 0;
	attr.qkey = QKEY;
	return attr;
}

static inline void create_qp(struct model *m, struct qp *qp)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	struct ibv_qp_init_attr init = { .qp_type = types[transport(qp)],
					 .cap = { 1 + pick(8), 1 + pick(8), 1 + pick(3), 1 + pick(3), 0 } };

	/* Each CQ has a QP. */
	qp->send_cq = qp->index % CQS;
	qp->recv_cq = pick(CQS);
	init.send_cq = m->cq[qp->send_cq];
	init.recv_cq = m->cq[qp->recv_cq];
	init.srq = is_shared(qp) ? m->srq : NULL;
	qp->qp = ibv_create_qp(m->pd, &init);
	if (!check(qp->qp != NULL, "create_qp of %s", service_names[qp->service]))
		exit(1);
	qp->receives = is_shared(qp) ? &m->shared : &qp->own;
	qp->max_send_wr = init.cap.max_send_wr;
	qp->max_send_sge = init.cap.max_send_sge;
	qp->own.max_wr = init.cap.max_recv_wr;
	qp->own.max_sge = init.cap.max_recv_sge;
	qp->state = IBV_QPS_RESET;
}

static inline void create_ah(struct model *m)
{
	struct ibv_ah_attr attr = attr_of(m, &m->qp[0]).ah_attr;

	if (!check((m->ah = ibv_create_ah(m->pd, &attr)) != NULL, "create_ah"))
		exit(1);
}

static inline void create_srq(struct model *m)
{
	struct ibv_srq_init_attr init = { .attr = { 1 + pick(12), 1 + pick(3), 0 } };

	if (!check((m->srq = ibv_create_srq(m->pd, &init)) != NULL, "create_srq"))
		exit(1);
	m->shared.max_wr = init.attr.max_wr;
	m->shared.max_sge = init.attr.max_sge;
}

static inline void begin(struct model *m, uint64_t seed)
{
	struct ibv_context *context = m->context;
	struct ibv_port_attr port;

	random_state = (seed + 1) * 0x9e3779b97f4a7c15;
	noted = 0;
	notes[0] = 0;
	memset(m, 0, sizeof *m);
	m->context = context;
	m->gid_index = best_gid(context, 1);
	check(!ibv_query_gid(context, 1, m->gid_index, &m->gid) && !ibv_query_port(context, 1, &port), "port");
	m->mtu = 128 << port.active_mtu;
	m->pd = ibv_alloc_pd(context);
	/* Local buffers, remote buffers and receives. */
	m->mr = ibv_reg_mr(m->pd, m->memory, sizeof m->memory + sizeof m->received,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC);
	for (int i = 0; i < CQS; i++)
		m->cq[i] = ibv_create_cq(context, MOST, NULL, NULL, 0);
	if (!check(m->pd && m->mr && m->cq[0] && m->cq[1], "set-up"))
		exit(1);
	create_srq(m);
	for (int i = 0; i < QPS; i++) {
		m->qp[i].index = i;
		m->qp[i].service = i % 2 ? m->qp[i - 1].service : pick(SERVICES);
		note("qp %d: %s", i, service_names[m->qp[i].service]);
		create_qp(m, &m->qp[i]);
	}
	create_ah(m);
}

/* Objects in the order of `end`. */
enum { SRQ_AT = QPS, CQ_AT, MR_AT = CQ_AT + CQS, AH_AT, PD_AT, OBJECTS };

/* Whether an object that is not gone uses this one. */
static inline int is_used(const struct model *m, int which, const int *gone)
{
	int used = 0;

	for (int i = 0; i < QPS; i++)
		used |= !gone[i] && ((which == SRQ_AT && is_shared(&m->qp[i])) ||
				     which == CQ_AT + m->qp[i].send_cq || which == CQ_AT + m->qp[i].recv_cq);
	for (int i = 0; i < PD_AT && which == PD_AT; i++)
		used |= !gone[i] && (i < CQ_AT || i >= MR_AT);
	return used;
}

/* In random order, again where an object is still needed, and where it is gone. */
static inline void end(struct model *m)
{
	for (int left = OBJECTS, gone[OBJECTS] = { 0 }; left && !failed;) {
		int which = pick(OBJECTS), result, wanted;

		if (which < QPS)
			result = ibv_destroy_qp(m->qp[which].qp);
		else if (which == SRQ_AT)
			result = ibv_destroy_srq(m->srq);
		else if (which < MR_AT)
			result = ibv_destroy_cq(m->cq[which - CQ_AT]);
		else if (which == MR_AT)
			result = ibv_dereg_mr(m->mr);
		else
			result = which == AH_AT ? ibv_destroy_ah(m->ah) : ibv_dealloc_pd(m->pd);
		wanted = gone[which] ? EINVAL : is_used(m, which, gone) ? EBUSY : 0;
		check(result == wanted, "end: %d: %d, not %d", which, result, wanted);
		if (!result)
			gone[which] = 1, left--;
	}
}

#endif
