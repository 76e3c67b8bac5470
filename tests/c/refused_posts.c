/* Work requests that are refused, one after another: each prints its name and errno. The log says why, which the caller of this
 * program looks at.
 *
 *   refused_posts DEVICE           ibv_post_send and ibv_post_recv
 *   refused_posts DEVICE shared    receives and tags of SRQs, ibv_bind_mw
 *   refused_posts DEVICE batches   ibv_wr_start to ibv_wr_complete */
#include "flushing.h"
#include "refused.h"
#include <stdlib.h>

static unsigned char memory[4096];

/* A QP that is its own peer. */
static void connect_to_itself(struct ibv_qp *qp)
{
	union ibv_gid gid;
	int index = own_gid(&gid);

	if (rc_connect(qp, rc_attr(qp->qp_num, &gid, index)))
		exit(1);
}

static int post_sges(struct ibv_qp *qp, enum ibv_wr_opcode opcode, int count, uint32_t length, unsigned flags)
{
	struct ibv_sge sges[64] = { { .addr = (uintptr_t)memory, .length = length } };
	struct ibv_send_wr *bad, wr = { .opcode = opcode, .sg_list = sges, .num_sge = count, .send_flags = flags };

	/* Where an address handle is. */
	if (opcode == IBV_WR_RDMA_WRITE)
		wr.wr.rdma.remote_addr = 1;
	return ibv_post_send(qp, &wr, &bad);
}

static int receive(struct ibv_qp *qp, int count)
{
	struct ibv_sge sges[64] = { { .addr = (uintptr_t)memory } };
	struct ibv_recv_wr *bad, wr = { .sg_list = sges, .num_sge = count };

	return ibv_post_recv(qp, &wr, &bad);
}

static void posts(struct ibv_qp *ud)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &attr);
	struct ibv_qp *qp = qp_of(IBV_QPT_RC, NULL, 4), *shares = qp_of(IBV_QPT_RC, srq, 4);

	refused("send in RESET", post_sges(qp, IBV_WR_SEND, 0, 0, 0));
	refused("receive in RESET", receive(qp, 0));
	connect_to_itself(qp);
	connect_to_itself(shares);
	if (ud_start(ud, 0x1111))
		exit(1);
	refused("SGEs of a send", post_sges(qp, IBV_WR_SEND, 64, 8, 0));
	refused("SGEs of a receive", receive(qp, 64));
	refused("opcode", post_sges(qp, 4711, 0, 0, 0));
	refused("inline", post_sges(qp, IBV_WR_SEND, 1, 4096, IBV_SEND_INLINE));
	refused("atomic of 7 bytes", post_sges(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 7, 0));
	refused("WRITE of UD", post_sges(ud, IBV_WR_RDMA_WRITE, 0, 0, 0));
	refused("datagram to nowhere", post_sges(ud, IBV_WR_SEND, 0, 0, 0));
	refused("receive beside an SRQ", receive(shares, 0));
	/* As many as there is room for: no line. */
	while (!receive(qp, 0))
		;
	ibv_destroy_qp(qp);
	ibv_destroy_qp(shares);
	ibv_destroy_srq(srq);
}

static void tags(struct ibv_srq *plain)
{
	struct ibv_sge sges[64] = { { .addr = (uintptr_t)memory } };
	struct ibv_cq_init_attr_ex with_tags = { .cqe = 16, .wc_flags = IBV_WC_EX_WITH_TM_INFO };
	struct ibv_cq_ex *extended = ibv_create_cq_ex(context, &with_tags);
	struct ibv_srq_init_attr_ex init = {
		.attr = { .max_wr = 4, .max_sge = 1 },
		.srq_type = IBV_SRQT_TM,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
		.pd = pd,
		.cq = ibv_cq_ex_to_cq(extended),
		.tm_cap = { 4, 8 },
	};
	struct ibv_srq *srq;
	struct ibv_ops_wr *bad, add = { .opcode = IBV_WR_TAG_ADD, .tm.add = { .sg_list = sges, .num_sge = 64 } };
	struct ibv_ops_wr delete = { .opcode = IBV_WR_TAG_DEL, .tm.handle = 0xffff }, other = { .opcode = 4711 };

	init.tm_cap.max_num_tags = 1 << 30;
	NO_OBJECT("SRQ of 2^30 tags", ibv_create_srq_ex(context, &init));
	init.tm_cap.max_num_tags = 4;
	srq = ibv_create_srq_ex(context, &init);
	refused("tag of a plain SRQ", ibv_post_srq_ops(plain, &delete, &bad));
	refused("SGEs of a tag", ibv_post_srq_ops(srq, &add, &bad));
	refused("tag that cannot be", ibv_post_srq_ops(srq, &delete, &bad));
	refused("opcode of a tag", ibv_post_srq_ops(srq, &other, &bad));
	/* As many as there is room for: no line. */
	add.tm.add.num_sge = 0;
	while (!ibv_post_srq_ops(srq, &add, &bad))
		;
	ibv_destroy_srq(srq);
	ibv_destroy_cq(ibv_cq_ex_to_cq(extended));
}

static void binds(struct ibv_qp *ud)
{
	struct ibv_qp *qp = qp_of(IBV_QPT_RC, NULL, 4);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .bind_info = { .mr = mr, .addr = (uintptr_t)memory, .length = 8 } };

	refused("bind in RESET", ibv_bind_mw(qp, mw, &bind));
	connect_to_itself(qp);
	if (ud_start(ud, 0x1111))
		exit(1);
	refused("bind of UD", ibv_bind_mw(ud, mw, &bind));
	ibv_dealloc_mw(mw);
	ibv_dereg_mr(mr);
	ibv_destroy_qp(qp);
}

static void shared(struct ibv_qp *ud)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &attr);
	struct ibv_sge sges[64] = { { .addr = (uintptr_t)memory } };
	struct ibv_recv_wr *bad, wr = { .sg_list = sges, .num_sge = 64 };

	refused("SGEs of an SRQ", ibv_post_srq_recv(srq, &wr, &bad));
	tags(srq);
	binds(ud);
	wr.num_sge = 0;
	/* As many as there is room for: no line. */
	while (!ibv_post_srq_recv(srq, &wr, &bad))
		;
	ibv_destroy_srq(srq);
}

static struct ibv_qp_ex *extended_qp(enum ibv_qp_type type, uint64_t operations)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = type, .send_cq = cq, .recv_cq = cq, .pd = pd, .send_ops_flags = operations,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.cap = { .max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);

	return qp ? ibv_qp_to_qp_ex(qp) : NULL;
}

static void batches(void)
{
	struct ibv_qp_ex *rc = extended_qp(IBV_QPT_RC, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
							       IBV_QP_EX_WITH_BIND_MW | OFFERS_FLUSH);
	struct ibv_qp_ex *ud = extended_qp(IBV_QPT_UD, IBV_QP_EX_WITH_SEND);
	struct ibv_qp_ex *xrc = extended_qp(IBV_QPT_XRC_SEND, IBV_QP_EX_WITH_SEND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind_info info = { 0 };
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_sge sges[64] = { { 0 } };
	struct ibv_ah_attr to = { .port_num = 1, .is_global = 1 };
	struct ibv_ah *ah;

	to.grh.sgid_index = own_gid(&to.grh.dgid);
	ah = ibv_create_ah(pd, &to);
	if (!ah || !rc || !ud || !xrc || !mw)
		exit(1);
	ibv_wr_start(rc);
	ibv_wr_send(rc);
	refused("batch in RESET", ibv_wr_complete(rc));
	connect_to_itself(&rc->qp_base);
	connect_to_itself(&xrc->qp_base);
	if (ud_start(&ud->qp_base, 0x1111) || ibv_query_qp(&rc->qp_base, &attr, IBV_QP_CAP, &init))
		exit(1);
	ibv_wr_start(rc);
	ibv_wr_set_sge(rc, 0, 0, 0);
	refused("setter without request", ibv_wr_complete(rc));
	ibv_wr_start(rc);
	for (uint32_t i = 0; i <= init.cap.max_send_wr; i++)
		ibv_wr_send(rc);
	refused("long batch", ibv_wr_complete(rc));
	ibv_wr_start(rc);
	ibv_wr_send(rc);
	ibv_wr_set_sge_list(rc, 64, sges);
	refused("SGEs of a batch", ibv_wr_complete(rc));
	ibv_wr_start(rc);
	ibv_wr_send(rc);
	ibv_wr_set_inline_data(rc, memory, sizeof memory);
	refused("inline data of a batch", ibv_wr_complete(rc));
	ibv_wr_start(rc);
	ibv_wr_atomic_fetch_add(rc, 0, 0, 1);
	ibv_wr_set_sge(rc, 0, (uintptr_t)memory, 7);
	refused("atomic of 7 bytes in a batch", ibv_wr_complete(rc));
	ibv_wr_start(rc);
	ibv_wr_bind_mw(rc, mw, 0, &info);
	refused("window of type 1 in a batch", ibv_wr_complete(rc));
	ibv_wr_start(rc);
	((struct flushing_qp *)(void *)rc)->wr_flush(rc, 0, 0, 8, 0, 0);
	refused("flush to no place", ibv_wr_complete(rc));
	ibv_wr_start(ud);
	ibv_wr_send(ud);
	ibv_wr_set_ud_addr(ud, NULL, 1, 0x1111);
	refused("batch to nowhere", ibv_wr_complete(ud));
	ibv_wr_start(ud);
	ibv_wr_send(ud);
	refused("batch without address", ibv_wr_complete(ud));
	ibv_wr_start(xrc);
	ibv_wr_send(xrc);
	refused("batch without SRQ", ibv_wr_complete(xrc));
	/* As many as there is room for: no line. */
	do {
		ibv_wr_start(ud);
		ibv_wr_send(ud);
		ibv_wr_set_ud_addr(ud, ah, 1, 0x1111);
	} while (!ibv_wr_complete(ud));
	ibv_destroy_ah(ah);
	ibv_dealloc_mw(mw);
	ibv_destroy_qp(&rc->qp_base);
	ibv_destroy_qp(&ud->qp_base);
	ibv_destroy_qp(&xrc->qp_base);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[2] : "posts";
	struct ibv_qp *ud;

	if (refused_begin(argc > 1 ? argv[1] : NULL))
		return 1;
	ud = qp_of(IBV_QPT_UD, NULL, 4);
	if (!strcmp(what, "shared"))
		shared(ud);
	else if (!strcmp(what, "batches"))
		batches();
	else
		posts(ud);
	return ibv_destroy_qp(ud) || refused_end();
}
