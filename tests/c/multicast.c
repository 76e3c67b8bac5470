/* UD multicast, on any adapter.
 *
 *   multicast rules   DEVICE GID GROUP            one process: which QPs get which datagrams, and errors
 *   multicast receive DEVICE GID GROUP COUNT      two QPs: each must get messages 0 to COUNT - 1, once and in order
 *   multicast send    DEVICE GID GROUP COUNT      sends what the receivers expect
 *
 * A receiver prints "ready" when it is ready. The sender pauses now and then, because multicast has no flow control. */
#include <arpa/inet.h>
#include "threads_rig.h"

enum { GRH = 40, QKEY = 0x22222222, LENGTH = 1000, SLOT = 2048, DEPTH = 512, GROUP_QPN = 0xffffff, BATCH = 16 };

static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	/* The group, the local address, and the expected destination of messages. */
	union ibv_gid group, gid, to;
} my;

/* A UD QP with its own CQ and receives. */
struct member {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *area;
	uint32_t next;
};

static int failures;

__attribute__((format(printf, 2, 3))) static void check(int right, const char *format, ...)
{
	va_list args;

	if (right)
		return;
	failures++;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
}

static void pattern(uint8_t *to, uint32_t number)
{
	for (int i = 0; i < LENGTH; i += 4) {
		uint32_t word = (number + 1) * 2654435761u + i;

		memcpy(to + i, &word, 4);
	}
	memcpy(to, &number, 4);
}

static void receive(struct member *m, uint64_t slot)
{
	struct ibv_sge sge = { (uintptr_t)m->area + slot * SLOT, SLOT, m->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(m->qp, &wr, &bad))
		die("ibv_post_recv");
}

static struct member *member(enum ibv_qp_create_flags flags)
{
	struct member *m = calloc(1, sizeof(*m));
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_UD, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = my.pd };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	m->cq = ibv_create_cq(my.context, 2 * DEPTH, NULL, NULL, 0);
	m->area = aligned_alloc(4096, (DEPTH + 1) * SLOT);
	m->mr = ibv_reg_mr(my.pd, m->area, (DEPTH + 1) * SLOT, IBV_ACCESS_LOCAL_WRITE);
	if (!m->cq || !m->mr)
		die("cannot use the device: %s", strerror(errno));
	init.send_cq = init.recv_cq = m->cq;
	init.cap = (struct ibv_qp_cap){ DEPTH, DEPTH, 1, 1, 0 };
	init.comp_mask |= flags ? IBV_QP_INIT_ATTR_CREATE_FLAGS : 0;
	init.create_flags = flags;
	if (!(m->qp = ibv_create_qp_ex(my.context, &init)))
		die("ibv_create_qp_ex: %s", strerror(errno));
	if (ibv_modify_qp(m->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
		die("to INIT");
	attr.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(m->qp, &attr, IBV_QP_STATE))
		die("to RTR");
	attr.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(m->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN))
		die("to RTS");
	for (int slot = 0; slot < DEPTH; slot++)
		receive(m, slot);
	return m;
}

static void end(struct member *m)
{
	if (ibv_destroy_qp(m->qp) || ibv_destroy_cq(m->cq) || ibv_dereg_mr(m->mr))
		die("cannot clean up: %s", strerror(errno));
	free(m->area);
	free(m);
}

static struct ibv_ah *handle(const union ibv_gid *to)
{
	struct ibv_ah_attr attr = { .port_num = 1, .is_global = 1 };
	struct ibv_ah *ah;

	attr.grh.dgid = *to;
	attr.grh.sgid_index = opt.gid;
	attr.grh.hop_limit = 1;
	if (!(ah = ibv_create_ah(my.pd, &attr)))
		die("ibv_create_ah: %s", strerror(errno));
	return ah;
}

static void send_one(struct member *m, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint32_t number)
{
	struct ibv_sge sge = { (uintptr_t)m->area + DEPTH * SLOT, LENGTH, m->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = DEPTH, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM }, *bad;
	struct ibv_wc wc;
	double until = now() + 10;

	wr.send_flags = IBV_SEND_SIGNALED;
	wr.imm_data = htonl(number);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = qkey;
	pattern(m->area + DEPTH * SLOT, number);
	if (ibv_post_send(m->qp, &wr, &bad))
		die("ibv_post_send");
	/* The sender may receive its own copy before the send's completion. */
	for (int n = 0; n == 0;) {
		if (now() > until)
			die("no completion of a send");
		n = ibv_poll_cq(m->cq, 1, &wc);
		if (n == 1 && wc.opcode & IBV_WC_RECV) {
			check(wc.imm_data == htonl(m->next), "message %u came, not %u", ntohl(wc.imm_data), m->next);
			m->next++;
			receive(m, wc.wr_id);
			n = 0;
		}
	}
	if (wc.status != IBV_WC_SUCCESS)
		die("a send ended with %s", ibv_wc_status_str(wc.status));
}

/* Takes the next message and compares every byte. Returns 0 if none comes. */
static int take(struct member *m, int milliseconds, uint32_t from)
{
	double until = now() + milliseconds * 1e-3;
	uint8_t expected[LENGTH], *got;
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(m->cq, 1, &wc)) == 0)
		if (now() > until)
			return 0;
	if (n < 0 || wc.status != IBV_WC_SUCCESS)
		die("a receive ended with %s", n < 0 ? "an error" : ibv_wc_status_str(wc.status));
	got = m->area + wc.wr_id * SLOT;
	pattern(expected, m->next);
	check(wc.imm_data == htonl(m->next), "message %u came, not %u", ntohl(wc.imm_data), m->next);
	check(wc.byte_len == GRH + LENGTH && !memcmp(got + GRH, expected, LENGTH), "message %u: wrong bytes", m->next);
	check(wc.wc_flags & IBV_WC_GRH && wc.wc_flags & IBV_WC_WITH_IMM, "flags %x", wc.wc_flags);
	check(!from || wc.src_qp == from, "message %u is from %x, not %x", m->next, wc.src_qp, from);
	/* The network header ends with the destination. */
	if (my.group.raw[0] == 0xff)
		check(!memcmp(got + 24, my.to.raw, 16), "message %u has another destination address", m->next);
	else
		check(!memcmp(got + 36, my.to.raw + 12, 4), "message %u has another destination address", m->next);
	m->next++;
	receive(m, wc.wr_id);
	return 1;
}

static void expect_nothing(struct member *m, const char *why)
{
	check(!take(m, 100, 0), "%s", why);
}

static void errors(struct member *m)
{
	struct ibv_qp_init_attr init = { .send_cq = m->cq, .recv_cq = m->cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp *rc = ibv_create_qp(my.pd, &init);
	struct ibv_device_attr limits;
	union ibv_gid other = my.group;
	int attached = 0, error = 0;

	check(ibv_attach_mcast(m->qp, &my.gid, 0) == EINVAL, "attached to an address that is no group");
	check(ibv_attach_mcast(rc, &my.group, 0) == EINVAL, "attached an RC QP");
	check(ibv_detach_mcast(m->qp, &my.group, 0) == EINVAL, "detached a QP that was not attached");
	check(connect_qp(rc, 5, &my.group) == EINVAL, "connected an RC QP to a group");
	ibv_destroy_qp(rc);
	if (ibv_query_device(my.context, &limits))
		die("ibv_query_device");
	check(limits.max_mcast_grp > 0 && limits.max_mcast_qp_attach > 0, "no limits reported");
	check(limits.max_total_mcast_qp_attach == limits.max_mcast_grp * limits.max_mcast_qp_attach, "a total of %d",
	      limits.max_total_mcast_qp_attach);
	/* Attaching succeeds for max_mcast_grp groups and fails for one more. */
	while (attached <= limits.max_mcast_grp) {
		other.raw[15] = my.group.raw[15] + 1 + attached;
		if ((error = ibv_attach_mcast(m->qp, &other, 0)))
			break;
		attached++;
	}
	check(attached == limits.max_mcast_grp && error == ENOMEM, "%d of %d groups, then %d", attached,
	      limits.max_mcast_grp, error);
	while (attached-- > 0) {
		other.raw[15] = my.group.raw[15] + 1 + attached;
		check(!ibv_detach_mcast(m->qp, &other, 0), "cannot detach from group %d", attached);
	}
}

static int rules(void)
{
	struct member *a = member(0), *b = member(0), *blocker = member(IBV_QP_CREATE_BLOCK_SELF_MCAST_LB);
	union ibv_gid other_group = my.group;
	struct ibv_ah *group = handle(&my.group), *direct = handle(&my.gid), *elsewhere;

	errors(a);
	expect_nothing(a, "an unattached QP received a message");
	check(!ibv_attach_mcast(a->qp, &my.group, 0) && !ibv_attach_mcast(b->qp, &my.group, 0), "cannot attach");
	check(!ibv_attach_mcast(a->qp, &my.group, 0), "cannot attach again");
	check(ibv_destroy_qp(a->qp) == EBUSY, "an attached QP was destroyed");

	/* The sender gets a copy like other members. A member that blocks its own datagrams gets those of others. */
	check(!ibv_attach_mcast(blocker->qp, &my.group, 0), "cannot attach");
	send_one(a, group, GROUP_QPN, QKEY, 0);
	check(a->next || take(a, 1000, a->qp->qp_num), "the sender received no copy");
	check(take(b, 1000, a->qp->qp_num) && take(blocker, 1000, a->qp->qp_num), "a member received no copy");
	send_one(blocker, group, GROUP_QPN, QKEY, 1);
	check(take(a, 1000, blocker->qp->qp_num) && take(b, 1000, blocker->qp->qp_num), "a member received no copy");
	expect_nothing(blocker, "a QP that blocks its own datagrams received one");
	blocker->next = 2;

	/* Datagrams that no member may receive. */
	send_one(b, group, GROUP_QPN, QKEY + 1, 2);
	send_one(b, group, a->qp->qp_num, QKEY, 2);
	send_one(b, direct, GROUP_QPN, QKEY, 2);
	other_group.raw[15]++;
	elsewhere = handle(&other_group);
	send_one(b, elsewhere, GROUP_QPN, QKEY, 2);
	expect_nothing(a, "a wrong Q_Key, QP number, address or group was received");
	expect_nothing(b, "a wrong Q_Key, QP number, address or group was received");
	send_one(b, direct, a->qp->qp_num, QKEY, 2);
	my.to = my.gid;
	check(take(a, 1000, b->qp->qp_num), "a unicast datagram is no longer received");
	my.to = my.group;
	a->next = 2;

	/* A group that all members have left, and a group that was joined again. */
	check(!ibv_detach_mcast(a->qp, &my.group, 0) && ibv_detach_mcast(a->qp, &my.group, 0) == EINVAL,
	      "detached twice");
	send_one(b, group, GROUP_QPN, QKEY, 2);
	check(b->next == 3 || take(b, 1000, 0), "a remaining member received nothing");
	check(take(blocker, 1000, 0), "a remaining member received nothing");
	expect_nothing(a, "a detached QP received a message");
	check(!ibv_detach_mcast(b->qp, &my.group, 0) && !ibv_detach_mcast(blocker->qp, &my.group, 0), "cannot detach");
	send_one(b, group, GROUP_QPN, QKEY, 3);
	expect_nothing(b, "a detached QP received a message");
	check(!ibv_attach_mcast(b->qp, &my.group, 0), "cannot attach after detaching");
	send_one(a, group, GROUP_QPN, QKEY, 3);
	check(take(b, 1000, a->qp->qp_num), "received nothing from the group that was joined again");
	check(!ibv_detach_mcast(b->qp, &my.group, 0), "cannot detach");
	if (ibv_destroy_ah(group) || ibv_destroy_ah(direct) || ibv_destroy_ah(elsewhere))
		die("ibv_destroy_ah");
	end(a);
	end(b);
	end(blocker);
	return failures;
}

static int receiver(void)
{
	struct member *members[2] = { member(0), member(0) };

	for (int i = 0; i < 2; i++)
		if (ibv_attach_mcast(members[i]->qp, &my.group, 0))
			die("ibv_attach_mcast: %s", strerror(errno));
	printf("ready\n");
	for (long n = 0; n < opt.count && !failures; n++)
		for (int i = 0; i < 2; i++)
			check(take(members[i], 20000, 0), "QP %d received %ld of %ld messages", i, n, opt.count);
	for (int i = 0; i < 2; i++) {
		expect_nothing(members[i], "received more messages than were sent");
		check(!ibv_detach_mcast(members[i]->qp, &my.group, 0), "cannot detach");
		end(members[i]);
	}
	return failures;
}

static int sender(void)
{
	struct member *m = member(0);
	struct ibv_ah *ah = handle(&my.group);
	struct timespec pause = { 0, 2000000 };

	for (long n = 0; n < opt.count; n++) {
		send_one(m, ah, GROUP_QPN, QKEY, n);
		if (n % BATCH == BATCH - 1)
			nanosleep(&pause, NULL);
	}
	if (ibv_destroy_ah(ah))
		die("ibv_destroy_ah");
	end(m);
	return 0;
}

int main(int argc, char **argv)
{
	struct in_addr v4;
	int bad;

	if (argc < 5)
		die("usage: see the comment at the top of tests/c/multicast.c");
	setvbuf(stdout, NULL, _IOLBF, 0);
	opt.device = argv[2];
	opt.gid = atoi(argv[3]);
	if (inet_pton(AF_INET, argv[4], &v4) == 1) {
		my.group.raw[10] = my.group.raw[11] = 0xff;
		memcpy(my.group.raw + 12, &v4, 4);
	} else if (inet_pton(AF_INET6, argv[4], my.group.raw) != 1) {
		die("not an IP address: %s", argv[4]);
	}
	my.to = my.group;
	opt.count = argc > 5 ? atol(argv[5]) : 0;
	watch(60);
	my.context = open_device();
	my.pd = ibv_alloc_pd(my.context);
	if (!my.pd || ibv_query_gid(my.context, 1, opt.gid, &my.gid))
		die("cannot use the device: %s", strerror(errno));
	bad = !strcmp(argv[1], "rules") ? rules() : !strcmp(argv[1], "receive") ? receiver() : sender();
	if (ibv_dealloc_pd(my.pd) || ibv_close_device(my.context))
		die("cannot clean up: %s", strerror(errno));
	printf("%d failed\n", bad);
	return bad != 0;
}
