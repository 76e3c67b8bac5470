/* Multicast of UD, on any adapter.
 *
 *   multicast rules   DEVICE GID GROUP            one process: who gets what, who does not, and which errors there are
 *   multicast receive DEVICE GID GROUP COUNT      two QPs: each must get messages 0 to COUNT - 1, once and in order
 *   multicast send    DEVICE GID GROUP COUNT      what the receivers want to get
 *
 * A receiver says "ready" when it is. The sender waits now and then, for nobody holds it back. */
#include <arpa/inet.h>
#include "threads_rig.h"

enum { GRH = 40, QKEY = 0x22222222, LENGTH = 1000, SLOT = 2048, DEPTH = 512, EVERYBODY = 0xffffff, BATCH = 16 };

static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	/* The group, our address, and what messages are expected to be addressed to. */
	union ibv_gid group, gid, to;
} my;

/* A QP with a CQ and receives of its own. */
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
	/* What it sent may come to itself first. */
	for (int n = 0; n == 0;) {
		if (now() > until)
			die("no completion of a send");
		n = ibv_poll_cq(m->cq, 1, &wc);
		if (n == 1 && wc.opcode & IBV_WC_RECV) {
			check(wc.imm_data == htonl(m->next), "%u came, not %u", ntohl(wc.imm_data), m->next);
			m->next++;
			receive(m, wc.wr_id);
			n = 0;
		}
	}
	if (wc.status != IBV_WC_SUCCESS)
		die("a send ended with %s", ibv_wc_status_str(wc.status));
}

/* The next message, whose every byte is compared. False if none comes. */
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
	check(wc.byte_len == GRH + LENGTH && !memcmp(got + GRH, expected, LENGTH), "message %u is another", m->next);
	check(wc.wc_flags & IBV_WC_GRH && wc.wc_flags & IBV_WC_WITH_IMM, "flags %x", wc.wc_flags);
	check(!from || wc.src_qp == from, "message %u is from %x, not %x", m->next, wc.src_qp, from);
	/* The network header ends with the destination. */
	if (my.group.raw[0] == 0xff)
		check(!memcmp(got + 24, my.to.raw, 16), "message %u was to another address", m->next);
	else
		check(!memcmp(got + 36, my.to.raw + 12, 4), "message %u was to another address", m->next);
	m->next++;
	receive(m, wc.wr_id);
	return 1;
}

static void nothing_for(struct member *m, const char *why)
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

	check(ibv_attach_mcast(m->qp, &my.gid, 0) == EINVAL, "attached to what is no group");
	check(ibv_attach_mcast(rc, &my.group, 0) == EINVAL, "attached an RC QP");
	check(ibv_detach_mcast(m->qp, &my.group, 0) == EINVAL, "detached what was not attached");
	check(connect_qp(rc, 5, &my.group) == EINVAL, "connected an RC QP to a group");
	ibv_destroy_qp(rc);
	if (ibv_query_device(my.context, &limits))
		die("ibv_query_device");
	check(limits.max_mcast_grp > 0 && limits.max_mcast_qp_attach > 0, "no limits");
	check(limits.max_total_mcast_qp_attach == limits.max_mcast_grp * limits.max_mcast_qp_attach, "a total of %d",
	      limits.max_total_mcast_qp_attach);
	/* As many groups as it says, and not one more. */
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
	struct member *a = member(0), *b = member(0), *shy = member(IBV_QP_CREATE_BLOCK_SELF_MCAST_LB);
	union ibv_gid strange = my.group;
	struct ibv_ah *group = handle(&my.group), *direct = handle(&my.gid), *elsewhere;

	errors(a);
	nothing_for(a, "an unattached QP got something");
	check(!ibv_attach_mcast(a->qp, &my.group, 0) && !ibv_attach_mcast(b->qp, &my.group, 0), "cannot attach");
	check(!ibv_attach_mcast(a->qp, &my.group, 0), "cannot attach again");
	check(ibv_destroy_qp(a->qp) == EBUSY, "an attached QP was destroyed");

	/* The sender is a member like others; who blocks its own is too, for what others send. */
	check(!ibv_attach_mcast(shy->qp, &my.group, 0), "cannot attach");
	send_one(a, group, EVERYBODY, QKEY, 0);
	check(a->next || take(a, 1000, a->qp->qp_num), "the sender got no copy");
	check(take(b, 1000, a->qp->qp_num) && take(shy, 1000, a->qp->qp_num), "a member got no copy");
	send_one(shy, group, EVERYBODY, QKEY, 1);
	check(take(a, 1000, shy->qp->qp_num) && take(b, 1000, shy->qp->qp_num), "a member got no copy");
	nothing_for(shy, "its own datagram came back to one that blocks that");
	shy->next = 2;

	/* What is not for them. */
	send_one(b, group, EVERYBODY, QKEY + 1, 2);
	send_one(b, group, a->qp->qp_num, QKEY, 2);
	send_one(b, direct, EVERYBODY, QKEY, 2);
	strange.raw[15]++;
	elsewhere = handle(&strange);
	send_one(b, elsewhere, EVERYBODY, QKEY, 2);
	nothing_for(a, "a wrong Q_Key, QP number, address or group was received");
	nothing_for(b, "a wrong Q_Key, QP number, address or group was received");
	send_one(b, direct, a->qp->qp_num, QKEY, 2);
	my.to = my.gid;
	check(take(a, 1000, b->qp->qp_num), "what is sent to one alone no longer comes");
	my.to = my.group;
	a->next = 2;

	/* A group that everybody has left, and one that was joined anew. */
	check(!ibv_detach_mcast(a->qp, &my.group, 0) && ibv_detach_mcast(a->qp, &my.group, 0) == EINVAL,
	      "detached twice");
	send_one(b, group, EVERYBODY, QKEY, 2);
	check(b->next == 3 || take(b, 1000, 0), "who stays got nothing");
	check(take(shy, 1000, 0), "who stays got nothing");
	nothing_for(a, "got something after it was detached");
	check(!ibv_detach_mcast(b->qp, &my.group, 0) && !ibv_detach_mcast(shy->qp, &my.group, 0), "cannot detach");
	send_one(b, group, EVERYBODY, QKEY, 3);
	nothing_for(b, "got something after it was detached");
	check(!ibv_attach_mcast(b->qp, &my.group, 0), "cannot attach anew");
	send_one(a, group, EVERYBODY, QKEY, 3);
	check(take(b, 1000, a->qp->qp_num), "got nothing from the group that was joined anew");
	check(!ibv_detach_mcast(b->qp, &my.group, 0), "cannot detach");
	if (ibv_destroy_ah(group) || ibv_destroy_ah(direct) || ibv_destroy_ah(elsewhere))
		die("ibv_destroy_ah");
	end(a);
	end(b);
	end(shy);
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
			check(take(members[i], 20000, 0), "QP %d got %ld of %ld messages", i, n, opt.count);
	for (int i = 0; i < 2; i++) {
		nothing_for(members[i], "more came than was sent");
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
		send_one(m, ah, EVERYBODY, QKEY, n);
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
		die("see the head of tests/c/multicast.c");
	setvbuf(stdout, NULL, _IOLBF, 0);
	opt.device = argv[2];
	opt.gid = atoi(argv[3]);
	if (inet_pton(AF_INET, argv[4], &v4) == 1) {
		my.group.raw[10] = my.group.raw[11] = 0xff;
		memcpy(my.group.raw + 12, &v4, 4);
	} else if (inet_pton(AF_INET6, argv[4], my.group.raw) != 1) {
		die("no address: %s", argv[4]);
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
