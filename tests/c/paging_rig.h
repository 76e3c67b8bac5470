/* Two connected QPs of one process, and kinds of memory that need not be present. */
#ifndef PAGING_RIG_H
#define PAGING_RIG_H

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "setup.h"

#define PAGE 4096
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define DEMAND (ALL | IBV_ACCESS_ON_DEMAND)

static int passed, failed;
static struct ibv_context *context;
static struct ibv_pd *pd;
static int gid_index;
/* Pinned memory, for the end of an operation that is not under test. */
static uint8_t *plain;
static struct ibv_mr *plain_mr;

#define PLAIN (1 << 20)

static bool check(bool good, const char *what)
{
	good ? passed++ : failed++;
	if (!good)
		printf("failed: %s (errno %d, %s)\n", what, errno, strerror(errno));
	return good;
}

static void need(bool good, const char *what)
{
	if (!good) {
		printf("cannot run: %s (errno %d, %s)\n", what, errno, strerror(errno));
		exit(2);
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Bytes that depend on a tag and their offset. */
static void pattern(uint8_t *to, size_t len, unsigned tag)
{
	for (size_t i = 0; i < len; i++)
		to[i] = (uint8_t)((i * 131 + i / PAGE * 17 + tag * 37) ^ (i >> 3));
}

static bool is_pattern(const uint8_t *at, size_t len, unsigned tag)
{
	static uint8_t right[PLAIN];

	pattern(right, len, tag);
	return !memcmp(at, right, len);
}

static void open_device(const char *name, int gid)
{
	context = device_open(name);
	need(context != NULL, name);
	gid_index = gid;
	pd = ibv_alloc_pd(context);
	plain = mmap(NULL, PLAIN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(pd && plain != MAP_FAILED, "a PD and memory");
	plain_mr = ibv_reg_mr(pd, plain, PLAIN, ALL);
	need(plain_mr != NULL, "ibv_reg_mr");
}

/* Two connected RC QPs, each with a CQ. `a` is the requester. */
struct pair {
	struct ibv_qp *a, *b;
	struct ibv_cq *a_cq, *b_cq;
};

static void connect_to(struct ibv_qp *qp, uint32_t dest)
{
	union ibv_gid gid;
	struct ibv_qp_attr attr;

	need(!ibv_query_gid(context, 1, gid_index, &gid), "ibv_query_gid");
	attr = rc_attr(dest, &gid, gid_index);
	attr.timeout = 17;
	need(!rc_connect(qp, attr), "connecting a QP");
}

static struct pair pair_open(void)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	struct pair p = { .a_cq = ibv_create_cq(context, 256, NULL, NULL, 0),
			  .b_cq = ibv_create_cq(context, 256, NULL, NULL, 0) };

	need(p.a_cq && p.b_cq, "ibv_create_cq");
	init.cap = (struct ibv_qp_cap){ 64, 64, 4, 4, 0 };
	init.send_cq = init.recv_cq = p.a_cq;
	p.a = ibv_create_qp(pd, &init);
	init.send_cq = init.recv_cq = p.b_cq;
	p.b = ibv_create_qp(pd, &init);
	need(p.a && p.b, "ibv_create_qp");
	connect_to(p.a, p.b->qp_num);
	connect_to(p.b, p.a->qp_num);
	return p;
}

static void pair_close(struct pair *p)
{
	check(!ibv_destroy_qp(p->a) && !ibv_destroy_qp(p->b), "ibv_destroy_qp");
	check(!ibv_destroy_cq(p->a_cq) && !ibv_destroy_cq(p->b_cq), "ibv_destroy_cq");
}

/* One end of an operation. */
struct spot {
	void *at;
	struct ibv_mr *mr;
};

static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct spot here, struct spot there, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)here.at, len, here.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)there.at;
		wr.wr.atomic.rkey = there.mr->rkey;
		wr.wr.atomic.compare_add = 5;
	} else if (opcode != IBV_WR_SEND) {
		wr.wr.rdma.remote_addr = (uintptr_t)there.at;
		wr.wr.rdma.rkey = there.mr->rkey;
	}
	need(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
}

static void receive(struct ibv_qp *qp, struct spot here, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)here.at, len, here.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad;

	need(!ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
}

/* The status of the next completion, or -1 if there is none for ten seconds. */
static int next(struct ibv_cq *cq)
{
	double end = now() + 10;
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		if (now() > end)
			return -1;
	return n < 0 ? -2 : (int)wc.status;
}

/* One operation on a new pair; returns its status at the requester. SEND: `there` receives, and `*far` gets its
 * status. */
static int outcome(enum ibv_wr_opcode opcode, struct spot here, struct spot there, uint32_t len, int *far)
{
	struct pair p = pair_open();
	int status;

	if (opcode == IBV_WR_SEND)
		receive(p.b, there, len);
	post(p.a, opcode, here, there, len);
	status = next(p.a_cq);
	if (opcode == IBV_WR_SEND && far)
		*far = next(p.b_cq);
	pair_close(&p);
	return status;
}

static bool ends_with(int status, int wanted, const char *what, const char *of)
{
	char text[256];

	snprintf(text, sizeof(text), "%s, %s: %s, should be %s", what, of,
		 status < 0 ? "no completion" : ibv_wc_status_str(status), ibv_wc_status_str(wanted));
	return check(status == wanted, text);
}

/* Kinds of memory. Files contain the pattern of tag 9, and none of their pages is in memory. */
enum kind { ANONYMOUS, SHARED, FILE_PRIVATE, FILE_SHARED, KINDS };

static const char *const kinds[] = { "anonymous", "shared", "private file mapping", "shared file mapping" };

struct memory {
	uint8_t *at;
	size_t len;
	int file;
};

static struct memory map(enum kind kind, size_t len, int protection)
{
	static const int flags[] = { MAP_PRIVATE | MAP_ANONYMOUS, MAP_SHARED | MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED };
	struct memory m = { .len = len, .file = -1 };

	if (kind >= FILE_PRIVATE) {
		char name[] = "/tmp/weir-paging-XXXXXX";
		uint8_t *bytes = malloc(len);

		m.file = mkstemp(name);
		need(m.file >= 0 && bytes && !unlink(name), "a temporary file");
		pattern(bytes, len, 9);
		need(pwrite(m.file, bytes, len, 0) == (ssize_t)len && !fsync(m.file), "writing the file");
		posix_fadvise(m.file, 0, len, POSIX_FADV_DONTNEED);
		free(bytes);
	}
	m.at = mmap(NULL, len, protection, flags[kind], m.file, 0);
	need(m.at != MAP_FAILED, "mmap");
	return m;
}

static void unmap(struct memory *m)
{
	munmap(m->at, m->len);
	if (m->file >= 0)
		close(m->file);
}

#endif
