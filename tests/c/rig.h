/* The adapter for the test cases: one device, one PD, two areas of memory, connections, completions. */
#ifndef RIG_H
#define RIG_H

#include "setup.h"
#include "side.h"

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/mman.h>

/* Bytes around a message that must not change. */
#define MARGIN 2048
#define MAX_SGES 32

struct area {
	uint8_t *at, *expected;
	struct ibv_mr *mr;
};

/* How the areas are registered: pinned; as an ODP region each; as ODP regions of a file mapping; by an implicit
 * region. */
enum { ALL_PINNED, ANONYMOUS, FILE_MAPPING, IMPLICIT };

/* Messages go from `source` to `target`. Each side has both areas. */
static struct rig {
	struct ibv_context *context;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	struct ibv_pd *pd;
	struct ibv_xrcd *xrcd;
	union ibv_gid gid;
	int gid_index, max_sge;
	size_t size;
	struct area source, target;
	/* The other side's areas and limits. */
	struct far { uint64_t source, target; uint32_t source_rkey, target_rkey, max_sge, rd_atomic; } far;
} rig;

struct conn_options {
	int send_wr, recv_wr, timeout, retry_cnt, rnr_retry, channel, inline_data;
	/* 0: as many READs as both adapters allow, up to 16. rnr_timer is the code plus one; 0: code 12. */
	int rd_atomic, rnr_timer;
};

static const struct conn_options default_options = { .send_wr = 64, .recv_wr = 64, .timeout = 14, .retry_cnt = 7,
						     .rnr_retry = 7, .inline_data = 128 };

struct conn {
	struct ibv_comp_channel *channel;
	struct ibv_cq *send_cq, *recv_cq;
	/* The QPs for outgoing and for incoming requests: the same with RC, an initiator and a target with XRC. */
	struct ibv_qp *qp, *into;
	struct ibv_qp_cap cap;
	/* XRC: the SRQ with the receives, and the other side's SRQ number. */
	struct ibv_srq *srq;
	uint32_t far_srq;
};

static inline void area_open(struct area *area, int access)
{
	FILE *file = opt.demand == FILE_MAPPING ? tmpfile() : NULL;
	int flags = file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;

	if (opt.demand == FILE_MAPPING && (!file || ftruncate(fileno(file), rig.size)))
		die("no temporary file: %s", strerror(errno));
	area->at = mmap(NULL, rig.size, PROT_READ | PROT_WRITE, flags, file ? fileno(file) : -1, 0);
	area->expected = malloc(rig.size);
	if (area->at == MAP_FAILED || !area->expected)
		die("no memory");
	if (file)
		fclose(file);
	if (opt.demand != ALL_PINNED)
		access |= IBV_ACCESS_ON_DEMAND;
	area->mr = opt.demand == IMPLICIT ? ibv_reg_mr(rig.pd, NULL, SIZE_MAX, access) :
					    ibv_reg_mr(rig.pd, area->at, rig.size, access);
	if (!area->mr)
		die("ibv_reg_mr: %s", strerror(errno));
}

static inline void rig_open(void)
{
	struct far mine;
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

	rig.context = device_open(opt.device);
	if (!rig.context)
		die("cannot open %s: %s", opt.device ? opt.device : "any device", strerror(errno));
	rig.pd = ibv_alloc_pd(rig.context);
	if (!rig.pd || ibv_query_device(rig.context, &rig.attr) || ibv_query_port(rig.context, opt.ib_port, &rig.port))
		die("cannot use the device: %s", strerror(errno));
	if (opt.xrc) {
		struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
						   .oflags = O_CREAT };

		if (!(rig.xrcd = ibv_open_xrcd(rig.context, &init)))
			die("ibv_open_xrcd: %s", strerror(errno));
	}
	rig.gid_index = opt.gid >= 0 ? opt.gid : best_gid(rig.context, opt.ib_port);
	if (rig.gid_index >= 0 && ibv_query_gid(rig.context, opt.ib_port, rig.gid_index, &rig.gid))
		die("no GID %d", rig.gid_index);
	for (int mtu = IBV_MTU_256; opt.mtu && mtu < (int)rig.port.active_mtu; mtu++)
		if (128 << mtu == opt.mtu)
			rig.port.active_mtu = mtu;
	rig.max_sge = rig.attr.max_sge < MAX_SGES ? rig.attr.max_sge : MAX_SGES;
	rig.size = (opt.max + 4 * MARGIN + 4095) & ~4095ul;
	area_open(&rig.source, all);
	area_open(&rig.target, all);
	mine = (struct far){ (uintptr_t)rig.source.at, (uintptr_t)rig.target.at, rig.source.mr->rkey,
			     rig.target.mr->rkey, rig.max_sge, rig.attr.max_qp_rd_atom };
	exchange(&mine, &rig.far, sizeof(mine));
	/* Both sides draw the same random numbers, so the smaller adapter sets the limit. */
	if (rig.far.max_sge < (uint32_t)rig.max_sge)
		rig.max_sge = rig.far.max_sge;
}

static inline void area_close(struct area *area)
{
	check(!ibv_dereg_mr(area->mr), "ibv_dereg_mr");
	munmap(area->at, rig.size);
	free(area->expected);
}

static inline void rig_close(void)
{
	area_close(&rig.source);
	area_close(&rig.target);
	check(!rig.xrcd || !ibv_close_xrcd(rig.xrcd), "ibv_close_xrcd");
	check(!ibv_dealloc_pd(rig.pd), "ibv_dealloc_pd");
	check(!ibv_close_device(rig.context), "ibv_close_device");
}

static inline int to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = rc_attr(0, &rig.gid, rig.gid_index);

	attr.port_num = opt.ib_port;
	return rc_to_init(qp, attr);
}

/* The XRC target, and the SRQ that its receives come from. */
static inline void target_make(struct conn *c, const struct conn_options *options)
{
	struct ibv_srq_init_attr_ex srq = { .attr = { options->recv_wr, rig.max_sge, 0 }, .srq_type = IBV_SRQT_XRC };
	struct ibv_qp_init_attr_ex target = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	uint32_t mine;

	srq.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	srq.pd = rig.pd;
	srq.xrcd = target.xrcd = rig.xrcd;
	srq.cq = c->recv_cq;
	c->srq = ibv_create_srq_ex(rig.context, &srq);
	c->into = ibv_create_qp_ex(rig.context, &target);
	if (!c->srq || !c->into || ibv_get_srq_num(c->srq, &mine))
		die("cannot create an XRC target: %s", strerror(errno));
	exchange(&mine, &c->far_srq, sizeof(mine));
}

static inline void conn_make(struct conn *c, const struct conn_options *options)
{
	struct ibv_qp_init_attr init = { .qp_type = opt.xrc ? IBV_QPT_XRC_SEND : IBV_QPT_RC };

	memset(c, 0, sizeof(*c));
	if (options->channel && !(c->channel = ibv_create_comp_channel(rig.context)))
		die("ibv_create_comp_channel: %s", strerror(errno));
	c->send_cq = ibv_create_cq(rig.context, 4 * options->send_wr, c, c->channel, 0);
	c->recv_cq = ibv_create_cq(rig.context, 4 * options->recv_wr, c, c->channel, 0);
	if (!c->send_cq || !c->recv_cq)
		die("ibv_create_cq: %s", strerror(errno));
	init.send_cq = c->send_cq;
	init.recv_cq = c->recv_cq;
	init.cap = (struct ibv_qp_cap){ options->send_wr, opt.xrc ? 0 : options->recv_wr, rig.max_sge,
					opt.xrc ? 0 : rig.max_sge, options->inline_data };
	c->into = c->qp = ibv_create_qp(rig.pd, &init);
	if (!c->qp)
		die("ibv_create_qp: %s", strerror(errno));
	c->cap = init.cap;
	if (opt.xrc)
		target_make(c, options);
}

struct info {
	uint32_t qpn, into, psn, lid, mtu;
	union ibv_gid gid;
};

/* Moves a QP from RESET to RTS. */
static inline void connect_to(struct ibv_qp *qp, uint32_t to, const struct info mine, const struct info theirs,
			      const struct conn_options *options)
{
	struct ibv_qp_attr attr = rc_attr(to, &theirs.gid, rig.gid_index >= 0 ? rig.gid_index : 0);
	int error, most = options->rd_atomic ? options->rd_atomic : 16;
	int depth = rig.attr.max_qp_init_rd_atom < most ? rig.attr.max_qp_init_rd_atom : most;

	attr.port_num = attr.ah_attr.port_num = opt.ib_port;
	attr.path_mtu = mine.mtu < theirs.mtu ? mine.mtu : theirs.mtu;
	attr.rq_psn = theirs.psn;
	attr.sq_psn = mine.psn;
	attr.max_dest_rd_atomic = rig.attr.max_qp_rd_atom < most ? rig.attr.max_qp_rd_atom : most;
	attr.max_rd_atomic = (int)rig.far.rd_atomic < depth ? (int)rig.far.rd_atomic : depth;
	attr.ah_attr.dlid = theirs.lid;
	attr.ah_attr.is_global = rig.gid_index >= 0;
	attr.timeout = options->timeout;
	attr.retry_cnt = options->retry_cnt;
	attr.rnr_retry = options->rnr_retry;
	if (options->rnr_timer)
		attr.min_rnr_timer = options->rnr_timer - 1;
	if ((error = rc_connect(qp, attr)))
		die("cannot connect: %s", strerror(error));
}

static inline void conn_open(struct conn *c, const struct conn_options *options)
{
	struct info mine, theirs;

	conn_make(c, options);
	mine = (struct info){ c->qp->qp_num, c->into->qp_num, mix(c->qp->qp_num ^ client) & 0xffffff, rig.port.lid,
			      rig.port.active_mtu, rig.gid };
	exchange(&mine, &theirs, sizeof(mine));
	connect_to(c->qp, theirs.into, mine, theirs, options);
	if (opt.xrc)
		connect_to(c->into, theirs.qpn, mine, theirs, options);
	barrier();
}

/* Waits for the other side first: the QP must still respond to its requests. */
static inline void conn_close(struct conn *c)
{
	barrier();
	check(!ibv_destroy_qp(c->qp), "ibv_destroy_qp");
	if (opt.xrc)
		check(!ibv_destroy_qp(c->into) && !ibv_destroy_srq(c->srq), "destroying an XRC target");
	check(!ibv_destroy_cq(c->send_cq) && !ibv_destroy_cq(c->recv_cq), "ibv_destroy_cq");
	if (c->channel)
		check(!ibv_destroy_comp_channel(c->channel), "ibv_destroy_comp_channel");
}

/* The next completion. Without one the process ends, because each later test would wait for the timeout too. */
static inline struct ibv_wc next(struct ibv_cq *cq, const char *what)
{
	struct ibv_wc wc;
	double end = now() + opt.seconds;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		if (now() > end)
			die("%s: no completion within %d s", what, opt.seconds);
	if (n < 0)
		die("%s: ibv_poll_cq: %d", what, n);
	return wc;
}

static inline int is_empty(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	return ibv_poll_cq(cq, 1, &wc) == 0;
}

/* Expects a completion with this status, and with this opcode if it is a success. */
static inline struct ibv_wc expect(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status, int opcode,
				   const char *what)
{
	struct ibv_wc wc = next(cq, what);

	check(wc.wr_id == wr_id && wc.status == status && (status != IBV_WC_SUCCESS || (int)wc.opcode == opcode),
	      "%s: WR %" PRIu64 ", %s, opcode %d; should be WR %" PRIu64 ", %s, opcode %d", what, wc.wr_id,
	      ibv_wc_status_str(wc.status), wc.opcode, wr_id, ibv_wc_status_str(status), opcode);
	return wc;
}

/* Waits for the next asynchronous event of this QP, except COMM_EST, and checks its type. */
static inline void expect_async(struct conn *c, enum ibv_event_type type, const char *what)
{
	struct pollfd fd = { .fd = rig.context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	do {
		if (poll(&fd, 1, opt.seconds * 1000) != 1 || ibv_get_async_event(rig.context, &event)) {
			check(0, "%s: no event, should be \"%s\"", what, ibv_event_type_str(type));
			return;
		}
		if (event.event_type != IBV_EVENT_COMM_EST)
			check(event.event_type == type && event.element.qp == c->into,
			      "%s: event \"%s\", should be \"%s\"", what, ibv_event_type_str(event.event_type),
			      ibv_event_type_str(type));
		ibv_ack_async_event(&event);
	} while (event.event_type == IBV_EVENT_COMM_EST);
}

static inline void post_send(struct conn *c, struct ibv_send_wr *wr, const char *what)
{
	struct ibv_send_wr *bad;
	int error;

	for (struct ibv_send_wr *each = wr; opt.xrc && each; each = each->next)
		each->qp_type.xrc.remote_srqn = c->far_srq;
	error = ibv_post_send(c->qp, wr, &bad);
	if (error)
		die("%s: ibv_post_send: %s", what, strerror(error));
}

static inline void post_recv(struct conn *c, uint64_t wr_id, struct ibv_sge *sges, int count, const char *what)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = sges, .num_sge = count }, *bad;
	int error = opt.xrc ? ibv_post_srq_recv(c->srq, &wr, &bad) : ibv_post_recv(c->qp, &wr, &bad);

	if (error)
		die("%s: ibv_post_recv: %s", what, strerror(error));
}

static inline struct ibv_sge sge(const struct area *area, size_t offset, size_t len)
{
	return (struct ibv_sge){ (uintptr_t)area->at + offset, len, area->mr->lkey };
}

/* Bytes that depend on a tag and their offset in the message. */
static inline void pattern(uint8_t *to, size_t len, uint64_t tag)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t word = mix(tag + i * 0x10001);

		memcpy(to + i, &word, len - i < 8 ? len - i : 8);
	}
}

/* Fills the beginning of an area and of its expected contents with a background. ODP pages are discarded first. */
static inline void background(struct area *area, size_t window, uint64_t tag)
{
	/* EINVAL: pages that another region has locked stay. */
	if (opt.demand != ALL_PINNED && madvise(area->at, rig.size, MADV_DONTNEED) && errno != EINVAL)
		die("madvise: %s", strerror(errno));
	pattern(area->at, window, ~tag);
	memcpy(area->expected, area->at, window);
}

/* Checks that the beginning of an area is as expected, byte for byte. */
static inline void compare(const struct area *area, size_t window, const char *what)
{
	size_t wrong = 0, first = 0;

	if (memcmp(area->at, area->expected, window))
		for (size_t i = window; i-- > 0;)
			if (area->at[i] != area->expected[i]) {
				wrong++;
				first = i;
			}
	tally.bytes += window;
	tally.wrong += wrong;
	check(!wrong, "%s: %zu bytes wrong of %zu, the first at %zu", what, wrong, window, first);
}

#endif
