/* SRQs, XRC domains, resized CQs, failing send queues, replies to datagrams, regions with their own addresses, and
 * limits: in one process, on any adapter.
 *
 *   objects DEVICE GID
 *
 * Prints failures and a last line "N passed, M failed". */
#include "threads_rig.h"
#include "check.h"

enum { LENGTH = 512, SLOTS = 128, GRH = 40, QKEY = 0x33333333 };

static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_device_attr limits;
	union ibv_gid gid;
	uint8_t *at;
} my;

static struct ibv_cq *new_cq(struct ibv_context *context, int cqe)
{
	struct ibv_cq *cq = ibv_create_cq(context, cqe, NULL, NULL, 0);

	if (!cq)
		die("ibv_create_cq: %s", strerror(errno));
	return cq;
}

static struct ibv_qp *new_qp(enum ibv_qp_type type, struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = type, .srq = srq, .sq_sig_all = 1 };
	struct ibv_qp *qp;

	init.cap = (struct ibv_qp_cap){ 32, srq || type == IBV_QPT_XRC_SEND ? 0 : 32, 1, 1, 0 };
	if (!(qp = ibv_create_qp(my.pd, &init)))
		die("ibv_create_qp: %s", strerror(errno));
	return qp;
}

/* Moves a QP from RESET to a state, connected to another QP. */
static void move_to(struct ibv_qp *qp, uint32_t to, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .port_num = 1, .qkey = QKEY, .path_mtu = IBV_MTU_1024, .dest_qp_num = to, .timeout = 14,
				    .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 1, .max_rd_atomic = 4,
				    .max_dest_rd_atomic = 4 };
	int ud = qp->qp_type == IBV_QPT_UD, uc = qp->qp_type == IBV_QPT_UC;
	int masks[3] = { IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS),
			 ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, IBV_QP_SQ_PSN };

	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	attr.ah_attr = (struct ibv_ah_attr){ .port_num = 1, .is_global = 1 };
	attr.ah_attr.grh.dgid = my.gid;
	attr.ah_attr.grh.sgid_index = opt.gid;
	if (!ud && !uc) {
		masks[1] |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		masks[2] |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	for (int i = 0; i < 3 && (int)state > i; i++) {
		int error;

		attr.qp_state = IBV_QPS_INIT + i;
		if ((error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | masks[i])))
			die("ibv_modify_qp to state %d: %s", attr.qp_state, strerror(error));
	}
}

static struct ibv_sge slot(int number)
{
	return (struct ibv_sge){ (uintptr_t)my.at + number * LENGTH, LENGTH, my.mr->lkey };
}

static int post_recv(struct ibv_qp *qp, struct ibv_srq *srq, uint64_t id)
{
	struct ibv_sge sge = slot(id % SLOTS);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	return srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
}

static struct ibv_send_wr send_wr(uint64_t id, struct ibv_sge *sge)
{
	return (struct ibv_send_wr){ .wr_id = id, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND };
}

static void post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	int error = ibv_post_send(qp, wr, &bad);

	if (error)
		die("ibv_post_send: %s", strerror(error));
}

static void expect(struct ibv_cq *cq, uint64_t id, enum ibv_wc_status status, const char *what)
{
	double until = now() + 10;
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		if (now() > until)
			die("%s: no completion", what);
	check(n == 1 && wc.wr_id == id && wc.status == status, "%s: WR %" PRIu64 ", %s; should be WR %" PRIu64 ", %s", what,
	      wc.wr_id, ibv_wc_status_str(wc.status), id, ibv_wc_status_str(status));
}

/* The next asynchronous event within 200 ms: returns its type and sets its object, or returns -1. */
static int event(struct ibv_context *context, void **object)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	if (poll(&fd, 1, 200) != 1 || ibv_get_async_event(context, &event))
		return -1;
	/* All members of the union are a pointer at the same address. */
	*object = event.element.qp;
	ibv_ack_async_event(&event);
	return event.event_type;
}

static void shared_queues(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(my.pd, &init);
	struct ibv_srq_attr attr = { .srq_limit = 4 };
	struct ibv_cq *cq = new_cq(my.context, 64), *sent = new_cq(my.context, 64);
	struct ibv_qp *from[2], *to[2];
	struct ibv_sge sge = slot(100);
	struct ibv_send_wr wr = send_wr(0, &sge);
	uint64_t posted = 0, taken = 0;
	void *object = NULL;
	int kind;

	if (!srq)
		die("ibv_create_srq: %s", strerror(errno));
	for (int i = 0; i < 2; i++) {
		from[i] = new_qp(IBV_QPT_RC, sent, NULL);
		to[i] = new_qp(IBV_QPT_RC, cq, srq);
		move_to(to[i], from[i]->qp_num, IBV_QPS_RTS);
		move_to(from[i], to[i]->qp_num, IBV_QPS_RTS);
	}
	check(ibv_destroy_srq(srq) == EBUSY, "an SRQ with QPs was destroyed");
	check(post_recv(to[0], NULL, 0) != 0, "a receive was posted to a QP with an SRQ");
	while (posted < 8)
		check(!post_recv(NULL, srq, posted++), "ibv_post_srq_recv");
	check(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), "ibv_modify_srq");
	for (int i = 0; i < 4; i++) {
		post(from[i % 2], &wr);
		expect(sent, 0, IBV_WC_SUCCESS, "a SEND");
		expect(cq, taken++, IBV_WC_SUCCESS, "a shared receive");
	}
	do
		kind = event(my.context, &object);
	while (kind == IBV_EVENT_COMM_EST);
	check(kind == -1, "event %s with as many receives as the limit", kind < 0 ? "" : ibv_event_type_str(kind));
	for (int i = 0; i < 2; i++) {
		post(from[i], &wr);
		expect(sent, 0, IBV_WC_SUCCESS, "a SEND");
		expect(cq, taken++, IBV_WC_SUCCESS, "a shared receive");
	}
	check(event(my.context, &object) == IBV_EVENT_SRQ_LIMIT_REACHED && object == srq, "no event for the limit");
	check(event(my.context, &object) == -1, "a second event for the limit");
	check(!ibv_query_srq(srq, &attr) && attr.srq_limit == 0 && attr.max_wr == 16, "the limit is still armed");

	/* Grows while messages come in, and shrinks again, but not below the number of posted receives. */
	attr.max_wr = 64;
	post(from[0], &wr);
	check(!ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), "resize to 64");
	expect(sent, 0, IBV_WC_SUCCESS, "a SEND");
	expect(cq, taken++, IBV_WC_SUCCESS, "a shared receive");
	while (posted - taken < 64)
		check(!post_recv(NULL, srq, posted++), "one of 64 receives");
	check(post_recv(NULL, srq, 999) == ENOMEM, "more than 64");
	attr.max_wr = 63;
	check(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == EINVAL, "resize below the posted receives");
	attr.srq_limit = 65;
	check(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == EINVAL, "a limit above the size");
	for (int i = 0; i < 54; i++) {
		post(from[i % 2], &wr);
		expect(sent, 0, IBV_WC_SUCCESS, "a SEND");
		expect(cq, taken++, IBV_WC_SUCCESS, "a shared receive");
	}
	attr.max_wr = 10;
	check(!ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) && post_recv(NULL, srq, 999) == ENOMEM, "resize to 10");

	/* One QP fails; the receives stay for the other one. */
	check(!to_state(to[0], IBV_QPS_ERR), "cannot move to ERROR");
	check(event(my.context, &object) == IBV_EVENT_QP_LAST_WQE_REACHED && object == to[0], "no last WQE event");
	check(ibv_poll_cq(cq, 1, &(struct ibv_wc){ 0 }) == 0, "shared receives were flushed");
	post(from[1], &wr);
	expect(sent, 0, IBV_WC_SUCCESS, "a SEND to the other QP");
	expect(cq, taken, IBV_WC_SUCCESS, "a receive of the other QP");
	for (int i = 0; i < 2; i++)
		check(!ibv_destroy_qp(from[i]) && !ibv_destroy_qp(to[i]), "ibv_destroy_qp");
	check(!ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(sent), "cannot clean up");
}

/* Two contexts share a domain by a file: the target QP of one takes receives from the SRQ of the other. */
static void domains(void)
{
	char name[] = "/tmp/objectsXXXXXX";
	struct ibv_context *other = ibv_open_device(my.context->device);
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS };
	struct ibv_srq_init_attr_ex srq_init = { .attr = { 8, 1, 0 }, .srq_type = IBV_SRQT_XRC };
	struct ibv_qp_init_attr_ex target_init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	struct ibv_qp_open_attr open_attr = { .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_cq *cq = new_cq(other, 8), *sent = new_cq(my.context, 8);
	struct ibv_pd *pd = ibv_alloc_pd(other);
	struct ibv_mr *mr = ibv_reg_mr(pd, my.at, SLOTS * LENGTH, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = slot(100), into = slot(3);
	struct ibv_recv_wr recv = { .wr_id = 5, .sg_list = &into, .num_sge = 1 }, *bad;
	struct ibv_send_wr wr = send_wr(4, &sge);
	struct ibv_xrcd *mine, *theirs;
	struct ibv_qp *from, *target, *opened;
	struct ibv_srq *srq;

	init.fd = mkstemp(name);
	unlink(name);
	check(!ibv_open_xrcd(my.context, &init) && errno == EAGAIN, "a domain that does not exist");
	init.oflags = O_CREAT;
	mine = ibv_open_xrcd(my.context, &init);
	init.oflags = O_CREAT | O_EXCL;
	check(!ibv_open_xrcd(other, &init) && errno == EINVAL, "an existing domain with O_EXCL");
	init.oflags = 0;
	theirs = ibv_open_xrcd(other, &init);
	if (!mine || !theirs || !mr)
		die("cannot share a domain: %s", strerror(errno));
	target_init.xrcd = mine;
	srq_init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	srq_init.pd = pd;
	srq_init.cq = cq;
	srq_init.xrcd = theirs;
	target = ibv_create_qp_ex(my.context, &target_init);
	srq = ibv_create_srq_ex(other, &srq_init);
	from = new_qp(IBV_QPT_XRC_SEND, sent, NULL);
	if (!target || !srq || ibv_get_srq_num(srq, &wr.qp_type.xrc.remote_srqn))
		die("XRC: %s", strerror(errno));
	open_attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
	open_attr.qp_num = target->qp_num;
	open_attr.xrcd = theirs;
	opened = ibv_open_qp(other, &open_attr);
	check(opened && opened->qp_num == target->qp_num, "ibv_open_qp");
	open_attr.qp_num = from->qp_num;
	check(!ibv_open_qp(other, &open_attr) && errno == EINVAL, "opened a QP that is not of the domain");
	move_to(target, from->qp_num, IBV_QPS_RTS);
	move_to(from, target->qp_num, IBV_QPS_RTS);
	into.lkey = mr->lkey;
	memset(my.at + 3 * LENGTH, 0, LENGTH);
	memset(my.at + 100 * LENGTH, 0x3c, LENGTH);
	if (ibv_post_srq_recv(srq, &recv, &bad))
		die("ibv_post_srq_recv");
	post(from, &wr);
	expect(sent, 4, IBV_WC_SUCCESS, "a SEND to the other context's SRQ");
	expect(cq, 5, IBV_WC_SUCCESS, "a receive of the other context");
	check(!memcmp(my.at + 3 * LENGTH, my.at + 100 * LENGTH, LENGTH), "received data");
	/* The target exists until its last handle is destroyed. */
	check(!ibv_destroy_qp(target), "ibv_destroy_qp");
	if (ibv_post_srq_recv(srq, &recv, &bad))
		die("ibv_post_srq_recv");
	post(from, &wr);
	expect(sent, 4, IBV_WC_SUCCESS, "a SEND to a target that has another handle");
	expect(cq, 5, IBV_WC_SUCCESS, "a receive of that target");
	check(ibv_close_xrcd(theirs) == EBUSY, "a domain with an SRQ was closed");
	check(!ibv_destroy_qp(opened) && !ibv_destroy_qp(from) && !ibv_destroy_srq(srq), "cannot destroy QPs and SRQ");
	check(!ibv_close_xrcd(theirs) && !ibv_close_xrcd(mine), "ibv_close_xrcd");
	check(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(sent), "cannot clean up");
	check(!ibv_dealloc_pd(pd) && !ibv_close_device(other), "cannot close");
	close(init.fd);
}

/* Completions in the CQ survive a resize. */
static void resized_cq(void)
{
	struct ibv_cq *cq = new_cq(my.context, 8), *received = new_cq(my.context, 16);
	struct ibv_qp *from = new_qp(IBV_QPT_RC, cq, NULL), *to = new_qp(IBV_QPT_RC, received, NULL);
	struct ibv_sge sge = slot(100);
	int had;

	move_to(to, from->qp_num, IBV_QPS_RTS);
	move_to(from, to->qp_num, IBV_QPS_RTS);
	for (int i = 0; i < 12; i++) {
		struct ibv_send_wr wr = send_wr(i, &sge);

		if (i == 6)
			check(!ibv_resize_cq(cq, 100) && cq->cqe >= 100, "resize to 100");
		check(!post_recv(to, NULL, i), "ibv_post_recv");
		post(from, &wr);
	}
	for (int i = 0; i < 12; i++)
		expect(received, i, IBV_WC_SUCCESS, "a receive");
	/* The sender's last completion may not have arrived yet. */
	usleep(50000);
	had = ibv_resize_cq(cq, 4);
	check(had == EINVAL, "resize below the number of completions: %d", had);
	check(!ibv_resize_cq(cq, 12), "resize to the number of completions");
	check(ibv_resize_cq(cq, my.limits.max_cqe + 1) == EINVAL, "resize beyond max_cqe");
	for (int i = 0; i < 12; i++)
		expect(cq, i, IBV_WC_SUCCESS, "a completion of a resized CQ");
	check(!ibv_destroy_qp(from) && !ibv_destroy_qp(to) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(received), "cannot clean up");
}

/* A locally failing send stops the send queue but not the QP: SQE, and the transition back. */
static void failed_sends(enum ibv_qp_type type)
{
	struct ibv_cq *cq = new_cq(my.context, 32), *theirs = new_cq(my.context, 32);
	struct ibv_qp *qp = new_qp(type, cq, NULL), *peer = new_qp(type, theirs, NULL);
	struct ibv_ah_attr path = { .port_num = 1, .is_global = 1, .grh = { .dgid = my.gid, .sgid_index = opt.gid } };
	struct ibv_ah *ah = ibv_create_ah(my.pd, &path);
	struct ibv_sge sge = slot(100), bad = slot(101);
	struct ibv_send_wr good = send_wr(1, &sge), fails = send_wr(2, &bad), behind = send_wr(3, &sge);
	struct ibv_send_wr *all[3] = { &good, &fails, &behind };
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	move_to(qp, peer->qp_num, IBV_QPS_RTS);
	move_to(peer, qp->qp_num, IBV_QPS_RTS);
	for (int i = 0; i < 3; i++)
		if (type == IBV_QPT_UD) {
			all[i]->wr.ud.ah = ah;
			all[i]->wr.ud.remote_qpn = peer->qp_num;
			all[i]->wr.ud.remote_qkey = QKEY;
		}
	sge.length = bad.length = LENGTH - GRH;
	bad.lkey ^= 0x5500;
	good.next = &fails;
	fails.next = &behind;
	check(!post_recv(peer, NULL, 10) && !post_recv(peer, NULL, 11) && !post_recv(qp, NULL, 12), "ibv_post_recv");
	post(qp, &good);
	expect(cq, 1, IBV_WC_SUCCESS, "a send before the failing send");
	expect(cq, 2, IBV_WC_LOC_PROT_ERR, "a send with a wrong key");
	expect(cq, 3, IBV_WC_WR_FLUSH_ERR, "a send after the failed send");
	expect(theirs, 10, IBV_WC_SUCCESS, "the receive of the send before");
	check(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_SQE, "state %d, not SQE",
	      attr.qp_state);
	good.next = NULL;
	if (type == IBV_QPT_UD)
		good.wr.ud.remote_qpn = qp->qp_num;
	post(peer, &good);
	expect(theirs, 1, IBV_WC_SUCCESS, "the peer's send");
	expect(cq, 12, IBV_WC_SUCCESS, "a receive in SQE");
	check(!to_state(qp, IBV_QPS_RTS), "cannot move from SQE to RTS");
	if (type == IBV_QPT_UD)
		good.wr.ud.remote_qpn = peer->qp_num;
	post(qp, &good);
	expect(cq, 1, IBV_WC_SUCCESS, "a send after SQE");
	expect(theirs, 11, IBV_WC_SUCCESS, "the receive of the send after SQE");
	check(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer) && !ibv_destroy_ah(ah), "cannot destroy QPs and AH");
	check(!ibv_destroy_cq(cq) && !ibv_destroy_cq(theirs), "cannot clean up");
}

/* A reply to a datagram is sent with an address handle created from its completion and GRH. */
static void replies(void)
{
	struct ibv_cq *cq = new_cq(my.context, 32), *theirs = new_cq(my.context, 32);
	struct ibv_qp *qp = new_qp(IBV_QPT_UD, cq, NULL), *peer = new_qp(IBV_QPT_UD, theirs, NULL);
	struct ibv_ah_attr path = { .port_num = 1, .is_global = 1, .grh = { .dgid = my.gid, .sgid_index = opt.gid } }, back;
	struct ibv_ah *ah = ibv_create_ah(my.pd, &path), *reply;
	struct ibv_sge sge = slot(100);
	struct ibv_send_wr wr = send_wr(1, &sge);
	struct ibv_wc wc = { 0 };
	struct ibv_cq_init_attr_ex init = { .cqe = 4, .wc_flags = IBV_WC_EX_WITH_SL };
	struct ibv_poll_cq_attr poll = { 0 };
	struct ibv_cq_ex *extended = ibv_create_cq_ex(my.context, &init);
	struct ibv_qp *third = new_qp(IBV_QPT_UD, ibv_cq_ex_to_cq(extended), NULL);
	double until = now() + 10;
	int empty;
	/* The packet type, as adapters report it: UCX looks for the addresses in the GRH by it. */
	int packet_type = my.gid.raw[10] == 0xff ? 2 : 1;

	move_to(qp, 0, IBV_QPS_RTS);
	move_to(third, 0, IBV_QPS_RTS);
	move_to(peer, 0, IBV_QPS_RTS);
	sge.length = 100;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = peer->qp_num;
	wr.wr.ud.remote_qkey = QKEY;
	check(!post_recv(peer, NULL, 20) && !post_recv(qp, NULL, 21), "ibv_post_recv");
	post(qp, &wr);
	expect(cq, 1, IBV_WC_SUCCESS, "a datagram");
	while (ibv_poll_cq(theirs, 1, &wc) == 0 && now() < until)
		;
	check(wc.wr_id == 20 && !wc.status && wc.byte_len == GRH + 100 && wc.wc_flags & IBV_WC_GRH && wc.src_qp == qp->qp_num,
	      "the completion of a received datagram");
	check((wc.sl & 7) == packet_type, "service level %d, not packet type %d", wc.sl, packet_type);
	check(!ibv_init_ah_from_wc(my.context, 1, &wc, (struct ibv_grh *)(my.at + 20 * LENGTH), &back) && back.is_global &&
		      !memcmp(&back.grh.dgid, &my.gid, 16) && back.grh.sgid_index == opt.gid && back.port_num == 1,
	      "ibv_init_ah_from_wc");
	reply = ibv_create_ah_from_wc(my.pd, &wc, (struct ibv_grh *)(my.at + 20 * LENGTH), 1);
	if (check(reply != NULL, "ibv_create_ah_from_wc")) {
		wr.wr.ud.ah = reply;
		wr.wr.ud.remote_qpn = wc.src_qp;
		post(peer, &wr);
		expect(cq, 21, IBV_WC_SUCCESS, "a reply");
		check(!ibv_destroy_ah(reply), "ibv_destroy_ah");
	}
	check(!post_recv(third, NULL, 22), "ibv_post_recv");
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = third->qp_num;
	post(qp, &wr);
	expect(cq, 1, IBV_WC_SUCCESS, "a datagram for an extended CQ");
	for (until = now() + 10; (empty = ibv_start_poll(extended, &poll)) == ENOENT && now() < until;)
		;
	if (check(!empty, "no completion in the extended CQ")) {
		check(extended->wr_id == 22 && (ibv_wc_read_sl(extended) & 7) == packet_type, "%lu, service level %d",
		      (unsigned long)extended->wr_id, ibv_wc_read_sl(extended));
		ibv_end_poll(extended);
	}
	check(!ibv_destroy_qp(third) && !ibv_destroy_cq(ibv_cq_ex_to_cq(extended)), "cannot destroy the extended CQ");
	check(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer) && !ibv_destroy_ah(ah), "cannot destroy QPs and AH");
	check(!ibv_destroy_cq(cq) && !ibv_destroy_cq(theirs), "cannot clean up");
}

/* The first message in RTR raises an event; later messages raise none. */
static void established(void)
{
	struct ibv_cq *cq = new_cq(my.context, 8);
	struct ibv_qp *from = new_qp(IBV_QPT_RC, cq, NULL), *to = new_qp(IBV_QPT_RC, cq, NULL);
	struct ibv_sge sge = slot(100);
	struct ibv_send_wr wr = send_wr(1, &sge);
	void *object = NULL;

	move_to(to, from->qp_num, IBV_QPS_RTR);
	move_to(from, to->qp_num, IBV_QPS_RTS);
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = (uintptr_t)my.at;
	wr.wr.rdma.rkey = my.mr->rkey;
	for (int i = 0; i < 2; i++) {
		post(from, &wr);
		expect(cq, 1, IBV_WC_SUCCESS, "a WRITE to a QP in RTR");
	}
	check(event(my.context, &object) == IBV_EVENT_COMM_EST && object == to, "no event for the first message");
	check(event(my.context, &object) == -1, "an event for the second message");
	check(!ibv_destroy_qp(from) && !ibv_destroy_qp(to) && !ibv_destroy_cq(cq), "cannot clean up");
}

/* WRITEs into and SENDs out of a region with addresses that are not those of the memory. */
static void addressed(struct ibv_mr *mr, uint64_t first, const char *what)
{
	struct ibv_cq *cq = new_cq(my.context, 8);
	struct ibv_qp *from = new_qp(IBV_QPT_RC, cq, NULL), *to = new_qp(IBV_QPT_RC, cq, NULL);
	struct ibv_sge sge = slot(100);
	struct ibv_send_wr wr = send_wr(1, &sge);

	if (!check(mr != NULL, "%s", what))
		return;
	move_to(to, from->qp_num, IBV_QPS_RTS);
	move_to(from, to->qp_num, IBV_QPS_RTS);
	memset(my.at, 0, 4 * LENGTH);
	memset(my.at + 100 * LENGTH, 0x71, LENGTH);
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = first + LENGTH;
	wr.wr.rdma.rkey = mr->rkey;
	post(from, &wr);
	expect(cq, 1, IBV_WC_SUCCESS, what);
	check(!memcmp(my.at + LENGTH, my.at + 100 * LENGTH, LENGTH) && !my.at[LENGTH - 1] && !my.at[2 * LENGTH],
	      "%s: written", what);
	/* Then from there, by the region's addresses, to slot 3. */
	sge = (struct ibv_sge){ first + LENGTH, LENGTH, mr->lkey };
	wr.wr.rdma.remote_addr = (uintptr_t)my.at + 3 * LENGTH;
	wr.wr.rdma.rkey = my.mr->rkey;
	post(from, &wr);
	expect(cq, 1, IBV_WC_SUCCESS, what);
	check(!memcmp(my.at + 3 * LENGTH, my.at + 100 * LENGTH, LENGTH), "%s: read", what);
	wr.wr.rdma.remote_addr = first + 4 * LENGTH - LENGTH + 1;
	wr.wr.rdma.rkey = mr->rkey;
	post(from, &wr);
	expect(cq, 1, IBV_WC_REM_ACCESS_ERR, what);
	check(!ibv_destroy_qp(from) && !ibv_destroy_qp(to) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr), "cannot clean up");
	/* Discard the event of the QP that refused the WRITE. */
	void *object;

	while (event(my.context, &object) >= 0)
		;
}

/* Objects at their limits can be created, and objects beyond them cannot. */
static void limits(void)
{
	struct ibv_cq *cq = new_cq(my.context, 8);
	struct ibv_qp_cap most = { my.limits.max_qp_wr, my.limits.max_qp_wr, my.limits.max_sge, my.limits.max_sge, 0 };
	struct ibv_port_attr port;
	union ibv_gid gid;
	uint16_t pkey;

	for (int beyond = 0; beyond < 5; beyond++) {
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = most };
		struct ibv_qp *qp;

		init.cap.max_send_wr += beyond == 1;
		init.cap.max_recv_wr += beyond == 2;
		init.cap.max_send_sge += beyond == 3;
		init.cap.max_recv_sge += beyond == 4;
		qp = ibv_create_qp(my.pd, &init);
		check(beyond ? !qp && errno == EINVAL : qp != NULL, "a QP at its limits, or beyond limit %d", beyond);
		check(!qp || !ibv_destroy_qp(qp), "ibv_destroy_qp");
	}
	for (int beyond = 0; beyond < 3; beyond++) {
		struct ibv_srq_init_attr init = { .attr = { my.limits.max_srq_wr + (beyond == 1),
							    my.limits.max_srq_sge + (beyond == 2), 0 } };
		struct ibv_srq *srq = ibv_create_srq(my.pd, &init);

		check(beyond ? !srq && errno == EINVAL : srq != NULL, "an SRQ at its limits or beyond limit %d", beyond);
		check(!srq || !ibv_destroy_srq(srq), "ibv_destroy_srq");
	}
	check(!ibv_create_cq(my.context, my.limits.max_cqe + 1, NULL, NULL, 0) && errno == EINVAL, "a CQ beyond its limit");
	check(!ibv_query_port(my.context, my.limits.phys_port_cnt, &port), "the last port");
	check(ibv_query_port(my.context, my.limits.phys_port_cnt + 1, &port) == EINVAL, "a port beyond the last");
	check(!ibv_query_gid(my.context, 1, port.gid_tbl_len - 1, &gid), "the last GID");
	check(ibv_query_gid(my.context, 1, port.gid_tbl_len, &gid) != 0, "a GID beyond the last");
	check(!ibv_query_pkey(my.context, 1, my.limits.max_pkeys - 1, &pkey), "the last P_Key");
	check(ibv_query_pkey(my.context, 1, my.limits.max_pkeys, &pkey) != 0, "a P_Key beyond the last");
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
}

int main(int argc, char **argv)
{
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	const uint64_t far_away = 0x7000000000000000;

	if (argc != 3)
		die("usage: objects DEVICE GID");
	opt.device = argv[1];
	opt.gid = atoi(argv[2]);
	watch(100);
	my.context = open_device();
	my.pd = ibv_alloc_pd(my.context);
	my.at = aligned_alloc(4096, SLOTS * LENGTH);
	my.mr = my.pd ? ibv_reg_mr(my.pd, my.at, SLOTS * LENGTH, all) : NULL;
	if (!my.mr || ibv_query_gid(my.context, 1, opt.gid, &my.gid) || ibv_query_device(my.context, &my.limits))
		die("cannot use the device: %s", strerror(errno));
	shared_queues();
	domains();
	resized_cq();
	failed_sends(IBV_QPT_UC);
	failed_sends(IBV_QPT_UD);
	replies();
	established();
	addressed(ibv_reg_mr(my.pd, my.at, 4 * LENGTH, all | IBV_ACCESS_ZERO_BASED), 0, "a zero-based region");
	addressed(ibv_reg_mr_iova(my.pd, my.at, 4 * LENGTH, far_away, all), far_away, "a region with an IOVA");
	limits();
	check(!ibv_dereg_mr(my.mr) && !ibv_dealloc_pd(my.pd) && !ibv_close_device(my.context), "cannot close");
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
