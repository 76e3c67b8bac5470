/* The memory, the completion queue and the QP of a stream. Functions that return text return NULL or an error. */
#ifndef STREAM_RIG_H
#define STREAM_RIG_H

#include "stream_job.h"

/* Work requests of the receiver's send queue, at least: half of its ACKs are signalled together, and each signalled one
 * may wake the receiver. */
#define ACK_QUEUE 64
#define BATCH 64

/* A wr_id is a number, and one of these bits. */
#define MESSAGE (1ull << 61)
#define ACK (1ull << 62)
#define RECEIVE (1ull << 63)

static struct stream {
	/* Kept for the next job. The first `touched` bytes are present. */
	uint8_t *memory;
	uint64_t room, touched;
	/* Where it is. */
	struct place place;
	struct ibv_mr *mr;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	/* Of the send queue, as the adapter made it. */
	uint32_t depth, signal;
	/* Signalled send work requests that have a place in the completion queue. */
	uint32_t room_signalled;
	uint32_t mtu, far_rkey;
	uint64_t far_at;
} stream;

/* What a side tells the other before the run. */
struct hello {
	char why[TEXT];
	struct info info;
	uint32_t rkey, unused;
	uint64_t at;
};

static inline const char *memory_open(void)
{
	if (stream.memory && (stream.room < all_bytes() || memcmp(&stream.place, my_place(), sizeof(stream.place)))) {
		munmap(stream.memory, stream.room);
		stream.memory = NULL;
	}
	if (!stream.memory) {
		stream.touched = 0;
		stream.room = all_bytes();
		stream.place = *my_place();
		stream.memory = mmap(NULL, stream.room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (stream.memory == MAP_FAILED) {
			stream.memory = NULL;
			return wrong("no memory for %" PRIu64 " bytes: choose a smaller --size or --outstanding", all_bytes());
		}
	}
	if (stream.touched < all_bytes()) {
		memset(stream.memory + stream.touched, 0x5a, all_bytes() - stream.touched);
		stream.touched = all_bytes();
	}
	stream.mr = ibv_reg_mr(rig.pd, stream.memory, all_bytes(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!stream.mr)
		return wrong("ibv_reg_mr of %" PRIu64 " bytes: %s; a smaller --size or --outstanding may help%s", all_bytes(),
			     strerror(errno),
			     errno == ENOMEM ? ", or a higher limit of locked memory (ulimit -l)" : "");
	return NULL;
}

/* The sender has receives for ACKs; the receiver has one for each outstanding message, and sends ACKs. */
static inline const char *queues_open(void)
{
	uint32_t acks = 2 * most_acks() > ACK_QUEUE ? 2 * most_acks() : ACK_QUEUE, most = rig.attr.max_qp_wr;
	uint32_t receives = client ? most_acks() : job.outstanding, sends = client ? wanted_depth() : acks;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	int polls = job.polls & (client ? SENDER : RECEIVER);

	if (!client && sends > most)
		sends = most;
	if (sends > most)
		return wrong("%s has at most %u work requests in a send queue (max_qp_wr), and %u are wanted: choose a smaller "
			     "--depth%s", ibv_get_device_name(rig.context->device), most, sends,
			     job.depth ? "" : " or --outstanding");
	if (receives > most)
		return wrong("%s has at most %u work requests in a receive queue (max_qp_wr), and %u are needed: choose a "
			     "smaller --outstanding", ibv_get_device_name(rig.context->device), most, receives);
	if (sends + receives > (uint32_t)rig.attr.max_cqe)
		return wrong("%s has at most %d completions in a queue (max_cqe), and %u are needed: choose a smaller "
			     "--depth or --outstanding", ibv_get_device_name(rig.context->device), rig.attr.max_cqe,
			     sends + receives);
	if (!polls && !(stream.channel = ibv_create_comp_channel(rig.context)))
		return wrong("ibv_create_comp_channel: %s", strerror(errno));
	stream.cq = ibv_create_cq(rig.context, sends + receives, NULL, stream.channel, 0);
	if (!stream.cq)
		return wrong("ibv_create_cq of %u: %s; choose a smaller --depth or --outstanding", sends + receives,
			     strerror(errno));
	init.send_cq = init.recv_cq = stream.cq;
	init.cap = (struct ibv_qp_cap){ sends, receives, 1, 1, 0 };
	stream.qp = ibv_create_qp(rig.pd, &init);
	if (!stream.qp)
		return wrong("ibv_create_qp with a send queue of %u and a receive queue of %u: %s; choose a smaller --depth or "
			     "--outstanding", sends, receives, strerror(errno));
	stream.depth = init.cap.max_send_wr;
	stream.room_signalled = stream.cq->cqe - receives;
	stream.signal = client ? signal_period(stream.depth) : stream.depth / 2;
	if (stream.signal > stream.depth)
		return wrong("--signal: at most the depth of the send queue, %u, or it fills with work requests that are not "
			     "signalled: choose a greater --depth", stream.depth);
	return NULL;
}

/* `why` is this side's error, or NULL. */
static inline struct hello hello(const char *why)
{
	struct hello mine = { .at = (uintptr_t)stream.memory };

	snprintf(mine.why, sizeof(mine.why), "%s", why ? why : "");
	if (why)
		return mine;
	mine.rkey = stream.mr->rkey;
	mine.info = (struct info){ stream.qp->qp_num, stream.qp->qp_num, mix(stream.qp->qp_num ^ client) & 0xffffff,
				   rig.port.lid, rig.port.active_mtu, rig.gid };
	return mine;
}

/* Posts receives without memory: WRITEs with immediate data and ACKs need none. */
static inline const char *post_receives(uint32_t count)
{
	static struct ibv_recv_wr list[BATCH];
	struct ibv_recv_wr *bad;

	while (count) {
		uint32_t some = count < BATCH ? count : BATCH;
		int error;

		for (uint32_t i = 0; i < some; i++)
			list[i] = (struct ibv_recv_wr){ .wr_id = RECEIVE, .next = i + 1 < some ? &list[i + 1] : NULL };
		error = ibv_post_recv(stream.qp, list, &bad);
		if (error)
			return wrong("ibv_post_recv: %s", strerror(error));
		count -= some;
	}
	return NULL;
}

static inline const char *stream_connect(const struct hello *mine, const struct hello *theirs)
{
	struct ibv_qp_attr attr = rc_attr(theirs->info.qpn, &theirs->info.gid, rig.gid_index >= 0 ? rig.gid_index : 0);
	int error;

	attr.port_num = attr.ah_attr.port_num = opt.ib_port;
	attr.path_mtu = mine->info.mtu < theirs->info.mtu ? mine->info.mtu : theirs->info.mtu;
	attr.sq_psn = mine->info.psn;
	attr.rq_psn = theirs->info.psn;
	/* No READs. */
	attr.max_rd_atomic = attr.max_dest_rd_atomic = 1;
	attr.ah_attr.dlid = theirs->info.lid;
	attr.ah_attr.is_global = rig.gid_index >= 0;
	stream.mtu = 128u << attr.path_mtu;
	stream.far_rkey = theirs->rkey;
	stream.far_at = theirs->at;
	error = rc_connect(stream.qp, attr);
	if (error)
		return wrong("cannot connect: %s", strerror(error));
	return post_receives(client ? most_acks() : job.outstanding);
}

/* All but the memory. */
static inline void stream_close(void)
{
	if (stream.qp)
		ibv_destroy_qp(stream.qp);
	if (stream.cq)
		ibv_destroy_cq(stream.cq);
	if (stream.channel)
		ibv_destroy_comp_channel(stream.channel);
	if (stream.mr)
		ibv_dereg_mr(stream.mr);
	stream.qp = NULL;
	stream.cq = NULL;
	stream.channel = NULL;
	stream.mr = NULL;
}

#endif
