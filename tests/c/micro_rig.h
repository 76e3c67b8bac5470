/* The micro-benchmark's memory, completion queue and QPs. */
#ifndef MICRO_RIG_H
#define MICRO_RIG_H

#include "micro_job.h"

static struct micro {
	uint8_t *at;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	int cqe;
	/* Work requests that each QP can hold, and the number outstanding on each. */
	uint32_t depth, *outstanding;
	/* One for each of num_qps, followed by `extra` ones. */
	struct ibv_qp **qps;
	uint32_t all_qps, extra;
	uint64_t far_at;
	uint32_t far_rkey;
	uint32_t *far_qps;
} micro;

/* The QP for operations issued again. The last of all QPs touches pages beforehand. */
static inline uint32_t spare_qp(void)
{
	return job.num_qps;
}

/* NULL if the device has the on-demand paging that this side needs; otherwise an error with what to do. */
static inline const char *odp_wrong(void)
{
	static char why[400];
	static const struct { uint32_t client, server; } needs[] = {
		[READ] = { IBV_ODP_SUPPORT_READ, IBV_ODP_SUPPORT_READ },
		[WRITE] = { IBV_ODP_SUPPORT_WRITE, IBV_ODP_SUPPORT_WRITE },
		[SEND] = { IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_RECV },
	};
	struct ibv_device_attr_ex attr;
	uint32_t has, wanted[] = { job.operation, job.num_ops > 1 ? job.second : job.operation };

	if (!(job.odp & (client ? ON_CLIENT : ON_SERVER)))
		return NULL;
	memset(&attr, 0, sizeof(attr));
	if (ibv_query_device_ex(rig.context, NULL, &attr) || !(attr.odp_caps.general_caps & IBV_ODP_SUPPORT)) {
		snprintf(why, sizeof(why),
			 "%s has no on-demand paging. Take another with --device (`ibv_devinfo -v` shows odp_caps), another "
			 "--profile under Weir, or --odp none",
			 ibv_get_device_name(rig.context->device));
		return why;
	}
	has = attr.odp_caps.per_transport_caps.rc_odp_caps;
	for (int i = 0; i < 2; i++) {
		uint32_t bit = client ? needs[wanted[i]].client : needs[wanted[i]].server;

		if (!(has & bit)) {
			snprintf(why, sizeof(why), "%s has on-demand paging, but not for %s over RC: take another --operation",
				 ibv_get_device_name(rig.context->device), kind_name[wanted[i]]);
			return why;
		}
	}
	return NULL;
}

/* New pages of 4096 bytes, none of them present. */
static inline void memory_open(void)
{
	struct { uint64_t at; uint32_t rkey, unused; } mine = { 0 }, theirs;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	micro.at = mmap(NULL, all_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (micro.at == MAP_FAILED)
		die("no memory for %" PRIu64 " bytes", all_bytes());
	madvise(micro.at, all_bytes(), MADV_NOHUGEPAGE);
	if (job.odp & (client ? ON_CLIENT : ON_SERVER))
		access |= IBV_ACCESS_ON_DEMAND;
	micro.mr = ibv_reg_mr(rig.pd, micro.at, all_bytes(), access);
	if (!micro.mr)
		die("ibv_reg_mr of %" PRIu64 " bytes: %s", all_bytes(), strerror(errno));
	mine.at = (uintptr_t)micro.at;
	mine.rkey = micro.mr->rkey;
	exchange(&mine, &theirs, sizeof(mine));
	micro.far_at = theirs.at;
	micro.far_rkey = theirs.rkey;
}

/* With as many work requests as in the papers, or as the adapter allows. */
static inline struct ibv_qp *qp_make(void)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .send_cq = micro.cq, .recv_cq = micro.cq };
	struct ibv_qp *qp;

	do {
		init.cap = (struct ibv_qp_cap){ micro.depth, micro.depth, 1, 1, 0 };
		qp = ibv_create_qp(rig.pd, &init);
	} while (!qp && micro.all_qps == 0 && (micro.depth /= 2) >= 16);
	if (!qp)
		die("ibv_create_qp, QP %u of %u: %s", micro.all_qps + 1, job.num_qps + micro.extra, strerror(errno));
	return qp;
}

/* A number that no QP of the server has: that of a QP created and destroyed again. */
static inline uint32_t absent_qp(void)
{
	struct ibv_qp *qp = qp_make();
	uint32_t number = qp->qp_num;

	ibv_destroy_qp(qp);
	return number;
}

static inline void qps_open(void)
{
	const struct conn_options options = { .timeout = job.ack_timeout, .retry_cnt = job.retry_count, .rnr_retry = 7,
					      .rd_atomic = job.max_rd_atomic ? job.max_rd_atomic : 1,
					      .rnr_timer = job.rnr_timer + 1 };
	uint32_t wanted, absent, theirs;

	micro.extra = (job.again_after != 0) + job.touched;
	wanted = job.num_qps + micro.extra;
	micro.cqe = rig.attr.max_cqe < PAPERS_CQ ? rig.attr.max_cqe : PAPERS_CQ;
	micro.depth = rig.attr.max_qp_wr < PAPERS_WRS ? rig.attr.max_qp_wr : PAPERS_WRS;
	micro.cq = ibv_create_cq(rig.context, micro.cqe, NULL, NULL, 0);
	if (!micro.cq)
		die("ibv_create_cq of %d: %s", micro.cqe, strerror(errno));
	micro.qps = calloc(wanted, sizeof(*micro.qps));
	micro.far_qps = calloc(wanted, sizeof(*micro.far_qps));
	micro.outstanding = calloc(wanted, sizeof(*micro.outstanding));
	if (!micro.qps || !micro.far_qps || !micro.outstanding)
		die("no memory for %u QPs", wanted);
	for (; micro.all_qps < wanted; micro.all_qps++) {
		struct info mine = { .lid = rig.port.lid, .mtu = rig.port.active_mtu, .gid = rig.gid }, far;
		struct ibv_qp *qp = micro.qps[micro.all_qps] = qp_make();

		/* PSNs begin at 0, as in the papers' benchmark. */
		mine.qpn = mine.into = qp->qp_num;
		exchange(&mine, &far, sizeof(mine));
		micro.far_qps[micro.all_qps] = far.qpn;
		if (job.wrong_peer) {
			absent = client ? 0 : absent_qp();
			exchange(&absent, &theirs, sizeof(absent));
			far.qpn = client ? theirs : far.qpn;
			micro.far_qps[micro.all_qps] = far.qpn;
		}
		connect_to(qp, far.qpn, mine, far, &options);
		rig.port.active_mtu = mine.mtu < far.mtu ? mine.mtu : far.mtu;
	}
}

/* Releases the pages of this side's ODP memory, some at a time: each time is an invalidation. */
static inline void release_pages(void)
{
	size_t step = (size_t)job.invalidate * PAGE, left = all_bytes();

	for (uint8_t *at = micro.at; left > 0; at += step, left -= step) {
		step = step < left ? step : left;
		if (madvise(at, step, MADV_DONTNEED))
			die("madvise of %zu bytes: %s", step, strerror(errno));
	}
}

static inline void micro_close(void)
{
	for (uint32_t i = 0; i < micro.all_qps; i++)
		ibv_destroy_qp(micro.qps[i]);
	ibv_destroy_cq(micro.cq);
	ibv_dereg_mr(micro.mr);
	munmap(micro.at, all_bytes());
	free(micro.qps);
	free(micro.far_qps);
	free(micro.outstanding);
}

/* Posts one work request; its completion has `id`. */
static inline void post(uint32_t qp, uint64_t id, uint32_t kind, uint64_t offset, uint32_t len)
{
	static const enum ibv_wr_opcode opcode[] = { IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND };
	struct ibv_sge data = { (uintptr_t)micro.at + offset, len, micro.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &data, .num_sge = 1, .opcode = opcode[kind] }, *bad;
	int error;

	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = micro.far_at + offset;
	wr.wr.rdma.rkey = micro.far_rkey;
	error = ibv_post_send(micro.qps[qp], &wr, &bad);
	if (error)
		die("ibv_post_send of a %s on QP %u: %s", kind_name[kind], qp, strerror(error));
	micro.outstanding[qp]++;
}

#endif
