/* Functions of later releases of rdma-core than the headers that this is compiled with, which it finds by name and
 * version: registration by attributes, allocated buffers, the speed of the port, names of opcodes, FLUSH.
 *
 *   later DEVICE
 *
 * Prints failures and a last line "N passed, M failed". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include "flushing.h"
#include "check.h"
#include "setup.h"

/* As in the headers of release 64. */
struct attributes {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah, *buf;
};
enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMAH = 16, BUF = 32 };
enum { PAGE = 4096, ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };

typedef struct ibv_mr *register_fn(struct ibv_pd *, struct attributes *);
typedef struct ibv_mr *register_buffer_fn(struct ibv_pd *, void *buf, void *addr, size_t length, int access);
typedef void *allocate_fn(struct ibv_pd *, size_t size, void **buf);
typedef void free_fn(void *buf);
typedef int speed_fn(struct ibv_context *, uint32_t port, uint64_t *speed);
typedef const char *name_fn(int opcode);
typedef void *dmah_fn(struct ibv_context *, void *attr);
typedef int export_fn(struct ibv_dm *);

static void *function(const char *name, const char *version)
{
	void *found = dlvsym(RTLD_DEFAULT, name, version);

	if (!found) {
		printf("no %s@%s\n", name, version);
		exit(2);
	}
	return found;
}

static int refused(struct ibv_mr *mr)
{
	int error = mr ? 0 : errno;

	if (mr)
		ibv_dereg_mr(mr);
	return error;
}

enum { FLUSH_GLOBAL = 1, FLUSH_PERSISTENT = 2, RANGE = 0, WHOLE = 1, WC_FLUSH = 8 };
enum { MR_FLUSH_GLOBAL = 1 << 8, MR_FLUSH_PERSISTENT = 1 << 9 };

/* A FLUSH after a WRITE of what `from` has, on a QP that is connected to itself. Returns the error of the post, or 1000
 * and the status of the first completion. */
static int flush(struct ibv_qp *qp, struct ibv_mr *mr, size_t length, int type, int level)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_wc wc;
	int error;

	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = 0;
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)mr->addr + PAGE);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)mr->addr, PAGE);
	ex->wr_id = 2;
	ex->wr_flags = IBV_SEND_SIGNALED;
	((struct flushing_qp *)(void *)ex)->wr_flush(ex, mr->rkey, (uintptr_t)mr->addr + PAGE, length, type, level);
	if ((error = ibv_wr_complete(ex)))
		return error;
	while (!ibv_poll_cq(qp->send_cq, 1, &wc))
		;
	check(wc.status || (wc.wr_id == 2 && wc.opcode == (enum ibv_wc_opcode)WC_FLUSH), "the FLUSH completes");
	return 1000 + wc.status;
}

static void flushes(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd };
	int gid = best_gid(context, 1), access = ACCESS | MR_FLUSH_GLOBAL;
	char *at = aligned_alloc(PAGE, 2 * PAGE);
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	struct ibv_qp_attr attr;
	union ibv_gid raw;

	init.cap = (struct ibv_qp_cap){ 8, 8, 1, 1, 0 };
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | OFFERS_FLUSH;
	check(!ibv_reg_mr(pd, at, PAGE, access | MR_FLUSH_PERSISTENT) && errno == EINVAL, "memory is not persistent");
	mr = ibv_reg_mr(pd, at, 2 * PAGE, access);
	qp = ibv_create_qp_ex(context, &init);
	if (!check(mr && qp && gid >= 0 && !ibv_query_gid(context, 1, gid, &raw), "a QP that offers FLUSH"))
		return;
	attr = rc_attr(qp->qp_num, &raw, gid);
	attr.qp_access_flags |= MR_FLUSH_GLOBAL | MR_FLUSH_PERSISTENT;
	check(!rc_connect(qp, attr), "it connects to itself");
	for (int n = 0; n < 3; n++) {
		memset(at, n + 1, PAGE);
		check(flush(qp, mr, n == 1 ? 99999 : PAGE, FLUSH_GLOBAL, n == 1 ? WHOLE : RANGE) == 1000, "a FLUSH");
		check(!memcmp(at, at + PAGE, PAGE), "what was written is there");
	}
	check(flush(qp, mr, PAGE, 0, RANGE) == EINVAL && flush(qp, mr, PAGE, 4, RANGE) == EINVAL, "no placement type");
	check(flush(qp, mr, PAGE, FLUSH_GLOBAL, 2) == EINVAL, "an unknown selectivity");
	check(flush(qp, mr, (size_t)1 << 32, FLUSH_GLOBAL, RANGE) == EINVAL, "a range that is too long");
	/* The QP fails at both of its ends. */
	check(flush(qp, mr, PAGE, FLUSH_PERSISTENT, RANGE) > 1000, "a right that the region lacks");
	check(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr), "the QP is destroyed");
	free(at);
}

int main(int argc, char **argv)
{
	register_fn *reg = function("ibv_reg_mr_ex", "IBVERBS_1.15");
	register_buffer_fn *reg_buffer = function("ibv_reg_buf_mr", "IBVERBS_1.17");
	allocate_fn *allocate = function("ibv_alloc_buf", "IBVERBS_1.17");
	free_fn *release = function("ibv_free_buf", "IBVERBS_1.17");
	speed_fn *query_speed = function("ibv_query_port_speed", "IBVERBS_1.16");
	name_fn *name = function("ibv_wr_opcode_str", "IBVERBS_PRIVATE_59");
	dmah_fn *alloc_dmah = function("ibv_alloc_dmah", "IBVERBS_1.15");
	export_fn *export = function("ibv_dm_export_dmabuf_fd", "IBVERBS_1.16");
	struct ibv_context *context = device_open(argc > 1 ? argv[1] : NULL);
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	struct attributes attr = { .length = PAGE, .access = ACCESS, .comp_mask = ADDR };
	uint64_t speed = 0;
	struct ibv_mr *mr;
	void *buf = NULL;
	char *at;

	check(query_speed(context, 1, &speed) == 0 && speed > 0, "the port has a speed: %llu", (unsigned long long)speed);
	check(query_speed(context, 2, &speed) == EINVAL, "there is no second port");
	check(!strcmp(name(14), "flush") && !strcmp(name(12), "unknown") && !strcmp(name(99), "unknown"), "opcodes");
	check(!alloc_dmah(context, &attr) && errno == EOPNOTSUPP, "DMA handles are not supported");
	check(export(NULL) == -1 && errno == EOPNOTSUPP, "device memory has no dmabuf");

	at = allocate(pd, 2 * PAGE, &buf);
	check(at && buf && (uintptr_t)at % PAGE == 0, "a buffer is allocated by pages");
	memset(at, 7, 2 * PAGE);
	attr.addr = at;
	mr = reg(pd, &attr);
	check(mr && mr->addr == at && mr->length == PAGE && mr->pd == pd, "memory is registered by attributes");
	check(mr && ibv_dereg_mr(mr) == 0, "its region is deregistered");
	attr.comp_mask = ADDR | IOVA;
	attr.iova = (uintptr_t)at + PAGE;
	check(refused(reg(pd, &attr)) == 0, "with an address of its own");
	attr.iova += 1;
	check(refused(reg(pd, &attr)) == EINVAL, "not with another offset in the page");
	attr.comp_mask = IOVA;
	check(refused(reg(pd, &attr)) == EINVAL, "without an address");
	attr.comp_mask = FD | FD_OFFSET | IOVA;
	check(refused(reg(pd, &attr)) == EOPNOTSUPP, "a dmabuf is not supported");
	attr.comp_mask = FD | ADDR;
	check(refused(reg(pd, &attr)) == EINVAL, "an address and a descriptor");
	attr.comp_mask = ADDR | DMAH;
	check(refused(reg(pd, &attr)) == EOPNOTSUPP, "a DMA handle is not supported");
	attr.comp_mask = ADDR | 1 << 20;
	check(refused(reg(pd, &attr)) == EOPNOTSUPP, "unknown members");

	check(refused(reg_buffer(pd, buf, at + PAGE, PAGE, ACCESS)) == 0, "a range of the buffer");
	check(refused(reg_buffer(pd, buf, at + PAGE, PAGE + 1, ACCESS)) == EINVAL, "beyond the end of the buffer");
	check(refused(reg_buffer(pd, buf, at - 1, PAGE, ACCESS)) == EINVAL, "before the buffer");
	check(refused(reg_buffer(other, buf, at, PAGE, ACCESS)) == EINVAL, "in another protection domain");
	attr.comp_mask = BUF;
	attr.buf = buf;
	check(refused(reg(pd, &attr)) == EINVAL, "a buffer without an address");
	release(buf);
	flushes(context, pd);
	check(!allocate(pd, 0, &buf) && errno == EINVAL, "no buffer of no size");
	check(!allocate(pd, (size_t)1 << 60, &buf) && errno == ENOMEM, "no buffer larger than memory");
	check(ibv_dealloc_pd(other) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0, "all is freed");
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
