/*
 * Domains, imports and the order of destruction, checked in one process: the errors of calls that free an object in
 * use, and of refused calls.
 *
 *   domains [device]
 *
 * Prints failures and a last line "N passed, M failed".
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "setup.h"

#define SIZE 8192

static int passed, failed;
static struct ibv_context *context;
static struct ibv_pd *pd;
static uint8_t *memory;

static void check(bool good, const char *what)
{
	good ? passed++ : failed++;
	if (!good)
		printf("failed: %s (errno %d, %s)\n", what, errno, strerror(errno));
}

/* An allocator that counts its calls; the first `limit` allocations succeed. */
struct counted {
	struct ibv_pd *pd;
	int allocated, freed, limit;
	size_t bytes;
};

static void *counted_alloc(struct ibv_pd *of, void *to, size_t size, size_t alignment, uint64_t type)
{
	struct counted *c = to;
	void *got = NULL;

	check(of == c->pd && size > 0 && type >> 32 == 0, "the arguments of the allocator");
	if (c->allocated == c->limit || posix_memalign(&got, alignment, size))
		return NULL;
	c->allocated++;
	c->bytes += size;
	return got;
}

static void counted_free(struct ibv_pd *of, void *to, void *what, uint64_t type)
{
	struct counted *c = to;

	check(of == c->pd && what && type >> 32 == 0, "the arguments of the free function");
	c->freed++;
	free(what);
}

static struct ibv_qp *make_qp(struct ibv_pd *of, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC };

	init.cap = (struct ibv_qp_cap){ 4, 4, 1, 1, 0 };
	return ibv_create_qp(of, &init);
}

static void parent_domains(void)
{
	struct ibv_td_init_attr td_attr = {}, td_bad = { .comp_mask = 1 };
	struct ibv_td *td = ibv_alloc_td(context, &td_attr);
	struct counted counted = { .limit = 2 };
	struct ibv_parent_domain_init_attr attr = { .pd = pd, .td = td, .pd_context = &counted };
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 8, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD };
	struct ibv_cq *plain = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_pd *parent;
	struct ibv_cq_ex *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;

	check(td && plain, "a thread domain");
	check(!ibv_alloc_td(context, &td_bad) && errno == EINVAL, "unknown attributes of a thread domain");
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	attr.alloc = counted_alloc;
	check(!ibv_alloc_parent_domain(context, &attr) && errno == EINVAL, "an allocator without a free function");
	attr.free = counted_free;
	attr.pd = NULL;
	check(!ibv_alloc_parent_domain(context, &attr) && errno == EINVAL, "a parent domain without a PD");
	attr.pd = pd;
	parent = ibv_alloc_parent_domain(context, &attr);
	check(parent && parent != pd && parent->handle == pd->handle, "a parent domain");
	counted.pd = parent;
	check(ibv_dealloc_td(td) == EBUSY, "a thread domain in use");
	check(ibv_dealloc_pd(pd) == EBUSY, "a domain with a parent domain");
	cq_attr.parent_domain = pd;
	check(!ibv_create_cq_ex(context, &cq_attr) && errno == EINVAL, "a CQ in a domain that is no parent domain");
	cq_attr.parent_domain = parent;
	cq = ibv_create_cq_ex(context, &cq_attr);
	qp = make_qp(parent, plain);
	check(cq && qp && counted.allocated == 2 && counted.bytes > 0, "the allocator's memory is used");
	check(!make_qp(parent, plain) && errno == ENOMEM, "an allocator that returns NULL");
	mr = ibv_reg_mr(parent, memory, SIZE, 0);
	check(mr && ibv_dealloc_pd(parent) == EBUSY, "a parent domain in use");
	check(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && ibv_dealloc_pd(parent) == EBUSY, "a CQ is left");
	check(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) && counted.freed == 2, "all memory is freed");
	check(!ibv_dealloc_pd(parent) && !ibv_dealloc_td(td), "parent and thread domain");
	check(!ibv_destroy_cq(plain), "ibv_destroy_cq");
}

static void imports(void)
{
	struct ibv_alloc_dm_attr dm_attr = { .length = 64 };
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_REMOTE_READ), *same_mr;
	struct ibv_dm *dm = ibv_alloc_dm(context, &dm_attr), *same_dm;
	int status, fd = dup(context->cmd_fd);
	struct ibv_context *imported = ibv_import_device(fd);
	struct ibv_pd *same;
	char out[8] = "device.", in[8] = "";
	pid_t child;

	if (!imported || !mr || !dm) {
		check(false, "ibv_import_device");
		return;
	}
	check(imported->cmd_fd == fd && !strcmp(imported->device->name, context->device->name), "the same device");
	check(!ibv_import_device(-1) && errno == EBADF, "an invalid descriptor");
	check(!ibv_import_device(0), "a descriptor of another file");
	same = ibv_import_pd(imported, pd->handle);
	check(same && same->context == imported && same->handle == pd->handle, "ibv_import_pd");
	check(!ibv_import_pd(imported, mr->handle) && errno == EINVAL, "a handle of another object");
	same_mr = ibv_import_mr(same, mr->handle);
	check(same_mr && !same_mr->addr && same_mr->length == SIZE && same_mr->rkey == mr->rkey, "ibv_import_mr");
	check(ibv_rereg_mr(same_mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT,
	      "an imported region cannot be reregistered");
	same_dm = ibv_import_dm(imported, dm->handle);
	check(same_dm && !ibv_memcpy_to_dm(dm, 8, out, 8) && !ibv_memcpy_from_dm(in, same_dm, 8, 8) && !memcmp(in, out, 8),
	      "ibv_import_dm");
	child = fork();
	if (!child)
		_exit(ibv_alloc_dm(context, &dm_attr) ? 0 : 1);
	check(waitpid(child, &status, 0) == child && status == 0, "device memory for a child");
	ibv_unimport_dm(same_dm);
	ibv_unimport_mr(same_mr);
	check(ibv_dealloc_pd(same) == EBUSY, "the domain has a region");
	ibv_unimport_pd(same);
	check(!ibv_close_device(imported) && fcntl(fd, F_GETFD) < 0, "the descriptor is closed");
	check(!ibv_dereg_mr(mr) && !ibv_free_dm(dm), "the originals");
}

static void refusals(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB | (1 << 20));

	check(mr && !ibv_dereg_mr(mr), "a zero-based region, optional flags");
	check(!ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL, "remote without local write");
	check(!ibv_reg_mr(pd, memory, SIZE, 1 << 12) && errno == EINVAL, "an unknown flag");
	check(!ibv_reg_mr(pd, memory, 0, 0) && errno == EINVAL, "no bytes");
	check(!ibv_reg_mr(pd, (void *)4096, 100, 0) && errno == EFAULT, "unmapped memory");
	check(!ibv_reg_mr_iova(pd, memory, SIZE, (uintptr_t)memory + 1, 0) && errno == EINVAL, "an IOVA at another offset");
	check(!ibv_alloc_mw(pd, 3) && errno == EINVAL, "a window of type 3");
	check(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, 0) && errno == EOPNOTSUPP, "dmabuf");
	check(!ibv_create_counters(context, &(struct ibv_counters_init_attr){ 1 }) && errno == EINVAL, "counters of flows");
	check(ibv_advise_mr(pd, 0, 0, NULL, 0) == EINVAL, "advice without SGEs");
}

int main(int argc, char **argv)
{
	context = device_open(argc > 1 ? argv[1] : NULL);
	pd = context ? ibv_alloc_pd(context) : NULL;
	memory = aligned_alloc(4096, SIZE);
	if (!pd || !memory) {
		fprintf(stderr, "domains: cannot open the device\n");
		return 2;
	}
	memset(memory, 1, SIZE);
	parent_domains();
	imports();
	refusals();
	check(!ibv_dealloc_pd(pd) && !ibv_close_device(context), "closing");
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
