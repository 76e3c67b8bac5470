/*
 * Memory that is registered on demand, checked in one process: that cold memory of every kind comes when it is used,
 * what is refused with which status, and who sees what after a fork.
 *
 *   paging [device [gid index]]
 *
 * Prints what fails, what could not be tried here, and a last line "N passed, M failed".
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

	need(!ibv_query_device_ex(context, NULL, &ex), "ibv_query_device_ex");
	check(ex.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT), "general capabilities");
	check(ex.odp_caps.per_transport_caps.rc_odp_caps == (both | one_sided), "capabilities of RC");
	check(ex.odp_caps.per_transport_caps.uc_odp_caps == (both | IBV_ODP_SUPPORT_WRITE), "capabilities of UC");
	check(ex.odp_caps.per_transport_caps.ud_odp_caps == both, "capabilities of UD");
}

/* Every operation, with cold memory at either end, of every kind. */
static void cold_memory(void)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND };

	for (enum kind kind = 0; kind < KINDS; kind++)
		for (int i = 0; i < 3; i++)
			for (int cold_is_source = 0; cold_is_source < 2; cold_is_source++) {
				struct memory m = map(kind, LEN, PROT_READ | PROT_WRITE);
				struct ibv_mr *mr = ibv_reg_mr(pd, m.at, LEN, DEMAND);
				struct spot cold = { m.at + 100, mr }, warm = { plain + 7, plain_mr };
				/* A READ's bytes go from there to here. */
				bool cold_is_here = cold_is_source == (ops[i] != IBV_WR_RDMA_READ);
				uint32_t len = LEN - 200;
				unsigned tag = kind + 10 * i;
				int far = IBV_WC_SUCCESS;
				uint8_t *bytes;

				need(mr != NULL, "ibv_reg_mr on demand");
				if (cold_is_source && kind < FILE_PRIVATE) {
					/* What was swapped out or never touched reads as what it is. */
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
					check(!memcmp(m.at + 100, bytes + 7, len), "what came into cold memory");
				} else if (kind < FILE_PRIVATE) {
					memset(bytes, 0x5a, LEN);
					check(!memcmp(plain + 7, bytes, len), "what came from memory paged out");
				} else {
					pattern(bytes, LEN, 9);
					check(!memcmp(plain + 7, bytes + 100, len), "what came from a cold file");
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
			  NULL), IBV_WC_SUCCESS, "an atomic", "cold at both ends");
	memcpy(&value, m.at, 8);
	check(value == 5, "the sum");
	memcpy(&value, m.at + PAGE, 8);
	check(value == 0, "the value before");
	check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	unmap(&m);
}

/* Memory that may not be used that way, in the middle of what may; and what is allowed again later. */
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

			need(mr != NULL, "ibv_reg_mr on demand");
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
			/* There again, it is as good as any. */
			if (list[i].protection < 0)
				need(mmap(hole, PAGE, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == hole, "mmap");
			else
				mprotect(hole, PAGE, PROT_READ | PROT_WRITE);
			pattern(plain, PLAIN, 20 + i);
			ends_with(outcome(IBV_WR_RDMA_WRITE, good, bad, len, NULL), IBV_WC_SUCCESS, "once more", name);
			check(is_pattern(bad.at, len, 20 + i), "bytes where nothing was allowed before");
			check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
			munmap(m.at, LEN);
		}
}

/* Parent and child have their own copies: the adapter is the parent's. */
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

		/* Its own change first, then the parent's adapter writes, then it looks again. */
		m.at[PAGE] = 0x33;
		need(write(done[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1, "the parent");
		bad = m.at[0] != 0x11 || m.at[PAGE] != 0x33 || m.at[PAGE + 1] != 0x11;
		_exit(bad);
	}
	need(read(done[0], &byte, 1) == 1, "the child");
	ends_with(outcome(IBV_WR_RDMA_READ, here, there, 2 * PAGE, NULL), IBV_WC_SUCCESS, "a READ", "after a fork");
	check(plain[PAGE] == 0x11, "the child's byte is not the parent's");
	memset(plain, 0x22, 2 * PAGE);
	ends_with(outcome(IBV_WR_RDMA_WRITE, here, there, 2 * PAGE, NULL), IBV_WC_SUCCESS, "a WRITE", "after a fork");
	check(m.at[0] == 0x22 && m.at[PAGE] == 0x22, "the parent has what was written");
	need(write(go[1], &byte, 1) == 1 && waitpid(child, &status, 0) == child, "the child's end");
	check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child has what it had");
	check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	unmap(&m);
}

/* All memory, also what comes later; and what is no memory. */
static void implicit(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, NULL, SIZE_MAX, DEMAND);
	struct memory m = map(ANONYMOUS, LEN, PROT_READ | PROT_WRITE);
	struct spot here = { m.at, mr }, there = { m.at + LEN / 2, mr }, good = { plain, plain_mr };

	if (!check(mr && mr->length == SIZE_MAX && mr->addr == NULL, "an implicit region"))
		return;
	pattern(m.at, LEN / 2, 31);
	ends_with(outcome(IBV_WR_RDMA_WRITE, here, there, LEN / 2, NULL), IBV_WC_SUCCESS, "implicit", "a WRITE");
	check(is_pattern(there.at, LEN / 2, 31), "bytes by an implicit region");
	ends_with(outcome(IBV_WR_RDMA_READ, good, (struct spot){ (void *)PAGE, mr }, 8, NULL), IBV_WC_REM_OP_ERR,
		  "implicit", "a page that nobody has");
	ends_with(outcome(IBV_WR_RDMA_READ, good, (struct spot){ (void *)(1ul << 60), mr }, 8, NULL), IBV_WC_REM_OP_ERR,
		  "implicit", "no address of a program");
	ends_with(outcome(IBV_WR_RDMA_WRITE, (struct spot){ (void *)PAGE, mr }, good, 8, NULL), IBV_WC_LOC_PROT_ERR,
		  "implicit", "from a page that nobody has");
	check(!ibv_reg_mr(pd, NULL, SIZE_MAX, ALL), "all memory, pinned");
	check(!ibv_reg_mr_iova2(pd, NULL, SIZE_MAX, PAGE, DEMAND) && errno == EINVAL, "all memory by another address");
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
	check(!advise(pd, NO_FAULT, FLUSH, m.at, LEN, mr->lkey), "nothing is there yet");
	mincore(m.at, LEN, resident);
	check(!(resident[0] & 1), "nothing was brought in");
	check(!advise(pd, WRITE, FLUSH, m.at + PAGE, LEN - PAGE, mr->lkey), "prefetch for writing");
	mincore(m.at, LEN, resident);
	for (int i = 1; i < LEN / PAGE; i++)
		all &= resident[i];
	check(all && !(resident[0] & 1), "what was asked for is there, and nothing else");
	check(!advise(pd, READ, FLUSH, m.at, LEN, read_only->lkey), "prefetch for reading");
	check(!advise(pd, READ, 0, m.at, LEN, mr->lkey) && !advise(pd, WRITE, 0, m.at, LEN, mr->lkey) &&
		      !advise(pd, NO_FAULT, 0, m.at, LEN, mr->lkey), "by and by");
	check(!advise(pd, READ, FLUSH, m.at, 0, mr->lkey), "no bytes");
	check(advise(pd, 7, FLUSH, m.at, LEN, mr->lkey) == EOPNOTSUPP, "unknown advice");
	check(advise(pd, READ, 2, m.at, LEN, mr->lkey) == EINVAL, "an unknown flag");
	check(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0) == EINVAL, "no list");
	check(advise(pd, READ, FLUSH, m.at, LEN, mr->lkey ^ 0x100) == ENOENT, "an unknown key");
	check(advise(pd, READ, FLUSH, plain, PAGE, plain_mr->lkey) == ENOENT, "a pinned region");
	check(advise(other, READ, FLUSH, m.at, LEN, mr->lkey) == EPERM, "another domain's region");
	check(advise(pd, WRITE, FLUSH, m.at, LEN, read_only->lkey) == EPERM, "writing where that is not allowed");
	check(advise(pd, READ, FLUSH, m.at + PAGE, LEN, mr->lkey) == EFAULT, "over the end");
	munmap(m.at + 5 * PAGE, PAGE);
	check(advise(pd, READ, FLUSH, m.at, LEN, mr->lkey) == EFAULT, "over a hole");
	check(advise(pd, READ, 0, m.at, LEN, mr->lkey) == 0, "whoever does not wait is not told of a hole");
	pattern(plain, PLAIN, 41);
	ends_with(outcome(IBV_WR_RDMA_WRITE, here, there, 5 * PAGE, NULL), IBV_WC_SUCCESS, "prefetched", "a WRITE");
	check(is_pattern(m.at, 5 * PAGE, 41), "bytes in prefetched memory");
	check(!ibv_dereg_mr(mr) && !ibv_dereg_mr(read_only) && !ibv_dealloc_pd(other), "ibv_dereg_mr");
	munmap(m.at, LEN);
}

/* A window opens cold memory; a region becomes one on demand and back. */
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
	check(next(p.b_cq) == IBV_WC_SUCCESS, "a window over memory on demand");
	by_window = *mr;
	by_window.rkey = mw->rkey;
	pattern(plain, PLAIN, 51);
	post(p.a, IBV_WR_RDMA_WRITE, (struct spot){ plain, plain_mr }, (struct spot){ m.at + PAGE, &by_window }, 4 * PAGE);
	ends_with(next(p.a_cq), IBV_WC_SUCCESS, "a WRITE", "by a window");
	check(is_pattern(m.at + PAGE, 4 * PAGE, 51), "bytes by a window");
	check(advise(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, m.at + PAGE, PAGE, mw->rkey) == EINVAL, "advice on a window");
	check(!ibv_dealloc_mw(mw), "ibv_dealloc_mw");
	for (int demand = 0; demand < 2; demand++) {
		int access = demand ? DEMAND : ALL;

		check(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, access), "ibv_rereg_mr");
		madvise(m.at, LEN, MADV_DONTNEED);
		pattern(plain, PLAIN, 60 + demand);
		ends_with(outcome(IBV_WR_RDMA_WRITE, (struct spot){ plain, plain_mr }, (struct spot){ m.at, mr }, LEN,
				  NULL), IBV_WC_SUCCESS, "a WRITE", "to a changed region");
		check(is_pattern(m.at, LEN, 60 + demand), "bytes in a changed region");
	}
	/* No other region holds it. */
	check(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, m.at + LEN / 2, LEN / 2, 0), "other memory");
	ends_with(outcome(IBV_WR_RDMA_WRITE, (struct spot){ plain, plain_mr }, (struct spot){ m.at, mr }, 8, NULL),
		  IBV_WC_REM_ACCESS_ERR, "a WRITE", "to what was the region's");
	pair_close(&p);
	check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	unmap(&m);
}

#define HUGE (2 << 20)

static void huge_pages(void)
{
	struct memory m = map(ANONYMOUS, HUGE, PROT_READ | PROT_WRITE);
	uint8_t *huge = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	check(!ibv_reg_mr(pd, m.at, HUGE, DEMAND | IBV_ACCESS_HUGETLB) && errno == EINVAL, "small pages said to be huge");
	check(!ibv_reg_mr(pd, NULL, SIZE_MAX, DEMAND | IBV_ACCESS_HUGETLB) && errno == EINVAL, "all memory as huge pages");
	unmap(&m);
	if (huge == MAP_FAILED) {
		printf("not tried: huge pages, for vm.nr_hugepages is 0\n");
	} else {
		struct ibv_mr *mr = ibv_reg_mr(pd, huge, HUGE, DEMAND | IBV_ACCESS_HUGETLB);

		if (check(mr != NULL, "huge pages on demand")) {
			pattern(plain, PLAIN, 71);
			ends_with(outcome(IBV_WR_RDMA_WRITE, (struct spot){ plain, plain_mr },
					  (struct spot){ huge + 5000, mr }, PLAIN, NULL), IBV_WC_SUCCESS, "a WRITE",
				  "to huge pages");
			check(is_pattern(huge + 5000, PLAIN, 71), "bytes in huge pages");
			check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
		}
		munmap(huge, HUGE);
	}
}

/* A page that comes when the test says so. */
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

/* Others go on while QPs wait for pages that do not come; then these do. */
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
		printf("not tried: pages that take their time, for userfaultfd is forbidden\n");
		return;
	}
	mr = ibv_reg_mr(pd, m.at, 2 * PAGE, DEMAND);
	quick_mr = ibv_reg_mr(pd, quick.at, LEN, DEMAND);
	need(mr && quick_mr, "regions on demand");
	pattern(plain, PLAIN, 81);
	memset(bytes, 0x77, PAGE);
	/* One to write there, one to read from there, one to send from there. */
	for (int i = 0; i < WAITING; i++)
		waiting[i] = pair_open();
	post(waiting[0].a, IBV_WR_RDMA_WRITE, (struct spot){ plain, plain_mr }, (struct spot){ m.at, mr }, 8);
	post(waiting[1].a, IBV_WR_RDMA_READ, (struct spot){ plain + LEN, plain_mr }, (struct spot){ m.at + 64, mr }, 64);
	receive(waiting[2].b, (struct spot){ plain + 2 * LEN, plain_mr }, 64);
	post(waiting[2].a, IBV_WR_SEND, (struct spot){ m.at + 128, mr }, (struct spot){}, 64);
	for (int i = 0; i < 200; i++) {
		/* Cold pages, too. */
		if (i % 10 == 0)
			madvise(quick.at, LEN, MADV_DONTNEED);
		post(moving.a, IBV_WR_RDMA_WRITE, (struct spot){ plain, plain_mr }, (struct spot){ quick.at, quick_mr }, LEN);
		if (!ends_with(next(moving.a_cq), IBV_WC_SUCCESS, "a QP", "while others wait"))
			break;
	}
	check(is_pattern(quick.at, LEN, 81), "bytes of the QP that went on");
	for (int i = 0; i < WAITING; i++)
		none &= ibv_poll_cq(waiting[i].a_cq, 1, &wc) == 0;
	check(none, "nobody has what is not there");
	need(!ioctl(fd, UFFDIO_COPY, &copy), "UFFDIO_COPY");
	for (int i = 0; i < WAITING; i++)
		ends_with(next(waiting[i].a_cq), IBV_WC_SUCCESS, "a QP", "when its page has come");
	check(is_pattern(m.at, 8, 81) && m.at[8] == 0x77, "what was written on the page that came");
	check(plain[LEN] == 0x77 && plain[LEN + 63] == 0x77, "what was read from it");
	check(next(waiting[2].b_cq) == IBV_WC_SUCCESS && plain[2 * LEN + 63] == 0x77, "what was sent from it");
	for (int i = 0; i < WAITING; i++)
		pair_close(&waiting[i]);
	pair_close(&moving);
	check(!ibv_dereg_mr(mr) && !ibv_dereg_mr(quick_mr), "ibv_dereg_mr");
	close(fd);
	unmap(&m);
	unmap(&quick);
}

/* A region ends while somebody waits for a page of it. */
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
	check(!ibv_dereg_mr(mr), "ibv_dereg_mr while somebody waits");
	ends_with(next(p.a_cq), IBV_WC_REM_ACCESS_ERR, "a WRITE", "whose region ended");
	pair_close(&p);
	/* Lets go who brings it in. */
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
	check(!ibv_dereg_mr(plain_mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "the end");
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
