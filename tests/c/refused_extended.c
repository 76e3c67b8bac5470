/* Calls of the extended verbs that are refused, one after another: each prints its name and errno. The log says why, which the
 * caller of this program looks at.
 *
 *   refused_extended DEVICE */
#include "refused.h"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static void queue_pairs(struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq,
					    .cap = { .max_send_wr = 1, .max_send_sge = 1, .max_recv_wr = 1, .max_recv_sge = 1 } };
	struct ibv_qp_open_attr open = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD, .xrcd = xrcd };

	NO_OBJECT("QP without PD", ibv_create_qp_ex(context, &init));
	init.pd = pd;
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE;
	NO_OBJECT("table without hash", ibv_create_qp_ex(context, &init));
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	init.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
	NO_OBJECT("RC without its own multicast", ibv_create_qp_ex(context, &init));
	init.qp_type = IBV_QPT_XRC_RECV;
	init.create_flags = 0;
	NO_OBJECT("target without domain", ibv_create_qp_ex(context, &init));
	NO_OBJECT("open without type", ibv_open_qp(context, &open));
}

static void completion_queues(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 1, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = pd };
	struct ibv_modify_cq_attr none = { 0 };

	NO_OBJECT("CQ in a PD", ibv_create_cq_ex(context, &init));
	refused("CQ unchanged", ibv_modify_cq(cq, &none));
	refused("CQ to 0", ibv_resize_cq(cq, 0));
}

static void shared_receive_queues(void)
{
	struct ibv_srq_init_attr_ex init = { .attr = { .max_wr = 1, .max_sge = 1 }, .pd = pd };
	struct ibv_srq_attr attr = { 0 };
	struct ibv_srq *srq;
	uint32_t number;

	NO_OBJECT("SRQ without PD", ibv_create_srq_ex(context, &init));
	init.comp_mask = IBV_SRQ_INIT_ATTR_PD;
	srq = ibv_create_srq_ex(context, &init);
	refused("SRQ mask", ibv_modify_srq(srq, &attr, 1 << 20));
	refused("SRQ number", ibv_get_srq_num(srq, &number));
	ibv_destroy_srq(srq);
	init.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
	init.srq_type = IBV_SRQT_XRC;
	NO_OBJECT("XRC SRQ without domain", ibv_create_srq_ex(context, &init));
}

static struct ibv_xrcd *open_domain(int fd, int oflags)
{
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = oflags };

	return ibv_open_xrcd(context, &init);
}

static void domains(void)
{
	char name[] = "/tmp/weir-refused-XXXXXX";
	int file = mkstemp(name);
	struct ibv_xrcd *xrcd;
	struct ibv_srq_init_attr_ex init = { .attr = { .max_wr = 1, .max_sge = 1 }, .pd = pd, .cq = cq, .srq_type = IBV_SRQT_XRC,
					     .comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_CQ |
							  IBV_SRQ_INIT_ATTR_XRCD };
	struct ibv_td_init_attr plain = { 0 };
	struct ibv_td *td = ibv_alloc_td(context, &plain);
	struct ibv_parent_domain_init_attr parent = { .pd = pd, .td = td };
	struct ibv_pd *domain = ibv_alloc_parent_domain(context, &parent);
	struct ibv_srq *srq;

	NO_OBJECT("XRC domain of nothing", open_domain(-1, 0));
	NO_OBJECT("XRC domain that is missing", open_domain(file, 0));
	xrcd = open_domain(file, O_CREAT);
	NO_OBJECT("XRC domain again", open_domain(file, O_CREAT | O_EXCL));
	queue_pairs(xrcd);
	init.xrcd = xrcd;
	srq = ibv_create_srq_ex(context, &init);
	refused("XRC domain in use", ibv_close_xrcd(xrcd));
	ibv_destroy_srq(srq);
	ibv_close_xrcd(xrcd);
	close(file);
	unlink(name);
	refused("thread domain in use", ibv_dealloc_td(td));
	parent.comp_mask = 1 << 30;
	NO_OBJECT("parent domain mask", ibv_alloc_parent_domain(context, &parent));
	parent.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	NO_OBJECT("parent domain without functions", ibv_alloc_parent_domain(context, &parent));
	ibv_dealloc_pd(domain);
	ibv_dealloc_td(td);
}

static void memories(struct ibv_qp *ud)
{
	struct ibv_alloc_dm_attr none = { 0 }, some = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &some);
	union ibv_gid host = { .raw = { 0xfe, 0x80 } }, group = { .raw = { 0xff, 0x15 } };
	struct ibv_sge sge = { 0 };

	NO_OBJECT("window of type 7", ibv_alloc_mw(pd, 7));
	NO_OBJECT("device memory of 0", ibv_alloc_dm(context, &none));
	NO_OBJECT("region beyond device memory", ibv_reg_dm_mr(pd, dm, 64, 64, IBV_ACCESS_ZERO_BASED));
	ibv_free_dm(dm);
	refused("attach to a host", ibv_attach_mcast(ud, &host, 0));
	refused("detach", ibv_detach_mcast(ud, &group, 0));
	refused("advice for nothing", ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 0));
}

int main(int argc, char **argv)
{
	struct ibv_qp *ud;

	if (refused_begin(argc > 1 ? argv[1] : NULL))
		return 1;
	ud = qp_of(IBV_QPT_UD, NULL, 1);
	completion_queues();
	shared_receive_queues();
	domains();
	memories(ud);
	return ibv_destroy_qp(ud) || refused_end();
}
