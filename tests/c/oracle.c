/* Random sequences of verbs, right and wrong, against a model that says what each call returns, which completions come, in
 * which order, with which status, and which bytes arrive. Each pair of QPs is of RC, UC or UD, with or without an SRQ.
 *
 *   oracle DEVICE SEED SEQUENCES [CALLS]
 *
 * Sequence I of seed S is sequence 0 of seed S + I. A failed one prints its seed and its calls. To make it shorter, give
 * its seed, 1, and fewer calls. */
#include "oracle_drain.h"
#include <stdlib.h>

/* A send that will be posted: its QPs, and its flaw. */
struct request {
	struct qp *from, *to;
	enum ibv_wr_opcode opcode;
	unsigned flaw, number, slot;
	struct ibv_sge sges[MAX_SGE + 1];
	struct ibv_send_wr wr;
};

/* Flaws of a request. NO_AH to NO_QP: with UD. */
enum { MANY_SGES, NO_OPCODE, NO_LKEY, NO_RKEY, NO_MEMORY, NO_LIST, NO_AH, TOO_LONG, NO_QP, FLAWS = 20 };

static void make_request(struct model *m, struct request *r)
{
	static const enum ibv_wr_opcode opcodes[] = {
		IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND_WITH_IMM,
		IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
	};
	struct ibv_send_wr *wr = &r->wr;
	uint64_t remote;
	int atomic;

	r->from = r->to = &m->qp[pick(QPS)];
	if (transport(r->from) != UD)
		r->to = &m->qp[r->from->index ^ 1];
	else
		/* Any QP of UD, itself too. */
		while (transport(r->to = &m->qp[pick(QPS)]) != UD)
			;
	/* UD has no others. */
	r->opcode = transport(r->from) == UD && pick(8) ? (pick(2) ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM) :
							  opcodes[pick(7)];
	r->flaw = pick(FLAWS);
	r->number = m->number++;
	r->slot = r->number % SLOTS;
	atomic = r->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	remote = (uintptr_t)m->memory[1][r->slot];
	for (int i = 0; i <= MAX_SGE; i++)
		r->sges[i] = (struct ibv_sge){ (uintptr_t)m->memory[0][r->slot], i ? 0 : atomic ? 8 : SIZE, m->mr->lkey };
	*wr = (struct ibv_send_wr){ .wr_id = id_of(r->from->index, 1, r->number), .sg_list = r->sges, .num_sge = 1,
				    .opcode = r->opcode, .send_flags = IBV_SEND_SIGNALED, .imm_data = r->number };
	if (transport(r->from) == UD)
		wr->wr.ud.ah = m->ah, wr->wr.ud.remote_qpn = r->to->qp->qp_num, wr->wr.ud.remote_qkey = QKEY;
	else if (atomic)
		wr->wr.atomic.remote_addr = remote, wr->wr.atomic.rkey = m->mr->rkey, wr->wr.atomic.compare_add = r->number;
	else
		wr->wr.rdma.remote_addr = remote, wr->wr.rdma.rkey = m->mr->rkey;
	fill(m, r->slot, r->number, r->opcode);
}

/* Puts the flaw into the request. Returns the error of the call, if no state of the QP is needed for it. */
static int add_flaw(struct model *m, struct request *r)
{
	int ud = transport(r->from) == UD;

	if (r->flaw == MANY_SGES)
		return r->wr.num_sge = r->from->max_send_sge + 1, EINVAL;
	if (r->flaw == NO_OPCODE)
		return r->wr.opcode = 99, EINVAL;
	/* Other requests have other members where the handle is. */
	if (r->flaw == NO_AH && ud && supports(r->from, r->opcode))
		return r->wr.wr.ud.ah = NULL, EINVAL;
	if (r->flaw == NO_LKEY)
		r->sges[0].lkey ^= 0x5a00;
	else if (r->flaw == NO_MEMORY)
		r->sges[0].addr = 8;
	else if (r->flaw == TOO_LONG && ud)
		r->sges[0].addr = (uintptr_t)m->memory, r->sges[0].length = m->mtu + 1;
	else if (r->flaw == NO_QP && ud)
		r->wr.wr.ud.remote_qpn ^= 0x5a5a00;
	else if (r->flaw == NO_RKEY && ud)
		r->wr.wr.ud.remote_qkey ^= 1;
	/* UC keeps the receive that it took from an SRQ for the next message: not modelled. */
	else if (r->flaw == NO_RKEY && !is_send_op(r->opcode) &&
		 !(r->from->service == UC_SRQ && takes_receive(r->opcode)))
		*(r->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? &r->wr.wr.atomic.rkey : &r->wr.wr.rdma.rkey) ^= 0x5a00;
	else
		r->flaw = FLAWS;
	return 0;
}

/* What becomes of a request of a QP in RTS. */
static struct outcome outcome(const struct request *r)
{
	int rc = transport(r->from) == RC, takes;

	switch (r->flaw) {
	case NO_LKEY:
	case NO_MEMORY: return (struct outcome){ .status = IBV_WC_LOC_PROT_ERR };
	case TOO_LONG: return (struct outcome){ .status = IBV_WC_LOC_LEN_ERR };
	case NO_QP: return (struct outcome){ .lost = 1 };
	case NO_RKEY:
		if (!rc)
			return (struct outcome){ .lost = 1 };
		/* The responder of WRITE with immediate needs a receive first. One from an SRQ is taken, and flushed. */
		if (takes_receive(r->opcode) && !r->to->receives->free)
			return (struct outcome){ .status = IBV_WC_RNR_RETRY_EXC_ERR };
		takes = takes_receive(r->opcode) && is_shared(r->to);
		return (struct outcome){ .status = IBV_WC_REM_ACCESS_ERR, .receiver_fails = 1, .takes = takes,
					 .failing = takes ? IBV_WC_WR_FLUSH_ERR : 0 };
	default: return outcome_of(r->to, r->opcode);
	}
}

/* A request was posted in RTS. */
static void goes(struct model *m, const struct request *r, const struct outcome *o)
{
	struct message message = { r->opcode, r->number, r->slot };

	if (o->lost)
		m->unsettled = 1;
	if (r->opcode == IBV_WR_RDMA_WRITE && transport(r->from) == UC && !o->status)
		m->unchecked[m->unchecked_count++] = (struct unchecked){ r->number, r->slot, !o->lost };
	if (o->takes)
		arrives(m, r->from, r->to, message, o);
	else if (o->receiver_fails)
		enters_error(m, r->to);
	if (o->status) {
		if (transport(r->from) == RC)
			enters_error(m, r->from);
		else
			r->from->state = IBV_QPS_SQE;
	}
}

static void post_send(struct model *m)
{
	struct ibv_send_wr *bad = NULL;
	struct request r;
	struct outcome o = { 0 };
	int wanted, result, alone = 0, goes_out;

	make_request(m, &r);
	/* A connection that is not whole makes the requester repeat its packets for long. */
	if (r.from->state == IBV_QPS_RTS && transport(r.from) != UD && !m->connected[r.from->index / 2])
		return;
	wanted = add_flaw(m, &r);
	if (!wanted && r.from->send.count >= r.from->max_send_wr)
		wanted = ENOMEM;
	else if (!wanted && (r.from->state == IBV_QPS_RESET || r.from->state == IBV_QPS_INIT ||
			     r.from->state == IBV_QPS_RTR || !supports(r.from, r.opcode)))
		wanted = EINVAL;
	goes_out = !wanted && r.from->state == IBV_QPS_RTS;
	if (goes_out) {
		/* Which receives others take meanwhile must not depend on the time. */
		alone = r.to->receives->odd || (is_shared(r.to) && m->limit) || m->unchecked_count >= SLOTS / 2;
		o = outcome(&r);
		alone |= o.status || o.lost;
		if (alone) {
			drain(m);
			o = outcome(&r);
		}
	}
	result = ibv_post_send(r.from->qp, r.flaw == NO_LIST ? NULL : &r.wr, &bad);
	note("post_send qp %d to %d opcode %d flaw %u number %u: %d", r.from->index, r.to->index, r.wr.opcode, r.flaw,
	     r.number, result);
	if (!check(result == wanted, "post_send: %d, not %d", result, wanted) || result) {
		check(!result || bad == &r.wr, "bad_wr");
		return;
	}
	push(&r.from->send,
	     (struct due){ r.wr.wr_id, goes_out ? o.status : IBV_WC_WR_FLUSH_ERR, r.opcode, r.slot, r.number });
	if (goes_out)
		goes(m, &r, &o);
	/* What others may be posted meanwhile depends on when the error comes. */
	if (alone)
		drain(m);
}

static void post_empty(struct model *m)
{
	struct qp *qp = &m->qp[pick(QPS)];
	struct ibv_send_wr *bad_send = NULL;
	struct ibv_recv_wr *bad_receive = NULL;

	note("empty lists qp %d", qp->index);
	check(!ibv_post_send(qp->qp, NULL, &bad_send) && !ibv_post_recv(qp->qp, NULL, &bad_receive) &&
	      !ibv_post_srq_recv(m->srq, NULL, &bad_receive), "an empty list");
}

/* To a QP, or to the SRQ in the turn of a QP that uses it. */
static void post_receive(struct model *m)
{
	struct qp *qp = &m->qp[pick(QPS)];
	int to_srq = is_shared(qp) && pick(8), index = to_srq ? QPS : qp->index, result, wanted;
	struct receives *receives = to_srq ? &m->shared : &qp->own;
	unsigned flaw = pick(16), number = m->number++, slot = number % SLOTS;
	enum fits fits = flaw == 1 ? TOO_SHORT : flaw == 2 ? WRONG_KEY : GOOD;
	struct ibv_sge sges[MAX_SGE + 1] = { { (uintptr_t)m->received[slot], GRH + SIZE, m->mr->lkey } };
	struct ibv_recv_wr *bad = NULL, wr = { .wr_id = id_of(index, 0, number), .sg_list = sges, .num_sge = 1 };

	/* Whether an SRQ is full depends on the messages that have arrived. */
	if (to_srq && receives->count >= receives->max_wr)
		drain(m);
	memset(m->received[slot], 0xee, GRH + SIZE);
	if (fits == TOO_SHORT)
		sges[0].length = SHORT;
	if (fits == WRONG_KEY)
		sges[0].lkey ^= 0x5a00;
	wanted = receives->count >= receives->max_wr ? ENOMEM : !to_srq && qp->state == IBV_QPS_RESET ? EINVAL : 0;
	if (flaw == 0)
		wr.num_sge = receives->max_sge + 1;
	if (flaw == 0 || (is_shared(qp) && !to_srq))
		wanted = EINVAL;
	result = to_srq ? ibv_post_srq_recv(m->srq, &wr, &bad) : ibv_post_recv(qp->qp, &wr, &bad);
	note("post_recv %s %d flaw %u number %u: %d", to_srq ? "srq in turn of" : "qp", qp->index, flaw, number, result);
	if (!check(result == wanted, "post_recv: %d, not %d", result, wanted) || result) {
		check(!result || bad == &wr, "bad_wr");
		return;
	}
	*receive_at(receives, receives->count++) = (struct receive){ .id = wr.wr_id, .fits = fits, .slot = slot };
	receives->odd += fits != GOOD;
	if (!to_srq && qp->state == IBV_QPS_ERR)
		receive_at(receives, receives->count - 1)->flushed = 1, receives->flushed++;
	else
		receives->free++;
}

/* Arms the limit of the SRQ, changes its size, or queries it. */
static void change_srq(struct model *m)
{
	struct ibv_srq_attr attr = { .max_wr = pick(14), .srq_limit = pick(14) };
	int mask = pick(2) ? IBV_SRQ_LIMIT : IBV_SRQ_MAX_WR, result, wanted;

	drain(m);
	if (mask == IBV_SRQ_LIMIT)
		wanted = attr.srq_limit > m->shared.max_wr ? EINVAL : 0;
	else
		wanted = !attr.max_wr || attr.max_wr < m->shared.count ? EINVAL : 0;
	result = ibv_modify_srq(m->srq, &attr, mask);
	note("modify_srq mask %d max_wr %u limit %u: %d", mask, attr.max_wr, attr.srq_limit, result);
	if (check(result == wanted, "modify_srq: %d, not %d", result, wanted) && !result) {
		if (mask == IBV_SRQ_LIMIT)
			m->limit = attr.srq_limit;
		else
			m->shared.max_wr = attr.max_wr;
		check_limit(m);
	}
	check(!ibv_query_srq(m->srq, &attr), "query_srq");
	check(attr.max_wr == m->shared.max_wr && attr.srq_limit == m->limit, "the SRQ has %u receives and the limit %u",
	      attr.max_wr, attr.srq_limit);
}

/* To a random state, with all attributes or without one that it needs. */
static void modify(struct model *m)
{
	static const enum ibv_qp_state states[] = { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR };
	struct qp *qp = &m->qp[pick(QPS)];
	enum ibv_qp_state to = states[pick(5)];
	int mask = mask_of(qp, to), result, wanted;
	struct ibv_qp_attr attr = attr_of(m, qp);

	attr.qp_state = to;
	if (!pick(4))
		mask &= ~(to == IBV_QPS_RTR ? IBV_QP_DEST_QPN : to == IBV_QPS_RTS ? IBV_QP_SQ_PSN : IBV_QP_PORT);
	drain(m);
	wanted = may_go(qp, to, mask) ? 0 : EINVAL;
	result = ibv_modify_qp(qp->qp, &attr, mask);
	note("modify qp %d from %d to %d mask %#x: %d", qp->index, qp->state, to, mask, result);
	if (!check(result == wanted, "modify_qp from %d to %d: %d, not %d", qp->state, to, result, wanted) || result)
		return;
	if (to == IBV_QPS_ERR) {
		enters_error(m, qp);
		return;
	}
	if (to == IBV_QPS_RESET)
		resets(m, qp);
	qp->state = to;
}

/* Both QPs of a pair from RESET to RTS. */
static void connect_pair(struct model *m)
{
	int pair = pick(QPS / 2);

	drain(m);
	note("connect pair %d", pair);
	for (int side = 0; side < 2; side++) {
		struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };

		check(!ibv_modify_qp(m->qp[2 * pair + side].qp, &reset, IBV_QP_STATE), "reset");
		resets(m, &m->qp[2 * pair + side]);
	}
	for (int side = 0; side < 2; side++) {
		struct qp *qp = &m->qp[2 * pair + side];
		struct ibv_qp_attr attr = attr_of(m, qp);

		for (attr.qp_state = IBV_QPS_INIT; attr.qp_state <= IBV_QPS_RTS; attr.qp_state++)
			check(!ibv_modify_qp(qp->qp, &attr, mask_of(qp, attr.qp_state)), "connect");
		qp->state = IBV_QPS_RTS;
	}
	m->connected[pair] = 1;
}

static void query(struct model *m)
{
	struct qp *qp = &m->qp[pick(QPS)];
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	drain(m);
	check(!ibv_query_qp(qp->qp, &attr, IBV_QP_STATE, &init), "query_qp");
	note("query qp %d: %d", qp->index, attr.qp_state);
	check(attr.qp_state == qp->state, "state %d, not %d", attr.qp_state, qp->state);
}

/* Calls that fail, and change nothing. */
static void wrong(struct model *m)
{
	unsigned which = pick(12);
	struct ibv_ah_attr nowhere = attr_of(m, &m->qp[0]).ah_attr;
	struct ibv_srq_init_attr srq = { .attr = { 0, 1, 0 } };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .send_cq = m->cq[0], .recv_cq = m->cq[0],
					 .cap = { 1, 1, 1, 1, 0 } };
	int errors[2] = { EINVAL, EINVAL };
	void *made = NULL;

	note("wrong %u", which);
	errno = 0;
	switch (which) {
	case 0: made = ibv_create_cq(m->context, pick(2) ? 0 : -5, NULL, NULL, 0); break;
	case 1: made = ibv_reg_mr(m->pd, m->memory, SIZE, IBV_ACCESS_REMOTE_WRITE); break;
	case 2: made = ibv_reg_mr(m->pd, m->memory, SIZE, 1 << 19); break;
	case 3: init.qp_type = 77, errors[1] = EOPNOTSUPP, made = ibv_create_qp(m->pd, &init); break;
	case 4: init.send_cq = NULL, made = ibv_create_qp(m->pd, &init); break;
	case 5: init.cap.max_send_wr = 1 << 30, errors[1] = ENOMEM, made = ibv_create_qp(m->pd, &init); break;
	case 6: errors[0] = errors[1] = EBUSY, errno = ibv_destroy_cq(m->cq[pick(CQS)]); break;
	case 7: errors[0] = errors[1] = EBUSY, errno = ibv_dealloc_pd(m->pd); break;
	case 8: nowhere.port_num = 2, made = ibv_create_ah(m->pd, &nowhere); break;
	case 9: nowhere.is_global = 0, made = ibv_create_ah(m->pd, &nowhere); break;
	case 10: made = ibv_create_srq(m->pd, &srq); break;
	case 11:
		if (!is_used(m, SRQ_AT, (int[OBJECTS]){ 0 }))
			return;
		errors[0] = errors[1] = EBUSY, errno = ibv_destroy_srq(m->srq);
		break;
	}
	check(!made && (errno == errors[0] || errno == errors[1]), "wrong call %u", which);
}

/* A QP, and with it the connection of its pair, is replaced, or the address handle. The old one is destroyed twice. */
static void renew(struct model *m)
{
	struct qp *qp = &m->qp[pick(QPS)];
	struct ibv_qp *old = qp->qp;

	drain(m);
	if (!pick(4)) {
		struct ibv_ah *ah = m->ah;

		note("renew ah");
		check(!ibv_destroy_ah(ah), "destroy_ah");
		check(ibv_destroy_ah(ah) == EINVAL, "destroy_ah twice");
		create_ah(m);
		return;
	}
	note("renew qp %d", qp->index);
	check(!ibv_destroy_qp(old), "destroy_qp");
	check(ibv_destroy_qp(old) == EINVAL, "destroy_qp twice");
	resets(m, qp);
	create_qp(m, qp);
}

static void sequence(struct model *m, uint64_t seed, int calls)
{
	begin(m, seed);
	for (int i = 0; i < calls && !failed; i++) {
		switch (pick(32)) {
		case 0 ... 1: connect_pair(m); break;
		case 2 ... 3: modify(m); break;
		case 4: query(m); break;
		case 5: change_srq(m); break;
		case 6 ... 7: wrong(m); break;
		case 8 ... 9: pick(4) ? drain(m) : renew(m); break;
		case 10 ... 17: post_receive(m); break;
		case 18: poll_all(m); break;
		case 19: post_empty(m); break;
		default: post_send(m); break;
		}
	}
	if (!failed)
		drain(m);
	if (!failed)
		end(m);
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	int sequences = argc > 3 ? atoi(argv[3]) : 1000, calls = argc > 4 ? atoi(argv[4]) : 60;
	static struct model model;

	if (!check((model.context = device_open(argc > 1 ? argv[1] : NULL)) != NULL, "no device") ||
	    !check(witness_open(model.context), "the witness"))
		return 1;
	for (int i = 0; i < sequences && !failed; i++) {
		sequence(&model, seed + i, calls);
		if (failed) {
			printf("seed %llu failed after these calls:\n%s", (unsigned long long)seed + i, notes);
		}
	}
	check(witness_close(), "the witness");
	check(!ibv_close_device(model.context), "close the device");
	printf("%d passed, %d failed\n", passed, failed);
	return !!failed;
}
