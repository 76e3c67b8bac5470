/* Datagrams, multicast groups, an SRQ, windows, device memory, domains and address handles, from every thread at
 * once. Shared objects live as long as the threads; each thread creates and destroys others. */
#ifndef THREADS_OTHERS_H
#define THREADS_OTHERS_H

#include <stdatomic.h>
#include "threads_rig.h"

enum { UD_QPS = 4, UD_GROUPS = 3, UD_QKEY = 0x77, UD_RECEIVES = 1024, UD_SIZE = 256, UD_GRH = 40, UD_DEPTH = 64 };

static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *sent, *received;
	struct ibv_srq *srq;
	struct ibv_qp *qps[UD_QPS];
	struct ibv_mr *mr;
	uint8_t *area;
	union ibv_gid gid, groups[UD_GROUPS];
	struct ibv_ah *direct, *to_group[UD_GROUPS];
	atomic_int stop;
	/* Whether each receive is posted. */
	_Atomic uint8_t receives[UD_RECEIVES];
	_Atomic uint64_t sends, done, received_count, joined, left, events, objects;
} others;

static struct ibv_qp *datagram_qp(struct ibv_cq *send, struct ibv_cq *recv)
{
	struct ibv_qp_init_attr init = { .send_cq = send, .recv_cq = recv, .srq = others.srq, .qp_type = IBV_QPT_UD,
					 .sq_sig_all = 1, .cap = { UD_DEPTH, 0, 1, 0, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = UD_QKEY };
	struct ibv_qp *qp = ibv_create_qp(others.pd, &init);
	int error = qp ? 0 : errno;

	if (!error)
		error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	attr.qp_state = IBV_QPS_RTR;
	if (!error)
		error = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	attr.qp_state = IBV_QPS_RTS;
	if (!error)
		error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
	if (error)
		die("a UD QP: %s", strerror(error));
	return qp;
}

static struct ibv_ah *datagram_ah(const union ibv_gid *to)
{
	struct ibv_ah_attr attr = { .port_num = 1, .is_global = 1, .grh = { .sgid_index = opt.gid, .hop_limit = 1 } };
	struct ibv_ah *ah;

	attr.grh.dgid = *to;
	if (!(ah = ibv_create_ah(others.pd, &attr)))
		die("ibv_create_ah: %s", strerror(errno));
	return ah;
}

static void post_shared(uint64_t *rng)
{
	int slot = draw(rng, UD_RECEIVES), error;
	struct ibv_sge sge = { (uintptr_t)others.area + slot * UD_SIZE, UD_SIZE, others.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	uint8_t expected = 0;

	if (!atomic_compare_exchange_strong(&others.receives[slot], &expected, 1))
		return;
	if ((error = ibv_post_srq_recv(others.srq, &wr, &bad))) {
		others.receives[slot] = 0;
		if (error != ENOMEM)
			die("ibv_post_srq_recv: %s", strerror(error));
	}
}

static void send_datagram(uint64_t *rng)
{
	struct ibv_qp *qp = others.qps[draw(rng, UD_QPS)];
	int length = 1 + draw(rng, UD_SIZE - UD_GRH), group = draw(rng, UD_GROUPS + 2), error;
	struct ibv_sge sge = { (uintptr_t)others.area + UD_RECEIVES * UD_SIZE, length, others.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = length, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM }, *bad;

	wr.imm_data = length;
	wr.wr.ud.ah = group < UD_GROUPS ? others.to_group[group] : others.direct;
	wr.wr.ud.remote_qpn = group < UD_GROUPS ? 0xffffff : others.qps[draw(rng, UD_QPS)]->qp_num;
	wr.wr.ud.remote_qkey = UD_QKEY;
	if ((error = ibv_post_send(qp, &wr, &bad)) && error != ENOMEM)
		die("ibv_post_send: %s", strerror(error));
	if (!error)
		atomic_fetch_add(&others.sends, 1);
}

static void poll_datagrams(void)
{
	struct ibv_wc wcs[16];
	int n;

	if ((n = ibv_poll_cq(others.sent, 16, wcs)) < 0)
		die("ibv_poll_cq: %d", n);
	for (int i = 0; i < n; i++)
		if (wcs[i].status != IBV_WC_SUCCESS)
			die("a send ended with %s", ibv_wc_status_str(wcs[i].status));
	atomic_fetch_add(&others.done, n);
	if ((n = ibv_poll_cq(others.received, 16, wcs)) < 0)
		die("ibv_poll_cq: %d", n);
	for (int i = 0; i < n; i++) {
		if (wcs[i].status != IBV_WC_SUCCESS || wcs[i].byte_len != UD_GRH + wcs[i].imm_data)
			die("a receive of %u bytes, not %u: %s", wcs[i].byte_len, UD_GRH + wcs[i].imm_data,
			    ibv_wc_status_str(wcs[i].status));
		if (wcs[i].wr_id >= UD_RECEIVES || atomic_exchange(&others.receives[wcs[i].wr_id], 0) != 1)
			die("a second completion of receive %" PRIu64, wcs[i].wr_id);
	}
	atomic_fetch_add(&others.received_count, n);
}

static void join_or_leave(uint64_t *rng)
{
	struct ibv_qp *qp = others.qps[draw(rng, UD_QPS)];
	union ibv_gid *group = &others.groups[draw(rng, UD_GROUPS)];
	int error;

	if (draw(rng, 2)) {
		if ((error = ibv_attach_mcast(qp, group, 0)))
			die("ibv_attach_mcast: %s", strerror(error));
		atomic_fetch_add(&others.joined, 1);
	} else {
		/* The QP may not be attached. */
		if ((error = ibv_detach_mcast(qp, group, 0)) && error != EINVAL)
			die("ibv_detach_mcast: %s", strerror(error));
		atomic_fetch_add(&others.left, !error);
	}
}

static void change_shared(uint64_t *rng)
{
	struct ibv_srq_attr attr = { .max_wr = UD_RECEIVES / 2 + draw(rng, UD_RECEIVES), .srq_limit = draw(rng, 64) };
	struct pollfd fd = { .fd = others.context->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	int error = ibv_modify_srq(others.srq, &attr, draw(rng, 2) ? IBV_SRQ_LIMIT : IBV_SRQ_MAX_WR);

	/* EINVAL: more receives may be posted than the new size. */
	if ((error && error != EINVAL) || ibv_query_srq(others.srq, &attr))
		die("ibv_modify_srq: %s", strerror(error));
	if (poll(&fd, 1, 0) == 1 && !ibv_get_async_event(others.context, &event)) {
		if (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED || event.element.srq != others.srq)
			die("event %s", ibv_event_type_str(event.event_type));
		ibv_ack_async_event(&event);
		atomic_fetch_add(&others.events, 1);
	}
}

/* Creates and destroys objects in one thread. */
static void brief_objects(uint64_t *rng)
{
	struct ibv_parent_domain_init_attr parent_attr = { .pd = others.pd };
	struct ibv_alloc_dm_attr dm_attr = { .length = 256 };
	struct ibv_mw *mw = ibv_alloc_mw(others.pd, IBV_MW_TYPE_1 + draw(rng, 2));
	struct ibv_ah *ah = datagram_ah(&others.gid);
	struct ibv_pd *parent = ibv_alloc_parent_domain(others.context, &parent_attr);
	struct ibv_dm *dm = ibv_alloc_dm(others.context, &dm_attr);
	struct ibv_cq *cq = ibv_create_cq(others.context, 8, NULL, NULL, 0);
	struct ibv_qp *qp = datagram_qp(cq, others.received);
	/* A group without senders, because a QP that is destroyed takes its completions with it. */
	union ibv_gid quiet = others.groups[0];
	uint64_t word = 5;

	if (!mw || !ah || !parent || !cq)
		die("cannot create objects: %s", strerror(errno));
	quiet.raw[15] = 200 + draw(rng, 2);
	if (ibv_attach_mcast(qp, &quiet, 0) || ibv_destroy_qp(qp) != EBUSY || ibv_detach_mcast(qp, &quiet, 0) ||
	    ibv_destroy_qp(qp))
		die("a briefly attached QP: %s", strerror(errno));
	/* NULL is possible: the amount of device memory is limited. */
	if (dm && (ibv_memcpy_to_dm(dm, 8, &word, 8) || ibv_memcpy_from_dm(&word, dm, 8, 8) || word != 5 || ibv_free_dm(dm)))
		die("device memory");
	if (ibv_destroy_cq(cq) || ibv_dealloc_mw(mw) || ibv_destroy_ah(ah) || ibv_dealloc_pd(parent))
		die("cannot destroy objects: %s", strerror(errno));
	atomic_fetch_add(&others.objects, 1);
}

static void *any_other(void *argument)
{
	uint64_t rng = opt.seed ^ (uint64_t)(uintptr_t)argument << 40;

	while (!others.stop) {
		int what = draw(&rng, 1000);

		if (what < 2)
			brief_objects(&rng);
		else if (what < 10)
			join_or_leave(&rng);
		else if (what < 20)
			change_shared(&rng);
		else if (what < 400)
			post_shared(&rng);
		else if (what < 600)
			send_datagram(&rng);
		else
			poll_datagrams();
	}
	return NULL;
}

static void others_open(void)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = UD_RECEIVES, .max_sge = 1 } };
	size_t bytes = (UD_RECEIVES + 1) * UD_SIZE;

	others.context = open_device();
	others.pd = ibv_alloc_pd(others.context);
	others.sent = ibv_create_cq(others.context, 2 * UD_QPS * UD_DEPTH, NULL, NULL, 0);
	others.received = ibv_create_cq(others.context, 4 * UD_RECEIVES, NULL, NULL, 0);
	others.area = aligned_alloc(4096, (bytes + 4095) & ~4095ul);
	others.mr = ibv_reg_mr(others.pd, others.area, bytes, IBV_ACCESS_LOCAL_WRITE);
	others.srq = ibv_create_srq(others.pd, &srq);
	if (!others.srq || !others.mr || !others.sent || !others.received || ibv_query_gid(others.context, 1, opt.gid, &others.gid))
		die("cannot use the device: %s", strerror(errno));
	fcntl(others.context->async_fd, F_SETFL, O_NONBLOCK);
	for (int i = 0; i < UD_GROUPS; i++) {
		static const uint8_t mapped[16] = { [10] = 0xff, [11] = 0xff, [12] = 239, [13] = 77, [14] = 2 };

		memcpy(others.groups[i].raw, mapped, 16);
		others.groups[i].raw[15] = i;
		others.to_group[i] = datagram_ah(&others.groups[i]);
	}
	others.direct = datagram_ah(&others.gid);
	for (int i = 0; i < UD_QPS; i++)
		others.qps[i] = datagram_qp(others.sent, others.received);
}

static void others_close(void)
{
	double end = now() + 10;

	while (others.done != others.sends && now() < end)
		poll_datagrams();
	if (others.done != others.sends)
		die("%" PRIu64 " of %" PRIu64 " sends completed", others.done, others.sends);
	for (int i = 0; i < UD_QPS; i++) {
		for (int k = 0; k < UD_GROUPS; k++)
			ibv_detach_mcast(others.qps[i], &others.groups[k], 0);
		if (ibv_destroy_qp(others.qps[i]))
			die("ibv_destroy_qp: %s", strerror(errno));
	}
	for (int i = 0; i < UD_GROUPS; i++)
		ibv_destroy_ah(others.to_group[i]);
	if (ibv_destroy_ah(others.direct) || ibv_destroy_srq(others.srq) || ibv_destroy_cq(others.sent) ||
	    ibv_destroy_cq(others.received) || ibv_dereg_mr(others.mr) || ibv_dealloc_pd(others.pd) ||
	    ibv_close_device(others.context))
		die("cannot close: %s", strerror(errno));
}

static int all_others(void)
{
	pthread_t threads[MAX_THREADS];

	watch(opt.seconds + 60);
	others_open();
	for (uintptr_t i = 0; i < (uintptr_t)opt.threads; i++)
		pthread_create(&threads[i], NULL, any_other, (void *)(i + 1));
	sleep(opt.seconds);
	others.stop = 1;
	for (int i = 0; i < opt.threads; i++)
		pthread_join(threads[i], NULL);
	others_close();
	if (!others.received_count || !others.joined || !others.left || !others.objects)
		die("some operations never happened");
	printf("%d threads: %" PRIu64 " datagrams sent, %" PRIu64 " received, groups joined %" PRIu64 " times and left %" PRIu64
	       ", %" PRIu64 " limit events, %" PRIu64 " brief objects\n",
	       opt.threads, others.sends, others.received_count, others.joined, others.left, others.events, others.objects);
	return 0;
}

#endif
