/* Memory that is registered pinned or on demand, with the address and rkey of the other side's. */
#ifndef ODP_BUFFER_H
#define ODP_BUFFER_H

#include "rig.h"

#define PAGE 4096

enum memory { PINNED, ON_DEMAND };

static const char *const memory_name[] = { "pinned", "odp" };

struct buffer {
	uint8_t *at;
	size_t len;
	struct ibv_mr *mr;
	/* The other side's buffer. */
	uint64_t far;
	uint32_t rkey;
};

/* New pages, none of them present; without huge pages, so that each fault brings in one page of PAGE bytes. */
static inline uint8_t *fresh(size_t len)
{
	uint8_t *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		die("no memory for %zu bytes", len);
	madvise(at, len, MADV_NOHUGEPAGE);
	return at;
}

/* Both sides create a buffer of the same length, with their own kind of memory, and exchange address and rkey. */
static inline void buffer_open(struct buffer *b, size_t len, enum memory memory)
{
	struct { uint64_t at; uint32_t rkey, unused; } mine = { 0 }, theirs;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	b->len = (len + PAGE - 1) & ~(size_t)(PAGE - 1);
	b->at = fresh(b->len);
	b->mr = ibv_reg_mr(rig.pd, b->at, b->len, access | (memory == ON_DEMAND ? IBV_ACCESS_ON_DEMAND : 0));
	if (!b->mr)
		die("ibv_reg_mr of %zu bytes (%s): %s", b->len, memory_name[memory], strerror(errno));
	mine.at = (uintptr_t)b->at;
	mine.rkey = b->mr->rkey;
	exchange(&mine, &theirs, sizeof(mine));
	b->far = theirs.at;
	b->rkey = theirs.rkey;
}

static inline void buffer_close(struct buffer *b)
{
	barrier();
	if (ibv_dereg_mr(b->mr) || munmap(b->at, b->len))
		die("cannot release a buffer: %s", strerror(errno));
}

/* Prefetches `len` bytes; with `wait` returns after they are present. */
static inline void prefetch(struct buffer *b, size_t len, int wait)
{
	struct ibv_sge range = { (uintptr_t)b->at, len, b->mr->lkey };
	int flags = wait ? IBV_ADVISE_MR_FLAG_FLUSH : 0;
	int error = ibv_advise_mr(rig.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, flags, &range, 1);

	if (error)
		die("ibv_advise_mr: %s", strerror(error));
}

static inline struct ibv_sge part(const struct buffer *b, size_t offset, size_t len)
{
	return (struct ibv_sge){ (uintptr_t)b->at + offset, len, b->mr->lkey };
}

/* Polls until one completion comes, which must be a success. */
static inline void done(struct ibv_cq *cq, const char *what)
{
	struct ibv_wc wc;
	double end = 0;
	int n;

	for (uint64_t polls = 1; (n = ibv_poll_cq(cq, 1, &wc)) == 0; polls++)
		if (polls % 100000 == 0) {
			end = end ? end : now() + opt.seconds;
			if (now() > end)
				die("%s: no completion within %d s", what, opt.seconds);
		}
	if (n < 0 || wc.status != IBV_WC_SUCCESS)
		die("%s: %s", what, n < 0 ? "ibv_poll_cq failed" : ibv_wc_status_str(wc.status));
}

static inline void start_write(struct conn *c, const struct buffer *b, size_t offset, size_t len, int signaled)
{
	struct ibv_sge data = part(b, offset, len);
	struct ibv_send_wr wr = { .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };

	wr.send_flags = signaled ? IBV_SEND_SIGNALED : 0;
	wr.wr.rdma.remote_addr = b->far + offset;
	wr.wr.rdma.rkey = b->rkey;
	post_send(c, &wr, "a WRITE");
}

static inline void start_send(struct conn *c, struct ibv_sge data)
{
	struct ibv_send_wr wr = { .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_SEND };

	wr.send_flags = IBV_SEND_SIGNALED;
	post_send(c, &wr, "a SEND");
}

static inline int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static inline double median(double *values, int count)
{
	qsort(values, count, sizeof(*values), by_value);
	return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

#endif
