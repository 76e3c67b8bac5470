/* Data checks of every operation: sizes, offsets, inline data, SGE lists, signalling, fences, atomics. */
#ifndef DATA_H
#define DATA_H

#include "rig.h"

#include <endian.h>
#include <pthread.h>

enum { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, OPERATIONS };

static const struct {
	const char *name;
	enum ibv_wr_opcode opcode;
	enum ibv_wc_opcode done, received;
	/* 0: the target gets no completion; 1: a receive is consumed; 2: a receive is consumed and scattered to. */
	int receives, imm;
} operations[OPERATIONS] = {
	[SEND] = { "SEND", IBV_WR_SEND, IBV_WC_SEND, IBV_WC_RECV, 2, 0 },
	[SEND_IMM] = { "SEND_IMM", IBV_WR_SEND_WITH_IMM, IBV_WC_SEND, IBV_WC_RECV, 2, 1 },
	[WRITE] = { "WRITE", IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE, 0, 0, 0 },
	[WRITE_IMM] = { "WRITE_IMM", IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE, IBV_WC_RECV_RDMA_WITH_IMM, 1, 1 },
	[READ] = { "READ", IBV_WR_RDMA_READ, IBV_WC_RDMA_READ, 0, 0, 0 },
};

/* One message. Both sides know all its fields. */
struct message {
	int op, gather, scatter, flags;
	size_t len, from, to;
	uint64_t tag;
};

/* Cuts a message into SGEs of random lengths, each of at least one byte, until all bytes are used. */
static inline int split(struct ibv_sge *sges, int count, const struct area *area, size_t offset, size_t len)
{
	int n = 0;

	if (count <= 1 || len < 2) {
		sges[0] = sge(area, offset, len);
		return len != 0;
	}
	for (size_t left = len; left; n++) {
		size_t rest = count - n, fair = 2 * left / rest;
		size_t part = rest > 1 ? 1 + draw(fair ? fair : 1) : left;

		if (part > left)
			part = left;
		sges[n] = sge(area, offset + len - left, part);
		left -= part;
	}
	return n;
}

/* Runs one message over a connection and checks its data and completions on both sides. */
static inline void transfer(struct conn *c, const struct message *m)
{
	const struct area *local = m->op == READ ? &rig.target : &rig.source;
	size_t window = (m->from > m->to ? m->from : m->to) + m->len + MARGIN;
	struct ibv_sge gather[MAX_SGES], scatter[MAX_SGES];
	int reads = m->op == READ, writes = m->op == WRITE || m->op == WRITE_IMM;
	int gathers = split(gather, m->gather, local, reads ? m->to : m->from, m->len);
	int scatters = split(scatter, m->scatter, &rig.target, m->to, m->len);
	uint32_t imm = htobe32((uint32_t)m->tag);
	char what[128];

	snprintf(what, sizeof(what), "%s of %zu bytes from %zu to %zu, %d SGEs to %d, flags %x, tag %" PRIx64,
		 operations[m->op].name, m->len, m->from, m->to, gathers, scatters, m->flags, m->tag);
	background(&rig.source, window, m->tag);
	background(&rig.target, window, m->tag + 1);
	pattern(rig.source.at + m->from, m->len, m->tag);
	memcpy(rig.source.expected + m->from, rig.source.at + m->from, m->len);
	if (client == reads)
		memcpy(rig.target.expected + m->to, rig.source.at + m->from, m->len);
	if (!client && operations[m->op].receives)
		post_recv(c, m->tag, scatter, operations[m->op].receives == 2 ? scatters : 0, what);
	barrier();
	if (client) {
		struct ibv_send_wr wr = { .wr_id = m->tag, .sg_list = gather, .num_sge = gathers,
					  .opcode = operations[m->op].opcode, .imm_data = imm };

		wr.send_flags = m->flags | IBV_SEND_SIGNALED;
		wr.wr.rdma.remote_addr = reads ? rig.far.source + m->from : rig.far.target + m->to;
		wr.wr.rdma.rkey = reads ? rig.far.source_rkey : rig.far.target_rkey;
		if (m->flags & IBV_SEND_INLINE)
			for (int i = 0; i < gathers; i++)
				gather[i].lkey = 0xdead0000 + i;
		post_send(c, &wr, what);
		if (m->flags & IBV_SEND_INLINE) {
			/* Inline data is copied at once, so the buffer may change now. */
			memset(rig.source.at + m->from, 0x5a, m->len);
			memset(rig.source.expected + m->from, 0x5a, m->len);
		}
		expect(c->send_cq, m->tag, IBV_WC_SUCCESS, operations[m->op].done, what);
	} else if (operations[m->op].receives) {
		struct ibv_wc wc = expect(c->recv_cq, m->tag, IBV_WC_SUCCESS, operations[m->op].received, what);

		check(wc.byte_len == m->len, "%s: byte_len is %u", what, wc.byte_len);
		check(!!(wc.wc_flags & IBV_WC_WITH_IMM) == operations[m->op].imm &&
			      (!operations[m->op].imm || wc.imm_data == imm),
		      "%s: flags %x, immediate %x", what, wc.wc_flags, be32toh(wc.imm_data));
		check(wc.qp_num == c->into->qp_num, "%s: QP number %x", what, wc.qp_num);
		/* The data must be complete when the completion arrives: no barrier before this check. */
		compare(&rig.target, window, what);
	}
	barrier();
	if (reads ? client : writes)
		compare(&rig.target, window, what);
	compare(&rig.source, window, what);
	barrier();
}

static inline size_t offset(size_t len)
{
	return MARGIN + draw(rig.size - 2 * MARGIN - len < 255 ? rig.size - 2 * MARGIN - len : 255);
}

static inline void sizes(struct conn *c)
{
	static const size_t list[] = { 0, 1, 2, 3, 4, 7, 8, 9, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025,
				       2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 8193, 12289, 16384, 65535, 65536,
				       65537, 131072, 262143, 524289, 1048575, 1048576 };

	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]) && list[i] <= opt.max; i++)
		for (int op = 0; op < OPERATIONS; op++)
			for (int odd = 0; odd < 2; odd++) {
				struct message m = { .op = op, .gather = 1, .scatter = 1, .len = list[i], .tag = draw(1ul << 40) };

				m.from = odd ? offset(m.len) | 1 : 4096;
				m.to = odd ? offset(m.len) | 1 : 4096;
				transfer(c, &m);
			}
}

static inline void inline_data(struct conn *c)
{
	uint32_t mine = c->cap.max_inline_data, theirs, most;

	exchange(&mine, &theirs, sizeof(mine));
	most = client ? mine : theirs;
	for (size_t len = 0; len <= most && len <= 512; len += len < 16 ? 1 : 13)
		for (int op = SEND; op < READ; op++) {
			struct message m = { .op = op, .gather = 1 + draw(4), .scatter = 1, .flags = IBV_SEND_INLINE,
					     .len = len, .from = offset(len), .to = offset(len), .tag = draw(1ul << 40) };

			transfer(c, &m);
		}
	if (client) {
		struct ibv_sge whole = sge(&rig.source, 0, most + 1);
		struct ibv_send_wr wr = { .sg_list = &whole, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED }, *bad = NULL;

		check(ibv_post_send(c->qp, &wr, &bad) != 0 && bad == &wr, "%u bytes of inline data accepted", most + 1);
	}
}

static inline void sge_lists(struct conn *c)
{
	static const size_t list[] = { 32, 33, 100, 1000, 5000, 70001, 1048576 };

	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]) && list[i] <= opt.max; i++)
		for (int op = 0; op < OPERATIONS; op++)
			for (int count = 2; count <= rig.max_sge; count += count < 4 ? 1 : 7) {
				struct message m = { .op = op, .gather = count, .scatter = rig.max_sge + 2 - count,
						     .len = list[i], .tag = draw(1ul << 40) };

				m.from = offset(m.len);
				m.to = offset(m.len);
				transfer(c, &m);
			}
}

static inline void random_operations(struct conn *c)
{
	for (int i = 0; i < opt.count; i++) {
		size_t limit = 1ul << draw(21);
		struct message m = { .op = draw(OPERATIONS), .gather = 1 + draw(rig.max_sge),
				     .scatter = 1 + draw(rig.max_sge), .tag = draw(1ul << 40) };

		m.len = draw((limit < opt.max ? limit : opt.max) + 1);
		m.from = offset(m.len);
		m.to = offset(m.len);
		m.flags = (draw(4) ? 0 : IBV_SEND_FENCE) | (draw(4) ? 0 : IBV_SEND_SOLICITED);
		if (opt.unfenced)
			m.flags &= ~IBV_SEND_FENCE;
		transfer(c, &m);
	}
}

/* A fenced SEND carries the data that an earlier READ of the same list fetched. */
static inline void fences(struct conn *c)
{
	for (int i = 0; i < 50 && !opt.unfenced; i++) {
		size_t len = 1 + draw(opt.max / 4), at = offset(2 * len);
		uint64_t tag = draw(1ul << 40);
		struct ibv_sge to = sge(&rig.target, at, len);

		background(&rig.source, at + len + MARGIN, tag + client);
		background(&rig.target, at + len + MARGIN, tag + 2);
		pattern(rig.source.at + at, len, tag + client);
		if (!client) {
			memcpy(rig.target.expected + at, rig.source.at + at, len);
			post_recv(c, tag, &to, 1, "fence");
		}
		barrier();
		if (client) {
			struct ibv_send_wr send = { .wr_id = tag + 1, .sg_list = &to, .num_sge = 1, .opcode = IBV_WR_SEND,
						    .send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE };
			struct ibv_send_wr read = { .wr_id = tag, .next = &send, .sg_list = &to, .num_sge = 1,
						    .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED };

			read.wr.rdma.remote_addr = rig.far.source + at;
			read.wr.rdma.rkey = rig.far.source_rkey;
			post_send(c, &read, "fence");
			expect(c->send_cq, tag, IBV_WC_SUCCESS, IBV_WC_RDMA_READ, "fence");
			expect(c->send_cq, tag + 1, IBV_WC_SUCCESS, IBV_WC_SEND, "fence");
		} else {
			expect(c->recv_cq, tag, IBV_WC_SUCCESS, IBV_WC_RECV, "fence");
			compare(&rig.target, at + len + MARGIN, "a fenced SEND of READ data");
		}
		barrier();
	}
}

/* Returns the value that an atomic fetched. */
static inline uint64_t atomic(struct conn *c, enum ibv_wr_opcode opcode, size_t at, uint64_t compare_add, uint64_t swap)
{
	struct ibv_sge to = sge(&rig.target, 64, 8);
	struct ibv_send_wr wr = { .wr_id = at, .sg_list = &to, .num_sge = 1, .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED };
	uint64_t found;

	wr.wr.atomic.remote_addr = rig.far.target + at;
	wr.wr.atomic.rkey = rig.far.target_rkey;
	wr.wr.atomic.compare_add = compare_add;
	wr.wr.atomic.swap = swap;
	post_send(c, &wr, "atomic");
	expect(c->send_cq, at, IBV_WC_SUCCESS,
	       opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? IBV_WC_COMP_SWAP : IBV_WC_FETCH_ADD, "atomic");
	memcpy(&found, rig.target.at + 64, 8);
	return found;
}

static inline void atomics(struct conn *c)
{
	const size_t at = 4096;
	uint64_t word = mix(rng), found;

	if (rig.attr.atomic_cap == IBV_ATOMIC_NONE)
		return;
	background(&rig.target, at + MARGIN, 7);
	memcpy(rig.target.at + at, &word, 8);
	barrier();
	for (int i = 0; i < 200; i++) {
		uint64_t value = mix(rng + i), miss = draw(3) == 0;

		if (draw(2)) {
			found = client ? atomic(c, IBV_WR_ATOMIC_FETCH_AND_ADD, at, value, 0) : word;
			if (client)
				check(found == word, "fetch and add %d found %" PRIx64 ", not %" PRIx64, i, found, word);
			word += value;
		} else {
			found = client ? atomic(c, IBV_WR_ATOMIC_CMP_AND_SWP, at, word ^ miss, value) : word;
			if (client)
				check(found == word, "compare and swap %d found %" PRIx64 ", not %" PRIx64, i, found, word);
			if (!miss)
				word = value;
		}
	}
	barrier();
	if (!client) {
		memcpy(rig.target.expected + at, &word, 8);
		compare(&rig.target, at + MARGIN, "memory around atomics");
	}
	barrier();
}

/* Atomics of many QPs to one word: every value is fetched once, none is lost. */
static inline void shared_atomic(struct conn *unused)
{
	enum { CONNS = 16, EACH = 64 };
	static struct conn conns[CONNS];
	static uint8_t seen[CONNS * EACH];
	size_t at = 4096, lost = 0;

	(void)unused;
	if (rig.attr.atomic_cap == IBV_ATOMIC_NONE)
		return;
	background(&rig.target, at + MARGIN + 8 * CONNS * EACH, 8);
	memset(rig.target.at + at, 0, 8);
	for (int i = 0; i < CONNS; i++)
		conn_open(&conns[i], &default_options);
	for (int i = 0; client && i < CONNS * EACH; i++) {
		struct ibv_sge to = sge(&rig.target, at + 64 + 8 * i, 8);
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = &to, .num_sge = 1,
					  .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .send_flags = IBV_SEND_SIGNALED };

		wr.wr.atomic.remote_addr = rig.far.target + at;
		wr.wr.atomic.rkey = rig.far.target_rkey;
		wr.wr.atomic.compare_add = 1;
		post_send(&conns[i % CONNS], &wr, "crowd");
	}
	for (int i = 0; client && i < CONNS * EACH; i++) {
		struct ibv_wc wc = next(conns[i % CONNS].send_cq, "crowd");
		uint64_t found;

		memcpy(&found, rig.target.at + at + 64 + 8 * i, 8);
		lost += wc.status != IBV_WC_SUCCESS || wc.wr_id != (uint64_t)i || found >= CONNS * EACH || seen[found]++;
	}
	check(!lost, "%zu of %d atomics of %d QPs failed, or fetched a value twice", lost, CONNS * EACH, CONNS);
	for (int i = 0; i < CONNS; i++)
		conn_close(&conns[i]);
	if (!client) {
		uint64_t sum = CONNS * EACH;

		memcpy(rig.target.expected + at, &sum, 8);
		compare(&rig.target, at + MARGIN, "a word that many QPs added to");
	}
}

static struct {
	volatile int stop;
	uint64_t *words;
	size_t count;
} changing;

/* Word i always has i in its upper and a generation in its lower 32 bits. */
static inline void *change(void *unused)
{
	for (uint64_t generation = 1; !changing.stop; generation++)
		for (size_t i = 0; i < changing.count; i++)
			__atomic_store_n(&changing.words[i], (uint64_t)i << 32 | (generation & 0xffff), __ATOMIC_RELAXED);
	return unused;
}

/* Memory that the target's thread keeps changing can be READ, and no aligned word is torn. */
static inline void read_of_changing_memory(struct conn *c)
{
	size_t len = opt.max & ~7ul;
	pthread_t thread;

	changing.words = (uint64_t *)(rig.source.at + 4096);
	changing.count = len / 8;
	changing.stop = 0;
	for (size_t i = 0; i < changing.count; i++)
		changing.words[i] = (uint64_t)i << 32;
	if (!client && pthread_create(&thread, NULL, change, NULL))
		die("pthread_create");
	barrier();
	for (int i = 0; client && i < 40; i++) {
		size_t part = i % 2 ? len : 8 + (draw(len) & ~7ul), torn = 0;
		struct ibv_sge to = sge(&rig.target, 4096, part > len ? len : part);
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = &to, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
					  .send_flags = IBV_SEND_SIGNALED };

		wr.wr.rdma.remote_addr = rig.far.source + 4096;
		wr.wr.rdma.rkey = rig.far.source_rkey;
		memset(rig.target.at + 4096, 0xff, to.length);
		post_send(c, &wr, "changing memory");
		expect(c->send_cq, i, IBV_WC_SUCCESS, IBV_WC_RDMA_READ, "a READ of changing memory");
		for (size_t k = 0; k < to.length / 8; k++) {
			uint64_t word = ((uint64_t *)(rig.target.at + 4096))[k];

			torn += word >> 32 != k || (word & 0xffffffff) > 0xffff;
		}
		tally.bytes += to.length;
		tally.wrong += torn;
		check(!torn, "a READ of changing memory: %zu of %u words were never written so", torn, to.length / 8);
	}
	if (!client)
		for (int i = 0; i < 40; i++)
			if (i % 2 == 0)
				draw(len);
	barrier();
	changing.stop = 1;
	if (!client)
		pthread_join(thread, NULL);
}

#endif
