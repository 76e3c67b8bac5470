/* Work queues: unsignalled runs, full queues, states, flushing. */
#ifndef QUEUES_H
#define QUEUES_H

#include "rig.h"

/* Only signalled work requests complete, in order, and free the WQE slots of the requests before them. */
static inline void unsignalled_runs(struct conn *c)
{
	int mine = c->cap.max_send_wr < 48 ? c->cap.max_send_wr : 48, theirs, run;
	size_t at = 4096;

	exchange(&mine, &theirs, sizeof(mine));
	run = client ? mine : theirs;
	background(&rig.source, at + 8 * run * 20 + MARGIN, 11);
	background(&rig.target, at + 8 * run * 20 + MARGIN, 12);
	if (!client)
		pattern(rig.source.at, at + 8 * run * 20 + MARGIN, ~11ul);
	memcpy(rig.target.expected + at, rig.source.at + at, 8 * run * 20);
	barrier();
	for (int round = 0; client && round < 20; round++) {
		for (int i = 0; i < run; i++) {
			struct ibv_sge from = sge(&rig.source, at + 8 * (round * run + i), 8);
			struct ibv_send_wr wr = { .wr_id = round * run + i, .sg_list = &from, .num_sge = 1,
						  .opcode = IBV_WR_RDMA_WRITE };

			wr.send_flags = i == run - 1 ? IBV_SEND_SIGNALED : 0;
			wr.wr.rdma.remote_addr = rig.far.target + at + 8 * (round * run + i);
			wr.wr.rdma.rkey = rig.far.target_rkey;
			post_send(c, &wr, "unsignalled run");
		}
		expect(c->send_cq, round * run + run - 1, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, "unsignalled run");
		check(is_empty(c->send_cq), "an unsignalled work request completed");
	}
	barrier();
	if (!client)
		compare(&rig.target, at + 8 * run * 20 + MARGIN, "unsignalled run");
	barrier();
}

/* One request more than `max_send_wr` or `max_recv_wr`: ENOMEM, and `bad_wr` points to that request. */
static inline void full_queues(struct conn *unused)
{
	struct conn_options options = default_options;
	struct conn c;
	uint32_t room, recvs = 0;

	(void)unused;
	options.send_wr = 16;
	options.recv_wr = 24;
	conn_open(&c, &options);
	if (client) {
		struct ibv_send_wr *bad = NULL, *list;
		struct ibv_sge from = sge(&rig.source, 4096, 16);

		room = c.cap.max_send_wr;
		list = calloc(room + 3, sizeof(*list));
		for (uint32_t i = 0; i < room + 3; i++) {
			list[i] = (struct ibv_send_wr){ .wr_id = i, .next = i < room + 2 ? &list[i + 1] : NULL,
							.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
							.send_flags = IBV_SEND_SIGNALED };
			list[i].wr.rdma.remote_addr = rig.far.target + 4096;
			list[i].wr.rdma.rkey = rig.far.target_rkey;
		}
		/* A WQE slot is freed when its completion is polled, so the queue stays full even if requests have
		 * been sent. */
		check(ibv_post_send(c.qp, list, &bad) == ENOMEM, "a full send queue accepted a request");
		check(bad == &list[room], "bad_wr of a full send queue is %td, not %u", bad ? bad - list : -1, room);
		expect(c.send_cq, 0, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, "full send queue");
		check(ibv_post_send(c.qp, &list[room], &bad) == ENOMEM && bad == &list[room + 1],
		      "a send queue with one free slot did not accept exactly one request");
		for (uint32_t i = 1; i <= room; i++)
			expect(c.send_cq, i, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, "full send queue");
		check(is_empty(c.send_cq), "a refused work request completed");
		free(list);
	} else {
		struct ibv_sge to = sge(&rig.target, 4096, 16);
		struct ibv_recv_wr wr = { .sg_list = &to, .num_sge = 1 }, *bad = NULL;
		int error = 0;

		while (recvs <= c.cap.max_recv_wr && !(error = ibv_post_recv(c.qp, &wr, &bad)))
			recvs++;
		check(error == ENOMEM && recvs == c.cap.max_recv_wr && bad == &wr,
		      "a receive queue for %u accepted %u, then %s", c.cap.max_recv_wr, recvs, strerror(error));
	}
	conn_close(&c);
}

/* Transitions that a QP refuses before it is connected, and objects that are in use. */
static inline void states(struct conn *unused)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	struct ibv_qp_init_attr init;
	struct conn c;

	(void)unused;
	conn_make(&c, &default_options);
	check(ibv_modify_qp(c.qp, &attr, IBV_QP_STATE) == EINVAL, "RESET to RTS was possible");
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 1;
	check(ibv_modify_qp(c.qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == EINVAL, "INIT without access flags was possible");
	check(!to_init(c.qp), "RESET to INIT");
	check(!ibv_query_qp(c.qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_INIT &&
		      init.cap.max_send_wr == c.cap.max_send_wr && init.send_cq == c.send_cq,
	      "ibv_query_qp: state %d", attr.qp_state);
	attr.qp_state = IBV_QPS_RTR;
	check(ibv_modify_qp(c.qp, &attr, IBV_QP_STATE) == EINVAL, "RTR without attributes was possible");
	check(ibv_destroy_cq(c.send_cq) == EBUSY, "a CQ with a QP was destroyed");
	check(ibv_dealloc_pd(rig.pd) == EBUSY, "a PD with a QP was freed");
	conn_close(&c);
}

/* ERROR flushes queued requests in order, and requests posted later. */
static inline void flushed(struct conn *unused)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct conn c;
	struct ibv_sge data = sge(&rig.target, 4096, 16);
	struct ibv_send_wr wr = { .wr_id = 77, .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_SEND };

	(void)unused;
	conn_open(&c, &default_options);
	for (int i = 0; i < 10; i++)
		post_recv(&c, i, &data, 1, "flush");
	barrier();
	check(!ibv_modify_qp(c.qp, &attr, IBV_QP_STATE), "RTS to ERROR");
	for (int i = 0; i < 10; i++)
		expect(c.recv_cq, i, IBV_WC_WR_FLUSH_ERR, 0, "flushed receive");
	/* Also unsignalled requests: an error always completes. */
	post_send(&c, &wr, "flush");
	expect(c.send_cq, 77, IBV_WC_WR_FLUSH_ERR, 0, "send in ERROR");
	post_recv(&c, 78, &data, 1, "flush");
	expect(c.recv_cq, 78, IBV_WC_WR_FLUSH_ERR, 0, "receive in ERROR");
	attr.qp_state = IBV_QPS_RESET;
	check(!ibv_modify_qp(c.qp, &attr, IBV_QP_STATE) && !to_init(c.qp), "ERROR to RESET to INIT");
	check(is_empty(c.send_cq) && is_empty(c.recv_cq), "completions after RESET");
	conn_close(&c);
}

#endif
