/* Each completion status with which RC can fail. Every case has its own connection. */
#ifndef FAULTS_H
#define FAULTS_H

#include "data.h"

/* Posts the client's work request, which must fail, and another one, which must be flushed. */
static inline void fails_with(struct conn *c, struct ibv_send_wr *wr, enum ibv_wc_status status, const char *what)
{
	struct ibv_sge data = sge(&rig.source, 4096, 8);
	struct ibv_send_wr after = { .wr_id = 2, .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_SEND };

	struct ibv_wc wc;

	wr->wr_id = 1;
	post_send(c, wr, what);
	wc = next(c->send_cq, what);
	if (opt.lossy && wc.status == IBV_WC_RETRY_EXC_ERR)
		status = wc.status;
	check(wc.wr_id == 1 && wc.status == status, "%s: WR %" PRIu64 ", %s; should be WR 1, %s", what, wc.wr_id,
	      ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
	post_send(c, &after, what);
	expect(c->send_cq, 2, IBV_WC_WR_FLUSH_ERR, 0, what);
}

struct remote {
	const char *name;
	enum ibv_wr_opcode opcode;
	size_t len;
	int64_t offset;
	uint32_t rkey_flip;
	/* Selects the server's region: 0 has all rights, 1 has no remote rights. */
	int local_only;
	enum ibv_wc_status status;
};

/* A request that the server's memory does not allow fails and leaves the memory unchanged. */
static inline void remote_faults(struct conn *unused)
{
	const size_t end = rig.size;
	const struct remote list[] = {
		{ "a WRITE with a wrong rkey", IBV_WR_RDMA_WRITE, 100, 4096, 0x5500, 0, IBV_WC_REM_ACCESS_ERR },
		{ "a long WRITE with a wrong rkey", IBV_WR_RDMA_WRITE, 8192, 4096, 0x5500, 0, IBV_WC_REM_ACCESS_ERR },
		{ "a READ with a wrong rkey", IBV_WR_RDMA_READ, 100, 4096, 0x5500, 0, IBV_WC_REM_ACCESS_ERR },
		{ "a WRITE over the end", IBV_WR_RDMA_WRITE, 8192, end - 8191, 0, 0, IBV_WC_REM_ACCESS_ERR },
		{ "a WRITE before the beginning", IBV_WR_RDMA_WRITE, 100, -1, 0, 0, IBV_WC_REM_ACCESS_ERR },
		{ "a READ over the end", IBV_WR_RDMA_READ, 8192, end - 8191, 0, 0, IBV_WC_REM_ACCESS_ERR },
		{ "a WRITE without remote write access", IBV_WR_RDMA_WRITE, 100, 4096, 0, 1, IBV_WC_REM_ACCESS_ERR },
		{ "a READ without remote read access", IBV_WR_RDMA_READ, 100, 4096, 0, 1, IBV_WC_REM_ACCESS_ERR },
		{ "an atomic without remote atomic access", IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 4096, 0, 1, IBV_WC_REM_ACCESS_ERR },
		{ "an unaligned atomic", IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 4097, 0, 0, IBV_WC_REM_INV_REQ_ERR },
	};
	struct ibv_mr *local_only = ibv_reg_mr(rig.pd, rig.target.at, rig.size, IBV_ACCESS_LOCAL_WRITE);
	uint32_t mine = local_only ? local_only->rkey : 0, theirs;

	(void)unused;
	check(local_only != NULL, "ibv_reg_mr of the same memory again");
	exchange(&mine, &theirs, sizeof(mine));
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
		const struct remote *r = &list[i];
		struct conn c;

		if (r->len == 8 && rig.attr.atomic_cap == IBV_ATOMIC_NONE)
			continue;
		/* An implicit region covers all addresses, so there is no access out of bounds. */
		if (opt.demand == IMPLICIT && (r->offset < 0 || r->offset + r->len > end))
			continue;
		conn_open(&c, &default_options);
		background(&rig.target, rig.size, 21);
		barrier();
		if (client) {
			struct ibv_sge data = sge(&rig.source, 4096, r->len);
			struct ibv_send_wr wr = { .sg_list = &data, .num_sge = 1, .opcode = r->opcode };
			uint32_t rkey = (r->local_only ? theirs : rig.far.target_rkey) ^ r->rkey_flip;

			if (r->len == 8) {
				wr.wr.atomic.remote_addr = rig.far.target + r->offset;
				wr.wr.atomic.rkey = rkey;
				wr.wr.atomic.compare_add = 1;
			} else {
				wr.wr.rdma.remote_addr = rig.far.target + r->offset;
				wr.wr.rdma.rkey = rkey;
			}
			fails_with(&c, &wr, r->status, r->name);
		} else {
			expect_async(&c, r->status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR,
				     r->name);
		}
		barrier();
		compare(&rig.target, rig.size, r->name);
		conn_close(&c);
	}
	check(!local_only || !ibv_dereg_mr(local_only), "ibv_dereg_mr");
}

/* Requests that the client's own memory does not allow. */
static inline void local_faults(struct conn *unused)
{
	struct ibv_mr *read_only = ibv_reg_mr(rig.pd, rig.target.at, rig.size, IBV_ACCESS_REMOTE_READ);

	(void)unused;
	check(read_only != NULL, "ibv_reg_mr for reading");
	for (int i = 0; i < 4; i++) {
		struct conn c;

		if (opt.demand == IMPLICIT && i == 1)
			continue;
		conn_open(&c, &default_options);
		background(&rig.target, rig.size, 22);
		barrier();
		if (client) {
			struct ibv_sge data = sge(i == 3 ? &rig.target : &rig.source, 4096, 100);
			struct ibv_send_wr wr = { .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };

			wr.wr.rdma.remote_addr = rig.far.target + 4096;
			wr.wr.rdma.rkey = rig.far.target_rkey;
			if (i == 0) {
				data.lkey ^= 0x5500;
			} else if (i == 1) {
				data.addr = (uintptr_t)rig.source.at + rig.size - 99;
			} else if (i == 2) {
				wr.opcode = IBV_WR_SEND;
				data.lkey ^= 0x5500;
			} else {
				wr.opcode = IBV_WR_RDMA_READ;
				wr.wr.rdma.remote_addr = rig.far.source + 4096;
				wr.wr.rdma.rkey = rig.far.source_rkey;
				data.lkey = read_only ? read_only->lkey : 0;
			}
			fails_with(&c, &wr, IBV_WC_LOC_PROT_ERR,
				   i == 0	 ? "a WRITE with a wrong lkey" :
				   i == 1	 ? "a WRITE from beyond the end" :
				   i == 2	 ? "a SEND with a wrong lkey" :
						   "a READ to memory without local write access");
		}
		barrier();
		compare(&rig.target, rig.size, "memory after a fault");
		conn_close(&c);
	}
	check(!read_only || !ibv_dereg_mr(read_only), "ibv_dereg_mr");
}

/* A message longer than the receive: both sides get an error, and no byte beyond the receive changes. */
static inline void too_long(struct conn *unused)
{
	static const size_t list[][2] = { { 101, 100 }, { 1, 0 }, { 5000, 4999 }, { 20000, 5000 } };

	(void)unused;
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]) && list[i][0] <= opt.max; i++) {
		struct conn c;
		struct ibv_sge data = client ? sge(&rig.source, 4096, list[i][0]) : sge(&rig.target, 4096, list[i][1]);

		conn_open(&c, &default_options);
		background(&rig.target, rig.size, 23);
		if (!client)
			post_recv(&c, 5, &data, list[i][1] != 0, "too long");
		barrier();
		if (client) {
			struct ibv_send_wr wr = { .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_SEND };

			fails_with(&c, &wr, IBV_WC_REM_INV_REQ_ERR, "a SEND that is too long");
		} else {
			expect(c.recv_cq, 5, IBV_WC_LOC_LEN_ERR, 0, "a receive that is too short");
			memcpy(rig.target.expected + 4096, rig.target.at + 4096, list[i][1]);
			compare(&rig.target, rig.size, "memory around a receive that is too short");
		}
		conn_close(&c);
	}
}

/* Without a receive the sender fails after rnr_retry retries; with 7 it waits until there is a receive. */
static inline void receiver_not_ready(struct conn *unused)
{
	struct conn_options options = default_options;
	struct conn c;
	struct ibv_sge data = client ? sge(&rig.source, 4096, 64) : sge(&rig.target, 4096, 64);
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED };

	(void)unused;
	options.rnr_retry = 3;
	conn_open(&c, &options);
	if (client) {
		double begin = now();

		fails_with(&c, &wr, IBV_WC_RNR_RETRY_EXC_ERR, "a SEND without a receive");
		/* Timer code 12 is 0.64 ms; the sender waits three times. */
		check(now() - begin > 3 * 0.00064, "RNR retries took only %.2f ms", (now() - begin) * 1e3);
	}
	conn_close(&c);

	conn_open(&c, &default_options);
	if (client) {
		wr.wr_id = 1;
		post_send(&c, &wr, "RNR");
	}
	usleep(50000);
	if (!client)
		post_recv(&c, 9, &data, 1, "RNR");
	if (client)
		expect(c.send_cq, 1, IBV_WC_SUCCESS, IBV_WC_SEND, "a SEND with a late receive");
	else
		expect(c.recv_cq, 9, IBV_WC_SUCCESS, IBV_WC_RECV, "a late receive");
	conn_close(&c);
}

/* A QP without replies from its peer fails after retry_cnt timeouts. */
static inline void silent_peer(struct conn *unused)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct conn_options options = default_options;
	struct conn c;

	(void)unused;
	options.timeout = 12;
	options.retry_cnt = 2;
	conn_open(&c, &options);
	if (!client)
		check(!ibv_modify_qp(c.into, &attr, IBV_QP_STATE), "RTS to RESET");
	barrier();
	if (client) {
		struct ibv_sge data = sge(&rig.source, 4096, 64);
		struct ibv_send_wr wr = { .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
		double begin = now();

		wr.wr.rdma.remote_addr = rig.far.target + 4096;
		wr.wr.rdma.rkey = rig.far.target_rkey;
		fails_with(&c, &wr, IBV_WC_RETRY_EXC_ERR, "a WRITE to a QP that does not reply");
		/* IBTA 9.7.6.1.3: each of three tries waits for at least T_tr. */
		check(now() - begin > 3 * 4096 * 4.096e-6, "retries took only %.1f ms", (now() - begin) * 1e3);
	}
	conn_close(&c);
}

#endif
