/* Raw packet QPs in one process, on the loopback interface: frames, steering rules with their priorities and counters,
 * receive work queues behind a hash, and what is refused.
 *
 *   raw DEVICE              needs CAP_NET_RAW
 *   raw DEVICE unprivileged expects EPERM without it
 *
 * Prints failures and a last line "N passed, M failed". */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <unistd.h>
#include "check.h"
#include "setup.h"

enum { SLOTS = 16, ROOM = 256, FRAME = 80, QUEUES = 4 };

static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t *at;
} my;

static void fail(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	exit(2);
}

static struct ibv_qp *create(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RAW_PACKET, .sq_sig_all = 1 };

	init.cap = (struct ibv_qp_cap){ SLOTS, SLOTS, 2, 1, 0 };
	return ibv_create_qp(my.pd, &init);
}

static struct ibv_qp *ready(struct ibv_cq *cq)
{
	struct ibv_qp *qp = create(cq);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	if (!qp)
		fail("ibv_create_qp");
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT))
		fail("INIT");
	attr.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE))
		fail("RTR");
	attr.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE))
		fail("RTS");
	return qp;
}

/* A slot of `my.at`. */
static struct ibv_sge slot(int n, uint32_t length)
{
	return (struct ibv_sge){ (uintptr_t)my.at + n * ROOM, length, my.mr->lkey };
}

static int receive(struct ibv_qp *qp, int n, uint32_t length)
{
	struct ibv_sge sge = slot(n, length);
	struct ibv_recv_wr *bad, wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1 };

	return ibv_post_recv(qp, &wr, &bad);
}

/* An Ethernet frame to MAC address 02:..:to, with IPv4 from 10.0.0.`from` and UDP to `port`. */
static void make(int n, uint8_t to, uint8_t from, uint16_t port)
{
	uint8_t *frame = my.at + n * ROOM, *ip = frame + 14, *udp = ip + 20;

	memset(frame, 0, FRAME);
	memset(frame, to, 6);
	frame[0] = 2;
	frame[6] = 2;
	frame[12] = 8;
	ip[0] = 0x45;
	ip[3] = FRAME - 14;
	ip[8] = 64;
	ip[9] = 17;
	ip[12] = ip[16] = 10;
	ip[15] = from;
	ip[19] = 1;
	udp[2] = port >> 8;
	udp[3] = port;
	udp[5] = FRAME - 34;
	memset(udp + 8, from, FRAME - 42);
}

static int send_frame(struct ibv_qp *qp, int n, uint32_t length)
{
	/* In two parts. */
	struct ibv_sge sge[2] = { slot(n, 20), slot(n, length - 20) };
	struct ibv_send_wr *bad, wr = { .wr_id = 100 + n, .sg_list = sge, .num_sge = 2, .opcode = IBV_WR_SEND };

	sge[1].addr += 20;
	return ibv_post_send(qp, &wr, &bad);
}

/* Polls for one completion: at most a second for one that comes, a moment for one that should not. */
static int take(struct ibv_cq *cq, struct ibv_wc *wc, int comes)
{
	for (int n = 0; n < (comes ? 100000 : 2000); n++) {
		if (ibv_poll_cq(cq, 1, wc) == 1)
			return 1;
		usleep(10);
	}
	return 0;
}

static void send_one(struct ibv_qp *qp, uint8_t to, uint8_t from, uint16_t port)
{
	struct ibv_wc wc;

	make(0, to, from, port);
	check(!send_frame(qp, 0, FRAME) && take(qp->send_cq, &wc, 1) && wc.status == IBV_WC_SUCCESS && wc.wr_id == 100 &&
	      wc.opcode == IBV_WC_SEND, "a frame leaves");
}

/* Specifications follow each other without gaps. */
struct rule {
	struct ibv_flow_attr attr;
	struct ibv_flow_spec_eth eth;
	union {
		struct ibv_flow_spec_tcp_udp udp;
		struct ibv_flow_spec_counter_action count;
		struct ibv_flow_spec_action_drop drop;
	};
} __attribute__((packed, aligned(4)));

static struct rule rule_to(uint8_t to, uint16_t priority)
{
	struct rule rule = { 0 };

	rule.attr = (struct ibv_flow_attr){ .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(rule.attr) + sizeof(rule.eth),
					    .priority = priority, .num_of_specs = 1, .port = 1 };
	rule.eth.type = IBV_FLOW_SPEC_ETH;
	rule.eth.size = sizeof(rule.eth);
	memset(rule.eth.val.dst_mac, to, 6);
	rule.eth.val.dst_mac[0] = 2;
	memset(rule.eth.mask.dst_mac, 0xff, 6);
	return rule;
}

static struct ibv_flow *flow(struct ibv_qp *qp, struct rule *rule)
{
	return ibv_create_flow(qp, (void *)rule);
}

static void steering(void)
{
	struct ibv_cq *other_cq = ibv_create_cq(my.context, SLOTS, NULL, NULL, 0);
	struct ibv_qp *sender = ready(my.cq), *qp = ready(my.cq), *other = ready(other_cq);
	struct rule to3 = rule_to(3, 1), first = rule_to(3, 0), drop = rule_to(3, 0), bad = rule_to(3, 0);
	struct ibv_flow *low, *high, *twin, *rest;
	struct ibv_wc wc;

	check(!receive(qp, 1, ROOM) && !receive(qp, 2, 20) && !receive(qp, 3, ROOM) && !receive(other, 4, ROOM) &&
	      !receive(other, 5, ROOM), "receives");
	send_one(sender, 3, 1, 7);
	check(!take(my.cq, &wc, 0), "without a rule nothing arrives");
	low = flow(qp, &to3);
	check(low != NULL, "a rule");
	send_one(sender, 3, 1, 7);
	check(take(my.cq, &wc, 1) && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == 1 &&
	      wc.byte_len == FRAME && wc.qp_num == qp->qp_num && !memcmp(my.at, my.at + ROOM, FRAME), "the frame arrives");
	send_one(sender, 4, 1, 7);
	check(!take(my.cq, &wc, 0), "another address does not match");
	send_one(sender, 3, 1, 7);
	check(take(my.cq, &wc, 1) && wc.status == IBV_WC_LOC_LEN_ERR && wc.wr_id == 2, "a receive that is too short");

	first.attr.num_of_specs = 2;
	first.udp = (struct ibv_flow_spec_tcp_udp){ .type = IBV_FLOW_SPEC_UDP, .size = sizeof(first.udp),
						    .val.dst_port = htons(8), .mask.dst_port = 0xffff };
	high = flow(other, &first);
	check(high != NULL, "a rule that is tried before it");
	send_one(sender, 3, 2, 8);
	check(take(other_cq, &wc, 1) && wc.wr_id == 4 && my.at[4 * ROOM + 60] == 2 && !take(my.cq, &wc, 0), "it gets the frame");
	check(ibv_destroy_qp(other) == EBUSY, "a QP with a rule is not destroyed");
	check(!ibv_destroy_flow(high), "its rule is");
	twin = flow(other, &to3);
	send_one(sender, 3, 3, 9);
	check(twin && take(my.cq, &wc, 1) && wc.wr_id == 3 && take(other_cq, &wc, 1) && wc.wr_id == 5, "equal rules share");

	drop.attr.num_of_specs = 2;
	drop.drop = (struct ibv_flow_spec_action_drop){ IBV_FLOW_SPEC_ACTION_DROP, sizeof(drop.drop) };
	high = flow(qp, &drop);
	check(!receive(qp, 1, ROOM), "a receive");
	send_one(sender, 3, 4, 9);
	check(high && !take(my.cq, &wc, 0) && !ibv_destroy_flow(high), "a rule that drops");
	check(!ibv_destroy_flow(low) && !ibv_destroy_flow(twin), "no rules");
	rest = ibv_create_flow(qp, &(struct ibv_flow_attr){ .type = IBV_FLOW_ATTR_ALL_DEFAULT, .port = 1 });
	send_one(sender, 5, 5, 9);
	check(rest && take(my.cq, &wc, 1) && wc.wr_id == 1 && my.at[ROOM + 60] == 5 && !ibv_destroy_flow(rest), "the rest");

	bad.attr.port = 2;
	check(!flow(qp, &bad) && errno == EINVAL, "no second port");
	bad = rule_to(3, 0);
	bad.eth.size--;
	check(!flow(qp, &bad) && errno == EINVAL, "a size that is wrong");
	bad = rule_to(3, 0);
	bad.eth.type = IBV_FLOW_SPEC_MPLS;
	check(!flow(qp, &bad) && errno == EOPNOTSUPP, "MPLS");
	bad = rule_to(3, 0);
	bad.attr.type = IBV_FLOW_ATTR_SNIFFER;
	check(!flow(qp, &bad) && errno == EOPNOTSUPP, "a sniffer");
	check(!ibv_destroy_qp(sender) && !ibv_destroy_qp(qp) && !ibv_destroy_qp(other) && !ibv_destroy_cq(other_cq), "end");
}

static void counting(void)
{
	struct ibv_counters *counters = ibv_create_counters(my.context, &(struct ibv_counters_init_attr){ 0 });
	struct ibv_qp *sender = ready(my.cq), *qp = ready(my.cq);
	struct ibv_counter_attach_attr attr = { .counter_desc = IBV_COUNTER_BYTES, .index = 2 };
	struct rule rule = rule_to(6, 0);
	uint64_t values[3] = { 9, 9, 9 };
	struct ibv_flow *counted;

	check(counters && !ibv_attach_counters_point_flow(counters, &attr, NULL), "bytes");
	check(ibv_attach_counters_point_flow(counters, &attr, NULL) == EBUSY, "a place that is taken");
	attr = (struct ibv_counter_attach_attr){ .counter_desc = IBV_COUNTER_PACKETS, .index = 0 };
	check(!ibv_attach_counters_point_flow(counters, &attr, NULL), "packets");
	rule.attr.num_of_specs = 2;
	rule.count = (struct ibv_flow_spec_counter_action){ IBV_FLOW_SPEC_ACTION_COUNT, sizeof(rule.count), counters };
	counted = flow(qp, &rule);
	check(counted != NULL && ibv_destroy_counters(counters) == EBUSY, "a rule has them");
	send_one(sender, 6, 1, 1);
	send_one(sender, 6, 1, 1);
	send_one(sender, 7, 1, 1);
	for (int n = 0; n < 100000 && values[0] != 2; n++) {
		struct ibv_wc wc;

		/* The frames arrive while the program polls. */
		ibv_poll_cq(my.cq, 1, &wc);
		check(!ibv_read_counters(counters, values, 3, 0), "reading");
		passed--;
	}
	check(values[0] == 2 && values[1] == 0 && values[2] == 2 * FRAME, "frames without a receive count too");
	check(ibv_read_counters(counters, values, 2, 0) == EINVAL, "no room for all places");
	check(!ibv_destroy_flow(counted) && !ibv_destroy_counters(counters), "end of the counters");
	check(!ibv_destroy_qp(sender) && !ibv_destroy_qp(qp), "end of the QPs");
}

static void spreading(void)
{
	static uint8_t key[40] = { 0x2c, 0xc6, 0x81, 0xd1, 0x5b, 0xdb, 0xf4, 0xf7, 0xfc, 0xa2, 0x83, 0x19, 0xdb, 0x1a, 0x3e, 0x94 };
	struct ibv_qp *sender = ready(my.cq), *qp;
	struct ibv_wq *wqs[QUEUES];
	struct ibv_cq *cqs[QUEUES];
	struct ibv_rwq_ind_table_init_attr init = { .log_ind_tbl_size = 2, .ind_tbl = wqs };
	struct ibv_qp_init_attr_ex attr = { .qp_type = IBV_QPT_RAW_PACKET, .pd = my.pd };
	struct ibv_rwq_ind_table *table;
	struct rule rule = rule_to(8, 0);
	struct ibv_flow *spread;
	int used = 0, got = 0, again[2] = { -1, -1 };
	struct ibv_wc wc;

	for (int n = 0; n < QUEUES; n++) {
		struct ibv_wq_init_attr wq = { .wq_type = IBV_WQT_RQ, .max_wr = SLOTS, .max_sge = 1, .pd = my.pd };
		struct ibv_wq_attr rdy = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };

		wq.cq = cqs[n] = ibv_create_cq(my.context, 64, NULL, NULL, 0);
		if (!(wqs[n] = ibv_create_wq(my.context, &wq)))
			fail("ibv_create_wq");
		rdy.wq_state = IBV_WQS_ERR;
		check(ibv_modify_wq(wqs[n], &rdy) == EINVAL, "no way from RESET to ERR");
		rdy.wq_state = IBV_WQS_RDY;
		check(!ibv_modify_wq(wqs[n], &rdy) && wqs[n]->state == IBV_WQS_RDY, "RDY");
		for (int at = 0; at < SLOTS; at++) {
			struct ibv_sge sge = slot(1 + n, ROOM);
			struct ibv_recv_wr *bad, wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1 };

			check(!ibv_post_wq_recv(wqs[n], &wr, &bad), "a receive of a queue");
		}
	}
	table = ibv_create_rwq_ind_table(my.context, &init);
	check(table && ibv_destroy_wq(wqs[0]) == EBUSY, "a table has the queues");
	attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
	attr.rwq_ind_tbl = table;
	attr.rx_hash_conf = (struct ibv_rx_hash_conf){ IBV_RX_HASH_FUNC_TOEPLITZ, sizeof(key), key, IBV_RX_HASH_SRC_IPV4 };
	attr.rx_hash_conf.rx_hash_fields_mask |= IBV_RX_HASH_INNER;
	check(!ibv_create_qp_ex(my.context, &attr) && errno == EOPNOTSUPP, "no inner headers");
	attr.rx_hash_conf.rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4;
	qp = ibv_create_qp_ex(my.context, &attr);
	if (!qp)
		fail("a QP with a table");
	check(ibv_destroy_rwq_ind_table(table) == EBUSY, "a QP has the table");
	spread = flow(qp, &rule);
	for (int n = 0; n < SLOTS + 2; n++) {
		int queue = -1;

		/* Two frames from the same address at the end. */
		send_one(sender, 8, n < SLOTS ? n : 200, 1);
		for (int tries = 0; tries < 100000 && queue < 0; tries++) {
			for (int at = 0; at < QUEUES && queue < 0; at++)
				if (ibv_poll_cq(cqs[at], 1, &wc) == 1)
					queue = at;
		}
		check(queue >= 0 && wc.status == IBV_WC_SUCCESS && wc.wr_id == (unsigned)queue && wc.qp_num == wqs[queue]->wq_num,
		      "frame %d arrives at queue %d", n, queue);
		got += queue >= 0;
		used |= queue < 0 ? 0 : 1 << queue;
		if (n >= SLOTS)
			again[n - SLOTS] = queue;
	}
	check(got == SLOTS + 2 && (used & (used - 1)) && again[0] == again[1], "queues %x, %d and %d", used, again[0], again[1]);
	check(spread && !ibv_destroy_flow(spread) && !ibv_destroy_qp(qp) && !ibv_destroy_rwq_ind_table(table), "end of the table");
	for (int n = 0; n < QUEUES; n++) {
		struct ibv_wq_attr error = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_ERR };

		check(!ibv_modify_wq(wqs[n], &error), "ERR");
		if (n == 0)
			check(take(cqs[n], &wc, 1) && wc.status == IBV_WC_WR_FLUSH_ERR, "its receives are flushed");
		check(!ibv_destroy_wq(wqs[n]) && !ibv_destroy_cq(cqs[n]), "end of a queue");
	}
	check(!ibv_destroy_qp(sender), "end of the sender");
}

static void refusals(void)
{
	struct ibv_qp_init_attr init = { .send_cq = my.cq, .recv_cq = my.cq, .qp_type = IBV_QPT_UD, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp *ud = ibv_create_qp(my.pd, &init), *qp = ready(my.cq);
	struct ibv_sge sge = slot(0, FRAME);
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_device_attr_ex caps;
	struct rule rule = rule_to(3, 0);
	struct ibv_wc wc;

	check(ibv_modify_qp(qp, &(struct ibv_qp_attr){ .rate_limit = 1000 }, IBV_QP_RATE_LIMIT) == EOPNOTSUPP &&
	      !ibv_modify_qp(qp, &(struct ibv_qp_attr){ 0 }, IBV_QP_RATE_LIMIT), "no packet pacing");
	check(ud && !flow(ud, &rule) && errno == EOPNOTSUPP && !ibv_destroy_qp(ud), "no rules for UD");
	check(ibv_post_send(qp, &wr, &bad) == EINVAL, "a raw QP only sends");
	wr.opcode = IBV_WR_SEND;
	sge.length = 10;
	check(!ibv_post_send(qp, &wr, &bad) && take(my.cq, &wc, 1), "a frame without a header is lost");
	sge.lkey++;
	check(!ibv_post_send(qp, &wr, &bad) && take(my.cq, &wc, 1) && wc.status == IBV_WC_LOC_PROT_ERR, "a wrong key");
	check(!ibv_query_device_ex(my.context, NULL, &caps) && caps.orig_attr.max_raw_ethy_qp > 0 &&
	      caps.rss_caps.supported_qpts == 1 << IBV_QPT_RAW_PACKET, "the device reports it");
	/* Its rule ends with the device. */
	check(flow(qp, &rule) != NULL, "a rule that stays");
}

int main(int argc, char **argv)
{
	int unprivileged = argc > 2 && !strcmp(argv[2], "unprivileged");

	my.context = device_open(argc > 1 ? argv[1] : NULL);
	my.pd = my.context ? ibv_alloc_pd(my.context) : NULL;
	my.cq = my.pd ? ibv_create_cq(my.context, 64, NULL, NULL, 0) : NULL;
	my.at = aligned_alloc(4096, SLOTS * ROOM);
	my.mr = my.cq ? ibv_reg_mr(my.pd, my.at, SLOTS * ROOM, IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (!my.mr)
		fail("the device");
	if (unprivileged) {
		if (setresuid(65534, 65534, 65534))
			fail("setresuid");
		check(!create(my.cq) && errno == EPERM, "EPERM without CAP_NET_RAW");
	} else {
		steering();
		counting();
		spreading();
		refusals();
		check(!ibv_close_device(my.context), "the device closes");
	}
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
