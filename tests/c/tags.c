/* Tag matching as a C program sees it: capabilities, creation, list operations with their errors, and messages, read
 * through an extended CQ. In one process, on an adapter with tag matching.
 *
 *   tags DEVICE GID
 *
 * Prints failures and a last line "N passed, M failed". */
#include "threads_rig.h"
#include "check.h"
#include <infiniband/tm_types.h>

enum { LENGTH = 4096, BUFFER = 3 * LENGTH, APP = 0x01020304 };

static const uint64_t TAG = 0x1122334455667788;

static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_tm_caps caps;
	struct ibv_cq_ex *cq;
	union ibv_gid gid;
	uint8_t *at;
} my;

static struct ibv_srq_init_attr_ex attributes(void)
{
	return (struct ibv_srq_init_attr_ex){
		.attr = { 8, 1, 0 },
		.srq_type = IBV_SRQT_TM,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
		.pd = my.pd,
		.cq = ibv_cq_ex_to_cq(my.cq),
		.tm_cap = { 4, 8 },
	};
}

static void refused(struct ibv_srq_init_attr_ex init, const char *what)
{
	struct ibv_srq *srq = ibv_create_srq_ex(my.context, &init);

	check(!srq && errno == EINVAL, "%s", what);
}

static void creation(void)
{
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
					     .oflags = O_CREAT };
	struct ibv_cq *plain = ibv_create_cq(my.context, 16, NULL, NULL, 0);
	struct ibv_xrcd *xrcd = ibv_open_xrcd(my.context, &domain);
	struct ibv_srq_init_attr_ex init = attributes();

	if (!plain || !xrcd)
		die("cannot make a CQ and a domain: %s", strerror(errno));

	init.comp_mask &= ~IBV_SRQ_INIT_ATTR_CQ;
	refused(init, "a TM SRQ without a CQ");
	init = attributes();
	init.cq = NULL;
	refused(init, "a TM SRQ with a NULL CQ");
	init.cq = plain;
	refused(init, "a TM SRQ with a CQ that is not extended");
	init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_XRCD;
	init.srq_type = IBV_SRQT_XRC;
	init.xrcd = NULL;
	refused(init, "an XRC SRQ with a NULL domain");
	init.xrcd = xrcd;
	init.cq = NULL;
	refused(init, "an XRC SRQ with a NULL CQ");
	check(!ibv_close_xrcd(xrcd) && !ibv_destroy_cq(plain), "cannot clean up after XRC");
	init = attributes();
	init.comp_mask &= ~IBV_SRQ_INIT_ATTR_TM;
	refused(init, "a TM SRQ without sizes");
	init = attributes();
	init.comp_mask &= ~IBV_SRQ_INIT_ATTR_PD;
	refused(init, "a TM SRQ without a PD");
	init = attributes();
	init.tm_cap.max_num_tags = my.caps.max_num_tags + 1;
	refused(init, "too many tags");
	init = attributes();
	init.tm_cap.max_ops = my.caps.max_ops + 1;
	refused(init, "too many operations");
}

static struct ibv_qp *new_qp(struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .srq = srq, .sq_sig_all = 1 };
	struct ibv_qp *qp;

	if (!srq)
		init.cap = (struct ibv_qp_cap){ 8, 8, 1, 1, 0 };
	if (!(qp = ibv_create_qp(my.pd, &init)))
		die("ibv_create_qp: %s", strerror(errno));
	return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t to)
{
	struct ibv_qp_attr attr = { .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = to, .timeout = 14,
				    .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 1, .max_rd_atomic = 4,
				    .max_dest_rd_atomic = 4, .qp_access_flags = IBV_ACCESS_REMOTE_READ };
	int masks[3] = { IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
			 IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				 IBV_QP_MIN_RNR_TIMER,
			 IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC };

	attr.ah_attr = (struct ibv_ah_attr){ .port_num = 1, .is_global = 1 };
	attr.ah_attr.grh.dgid = my.gid;
	attr.ah_attr.grh.sgid_index = opt.gid;
	for (int i = 0; i < 3; i++) {
		attr.qp_state = IBV_QPS_INIT + i;
		if ((errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | masks[i])))
			die("ibv_modify_qp to state %d: %s", attr.qp_state, strerror(errno));
	}
}

/* The next completion of the SRQ. */
static void expect(uint64_t id, enum ibv_wc_status status, enum ibv_wc_opcode opcode, unsigned flags, uint64_t tag,
		   const char *what)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_wc_tm_info info = { 1, 1 };
	double until = now() + 10;

	while (ibv_start_poll(my.cq, &attr))
		if (now() > until)
			die("%s: no completion", what);
	ibv_wc_read_tm_info(my.cq, &info);
	check(my.cq->wr_id == id && my.cq->status == status, "%s: WR %" PRIu64 ", %s", what, my.cq->wr_id,
	      ibv_wc_status_str(my.cq->status));
	check(ibv_wc_read_opcode(my.cq) == opcode, "%s: opcode %d", what, ibv_wc_read_opcode(my.cq));
	check(ibv_wc_read_wc_flags(my.cq) == flags, "%s: flags %x", what, ibv_wc_read_wc_flags(my.cq));
	check(info.tag == tag && info.priv == (tag ? APP : 0), "%s: tag %" PRIx64 ", %x", what, info.tag, info.priv);
	ibv_end_poll(my.cq);
}

static struct ibv_ops_wr add(uint64_t id, uint64_t tag, struct ibv_sge *sge)
{
	struct ibv_ops_wr wr = { .wr_id = id, .opcode = IBV_WR_TAG_ADD, .flags = IBV_OPS_SIGNALED };

	wr.tm.add.recv_wr_id = id + 100;
	wr.tm.add.tag = tag;
	wr.tm.add.mask = UINT64_MAX;
	wr.tm.add.sg_list = sge;
	wr.tm.add.num_sge = 1;
	return wr;
}

static void operations(struct ibv_srq *srq)
{
	struct ibv_sge sges[8];
	struct ibv_ops_wr list[6], *bad = NULL, wr;
	struct ibv_srq_init_attr plain_init = { .attr = { 1, 1, 0 } };
	struct ibv_srq *plain = ibv_create_srq(my.pd, &plain_init);

	for (int i = 0; i < 8; i++)
		sges[i] = (struct ibv_sge){ (uintptr_t)my.at, 64, my.mr->lkey };
	for (int i = 0; i < 6; i++) {
		list[i] = add(i, TAG, sges);
		list[i].next = i < 5 ? &list[i + 1] : NULL;
	}
	check(ibv_post_srq_ops(srq, list, &bad) == ENOMEM && bad == &list[4], "a list of more tags than there is room for");
	for (int i = 0; i < 4; i++)
		expect(i, IBV_WC_SUCCESS, IBV_WC_TM_ADD, 0, 0, "a new tag");
	for (int i = 0; i < 4; i++) {
		wr = (struct ibv_ops_wr){ .wr_id = 20, .opcode = IBV_WR_TAG_DEL, .flags = IBV_OPS_SIGNALED };
		wr.tm.handle = list[i].tm.handle;
		check(!ibv_post_srq_ops(srq, &wr, &bad), "delete a tag");
		expect(20, IBV_WC_SUCCESS, IBV_WC_TM_DEL, 0, 0, "a deleted tag");
		check(!ibv_post_srq_ops(srq, &wr, &bad), "delete it again");
		expect(20, IBV_WC_TM_ERR, IBV_WC_TM_DEL, 0, 0, "a tag that was deleted before");
	}
	wr.tm.handle = 0xffff;
	check(ibv_post_srq_ops(srq, &wr, &bad) == EINVAL && bad == &wr, "an impossible handle");
	wr = add(21, TAG, sges);
	wr.tm.add.num_sge = my.caps.max_sge + 1;
	check(ibv_post_srq_ops(srq, &wr, &bad) == EINVAL && bad == &wr, "too many SGEs");
	wr.tm.add.num_sge = -1;
	check(ibv_post_srq_ops(srq, &wr, &bad) == EINVAL, "a negative number of SGEs");
	wr.opcode = 9;
	check(ibv_post_srq_ops(srq, &wr, &bad) == EINVAL, "an unknown operation");
	wr = (struct ibv_ops_wr){ .wr_id = 22, .opcode = IBV_WR_TAG_SYNC, .flags = IBV_OPS_SIGNALED };
	check(ibv_post_srq_ops(plain, &wr, &bad) == EINVAL && bad == &wr, "an operation on a plain SRQ");
	check(!ibv_destroy_srq(plain), "destroy a plain SRQ");
	for (int i = 0; i < 8; i++)
		check(!ibv_post_srq_ops(srq, &wr, &bad), "one of 8 operations");
	check(ibv_post_srq_ops(srq, &wr, &bad) == ENOMEM && bad == &wr, "a ninth operation");
	for (int i = 0; i < 8; i++)
		expect(22, IBV_WC_SUCCESS, IBV_WC_TM_SYNC, 0, 0, "a report");
}

static void send_header(struct ibv_qp *qp, struct ibv_cq *cq, uint8_t opcode, uint32_t length)
{
	struct ibv_tmh tmh = { .opcode = opcode, .app_ctx = htobe32(APP), .tag = htobe64(TAG) };
	struct ibv_rvh rvh = { htobe64((uintptr_t)my.at + LENGTH), htobe32(my.mr->rkey), htobe32(length) };
	struct ibv_sge sge = { (uintptr_t)my.at, opcode == IBV_TMH_RNDV ? my.caps.max_rndv_hdr_size : length, my.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	double until = now() + 10;
	struct ibv_wc wc;
	int n;

	memcpy(my.at, &tmh, sizeof(tmh));
	if (opcode == IBV_TMH_RNDV)
		memcpy(my.at + sizeof(tmh), &rvh, sizeof(rvh));
	if (ibv_post_send(qp, &wr, &bad))
		die("ibv_post_send");
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0 || (n == 1 && wc.opcode == IBV_WC_RECV))
		if (now() > until)
			die("no completion of a send");
	check(n == 1 && wc.status == IBV_WC_SUCCESS, "a send: %s", ibv_wc_status_str(wc.status));
}

static void messages(struct ibv_srq *srq)
{
	struct ibv_cq *cq = ibv_create_cq(my.context, 16, NULL, NULL, 0);
	struct ibv_qp *from = new_qp(cq, NULL), *to = new_qp(cq, srq);
	struct ibv_sge sge = { (uintptr_t)my.at + 2 * LENGTH, LENGTH, my.mr->lkey }, fin = { (uintptr_t)my.at, 64, my.mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_ops_wr wr, *bad;
	const unsigned whole = IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID;

	connect_to(from, to->qp_num);
	connect_to(to, from->qp_num);
	for (int i = 0; i < BUFFER; i++)
		my.at[i] = i * 7 + (i >> 8);
	check(!ibv_post_srq_recv(srq, &recv, &bad_recv), "ibv_post_srq_recv");
	send_header(from, cq, IBV_TMH_EAGER, 100);
	expect(5, IBV_WC_SUCCESS, IBV_WC_TM_RECV, 0, 0, "an unexpected message");
	check(!memcmp(my.at, my.at + 2 * LENGTH, 100), "the bytes of an unexpected message");
	wr = add(30, TAG, &sge);
	check(!ibv_post_srq_ops(srq, &wr, &bad), "a tag after an unexpected message");
	expect(30, IBV_WC_SUCCESS, IBV_WC_TM_ADD, IBV_WC_TM_SYNC_REQ, 0, "a tag after an unexpected message");
	wr = (struct ibv_ops_wr){ .wr_id = 31, .opcode = IBV_WR_TAG_SYNC, .flags = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC };
	wr.tm.unexpected_cnt = 1;
	check(!ibv_post_srq_ops(srq, &wr, &bad), "a report");
	expect(31, IBV_WC_SUCCESS, IBV_WC_TM_SYNC, 0, 0, "a report");
	send_header(from, cq, IBV_TMH_EAGER, 100);
	expect(130, IBV_WC_SUCCESS, IBV_WC_TM_RECV, whole, TAG, "an eager message");
	check(!memcmp(my.at + sizeof(struct ibv_tmh), my.at + 2 * LENGTH, 100 - sizeof(struct ibv_tmh)), "its bytes");
	recv.sg_list = &fin;
	check(!ibv_post_recv(from, &recv, &bad_recv), "ibv_post_recv");
	wr = add(32, TAG, &sge);
	check(!ibv_post_srq_ops(srq, &wr, &bad), "a tag for a rendezvous");
	expect(32, IBV_WC_SUCCESS, IBV_WC_TM_ADD, 0, 0, "a tag for a rendezvous");
	send_header(from, cq, IBV_TMH_RNDV, LENGTH);
	expect(132, IBV_WC_SUCCESS, IBV_WC_TM_RECV, IBV_WC_TM_MATCH, TAG, "the match of a rendezvous");
	expect(132, IBV_WC_SUCCESS, IBV_WC_TM_RECV, IBV_WC_TM_DATA_VALID, 0, "the data of a rendezvous");
	check(!memcmp(my.at + LENGTH, my.at + 2 * LENGTH, LENGTH), "the bytes of a rendezvous");
	check(my.at[0] == IBV_TMH_FIN, "the end of a rendezvous: operation %d", my.at[0]);
	check(ibv_destroy_srq(srq) == EBUSY, "destroy an SRQ with a QP");
	check(!ibv_destroy_qp(from) && !ibv_destroy_qp(to) && !ibv_destroy_cq(cq), "cannot clean up");
}

int main(int argc, char **argv)
{
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_TM_INFO };
	struct ibv_device_attr_ex limits;
	struct ibv_srq_init_attr_ex init;
	struct ibv_srq *srq;

	if (argc != 3)
		die("usage: tags DEVICE GID");
	opt.device = argv[1];
	opt.gid = atoi(argv[2]);
	watch(100);
	my.context = open_device();
	my.pd = ibv_alloc_pd(my.context);
	my.at = aligned_alloc(4096, BUFFER);
	my.mr = my.pd ? ibv_reg_mr(my.pd, my.at, BUFFER, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ) : NULL;
	my.cq = ibv_create_cq_ex(my.context, &cq_init);
	if (!my.mr || !my.cq || ibv_query_gid(my.context, 1, opt.gid, &my.gid) ||
	    ibv_query_device_ex(my.context, NULL, &limits))
		die("cannot use the device: %s", strerror(errno));
	my.caps = limits.tm_caps;
	check(my.caps.flags == IBV_TM_CAP_RC && my.caps.max_rndv_hdr_size >= 32 && my.caps.max_num_tags && my.caps.max_ops &&
		      my.caps.max_sge, "capabilities");
	creation();
	init = attributes();
	if (!(srq = ibv_create_srq_ex(my.context, &init)))
		die("ibv_create_srq_ex: %s", strerror(errno));
	check(ibv_destroy_cq(ibv_cq_ex_to_cq(my.cq)) == EBUSY, "destroy the CQ of an SRQ");
	operations(srq);
	messages(srq);
	check(!ibv_destroy_srq(srq) && !ibv_destroy_cq(ibv_cq_ex_to_cq(my.cq)), "cannot destroy");
	check(!ibv_dereg_mr(my.mr) && !ibv_dealloc_pd(my.pd) && !ibv_close_device(my.context), "cannot close");
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
