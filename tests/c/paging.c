/*
 * ODP memory, checked in one process: cold memory of every kind is paged in when it is used, refused accesses
 * end with the right status, and parent and child see the right data after a fork.
 *
 *   paging [device [gid index]]
 *
 * Prints failures, tests that could not run here, and a last line "N passed, M failed".
 */
#include "paging_rig.h"

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#define LEN (64 * PAGE)

static void capabilities(void)
{
	struct ibv_device_attr_ex ex = {};
	uint32_t both = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
	uint32_t one_sided = IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
	/* Of later releases: IBV_ODP_SUPPORT_FLUSH and IBV_ODP_SUPPORT_ATOMIC_WRITE. */
	uint32_t later = 1 << 6 | 1 << 7;

	need(!ibv_query_device_ex(context, NULL, &ex), "ibv_query_device_ex");
	check(ex.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT), "general capabilities");
	check(ex.odp_caps.per_transport_caps.rc_odp_caps == (both | one_sided | later), "capabilities of RC");
	check(ex.odp_caps.per_transport_caps.uc_odp_caps == (both | IBV_ODP_SUPPORT_WRITE), "capabilities of UC");
	check(ex.odp_caps.per_transport_caps.ud_odp_caps == both, "capabilities of UD");
}

/* Every operation, with cold memory of every kind at either end. */
static void cold_memory(void)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND };

	for (enum kind kind = 0; kind < KINDS; kind++)
		for (int i = 0; i < 3; i++)
			for (int cold_is_source = 0; cold_is_source < 2; cold_is_source++) {
				struct memory m = map(kind, LEN, PROT_READ | PROT_WRITE);
				struct ibv_mr *mr = ibv_reg_mr(pd, m.at, LEN, DEMAND);
				struct spot cold = { m.at + 100, mr }, warm = { plain + 7, plain_mr };
				/* A READ moves data from the remote end to the local one. */
				bool cold_is_here = cold_is_source == (ops[i] != IBV_WR_RDMA_READ);
				uint32_t len = LEN - 200;
				unsigned tag = kind + 10 * i;
				int far = IBV_WC_SUCCESS;
				uint8_t *bytes;

				need(mr != NULL, "ibv_reg_mr with ODP");
				if (cold_is_source && kind < FILE_PRIVATE) {
					/* Memory that was swapped out must be read with its contents. */
					memset(m.at, 0x5a, LEN);
					madvise(m.at, LEN, MADV_PAGEOUT);
				}
				pattern(plain, PLAIN, tag);
				ends_with(outcome(ops[i], cold_is_here ? cold : warm, cold_is_here ? warm : cold, len,
						  &far), IBV_WC_SUCCESS, kinds[kind], "cold memory");
				ends_with(far, IBV_WC_SUCCESS, kinds[kind], "the far end");
				bytes = malloc(LEN);
				if (!cold_is_source) {
					pattern(bytes, LEN, tag);
					check(!memcmp(m.at + 100, bytes + 7, len), "data written to cold memory");
				} else if (kind < FILE_PRIVATE) {
					memset(bytes, 0x5a, LEN);
					check(!memcmp(plain + 7, bytes, len), "data read from memory paged out");
				} else {
					pattern(bytes, LEN, 9);
					check(!memcmp(plain + 7, bytes + 100, len), "data read from a cold file");
				}
				if (!cold_is_source && kind >= FILE_PRIVATE) {
					uint8_t *now_there = malloc(LEN);

					need(pread(m.file, now_there, LEN, 0) == LEN, "pread");
					pattern(bytes, LEN, 9);
					check((memcmp(now_there, bytes, LEN) == 0) == (kind == FILE_PRIVATE),
					      "a file's own bytes");
					check(kind == FILE_PRIVATE || !memcmp(now_there, m.at, LEN), "a file's new bytes");
					free(now_there);
				}
				free(bytes);
				check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
				unmap(&m);
			}
}

static void atomics(void)
{
	struct memory m = map(ANONYMOUS, 2 * PAGE, PROT_READ | PROT_WRITE);
	struct ibv_mr *mr = ibv_reg_mr(pd, m.at, 2 * PAGE, DEMAND);
	uint64_t value;

	ends_with(outcome(IBV_WR_ATOMIC_FETCH_AND_ADD, (struct spot){ m.at + PAGE, mr }, (struct spot){ m.at, mr }, 8,
			  NULL), IBV_WC_SUCCESS, "an atomic", "with cold memory at both ends");
	memcpy(&value, m.at, 8);
	check(value == 5, "the sum");
	memcpy(&value, m.at + PAGE, 8);
	check(value == 0, "the value before the atomic");
	check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	unmap(&m);
}

/* Pages that do not allow the access, alone or in the middle of others; then the same pages when they allow it
 * again. */
static void refusals(void)
{
	static const struct { const char *name; int protection; bool reads; } list[] = {
		{ "read-only memory", PROT_READ, true },
		{ "memory of PROT_NONE", PROT_NONE, false },
		{ "unmapped memory", -1, false },
	};

	for (int i = 0; i < 3; i++)
		for (int inside = 0; inside < 2; inside++) {
			const char *name = list[i].name;
			struct memory m = map(ANONYMOUS, LEN, PROT_READ | PROT_WRITE);
			struct ibv_mr *mr = ibv_reg_mr(pd, m.at, LEN, DEMAND);
			uint8_t *hole = m.at + 8 * PAGE;
			struct spot bad = { inside ? m.at : hole, mr }, good = { plain, plain_mr };
			uint32_t len = inside ? LEN : 100;
			int reading = list[i].reads ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
			int remote = list[i].reads ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR, far;

			need(mr != NULL, "ibv_reg_mr with ODP");
			if (list[i].protection < 0)
				munmap(hole, PAGE);
			else
				mprotect(hole, PAGE, list[i].protection);
			ends_with(outcome(IBV_WR_RDMA_WRITE, bad, good, len, NULL), reading, "a WRITE from", name);
			ends_with(outcome(IBV_WR_RDMA_READ, good, bad, len, NULL), remote, "a READ of", name);
			ends_with(outcome(IBV_WR_RDMA_WRITE, good, bad, len, NULL), IBV_WC_REM_OP_ERR, "a WRITE to", name);
			ends_with(outcome(IBV_WR_RDMA_READ, bad, good, len, NULL), IBV_WC_LOC_PROT_ERR, "a READ into",
				  name);
			ends_with(outcome(IBV_WR_SEND, good, bad, len, &far), IBV_WC_REM_OP_ERR, "a SEND to", name);
			ends_with(far, IBV_WC_LOC_PROT_ERR, "a receive in", name);
			if (!inside)
				ends_with(outcome(IBV_WR_ATOMIC_FETCH_AND_ADD, good, bad, 8, NULL), IBV_WC_REM_OP_ERR,
					  "an atomic on", name);
			/* After the page is accessible again, transfers succeed. */
			if (list[i].protection < 0)
				need(mmap(hole, PAGE, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == hole, "mmap");
			else
				mprotect(hole, PAGE, PROT_READ | PROT_WRITE);
			pattern(plain, PLAIN, 20 + i);
			ends_with(outcome(IBV_WR_RDMA_WRITE, good, bad, len, NULL), IBV_WC_SUCCESS, "a WRITE again to", name);
			check(is_pattern(bad.at, len, 20 + i), "data of a page that is accessible again");
			check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
			munmap(m.at, LEN);
		}
}

/* Parent and child have their own copies; the adapter uses the parent's. */
static void forks(void)
{
	struct memory m = map(ANONYMOUS, 2 * PAGE, PROT_READ | PROT_WRITE);
	struct ibv_mr *mr = ibv_reg_mr(pd, m.at, 2 * PAGE, DEMAND);
	struct spot here = { plain, plain_mr }, there = { m.at, mr };
	int go[2], done[2], status;
	char byte = 0;
	pid_t child;

	memset(plain, 0x11, 2 * PAGE);
	ends_with(outcome(IBV_WR_RDMA_WRITE, here, there, 2 * PAGE, NULL), IBV_WC_SUCCESS, "a WRITE", "before a fork");
	need(!pipe(go) && !pipe(done), "pipes");
	child = fork();
	need(child >= 0, "fork");
	if (!child) {
		int bad;

		/* The child writes first, then the parent's adapter writes, then the child checks its memory. */
		m.at[PAGE] = 0x33;
		need(write(done[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1, "the parent");
		bad = m.at[0] != 0x11 || m.at[PAGE] != 0x33 || m.at[PAGE + 1] != 0x11;
		_exit(bad);
	}
	need(read(done[0], &byte, 1) == 1, "the child");
	ends_with(outcome(IBV_WR_RDMA_READ, here, there, 2 * PAGE, NULL), IBV_WC_SUCCESS, "a READ", "after a fork");
	check(plain[PAGE] == 0x11, "the parent's memory without the child's byte");
	memset(plain, 0x22, 2 * PAGE);
	ends_with(outcome(IBV_WR_RDMA_WRITE, here, there, 2 * PAGE, NULL), IBV_WC_SUCCESS, "a WRITE", "after a fork");
	check(m.at[0] == 0x22 && m.at[PAGE] == 0x22, "the WRITE's data in the parent's memory");
	need(write(go[1], &byte, 1) == 1 && waitpid(child, &status, 0) == child, "the end of the child");
	check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's memory is unchanged");
	check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	unmap(&m);
}

/* An implicit region covers all memory, also memory that is mapped later; accesses to unmapped addresses fail. */
static void implicit(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, NULL, SIZE_MAX, DEMAND);
	struct memory m = map(ANONYMOUS, LEN, PROT_READ | PROT_WRITE);
	struct spot here = { m.at, mr }, there = { m.at + LEN / 2, mr }, good = { plain, plain_mr };

	if (!check(mr && mr->length == SIZE_MAX && mr->addr == NULL, "an implicit region"))
		return;
	pattern(m.at, LEN / 2, 31);
	ends_with(outcome(IBV_WR_RDMA_WRITE, here, there, LEN / 2, NULL), IBV_WC_SUCCESS, "implicit", "a WRITE");
	check(is_pattern(there.at, LEN / 2, 31), "data written through an implicit region");
	ends_with(outcome(IBV_WR_RDMA_READ, good, (struct spot){ (void *)PAGE, mr }, 8, NULL), IBV_WC_REM_OP_ERR,
		  "implicit", "a READ of an unmapped page");
	ends_with(outcome(IBV_WR_RDMA_READ, good, (struct spot){ (void *)(1ul << 60), mr }, 8, NULL), IBV_WC_REM_OP_ERR,
		  "implicit", "a READ of an address outside of user space");
	ends_with(outcome(IBV_WR_RDMA_WRITE, (struct spot){ (void *)PAGE, mr }, good, 8, NULL), IBV_WC_LOC_PROT_ERR,
		  "implicit", "a WRITE from an unmapped page");
	check(!ibv_reg_mr(pd, NULL, SIZE_MAX, ALL), "an implicit region without ODP");
	check(!ibv_reg_mr_iova2(pd, NULL, SIZE_MAX, PAGE, DEMAND) && errno == EINVAL, "an implicit region with IOVA");
	check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	unmap(&m);
}

static int advise(struct ibv_pd *of, int advice, int flags, void *at, uint32_t len, uint32_t lkey)
{
	struct ibv_sge sge = { (uintptr_t)at, len, lkey };

	return ibv_advise_mr(of, (enum ibv_advise_mr_advice)advice, flags, &sge, 1);
}

static void advice(void)
{
	enum { READ = IBV_ADVISE_MR_ADVICE_PREFETCH, WRITE = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
	       NO_FAULT = IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, FLUSH = IBV_ADVISE_MR_FLAG_FLUSH };
	struct memory m = map(ANONYMOUS, LEN, PROT_READ | PROT_WRITE);
	struct ibv_mr *mr = ibv_reg_mr(pd, m.at, LEN, DEMAND);
	struct ibv_mr *read_only = ibv_reg_mr(pd, m.at, LEN, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND);
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct spot here = { plain, plain_mr }, there = { m.at, mr };
	unsigned char resident[LEN / PAGE];
	int all = 1;

	need(mr && read_only && other, "regions and a domain");
	check(!advise(pd, NO_FAULT, FLUSH, m.at, LEN, mr->lkey), "PREFETCH_NO_FAULT without present pages");
	mincore(m.at, LEN, resident);
	check(!(resident[0] & 1), "PREFETCH_NO_FAULT brings in no page");
	check(!advise(pd, WRITE, FLUSH, m.at + PAGE, LEN - PAGE, mr->lkey), "prefetch for writing");
	mincore(m.at, LEN, resident);
	for (int i = 1; i < LEN / PAGE; i++)
		all &= resident[i];
	check(all && !(resident[0] & 1), "the prefetched pages are present, and no others");
	check(!advise(pd, READ, FLUSH, m.at, LEN, read_only->lkey), "prefetch for reading");
	check(!advise(pd, READ, 0, m.at, LEN, mr->lkey) && !advise(pd, WRITE, 0, m.at, LEN, mr->lkey) &&
		      !advise(pd, NO_FAULT, 0, m.at, LEN, mr->lkey), "prefetches without FLUSH");
	check(!advise(pd, READ, FLUSH, m.at, 0, mr->lkey), "no bytes");
	check(advise(pd, 7, FLUSH, m.at, LEN, mr->lkey) == EOPNOTSUPP, "unknown advice");
	check(advise(pd, READ, 2, m.at, LEN, mr->lkey) == EINVAL, "an unknown flag");
	check(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0) == EINVAL, "no list");
	check(advise(pd, READ, FLUSH, m.at, LEN, mr->lkey ^ 0x100) == ENOENT, "an unknown key");
	check(advise(pd, READ, FLUSH, plain, PAGE, plain_mr->lkey) == ENOENT, "a pinned region");
	check(advise(other, READ, FLUSH, m.at, LEN, mr->lkey) == EPERM, "another domain's region");
	check(advise(pd, WRITE, FLUSH, m.at, LEN, read_only->lkey) == EPERM, "prefetch for writing, read-only region");
	check(advise(pd, READ, FLUSH, m.at + PAGE, LEN, mr->lkey) == EFAULT, "over the end");
	munmap(m.at + 5 * PAGE, PAGE);
	check(advise(pd, READ, FLUSH, m.at, LEN, mr->lkey) == EFAULT, "over a hole");
	check(advise(pd, READ, 0, m.at, LEN, mr->lkey) == 0, "a prefetch without FLUSH over a hole");
	pattern(plain, PLAIN, 41);
	ends_with(outcome(IBV_WR_RDMA_WRITE, here, there, 5 * PAGE, NULL), IBV_WC_SUCCESS, "a WRITE to", "prefetched");
	check(is_pattern(m.at, 5 * PAGE, 41), "data in prefetched memory");
	check(!ibv_dereg_mr(mr) && !ibv_dereg_mr(read_only) && !ibv_dealloc_pd(other), "ibv_dereg_mr");
	munmap(m.at, LEN);
}

/* A window over cold memory; a region that changes to ODP memory and back. */
static void windows_and_changes(void)
{
	struct memory m = map(ANONYMOUS, LEN, PROT_READ | PROT_WRITE);
	struct ibv_mr *mr = ibv_reg_mr(pd, m.at, LEN, DEMAND | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mr by_window;
	struct pair p = pair_open();
	struct ibv_mw_bind bind = { .wr_id = 3, .send_flags = IBV_SEND_SIGNALED };

	need(mr && mw, "a region and a window");
	bind.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)m.at + PAGE, 4 * PAGE, IBV_ACCESS_REMOTE_WRITE };
	need(!ibv_bind_mw(p.b, mw, &bind), "ibv_bind_mw");
	check(next(p.b_cq) == IBV_WC_SUCCESS, "a window over ODP memory");
	by_window = *mr;
	by_window.rkey = mw->rkey;
	pattern(plain, PLAIN, 51);
	post(p.a, IBV_WR_RDMA_WRITE, (struct spot){ plain, plain_mr }, (struct spot){ m.at + PAGE, &by_window }, 4 * PAGE);
	ends_with(next(p.a_cq), IBV_WC_SUCCESS, "a WRITE", "by a window");
	check(is_pattern(m.at + PAGE, 4 * PAGE, 51), "data written through a window");
	check(advise(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, m.at + PAGE, PAGE, mw->rkey) == EINVAL, "advice on a window");
	check(!ibv_dealloc_mw(mw), "ibv_dealloc_mw");
	for (int demand = 0; demand < 2; demand++) {
		int access = demand ? DEMAND : ALL;

		check(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, access), "ibv_rereg_mr");
		madvise(m.at, LEN, MADV_DONTNEED);
		pattern(plain, PLAIN, 60 + demand);
		ends_with(outcome(IBV_WR_RDMA_WRITE, (struct spot){ plain, plain_mr }, (struct spot){ m.at, mr }, LEN,
				  NULL), IBV_WC_SUCCESS, "a WRITE", "to a changed region");
		check(is_pattern(m.at, LEN, 60 + demand), "data in a changed region");
	}
	/* This part of the memory is in no other region. */
	check(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, m.at + LEN / 2, LEN / 2, 0), "other memory");
	ends_with(outcome(IBV_WR_RDMA_WRITE, (struct spot){ plain, plain_mr }, (struct spot){ m.at, mr }, 8, NULL),
		  IBV_WC_REM_ACCESS_ERR, "a WRITE", "to memory that was in the region");
	pair_close(&p);
	check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	unmap(&m);
}

#define HUGE (2 << 20)

static void huge_pages(void)
{
	struct memory m = map(ANONYMOUS, HUGE, PROT_READ | PROT_WRITE);
	uint8_t *huge = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	check(!ibv_reg_mr(pd, m.at, HUGE, DEMAND | IBV_ACCESS_HUGETLB) && errno == EINVAL, "small pages as huge pages");
	check(!ibv_reg_mr(pd, NULL, SIZE_MAX, DEMAND | IBV_ACCESS_HUGETLB) && errno == EINVAL, "all memory as huge pages");
	unmap(&m);
	if (huge == MAP_FAILED) {
		printf("not tried: huge pages, because vm.nr_hugepages is 0\n");
	} else {
		struct ibv_mr *mr = ibv_reg_mr(pd, huge, HUGE, DEMAND | IBV_ACCESS_HUGETLB);

		if (check(mr != NULL, "an ODP region of huge pages")) {
			pattern(plain, PLAIN, 71);
			ends_with(outcome(IBV_WR_RDMA_WRITE, (struct spot){ plain, plain_mr },
					  (struct spot){ huge + 5000, mr }, PLAIN, NULL), IBV_WC_SUCCESS, "a WRITE",
				  "to huge pages");
			check(is_pattern(huge + 5000, PLAIN, 71), "data in huge pages");
			check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
		}
		munmap(huge, HUGE);
	}
}

/* Registers memory with userfaultfd, so that its pages come only when the test provides them. */
static int slow(uint8_t *at, size_t len)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .range = { (uintptr_t)at, len }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);

	if (fd < 0)
		return -1;
	need(!ioctl(fd, UFFDIO_API, &api) && !ioctl(fd, UFFDIO_REGISTER, &reg), "userfaultfd");
	return fd;
}

/* Other QPs must continue while QPs wait for missing pages; then the pages come. */
static void slow_pages(void)
{
	enum { WAITING = 3 };
	struct memory m = map(ANONYMOUS, 2 * PAGE, PROT_READ | PROT_WRITE);
	struct memory quick = map(ANONYMOUS, LEN, PROT_READ | PROT_WRITE);
	static uint8_t bytes[PAGE];
	struct pair waiting[WAITING], moving = pair_open();
	struct uffdio_copy copy = { .dst = (uintptr_t)m.at, .src = (uintptr_t)bytes, .len = PAGE };
	struct ibv_mr *mr, *quick_mr;
	struct ibv_wc wc;
	int fd = slow(m.at, PAGE), none = 1;

	if (fd < 0) {
		printf("not tried: slow pages, because userfaultfd is forbidden\n");
		return;
	}
	mr = ibv_reg_mr(pd, m.at, 2 * PAGE, DEMAND);
	quick_mr = ibv_reg_mr(pd, quick.at, LEN, DEMAND);
	need(mr && quick_mr, "ODP regions");
	pattern(plain, PLAIN, 81);
	memset(bytes, 0x77, PAGE);
	/* One QP writes to the page, one reads from it, one sends from it. */
	for (int i = 0; i < WAITING; i++)
		waiting[i] = pair_open();
	post(waiting[0].a, IBV_WR_RDMA_WRITE, (struct spot){ plain, plain_mr }, (struct spot){ m.at, mr }, 8);
	post(waiting[1].a, IBV_WR_RDMA_READ, (struct spot){ plain + LEN, plain_mr }, (struct spot){ m.at + 64, mr }, 64);
	receive(waiting[2].b, (struct spot){ plain + 2 * LEN, plain_mr }, 64);
	post(waiting[2].a, IBV_WR_SEND, (struct spot){ m.at + 128, mr }, (struct spot){}, 64);
	for (int i = 0; i < 200; i++) {
		/* Cold pages too. */
		if (i % 10 == 0)
			madvise(quick.at, LEN, MADV_DONTNEED);
		post(moving.a, IBV_WR_RDMA_WRITE, (struct spot){ plain, plain_mr }, (struct spot){ quick.at, quick_mr }, LEN);
		if (!ends_with(next(moving.a_cq), IBV_WC_SUCCESS, "a QP", "while others wait"))
			break;
	}
	check(is_pattern(quick.at, LEN, 81), "data of the QP that continued");
	for (int i = 0; i < WAITING; i++)
		none &= ibv_poll_cq(waiting[i].a_cq, 1, &wc) == 0;
	check(none, "no completion before the page comes");
	need(!ioctl(fd, UFFDIO_COPY, &copy), "UFFDIO_COPY");
	for (int i = 0; i < WAITING; i++)
		ends_with(next(waiting[i].a_cq), IBV_WC_SUCCESS, "a QP", "when its page has come");
	check(is_pattern(m.at, 8, 81) && m.at[8] == 0x77, "data written to the slow page");
	check(plain[LEN] == 0x77 && plain[LEN + 63] == 0x77, "data read from the slow page");
	check(next(waiting[2].b_cq) == IBV_WC_SUCCESS && plain[2 * LEN + 63] == 0x77, "data sent from the slow page");
	for (int i = 0; i < WAITING; i++)
		pair_close(&waiting[i]);
	pair_close(&moving);
	check(!ibv_dereg_mr(mr) && !ibv_dereg_mr(quick_mr), "ibv_dereg_mr");
	close(fd);
	unmap(&m);
	unmap(&quick);
}

/* A region is deregistered while a QP waits for one of its pages. */
static void ends_while_waited_for(void)
{
	struct memory m = map(ANONYMOUS, PAGE, PROT_READ | PROT_WRITE);
	int fd = slow(m.at, PAGE);
	struct pair p = pair_open();
	struct ibv_mr *mr;

	if (fd < 0)
		return;
	mr = ibv_reg_mr(pd, m.at, PAGE, DEMAND);
	post(p.a, IBV_WR_RDMA_WRITE, (struct spot){ plain, plain_mr }, (struct spot){ m.at, mr }, 8);
	usleep(20000);
	check(!ibv_dereg_mr(mr), "ibv_dereg_mr while a QP waits for a page");
	ends_with(next(p.a_cq), IBV_WC_REM_ACCESS_ERR, "a WRITE", "to a deregistered region");
	pair_close(&p);
	/* Releases the thread that resolves the fault. */
	close(fd);
	unmap(&m);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	open_device(argc > 1 ? argv[1] : "weir_lo", argc > 2 ? atoi(argv[2]) : 1);
	capabilities();
	cold_memory();
	atomics();
	refusals();
	forks();
	implicit();
	advice();
	windows_and_changes();
	huge_pages();
	slow_pages();
	ends_while_waited_for();
	check(!ibv_dereg_mr(plain_mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "closing");
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
