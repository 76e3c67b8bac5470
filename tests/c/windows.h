/* Memory windows of both types: the access that they open, the QPs that may use it, and their invalidation. */
#ifndef WINDOWS_H
#define WINDOWS_H

#include "memory.h"

/* The server's window, with its region. */
struct window {
	struct ibv_mr *mr;
	struct ibv_mw *mw;
};

#define OPEN_AT 1000
#define OPEN_LEN 500
/* Where a message with invalidate goes: several packets. */
#define MESSAGE_AT 2000
#define MESSAGE_LEN 5000

/* How a window is invalidated: by its owner, by the peer's SEND of no byte, by one of several packets. */
enum { BY_OWNER, BY_EMPTY_SEND, BY_LONG_SEND };

static inline struct ibv_mw_bind_info part(struct window *w, size_t offset, size_t len)
{
	return (struct ibv_mw_bind_info){ w->mr, (uintptr_t)rig.target.at + offset, len, IBV_ACCESS_REMOTE_WRITE };
}

/* Binds by ibv_bind_mw, on any QP of the PD. */
static inline void bind_by_verb(struct conn *c, struct window *w, size_t offset, size_t len, const char *what)
{
	struct ibv_mw_bind bind = { .wr_id = 3, .send_flags = IBV_SEND_SIGNALED, .bind_info = part(w, offset, len) };
	uint32_t before = w->mw->rkey;
	int error = ibv_bind_mw(c->qp, w->mw, &bind);

	check(!error && w->mw->rkey == ibv_inc_rkey(before), "%s: ibv_bind_mw: %s", what, strerror(error));
	expect(c->send_cq, 3, IBV_WC_SUCCESS, IBV_WC_BIND_MW, what);
}

/* Binds by work request; after success the window has the request's rkey. */
static inline void bind_by_request(struct conn *c, struct window *w, size_t offset, size_t len,
				   enum ibv_wc_status status, const char *what)
{
	struct ibv_send_wr wr = { .wr_id = 4, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };

	wr.bind_mw.mw = w->mw;
	wr.bind_mw.rkey = ibv_inc_rkey(w->mw->rkey);
	wr.bind_mw.bind_info = part(w, offset, len);
	post_send(c, &wr, what);
	expect(c->send_cq, 4, status, IBV_WC_BIND_MW, what);
	if (status == IBV_WC_SUCCESS)
		w->mw->rkey = wr.bind_mw.rkey;
}

/* The client's WRITE through the server's window, on this connection. */
static inline void write_through(struct conn *c, struct window *w, enum ibv_wc_status status, const char *what)
{
	struct { uint64_t to, rkey; } mine = { (uintptr_t)rig.target.at + OPEN_AT, w->mw->rkey }, theirs;

	exchange(&mine, &theirs, sizeof(mine));
	if (client) {
		struct ibv_sge data = sge(&rig.source, 0, OPEN_LEN);
		struct ibv_send_wr wr = write_wr(&data, theirs.to, theirs.rkey);

		pattern(rig.source.at, OPEN_LEN, 61);
		if (status == IBV_WC_SUCCESS)
			succeeds(c, &wr, IBV_WC_RDMA_WRITE, what);
		else
			fails_with(c, &wr, status, what);
	} else if (status != IBV_WC_SUCCESS) {
		expect_async(c, IBV_EVENT_QP_ACCESS_ERR, what);
	}
	barrier();
	if (!client) {
		if (status == IBV_WC_SUCCESS)
			pattern(rig.target.expected + OPEN_AT, OPEN_LEN, 61);
		compare(&rig.target, 4096, what);
		background(&rig.target, 4096, 62);
	}
	barrier();
}

static inline void type_1(struct conn *c, struct window *w)
{
	const uintptr_t at = (uintptr_t)rig.target.at;

	if (!client)
		bind_by_verb(c, w, OPEN_AT, OPEN_LEN, "a window of type 1");
	probe(at + OPEN_AT, w->mw->rkey, IBV_WC_SUCCESS, "the first bytes of a window");
	probe(at + OPEN_AT - 1, w->mw->rkey, IBV_WC_REM_ACCESS_ERR, "a byte before a window");
	probe(at + OPEN_AT + OPEN_LEN - 99, w->mw->rkey, IBV_WC_REM_ACCESS_ERR, "a byte after a window");
	probe(at + OPEN_AT, w->mr->rkey, IBV_WC_REM_ACCESS_ERR, "the region of a window");
	if (!client) {
		check(ibv_dereg_mr(w->mr) != 0, "a region with a window cannot be deregistered");
		bind_by_verb(c, w, 2000, 100, "a window that is bound again");
	}
	probe(at + OPEN_AT, w->mw->rkey, IBV_WC_REM_ACCESS_ERR, "the old range of a window");
	probe(at + 2000, w->mw->rkey, IBV_WC_SUCCESS, "the new range of a window");
	if (!client)
		bind_by_verb(c, w, 0, 0, "a window bound with length 0");
	probe(at + 2000, w->mw->rkey, IBV_WC_REM_ACCESS_ERR, "the range of an invalidated window");
}

static inline void type_2(struct conn *unused, struct window *w)
{
	struct conn c;

	(void)unused;
	for (int how = BY_OWNER; how <= BY_LONG_SEND; how++) {
		const size_t len = how == BY_LONG_SEND ? MESSAGE_LEN : 0;
		struct ibv_sge data = sge(client ? &rig.source : &rig.target, MESSAGE_AT, len);
		uint32_t theirs;

		conn_open(&c, &default_options);
		background(&rig.target, 8192, 62);
		if (!client)
			bind_by_request(&c, w, OPEN_AT, OPEN_LEN, IBV_WC_SUCCESS, "a window of type 2");
		write_through(&c, w, IBV_WC_SUCCESS, "a WRITE through a window of type 2");
		probe((uintptr_t)rig.target.at + OPEN_AT, w->mw->rkey, IBV_WC_REM_ACCESS_ERR, "another QP");
		if (!client && how != BY_OWNER)
			post_recv(&c, 5, &data, len != 0, "a message with invalidate");
		exchange(&w->mw->rkey, &theirs, sizeof(theirs));
		if (client && how != BY_OWNER) {
			struct ibv_send_wr wr = { .sg_list = &data, .num_sge = len != 0, .opcode = IBV_WR_SEND_WITH_INV,
						  .invalidate_rkey = theirs };

			pattern(rig.source.at + MESSAGE_AT, len, 63);
			succeeds(&c, &wr, IBV_WC_SEND, "SEND with invalidate");
		} else if (!client && how != BY_OWNER) {
			struct ibv_wc wc = expect(c.recv_cq, 5, IBV_WC_SUCCESS, IBV_WC_RECV, "invalidated");

			check(wc.byte_len == len, "a message with invalidate has %u bytes", wc.byte_len);
			pattern(rig.target.expected + MESSAGE_AT, len, 63);
			compare(&rig.target, 8192, "a message with invalidate");
			check(wc.wc_flags & IBV_WC_WITH_INV, "a message with invalidate has the flags %x", wc.wc_flags);
			check(wc.invalidated_rkey == w->mw->rkey, "invalidated rkey");
		} else if (!client) {
			struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = w->mw->rkey };

			succeeds(&c, &wr, IBV_WC_LOCAL_INV, "local invalidate");
		}
		barrier();
		write_through(&c, w, IBV_WC_REM_ACCESS_ERR, "a WRITE through an invalidated window");
		conn_close(&c);
	}
	conn_open(&c, &default_options);
	if (!client)
		bind_by_request(&c, w, rig.size - 100, 101, IBV_WC_MW_BIND_ERR, "a window beyond its region");
	conn_close(&c);
}

/* Runs a test with a window of this type and its region, if both sides have windows. */
static inline void with_window(struct conn *c, enum ibv_mw_type type, void (*test)(struct conn *, struct window *))
{
	const int caps = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	struct window w;

	if (!both_have((rig.attr.device_cap_flags & caps) == caps))
		return;
	background(&rig.target, 8192, 62);
	w.mr = ibv_reg_mr(rig.pd, rig.target.at, rig.size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	w.mw = ibv_alloc_mw(rig.pd, type);
	if (!w.mr || !w.mw)
		die("a window and its region: %s", strerror(errno));
	test(c, &w);
	check(!ibv_dealloc_mw(w.mw), "ibv_dealloc_mw");
	check(!ibv_dereg_mr(w.mr), "ibv_dereg_mr after the window");
}

static inline void windows_1(struct conn *c)
{
	with_window(c, IBV_MW_TYPE_1, type_1);
}

static inline void windows_2(struct conn *c)
{
	with_window(c, IBV_MW_TYPE_2, type_2);
}

#endif
