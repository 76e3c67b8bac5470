/* Random sequences of verbs, right and wrong, against a model that says what each call returns, which completions come, in
 * which order, with which status, and which bytes arrive.
 *
 *   oracle DEVICE SEED SEQUENCES [CALLS]
 *
 * Sequence I of seed S is sequence 0 of seed S + I. A failed one prints its seed and its calls. To make it shorter, give
 * its seed, 1, and fewer calls. */
#include "check.h"
#include "oracle_model.h"
#include <stdlib.h>
#include <time.h>

/* Seconds within which a completion comes. */
#define LONG 60

static void poll_all(struct model *m)
{
	struct ibv_wc wc[8];

	for (int i = 0; i < CQS; i++) {
		int count = ibv_poll_cq(m->cq[i], 8, wc);

		check(count >= 0, "poll: %d", count);
		for (int k = 0; k < count; k++)
			completed(m, i, &wc[k]);
	}
}

/* Waits for all completions that are due, and finds that there are no others. */
static void drain(struct model *m)
{
	time_t end = time(NULL) + LONG;

	note("drain");
	while (is_due(m) && !failed && time(NULL) < end)
		poll_all(m);
	check(!is_due(m), "a completion does not come");
	poll_all(m);
}

static void post_send(struct model *m)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND,
						      IBV_WR_ATOMIC_FETCH_AND_ADD };
	struct qp *from = &m->qp[pick(QPS)], *to = &m->qp[from->index ^ 1];
	enum ibv_wr_opcode opcode = opcodes[pick(4)];
	unsigned flaw = pick(16), number = m->number++, slot = number % SLOTS;
	int atomic = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD, send = opcode == IBV_WR_SEND, result, wanted = 0;
	uint64_t remote = (uintptr_t)m->memory[1][slot];
	struct ibv_sge sges[MAX_SGE + 1];
	struct ibv_send_wr *bad = NULL, wr = { .wr_id = id_of(from, 1, number), .sg_list = sges, .num_sge = 1,
					       .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };
	enum ibv_wc_status status = IBV_WC_SUCCESS;

	/* A connection that is not whole makes the requester repeat its packets for long. */
	if (from->state == IBV_QPS_RTS && !m->connected[from->index / 2])
		return;
	for (int i = 0; i <= MAX_SGE; i++)
		sges[i] = (struct ibv_sge){ (uintptr_t)m->memory[0][slot], i ? 0 : atomic ? 8 : SIZE, m->mr->lkey };
	if (atomic)
		wr.wr.atomic.remote_addr = remote, wr.wr.atomic.rkey = m->mr->rkey, wr.wr.atomic.compare_add = number;
	else
		wr.wr.rdma.remote_addr = remote, wr.wr.rdma.rkey = m->mr->rkey;
	fill(m, slot, number, opcode);
	if (from->state == IBV_QPS_RESET || from->state == IBV_QPS_INIT || from->state == IBV_QPS_RTR)
		wanted = EINVAL;
	if (flaw == 0)
		wr.num_sge = from->max_send_sge + 1, wanted = EINVAL;
	else if (flaw == 1)
		wr.opcode = 99, wanted = EINVAL;
	else if (flaw == 2)
		sges[0].lkey ^= 0x5a00, status = IBV_WC_LOC_PROT_ERR;
	else if (flaw == 3 && !send)
		*(atomic ? &wr.wr.atomic.rkey : &wr.wr.rdma.rkey) ^= 0x5a00, status = IBV_WC_REM_ACCESS_ERR;
	else if (flaw == 4)
		sges[0].addr = 8, status = IBV_WC_LOC_PROT_ERR;
	else if (send && from->state == IBV_QPS_RTS && !to->free_receives)
		status = IBV_WC_RNR_RETRY_EXC_ERR;
	/* An error flushes what is on its way. */
	if (status != IBV_WC_SUCCESS)
		drain(m);
	result = ibv_post_send(from->qp, flaw == 5 ? NULL : &wr, &bad);
	note("post_send qp %d opcode %d flaw %u number %u: %d", from->index, wr.opcode, flaw, number, result);
	if (flaw == 5) {
		check(!result, "an empty list: %d", result);
		return;
	}
	if (!wanted && from->send.count >= from->max_send_wr && result == ENOMEM) {
		check(bad == &wr, "bad_wr");
		return;
	}
	if (!check(result == wanted, "post_send: %d, not %d", result, wanted) || result) {
		check(!result || bad == &wr, "bad_wr");
		return;
	}
	if (from->state == IBV_QPS_ERR)
		status = IBV_WC_WR_FLUSH_ERR;
	/* READs write to local memory, all others to remote memory. */
	push(&from->send, (struct due){ wr.wr_id, status, opcode, slot, number });
	if (status == IBV_WC_SUCCESS && send)
		arrives(to, number, slot);
	if (status != IBV_WC_SUCCESS && status != IBV_WC_WR_FLUSH_ERR) {
		enters_error(m, from);
		if (status == IBV_WC_REM_ACCESS_ERR)
			enters_error(m, to);
		/* What others may be posted meanwhile depends on when the error comes. */
		drain(m);
	}
}

static void post_receive(struct model *m)
{
	struct qp *qp = &m->qp[pick(QPS)];
	unsigned flaw = pick(8), number = m->number++, slot = number % SLOTS;
	struct ibv_sge sges[MAX_SGE + 1] = { { (uintptr_t)m->memory[2][slot], SIZE, m->mr->lkey } };
	struct ibv_recv_wr *bad = NULL, wr = { .wr_id = id_of(qp, 0, number), .sg_list = sges, .num_sge = 1 };
	int result, wanted = qp->state == IBV_QPS_RESET ? EINVAL : 0;

	if (flaw == 0)
		wr.num_sge = qp->max_recv_sge + 1, wanted = EINVAL;
	result = ibv_post_recv(qp->qp, flaw == 1 ? NULL : &wr, &bad);
	note("post_recv qp %d flaw %u number %u: %d", qp->index, flaw, number, result);
	if (flaw == 1) {
		check(!result, "an empty list: %d", result);
		return;
	}
	if (!wanted && qp->receive.count >= qp->max_recv_wr && result == ENOMEM)
		return;
	if (!check(result == wanted, "post_recv: %d, not %d", result, wanted) || result) {
		check(!result || bad == &wr, "bad_wr");
		return;
	}
	push(&qp->receive, (struct due){ wr.wr_id, IBV_WC_SUCCESS, IBV_WR_SEND, slot, number });
	if (qp->state == IBV_QPS_ERR)
		flush(&qp->receive);
	else
		qp->free_receives++;
}

/* To a random state, with all attributes or without one that it needs. */
static void modify(struct model *m)
{
	static const enum ibv_qp_state states[] = { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR };
	struct qp *qp = &m->qp[pick(QPS)];
	enum ibv_qp_state to = states[pick(5)];
	int lacks = !pick(4), mask = mask_of(to), result, wanted;
	struct ibv_qp_attr attr = rc_attr(m->qp[qp->index ^ 1].qp->qp_num, &m->gid, m->gid_index);

	attr.qp_state = to;
	attr.rnr_retry = 0;
	if (lacks && (mask &= ~(to == IBV_QPS_RTR ? IBV_QP_DEST_QPN : to == IBV_QPS_RTS ? IBV_QP_SQ_PSN : IBV_QP_PORT)) ==
			     mask_of(to))
		lacks = 0;
	/* From INIT to INIT nothing is required. */
	if (qp->state == IBV_QPS_INIT && to == IBV_QPS_INIT)
		lacks = 0;
	drain(m);
	wanted = may_go(qp->state, to) && !lacks ? 0 : EINVAL;
	result = ibv_modify_qp(qp->qp, &attr, mask);
	note("modify qp %d from %d to %d lacks %d: %d", qp->index, qp->state, to, lacks, result);
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
		struct ibv_qp_attr attr = rc_attr(m->qp[qp->index ^ 1].qp->qp_num, &m->gid, m->gid_index);

		attr.rnr_retry = 0;
		check(!rc_connect(qp->qp, attr), "connect");
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
	unsigned which = pick(8);
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
	}
	check(!made && (errno == errors[0] || errno == errors[1]), "wrong call %u", which);
}

/* A QP, and with it the connection of its pair, is replaced; the old one is destroyed twice. */
static void renew(struct model *m)
{
	struct qp *qp = &m->qp[pick(QPS)];
	struct ibv_qp *old = qp->qp;

	drain(m);
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
		switch (pick(16)) {
		case 0: connect_pair(m); break;
		case 1: modify(m); break;
		case 2: query(m); break;
		case 3: wrong(m); break;
		case 4: pick(4) ? drain(m) : renew(m); break;
		case 5 ... 8: post_receive(m); break;
		case 9: poll_all(m); break;
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

	if (!check((model.context = device_open(argc > 1 ? argv[1] : NULL)) != NULL, "no device"))
		return 1;
	for (int i = 0; i < sequences && !failed; i++) {
		sequence(&model, seed + i, calls);
		if (failed) {
			printf("seed %llu failed after these calls:\n%s", (unsigned long long)seed + i, notes);
		}
	}
	check(!ibv_close_device(model.context), "close the device");
	printf("%d passed, %d failed\n", passed, failed);
	return !!failed;
}
