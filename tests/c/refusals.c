/* Calls that are refused, one after another: each prints its name and errno. The log says why, which the caller of this program
 * looks at.
 *
 *   refusals DEVICE
 *   refusals DEVICE rules    of steering rules: needs CAP_NET_RAW
 *   refusals DEVICE queues   of receive work queues: needs CAP_NET_RAW
 *   refusals DEVICE gone     the interface has lost its addresses before the device is opened: in a network namespace of its own
 *   refusals DEVICE threads  the user may start no threads: needs root
 *   refusals DEVICE datagrams  of address handles and multicast groups
 *   refusals DEVICE regions   of regions: what a profile without ODP does not have
 *   refusals DEVICE implicit  what a profile without implicit ODP does not have
 *   refusals DEVICE locked   of regions: more memory than the user may lock
 *   refusals DEVICE dropped  messages of UD and UC that are dropped
 *   refusals DEVICE ends     QPs that end: prints the status of their sends
 *   refusals DEVICE faults   a request that WEIR_FAULTS makes fail: prints the status of its completion */
#include "refused.h"
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned char memory[8192] __attribute__((aligned(4096)));

static void queues(void)
{
	struct ibv_qp_init_attr without = { .qp_type = IBV_QPT_RC };
	struct ibv_srq_init_attr empty = { .attr = { .max_wr = 0, .max_sge = 1 } }, small = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_attr limit = { .srq_limit = 1000 };
	struct ibv_srq *srq = ibv_create_srq(pd, &small);
	struct ibv_qp *qp = qp_of(IBV_QPT_RC, srq, 1);

	NO_OBJECT("CQ of 0", ibv_create_cq(context, 0, NULL, NULL, 0));
	NO_OBJECT("CQ of 1<<30", ibv_create_cq(context, 1 << 30, NULL, NULL, 0));
	NO_OBJECT("CQ vector", ibv_create_cq(context, 1, NULL, NULL, 4711));
	NO_OBJECT("QP without CQ", ibv_create_qp(pd, &without));
	NO_OBJECT("QP of 1<<30", qp_of(IBV_QPT_RC, NULL, 1 << 30));
	NO_OBJECT("QP of a driver", qp_of(IBV_QPT_DRIVER, NULL, 1));
	NO_OBJECT("SRQ of 0", ibv_create_srq(pd, &empty));
	refused("SRQ limit", ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
	refused("SRQ in use", ibv_destroy_srq(srq));
	refused("CQ in use", ibv_destroy_cq(cq));
	refused("PD in use", ibv_dealloc_pd(pd));
	ibv_destroy_qp(qp);
	refused("QP again", ibv_destroy_qp(qp));
	ibv_destroy_srq(srq);
}

static void memories(void)
{
	struct ibv_alloc_dm_attr attr = { .length = 4096 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
	struct ibv_mr *mr = ibv_reg_dm_mr(pd, dm, 0, 4096, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);

	NO_OBJECT("MR flags", ibv_reg_mr(pd, memory, 1, 1 << 12));
	NO_OBJECT("MR remote without local", ibv_reg_mr(pd, memory, 1, IBV_ACCESS_REMOTE_WRITE));
	NO_OBJECT("MR not mapped", ibv_reg_mr(pd, (void *)4096, 1, IBV_ACCESS_LOCAL_WRITE));
	NO_OBJECT("MR not mapped, to read", ibv_reg_mr(pd, (void *)4096, 1, 0));
	NO_OBJECT("MR of 0", ibv_reg_mr(pd, memory, 0, IBV_ACCESS_LOCAL_WRITE));
	NO_OBJECT("MR of persistent memory", ibv_reg_mr(pd, memory, 1, 1 << 9));
	NO_OBJECT("implicit MR iova", ibv_reg_mr_iova(pd, NULL, SIZE_MAX, 4096, IBV_ACCESS_ON_DEMAND));
	NO_OBJECT("MR iova", ibv_reg_mr_iova(pd, memory, 4096, 1, IBV_ACCESS_LOCAL_WRITE));
	refused("device memory in use", ibv_free_dm(dm));
	ibv_dereg_mr(mr);
	ibv_free_dm(dm);
}

static void windows(const union ibv_gid *gid, int index)
{
	struct ibv_qp *qp = qp_of(IBV_QPT_RC, NULL, 1);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_MW_BIND | IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { .mr = mr, .addr = (uintptr_t)memory, .length = 64 } };
	struct ibv_qp_attr attr = rc_attr(qp->qp_num, gid, index);
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };

	/* 239.0.0.1 */
	attr.ah_attr.grh.dgid = (union ibv_gid){ .raw = { [10] = 0xff, 0xff, 239, [15] = 1 } };
	rc_to_init(qp, attr);
	refused("QP to a group", rc_to_rtr(qp, attr));
	attr.ah_attr.grh.dgid = *gid;
	attr.path_mtu = IBV_MTU_256;
	rc_to_rtr(qp, attr);
	refused("QP twice to RTR", rc_to_rtr(qp, attr));
	rc_to_rts(qp, attr);
	if (!ibv_bind_mw(qp, mw, &bind))
		while (!ibv_poll_cq(cq, 1, &wc))
			;
	refused("MR with windows", wc.status ? -1 : ibv_dereg_mr(mr));
	ibv_dealloc_mw(mw);
	ibv_dereg_mr(mr);
	ibv_destroy_qp(qp);
}

static void datagrams(const union ibv_gid *gid, int index)
{
	struct ibv_ah_attr wrong = { .port_num = 2, .is_global = 1, .grh = { .dgid = *gid, .sgid_index = index } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1 };
	union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 1 } };
	struct ibv_qp *qp = qp_of(IBV_QPT_UD, NULL, 1);
	int error;

	NO_OBJECT("AH of port 2", ibv_create_ah(pd, &wrong));
	wrong.port_num = 1;
	wrong.grh.sgid_index = 200;
	NO_OBJECT("AH of GID 200", ibv_create_ah(pd, &wrong));
	wrong.grh.sgid_index = index;
	wrong.grh.dgid = gid->raw[10] == 0xff ? group : (union ibv_gid){ .raw = { [10] = 0xff, 0xff, 127, [15] = 1 } };
	NO_OBJECT("AH of two kinds", ibv_create_ah(pd, &wrong));
	wrong.is_global = 0;
	NO_OBJECT("AH without GRH", ibv_create_ah(pd, &wrong));
	ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	if (!ibv_attach_mcast(qp, &group, 0)) {
		refused("QP of a group", ibv_destroy_qp(qp));
		do
			group.raw[15]++;
		while (group.raw[15] < 200 && !(error = ibv_attach_mcast(qp, &group, 0)));
		refused("one group more", error);
		while (--group.raw[15])
			ibv_detach_mcast(qp, &group, 0);
	}
	ibv_destroy_qp(qp);
}

/* At the limit of descriptors. */
static void descriptors(void)
{
	struct rlimit all, none;

	getrlimit(RLIMIT_NOFILE, &all);
	none = all;
	none.rlim_cur = 0;
	setrlimit(RLIMIT_NOFILE, &none);
	NO_OBJECT("devices without descriptors", ibv_get_device_list(NULL));
	setrlimit(RLIMIT_NOFILE, &all);
}

/* A child uses objects of its parent: the first call has a line. */
static void forked(void)
{
	struct ibv_qp *qp = qp_of(IBV_QPT_RC, NULL, 1);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int status;

	fflush(stdout);
	if (!fork()) {
		refused("QP of the parent", ibv_modify_qp(qp, &attr, IBV_QP_STATE));
		if (ibv_create_cq(context, 1, NULL, NULL, 0))
			_exit(1);
		fflush(stdout);
		_exit(0);
	}
	if (wait(&status) < 0 || status)
		refused("child", status);
	ibv_destroy_qp(qp);
}

static void no_rule(void)
{
	struct ibv_flow_attr attr = { .type = IBV_FLOW_ATTR_ALL_DEFAULT, .port = 1 };
	struct ibv_qp *qp = qp_of(IBV_QPT_UD, NULL, 1);

	NO_OBJECT("rule of a UD QP", ibv_create_flow(qp, &attr));
	ibv_destroy_qp(qp);
}

static void rules(void)
{
	enum { MANY = 2000 };
	static struct ibv_flow *flows[MANY];
	struct ibv_flow_attr attr = { .type = IBV_FLOW_ATTR_NORMAL, .port = 1, .num_of_specs = 1 };
	struct ibv_flow_spec_counter_action count = { .type = IBV_FLOW_SPEC_ACTION_COUNT, .size = sizeof count };
	unsigned char rule[sizeof attr + sizeof count] __attribute__((aligned(8)));
	struct ibv_flow_attr port = { .type = IBV_FLOW_ATTR_ALL_DEFAULT, .port = 2 };
	struct ibv_flow_attr sniffer = { .type = IBV_FLOW_ATTR_SNIFFER, .port = 1 };
	struct ibv_counters_init_attr none = { 0 };
	struct ibv_counters *counters = ibv_create_counters(context, &none);
	struct ibv_qp *qp;
	struct ibv_flow *flow;
	int made;

	/* Before the device has a packet socket. */
	if (setegid(65534) || seteuid(65534))
		return;
	NO_OBJECT("raw QP without the right", qp_of(IBV_QPT_RAW_PACKET, NULL, 1));
	if (seteuid(0) || setegid(0))
		return;
	qp = qp_of(IBV_QPT_RAW_PACKET, NULL, 1);
	NO_OBJECT("rule of port 2", ibv_create_flow(qp, &port));
	NO_OBJECT("sniffer", ibv_create_flow(qp, &sniffer));
	count.counters = counters;
	memcpy(rule, &attr, sizeof attr);
	memcpy(rule + sizeof attr, &count, sizeof count);
	for (made = 0; made < MANY && (flows[made] = ibv_create_flow(qp, (void *)rule)); made++)
		;
	refused("one rule more", errno);
	while (made > 0)
		ibv_destroy_flow(flows[--made]);
	flow = ibv_create_flow(qp, (void *)rule);
	refused("counters in use", ibv_destroy_counters(counters));
	refused("QP with a rule", ibv_destroy_qp(qp));
	ibv_destroy_flow(flow);
	ibv_destroy_counters(counters);
	ibv_destroy_qp(qp);
}

/* Receive work queues and their tables. */
static void work_queues(void)
{
	struct ibv_wq_init_attr init = { .wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = pd, .cq = cq };
	struct ibv_wq_init_attr without = { .wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = pd };
	struct ibv_wq_init_attr other = { .wq_type = IBV_WQT_RQ + 1, .max_wr = 1, .max_sge = 1, .pd = pd, .cq = cq };
	struct ibv_wq *wq = ibv_create_wq(context, &init);
	struct ibv_wq_attr change = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_ERR };
	struct ibv_rwq_ind_table_init_attr one = { .ind_tbl = &wq }, long_table = { .log_ind_tbl_size = 31, .ind_tbl = &wq };
	struct ibv_rwq_ind_table *table = ibv_create_rwq_ind_table(context, &one);
	struct ibv_qp_init_attr_ex spread = { .qp_type = IBV_QPT_RAW_PACKET, .pd = pd, .rwq_ind_tbl = table,
					      .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH };
	struct ibv_sge sges[64] = { { .addr = (uintptr_t)memory } };
	struct ibv_recv_wr *bad, receive = { .sg_list = sges, .num_sge = 1 };
	struct ibv_qp *qp;

	NO_OBJECT("WQ of another type", ibv_create_wq(context, &other));
	NO_OBJECT("WQ without CQ", ibv_create_wq(context, &without));
	refused("WQ to ERR", ibv_modify_wq(wq, &change));
	change.attr_mask = IBV_WQ_ATTR_FLAGS;
	refused("WQ flags", ibv_modify_wq(wq, &change));
	change.attr_mask = IBV_WQ_ATTR_CURR_STATE;
	change.curr_wq_state = IBV_WQS_RDY;
	refused("WQ state", ibv_modify_wq(wq, &change));
	refused("receive of a WQ in RESET", ibv_post_wq_recv(wq, &receive, &bad));
	receive.num_sge = 64;
	refused("SGEs of a WQ", ibv_post_wq_recv(wq, &receive, &bad));
	refused("WQ in use", ibv_destroy_wq(wq));
	NO_OBJECT("table of 2^31", ibv_create_rwq_ind_table(context, &long_table));
	spread.rx_hash_conf.rx_hash_function = 77;
	NO_OBJECT("other hash", ibv_create_qp_ex(context, &spread));
	spread.rx_hash_conf.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ;
	qp = ibv_create_qp_ex(context, &spread);
	refused("table in use", ibv_destroy_rwq_ind_table(table));
	spread.qp_type = IBV_QPT_UD;
	NO_OBJECT("hash of UD", ibv_create_qp_ex(context, &spread));
	ibv_destroy_qp(qp);
	ibv_destroy_rwq_ind_table(table);
	ibv_destroy_wq(wq);
}

/* Of another profile. */
static void regions(int all)
{
	if (all)
		NO_OBJECT("ODP MR", ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_ON_DEMAND));
	NO_OBJECT("implicit ODP MR", ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND));
}

static void locked(void)
{
	struct rlimit none = { 0, 0 };

	if (setrlimit(RLIMIT_MEMLOCK, &none) || (!geteuid() && seteuid(65534))) {
		perror("setrlimit, seteuid");
		return;
	}
	NO_OBJECT("MR beyond the limit", ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
}

/* The status of the next completion of a QP. */
static int next_status(const struct ibv_qp *qp)
{
	struct ibv_wc wc;

	while (!ibv_poll_cq(cq, 1, &wc) || wc.qp_num != qp->qp_num)
		;
	return wc.status;
}

static void send(struct ibv_qp *qp, struct ibv_send_wr wr, uint32_t lkey, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = length, .lkey = lkey };
	struct ibv_send_wr *bad;

	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.send_flags = IBV_SEND_SIGNALED;
	if (ibv_post_send(qp, &wr, &bad) || next_status(qp))
		refused("send", -1);
}

static void receive(struct ibv_qp *qp, uint32_t lkey, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory + 4096, .length = length, .lkey = lkey };
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };

	if (ibv_post_recv(qp, &wr, &bad))
		refused("receive", -1);
}

/* Of each kind, the log has a line once a minute. */
static void dropped(const union ibv_gid *gid, int index)
{
	struct ibv_ah_attr to = { .port_num = 1, .is_global = 1, .grh = { .dgid = *gid, .sgid_index = index } };
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_ah *ah = ibv_create_ah(pd, &to);
	struct ibv_qp *qp = qp_of(IBV_QPT_UD, NULL, 1);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .wr.ud = { ah, qp->qp_num, 0x2222 } };

	ud_start(qp, 0x1111);
	printf("%#08x\n", qp->qp_num);
	send(qp, wr, mr->lkey, 64);
	wr.wr.ud.remote_qkey = 0x1111;
	send(qp, wr, mr->lkey, 64);
	/* A send is complete when it has left: it comes before the receive is posted. */
	sleep(1);
	receive(qp, mr->lkey, 64);
	send(qp, wr, mr->lkey, 64);
	/* A thread of Weir writes the lines. */
	sleep(2);
	ibv_destroy_qp(qp);
	ibv_destroy_ah(ah);
	ibv_dereg_mr(mr);
}

/* QPs that end: prints the status of the send. */
static void ends(const union ibv_gid *gid, int index)
{
	struct ibv_ah_attr to = { .port_num = 1, .is_global = 1, .grh = { .dgid = *gid, .sgid_index = index } };
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_qp *qp;

	for (int received = 0; received < 2; received++) {
		struct ibv_qp *peer = qp_of(IBV_QPT_RC, NULL, 1);
		struct ibv_qp_attr attr = rc_attr(peer->qp_num, gid, index);

		qp = qp_of(IBV_QPT_RC, NULL, 1);
		attr.rnr_retry = 0;
		if (rc_connect(qp, attr) || rc_connect(peer, rc_attr(qp->qp_num, gid, index)))
			exit(1);
		if (received)
			receive(peer, 4712, 64);
		if (ibv_post_send(qp, &wr, &bad))
			exit(1);
		refused(received ? "receive with another lkey" : "no receive", next_status(qp));
		/* A thread of Weir may write the lines. */
		sleep(1);
		ibv_destroy_qp(qp);
		ibv_destroy_qp(peer);
	}
	qp = qp_of(IBV_QPT_UD, NULL, 1);
	ud_start(qp, 1);
	sge.lkey = 4711;
	wr.wr.ud.ah = ibv_create_ah(pd, &to);
	wr.wr.ud.remote_qpn = qp->qp_num;
	if (ibv_post_send(qp, &wr, &bad))
		exit(1);
	refused("datagram with another lkey", next_status(qp));
	sleep(1);
	ibv_destroy_qp(qp);
	ibv_destroy_ah(wr.wr.ud.ah);
	ibv_dereg_mr(mr);
}

static void faults(const union ibv_gid *gid, int index)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_qp *qp = qp_of(IBV_QPT_RC, NULL, 1), *peer = qp_of(IBV_QPT_RC, NULL, 1);
	struct ibv_qp_attr attr = rc_attr(peer->qp_num, gid, index);

	attr.timeout = 8;
	attr.retry_cnt = 1;
	if (rc_connect(qp, attr) || rc_connect(peer, rc_attr(qp->qp_num, gid, index)) || ibv_post_send(qp, &wr, &bad))
		refused("send", -1);
	refused("send", next_status(qp));
	ibv_destroy_qp(qp);
	ibv_destroy_qp(peer);
	ibv_dereg_mr(mr);
}

/* A device of the list that cannot be opened by then. */
static int unopened(const char *what)
{
	struct rlimit none = { 0, 0 };
	struct ibv_device **list = ibv_get_device_list(NULL);

	if (!list || !list[0])
		return 1;
	if (!strcmp(what, "gone") ? system("ip address flush dev lo") : setrlimit(RLIMIT_NPROC, &none) || setuid(60123))
		return 1;
	NO_OBJECT(what, ibv_open_device(list[0]));
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[2] : "calls";
	union ibv_gid gid;
	int index;

	if (!strcmp(what, "gone") || !strcmp(what, "threads"))
		return unopened(what);
	if (refused_begin(argc > 1 ? argv[1] : NULL))
		return 1;
	index = own_gid(&gid);
	if (!strcmp(what, "rules")) {
		rules();
	} else if (!strcmp(what, "queues")) {
		work_queues();
	} else if (!strcmp(what, "datagrams")) {
		datagrams(&gid, index);
	} else if (!strcmp(what, "regions") || !strcmp(what, "implicit")) {
		regions(*what == 'r');
	} else if (!strcmp(what, "locked")) {
		locked();
	} else if (!strcmp(what, "dropped")) {
		dropped(&gid, index);
	} else if (!strcmp(what, "ends")) {
		ends(&gid, index);
	} else if (!strcmp(what, "faults")) {
		faults(&gid, index);
	} else {
		queues();
		memories();
		windows(&gid, index);
		no_rule();
		descriptors();
		forked();
	}
	return refused_end();
}
