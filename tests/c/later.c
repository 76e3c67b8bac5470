/* Functions of later releases of rdma-core than the headers that this is compiled with, which it finds by name and
 * version: registration by attributes, allocated buffers, the speed of the port, names of opcodes.
 *
 *   later DEVICE
 *
 * Prints failures and a last line "N passed, M failed". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
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
	check(!allocate(pd, 0, &buf) && errno == EINVAL, "no buffer of no size");
	check(!allocate(pd, (size_t)1 << 60, &buf) && errno == ENOMEM, "no buffer larger than memory");
	check(ibv_dealloc_pd(other) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0, "all is freed");
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
