/*
 * Extended CQs and the WR builder, checked in one process: two QPs of one device are connected to each other.
 *
 *   extended [device [gid_index]]
 *
 * Prints failures and a last line "N passed, M failed".
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "setup.h"

#define SIZE 65536
#define DEPTH 8
#define ALL_OPS \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND | \
	 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | \
	 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_WRITE)

static int passed, failed;
static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;
static int gid_index = 1;

/* One end: a buffer with its MR, CQ and QP. */
struct end {
	uint8_t *buf;
	struct ibv_mr *mr;
	struct ibv_comp_channel *channel;
	struct ibv_cq_ex *cq;
	struct ibv_qp *qp;
	struct ibv_qp_ex *qpx;
};

static void check(bool good, const char *format, ...)
{
	va_list args;

	if (good) {
		passed++;
		return;
	}
	failed++;
	va_start(args, format);
	printf("failed: ");
	vprintf(format, args);
	printf("\n");
	va_end(args);
}

static void die(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	exit(2);
}

static uint64_t now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void end_open(struct end *end, int cqe, uint32_t flags)
{
	struct ibv_cq_init_attr_ex cq = {
		.cqe = cqe,
		.wc_flags = IBV_CREATE_CQ_SUP_WC_FLAGS,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = flags,
	};
	struct ibv_qp_init_attr_ex init = {
		.cap = { DEPTH, DEPTH, 2, 2, 64 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = ALL_OPS,
	};
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		     IBV_ACCESS_REMOTE_ATOMIC;

	end->buf = aligned_alloc(4096, SIZE);
	memset(end->buf, 0, SIZE);
	end->mr = ibv_reg_mr(pd, end->buf, SIZE, access);
	end->channel = ibv_create_comp_channel(context);
	cq.channel = end->channel;
	cq.cq_context = end;
	end->cq = ibv_create_cq_ex(context, &cq);
	if (!end->mr || !end->channel || !end->cq)
		die("cannot make a CQ");
	fcntl(end->channel->fd, F_SETFL, O_NONBLOCK);
	init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(end->cq);
	end->qp = ibv_create_qp_ex(context, &init);
	if (!end->qp)
		die("ibv_create_qp_ex");
	end->qpx = ibv_qp_to_qp_ex(end->qp);
}

static struct ibv_qp_attr attr_of(struct end *peer)
{
	struct ibv_qp_attr attr = rc_attr(peer->qp->qp_num, &gid, gid_index);

	attr.min_rnr_timer = 1;
	return attr;
}

static void to_rtr(struct end *end, struct end *peer)
{
	if (rc_to_init(end->qp, attr_of(peer)) || rc_to_rtr(end->qp, attr_of(peer)))
		die("cannot connect");
}

static void to_rts(struct end *end, struct end *peer)
{
	if (rc_to_rts(end->qp, attr_of(peer)))
		die("cannot connect");
}

static void pair_open(struct end *a, struct end *b, int cqe, uint32_t flags)
{
	end_open(a, cqe, flags);
	end_open(b, cqe, flags);
	to_rtr(a, b);
	to_rtr(b, a);
	to_rts(a, b);
	to_rts(b, a);
}

static void end_close(struct end *end)
{
	check(!ibv_destroy_qp(end->qp), "ibv_destroy_qp");
	check(!ibv_destroy_cq(ibv_cq_ex_to_cq(end->cq)), "ibv_destroy_cq");
	check(!ibv_destroy_comp_channel(end->channel), "ibv_destroy_comp_channel");
	check(!ibv_dereg_mr(end->mr), "ibv_dereg_mr");
	free(end->buf);
}

/* Waits up to a second for a completion and makes it current; false if none came or the CQ failed. */
static bool start(struct end *end)
{
	struct ibv_poll_cq_attr attr = { 0 };
	uint64_t limit = now(CLOCK_MONOTONIC) + 1000000000;
	int error;

	while ((error = ibv_start_poll(end->cq, &attr)) == ENOENT && now(CLOCK_MONOTONIC) < limit)
		;
	return !error;
}

static void expect(struct end *end, uint64_t wr_id, enum ibv_wc_status status)
{
	if (!start(end)) {
		check(false, "no completion of %lu", (unsigned long)wr_id);
		return;
	}
	check(end->cq->wr_id == wr_id && end->cq->status == status, "%lu expected, %lu came: %s", (unsigned long)wr_id,
	      (unsigned long)end->cq->wr_id, ibv_wc_status_str(end->cq->status));
	ibv_end_poll(end->cq);
}

static bool quiet(struct end *end)
{
	struct ibv_poll_cq_attr attr = { 0 };

	for (int i = 0; i < 2000; i++) {
		int error = ibv_start_poll(end->cq, &attr);

		if (error != ENOENT) {
			if (!error)
				ibv_end_poll(end->cq);
			return false;
		}
	}
	return true;
}

static void receive(struct end *end, uint64_t wr_id, uint32_t offset, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)end->buf + offset, length, end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(end->qp, &wr, &bad))
		die("ibv_post_recv");
}

static void next(struct end *end, uint64_t wr_id)
{
	end->qpx->wr_id = wr_id;
	end->qpx->wr_flags = IBV_SEND_SIGNALED;
}

static void add_sge(struct end *end, uint32_t offset, uint32_t length)
{
	ibv_wr_set_sge(end->qpx, end->mr->lkey, (uintptr_t)end->buf + offset, length);
}

/* Posts all operations in one batch and checks the fields of their completions. */
static void every_operation(void)
{
	struct end a, b;
	uint64_t before, after, remote;
	struct ibv_data_buf inline_parts[2] = { { "in", 2 }, { "line", 4 } };

	pair_open(&a, &b, 64, 0);
	remote = (uintptr_t)b.buf;
	receive(&b, 100, 0, 256);
	receive(&b, 101, 256, 256);
	receive(&b, 102, 0, 0);
	*(uint64_t *)(b.buf + 8192) = 40;
	memset(b.buf + 12288, 'r', 2000);
	memset(a.buf, 's', 100);
	memset(a.buf + 1024, 'w', 3000);
	before = now(CLOCK_MONOTONIC);

	ibv_wr_start(a.qpx);
	next(&a, 1);
	ibv_wr_send(a.qpx);
	ibv_wr_set_sge_list(a.qpx, 2, (struct ibv_sge[]){ { (uintptr_t)a.buf, 60, a.mr->lkey },
							   { (uintptr_t)a.buf + 60, 40, a.mr->lkey } });
	next(&a, 2);
	ibv_wr_send_imm(a.qpx, htobe32(0x1234));
	ibv_wr_set_inline_data_list(a.qpx, 2, inline_parts);
	next(&a, 3);
	ibv_wr_rdma_write(a.qpx, b.mr->rkey, remote + 16384);
	add_sge(&a, 1024, 3000);
	next(&a, 4);
	ibv_wr_rdma_write_imm(a.qpx, b.mr->rkey, remote + 20480, htobe32(77));
	ibv_wr_set_inline_data(a.qpx, "immediate", 9);
	next(&a, 5);
	ibv_wr_rdma_read(a.qpx, b.mr->rkey, remote + 12288);
	add_sge(&a, 8192, 2000);
	next(&a, 6);
	ibv_wr_atomic_fetch_add(a.qpx, b.mr->rkey, remote + 8192, 2);
	add_sge(&a, 12288, 8);
	next(&a, 7);
	ibv_wr_atomic_cmp_swp(a.qpx, b.mr->rkey, remote + 8192, 42, 99);
	add_sge(&a, 12296, 8);
	next(&a, 8);
	ibv_wr_atomic_write(a.qpx, b.mr->rkey, remote + 24576, "together");
	check(quiet(&a), "something went out before ibv_wr_complete");
	check(!ibv_wr_complete(a.qpx), "ibv_wr_complete");

	for (uint64_t i = 1; i <= 8; i++) {
		static const enum ibv_wc_opcode opcodes[] = { IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_WRITE,
			IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ, IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP,
			IBV_WC_ATOMIC_WRITE };

		if (!start(&a)) {
			check(false, "completion %lu", (unsigned long)i);
			break;
		}
		check(a.cq->wr_id == i && a.cq->status == IBV_WC_SUCCESS, "%lu: %s", (unsigned long)i,
		      ibv_wc_status_str(a.cq->status));
		check(ibv_wc_read_opcode(a.cq) == opcodes[i - 1], "opcode of %lu", (unsigned long)i);
		check(ibv_wc_read_qp_num(a.cq) == a.qp->qp_num, "qp_num of %lu", (unsigned long)i);
		ibv_end_poll(a.cq);
	}
	after = now(CLOCK_MONOTONIC);
	check(!memcmp(a.buf + 8192, b.buf + 12288, 2000), "data of the READ");
	check(!memcmp(a.buf + 1024, b.buf + 16384, 3000), "data of the WRITE");
	check(!memcmp(b.buf + 20480, "immediate", 9), "inline data of the WRITE with immediate");
	check(*(uint64_t *)(a.buf + 12288) == 40 && *(uint64_t *)(a.buf + 12296) == 42, "atomics' results");
	check(!memcmp(b.buf + 24576, "together", 8), "data of the atomic WRITE");
	check(*(uint64_t *)(b.buf + 8192) == 99, "value after the atomics");

	if (start(&b)) {
		uint64_t stamp = ibv_wc_read_completion_ts(b.cq), wall = ibv_wc_read_completion_wallclock_ns(b.cq);
		struct ibv_wc_tm_info tm = { 1, 1 };

		check(b.cq->wr_id == 100 && ibv_wc_read_opcode(b.cq) == IBV_WC_RECV, "the first receive");
		check(ibv_wc_read_byte_len(b.cq) == 100 && !ibv_wc_read_wc_flags(b.cq), "its length and flags");
		check(ibv_wc_read_src_qp(b.cq) == a.qp->qp_num, "its source");
		check(!ibv_wc_read_vendor_err(b.cq) && !ibv_wc_read_slid(b.cq) && !ibv_wc_read_sl(b.cq) &&
		      !ibv_wc_read_dlid_path_bits(b.cq) && !ibv_wc_read_cvlan(b.cq) && !ibv_wc_read_flow_tag(b.cq),
		      "fields that are zero over Ethernet");
		ibv_wc_read_tm_info(b.cq, &tm);
		check(!tm.tag && !tm.priv, "tag matching");
		check(stamp >= before && stamp <= after, "its time stamp");
		check(wall <= now(CLOCK_REALTIME) && wall > now(CLOCK_REALTIME) - 5000000000ull, "its wall clock");
		check(!ibv_next_poll(b.cq), "the next completion");
		check(b.cq->wr_id == 101 && ibv_wc_read_wc_flags(b.cq) == IBV_WC_WITH_IMM &&
		      ibv_wc_read_imm_data(b.cq) == htobe32(0x1234) && ibv_wc_read_byte_len(b.cq) == 6, "immediate");
		check(ibv_wc_read_completion_ts(b.cq) >= stamp, "the next time stamp is not earlier");
		check(!ibv_next_poll(b.cq) && ibv_wc_read_opcode(b.cq) == IBV_WC_RECV_RDMA_WITH_IMM &&
		      ibv_wc_read_imm_data(b.cq) == htobe32(77), "immediate of a WRITE");
		check(ibv_next_poll(b.cq) == ENOENT, "more than three completions");
		ibv_end_poll(b.cq);
	} else {
		check(false, "no receive completed");
	}
	check(!memcmp(b.buf + 256, "inline", 6), "inline data of the SEND");
	end_close(&a);
	end_close(&b);
}

/* Aborted and faulty batches have no effect and occupy no WQE slot. */
static void abort_and_errors(void)
{
	struct end a, b;
	struct ibv_sge many[3] = { { 0 } };
	char big[65] = "";

	pair_open(&a, &b, 64, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
	for (int round = 0; round < 3 * DEPTH; round++) {
		ibv_wr_start(a.qpx);
		next(&a, 1);
		ibv_wr_rdma_write(a.qpx, b.mr->rkey, (uintptr_t)b.buf);
		ibv_wr_set_inline_data(a.qpx, "never", 5);
		ibv_wr_abort(a.qpx);
	}
	ibv_wr_start(a.qpx);
	next(&a, 2);
	ibv_wr_rdma_write(a.qpx, b.mr->rkey, (uintptr_t)b.buf);
	ibv_wr_set_sge_list(a.qpx, 3, many);
	ibv_wr_rdma_write(a.qpx, b.mr->rkey, (uintptr_t)b.buf);
	ibv_wr_set_inline_data(a.qpx, "never", 5);
	check(ibv_wr_complete(a.qpx) == ENOMEM, "too many SGEs");
	ibv_wr_start(a.qpx);
	ibv_wr_rdma_write(a.qpx, b.mr->rkey, (uintptr_t)b.buf);
	ibv_wr_set_inline_data(a.qpx, big, sizeof(big));
	check(ibv_wr_complete(a.qpx) == ENOMEM, "too much inline data");
	ibv_wr_start(a.qpx);
	ibv_wr_rdma_write(a.qpx, b.mr->rkey, (uintptr_t)b.buf);
	ibv_wr_set_inline_data(a.qpx, "never", 5);
	ibv_wr_atomic_fetch_add(a.qpx, b.mr->rkey, (uintptr_t)b.buf, 1);
	add_sge(&a, 0, 4);
	check(ibv_wr_complete(a.qpx) == EINVAL, "an atomic of four bytes, behind a good request");
	ibv_wr_start(a.qpx);
	for (int i = 0; i <= DEPTH; i++)
		ibv_wr_rdma_write(a.qpx, b.mr->rkey, (uintptr_t)b.buf);
	check(ibv_wr_complete(a.qpx) == ENOMEM, "more requests than the queue holds");
	ibv_wr_start(a.qpx);
	check(!ibv_wr_complete(a.qpx), "an empty batch");
	check(quiet(&a) && !memcmp(b.buf, "\0\0\0\0\0", 5), "a request of a failed batch was executed");

	/* All WQE slots of the queue are free. */
	ibv_wr_start(a.qpx);
	for (int i = 0; i < DEPTH; i++) {
		next(&a, 10 + i);
		ibv_wr_rdma_write(a.qpx, b.mr->rkey, (uintptr_t)b.buf + i);
		ibv_wr_set_inline_data(a.qpx, "x", 1);
	}
	check(!ibv_wr_complete(a.qpx), "a full queue");
	for (int i = 0; i < DEPTH; i++)
		expect(&a, 10 + i, IBV_WC_SUCCESS);
	check(!memcmp(b.buf, "xxxxxxxx", DEPTH), "data of a full queue");
	end_close(&a);
	end_close(&b);
}

/* How many events come: the first within so many milliseconds, the others within 20 more each. */
static int events(struct end *end, int timeout)
{
	struct pollfd fd = { .fd = end->channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *cookie;
	int count = 0;

	while (poll(&fd, 1, timeout) == 1 && !ibv_get_cq_event(end->channel, &cq, &cookie)) {
		check(cookie == end && cq == ibv_cq_ex_to_cq(end->cq), "the CQ and context of an event");
		ibv_ack_cq_events(cq, 1);
		count++;
		timeout = 20;
	}
	return count;
}

static void write_one(struct end *a, struct end *b, uint64_t wr_id)
{
	ibv_wr_start(a->qpx);
	next(a, wr_id);
	ibv_wr_rdma_write(a->qpx, b->mr->rkey, (uintptr_t)b->buf);
	ibv_wr_set_inline_data(a->qpx, "e", 1);
	check(!ibv_wr_complete(a->qpx), "ibv_wr_complete");
}

/* An armed CQ raises an event after cq_count completions or cq_period microseconds. */
static void moderation(void)
{
	struct ibv_modify_cq_attr attr = { IBV_CQ_ATTR_MODERATE, { .cq_count = 4, .cq_period = 60000 } };
	struct ibv_cq *cq;
	struct end a, b;
	uint64_t began;
	int early = 1;

	pair_open(&a, &b, 64, 0);
	cq = ibv_cq_ex_to_cq(a.cq);
	check(!ibv_modify_cq(cq, &attr), "ibv_modify_cq");
	/* If the machine stalls for the period, which verbs limit to 65 ms, the event of the period comes: another try. */
	for (int tries = 0; early && tries < 50; tries++) {
		ibv_req_notify_cq(cq, 0);
		began = now(CLOCK_MONOTONIC);
		for (int i = 0; i < 3; i++)
			write_one(&a, &b, i);
		early = events(&a, 20);
		if (early)
			check(now(CLOCK_MONOTONIC) - began >= 55000000, "an event before there were four");
		write_one(&a, &b, 3);
		if (!early)
			check(events(&a, 5000) == 1, "no event for four");
		for (int i = 0; i < 4; i++)
			expect(&a, i, IBV_WC_SUCCESS);
	}
	check(!early, "the machine stalls all the time");

	ibv_req_notify_cq(cq, 0);
	began = now(CLOCK_MONOTONIC);
	write_one(&a, &b, 4);
	check(events(&a, 5000) == 1, "no event of the period");
	check(now(CLOCK_MONOTONIC) - began >= 55000000, "an event before its time");
	expect(&a, 4, IBV_WC_SUCCESS);

	attr.moderate.cq_count = 0;
	check(!ibv_modify_cq(cq, &attr), "ibv_modify_cq");
	for (int tries = 0, late = 1; late; tries++) {
		ibv_req_notify_cq(cq, 0);
		began = now(CLOCK_MONOTONIC);
		write_one(&a, &b, 5);
		check(events(&a, 5000) == 1, "no event");
		/* With the 20 ms in which no other came. */
		late = now(CLOCK_MONOTONIC) - began >= 55000000;
		expect(&a, 5, IBV_WC_SUCCESS);
		if (late && tries == 50) {
			check(0, "events held back though moderation is off");
			break;
		}
	}
	attr.attr_mask = 2;
	check(ibv_modify_cq(cq, &attr) == EINVAL, "an unknown attribute of a CQ");
	end_close(&a);
	end_close(&b);
}

static void state_is(struct end *end, enum ibv_qp_state state)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	uint64_t limit = now(CLOCK_MONOTONIC) + 1000000000;

	do
		ibv_query_qp(end->qp, &attr, IBV_QP_STATE, &init);
	while (attr.qp_state != state && now(CLOCK_MONOTONIC) < limit);
	check(attr.qp_state == state, "the QP is in state %d", attr.qp_state);
}

/* A full CQ fails, with its QP and two events. With IGNORE_OVERRUN it loses the oldest completions instead. */
static void overflow(void)
{
	bool cq_error = false, qp_fatal = false;
	struct ibv_poll_cq_attr none = { 0 };
	struct ibv_async_event event;
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	struct end a, b;

	pair_open(&a, &b, 4, 0);
	for (int i = 0; i < 5; i++)
		write_one(&a, &b, i);
	while (poll(&fd, 1, 500) == 1 && !(cq_error && qp_fatal) && !ibv_get_async_event(context, &event)) {
		cq_error |= event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == ibv_cq_ex_to_cq(a.cq);
		qp_fatal |= event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == a.qp;
		ibv_ack_async_event(&event);
	}
	check(cq_error && qp_fatal, "events of an overflow: %d %d", cq_error, qp_fatal);
	state_is(&a, IBV_QPS_ERR);
	for (int i = 0; i < 4; i++)
		expect(&a, i, IBV_WC_SUCCESS);
	check(ibv_start_poll(a.cq, &none) == EIO, "the overflown CQ can still be polled");
	end_close(&a);
	end_close(&b);

	pair_open(&a, &b, 4, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
	for (int i = 0; i < 6; i++)
		write_one(&a, &b, i);
	usleep(100000);
	for (int i = 2; i < 6; i++)
		expect(&a, i, IBV_WC_SUCCESS);
	state_is(&a, IBV_QPS_RTS);
	end_close(&a);
	end_close(&b);
}

/* Waits for an event of a QP; any other event is a failure. */
static void async(struct ibv_qp *qp, enum ibv_event_type type)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	if (poll(&fd, 1, 1000) != 1 || ibv_get_async_event(context, &event)) {
		check(false, "no event: %s", ibv_event_type_str(type));
		return;
	}
	check(event.event_type == type && event.element.qp == qp, "%s instead of %s",
	      ibv_event_type_str(event.event_type), ibv_event_type_str(type));
	ibv_ack_async_event(&event);
}

/* A QP in RTR has an event for its first packet. A QP in SQD ends begun requests, has an event, begins no others. */
static void states(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct ibv_qp_init_attr init;
	struct end a, b;

	end_open(&a, 64, 0);
	end_open(&b, 64, 0);
	to_rtr(&a, &b);
	to_rtr(&b, &a);
	to_rts(&a, &b);
	write_one(&a, &b, 1);
	expect(&a, 1, IBV_WC_SUCCESS);
	async(b.qp, IBV_EVENT_COMM_EST);
	to_rts(&b, &a);

	for (int i = 2; i < 6; i++)
		write_one(&a, &b, i);
	check(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), "to SQD");
	for (int i = 2; i < 6; i++)
		if (start(&a)) {
			check(a.cq->wr_id == (uint64_t)i && !a.cq->status, "%d expected, %lu completed", i,
			      (unsigned long)a.cq->wr_id);
			ibv_end_poll(a.cq);
		} else {
			/* Not begun before SQD. */
			break;
		}
	async(a.qp, IBV_EVENT_SQ_DRAINED);
	check(!ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_SQD && !attr.sq_draining,
	      "drained");
	memset(b.buf, 0, 8);
	write_one(&a, &b, 7);
	check(quiet(&a) && !b.buf[0], "a QP in SQD began something");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS };
	check(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), "back to RTS");
	while (start(&a)) {
		uint64_t wr_id = a.cq->wr_id;

		check(!a.cq->status, "%lu after SQD: %s", (unsigned long)wr_id, ibv_wc_status_str(a.cq->status));
		ibv_end_poll(a.cq);
		if (wr_id == 7)
			break;
	}
	check(b.buf[0] == 'e', "data of the request posted in SQD");
	end_close(&a);
	end_close(&b);
}

#define BATCHES 2000

struct poster {
	struct end *a, *b;
	uint64_t base;
};

static void *post_batches(void *of)
{
	struct poster *p = of;

	for (int i = 0; i < BATCHES; i++) {
		int error;

		do {
			ibv_wr_start(p->a->qpx);
			for (int half = 0; half < 2; half++) {
				next(p->a, p->base + 2 * i + half);
				ibv_wr_rdma_write(p->a->qpx, p->b->mr->rkey, (uintptr_t)p->b->buf);
				ibv_wr_set_inline_data(p->a->qpx, "t", 1);
			}
			error = ibv_wr_complete(p->a->qpx);
		} while (error == ENOMEM);
		if (error)
			die("ibv_wr_complete");
	}
	return NULL;
}

/* Batches of two threads on one QP do not mix, and none is posted in part, even if the queue is full. */
static void threads(void)
{
	struct end a, b;
	pthread_t thread[2];
	struct poster posters[2];
	uint64_t before = 0;
	bool good = true;

	pair_open(&a, &b, 64, 0);
	for (int i = 0; i < 2; i++) {
		posters[i] = (struct poster){ &a, &b, (uint64_t)(i + 1) << 32 };
		pthread_create(&thread[i], NULL, post_batches, &posters[i]);
	}
	for (int i = 0; i < 4 * BATCHES && good; i++) {
		good = start(&a);
		if (!good)
			break;
		if (i % 2)
			good &= a.cq->wr_id == before + 1;
		before = a.cq->wr_id;
		good &= !a.cq->status && before % 2 == (uint64_t)(i % 2);
		ibv_end_poll(a.cq);
	}
	check(good, "batches of two threads: wrong completion after %lx", (unsigned long)before);
	if (!good)
		exit(1);
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	end_close(&a);
	end_close(&b);
}

#define POLLED 4000

struct poller {
	struct end *end;
	int *left;
	uint8_t *seen;
};

static void *poll_all(void *of)
{
	struct poller *p = of;
	struct ibv_poll_cq_attr attr = { 0 };
	uint64_t limit = now(CLOCK_MONOTONIC) + 20000000000ull;

	while (__atomic_load_n(p->left, __ATOMIC_ACQUIRE) > 0 && now(CLOCK_MONOTONIC) < limit) {
		if (ibv_start_poll(p->end->cq, &attr))
			continue;
		do {
			/* The fields read belong to the completion that this thread has made current. */
			uint64_t wr_id = p->end->cq->wr_id;

			if (ibv_wc_read_opcode(p->end->cq) == IBV_WC_RDMA_WRITE && wr_id < POLLED)
				__atomic_add_fetch(&p->seen[wr_id], 1, __ATOMIC_RELAXED);
			__atomic_sub_fetch(p->left, 1, __ATOMIC_RELEASE);
		} while (!ibv_next_poll(p->end->cq));
		ibv_end_poll(p->end->cq);
	}
	return NULL;
}

/* Two threads poll one CQ: each completion is returned once. */
static void pollers(void)
{
	static uint8_t seen[POLLED];
	struct end a, b;
	pthread_t thread[2];
	int left = POLLED, wrong = 0;
	struct poller poller = { &a, &left, seen };

	pair_open(&a, &b, 64, 0);
	for (int i = 0; i < 2; i++)
		pthread_create(&thread[i], NULL, poll_all, &poller);
	for (int i = 0; i < POLLED; i++) {
		int error;

		do {
			ibv_wr_start(a.qpx);
			next(&a, i);
			ibv_wr_rdma_write(a.qpx, b.mr->rkey, (uintptr_t)b.buf);
			ibv_wr_set_inline_data(a.qpx, "p", 1);
			error = ibv_wr_complete(a.qpx);
		} while (error == ENOMEM);
		if (error)
			die("ibv_wr_complete");
	}
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < POLLED; i++)
		wrong += seen[i] != 1;
	check(!left && !wrong, "%d completions left, %d not returned exactly once", left, wrong);
	end_close(&a);
	end_close(&b);
}

static void refusals(void)
{
	struct ibv_cq_init_attr_ex cq = { .cqe = 4, .wc_flags = 1u << 20 };
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_RC, .pd = pd, .send_ops_flags = IBV_QP_EX_WITH_TSO };
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	struct ibv_device_attr_ex attr;
	struct ibv_cq *plain;
	struct ibv_qp_init_attr old = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp;

	errno = 0;
	check(!ibv_create_cq_ex(context, &cq) && errno == EOPNOTSUPP, "a CQ with unknown flags");
	plain = ibv_create_cq(context, 4, NULL, NULL, 0);
	init.send_cq = init.recv_cq = old.send_cq = old.recv_cq = plain;
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	check(!ibv_create_qp_ex(context, &init) && errno == EOPNOTSUPP, "a QP with TCP segmentation");
	qp = ibv_create_qp(pd, &old);
	check(qp && !ibv_qp_to_qp_ex(qp), "a QP that was not created for the builder");
	check(!ibv_destroy_qp(qp) && !ibv_destroy_cq(plain), "destroying them");
	check(!ibv_query_rt_values_ex(context, &values) && values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK, "the clock");
	check(!ibv_query_device_ex(context, NULL, &attr), "ibv_query_device_ex");
	check(attr.completion_timestamp_mask == UINT64_MAX && attr.hca_core_clock == 1000000, "clock attributes");
	check(attr.cq_mod_caps.max_cq_count == UINT16_MAX && attr.cq_mod_caps.max_cq_period == UINT16_MAX,
	      "limits of moderation");
}

int main(int argc, char **argv)
{
	context = device_open(argc > 1 ? argv[1] : NULL);
	if (!context || !(pd = ibv_alloc_pd(context)))
		die("no device");
	if (argc > 2)
		gid_index = atoi(argv[2]);
	if (ibv_query_gid(context, 1, gid_index, &gid))
		die("no GID");
	every_operation();
	abort_and_errors();
	moderation();
	overflow();
	states();
	threads();
	pollers();
	refusals();
	check(!ibv_dealloc_pd(pd) && !ibv_close_device(context), "closing");
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
