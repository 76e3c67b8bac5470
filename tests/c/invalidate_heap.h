/* Memory that malloc frees and returns again, and memory that a fork copies. */
#ifndef INVALIDATE_HEAP_H
#define INVALIDATE_HEAP_H

#include "invalidate_race.h"

#include <malloc.h>

/* A region on whole pages within a block from malloc. */
#define BLOCK (32 * LEN)

static uint8_t *block;
static struct ibv_mr *block_mr;

static uint8_t *inner(uint8_t *of)
{
	return (uint8_t *)(((uintptr_t)of + 4095) & ~4095ul);
}

static void use_block(uint8_t *new)
{
	if (new == block)
		return;
	if (block_mr && ibv_dereg_mr(block_mr))
		die("ibv_dereg_mr");
	block = new;
	block_mr = ibv_reg_mr(pd, inner(block), LEN, RDMA);
	if (!block_mr)
		die("no on-demand region: %s", strerror(errno));
}

/* READs memory, which must contain `value` only. */
static void read_back(uint8_t *at, struct ibv_mr *mr, uint8_t value, const char *what, long n)
{
	allow(value, value, value, value);
	int status = request_and_wait(READ, (uintptr_t)at, mr->rkey, LEN, 0);

	if (status != IBV_WC_SUCCESS)
		die("round %ld, %s: READ ends with %s", n, what, ibv_wc_status_str(status));
	if (shared->wrong)
		wrong("round %ld, %s: %ld bytes are not %d", n, what, shared->wrong, value);
}

static void write_there(uint8_t *at, struct ibv_mr *mr, uint8_t value, const char *what, long n)
{
	int status = request_and_wait(WRITE, (uintptr_t)at, mr->rkey, LEN, value);
	uint8_t allowed[256] = { 0 };

	if (status != IBV_WC_SUCCESS)
		die("round %ld, %s: WRITE ends with %s", n, what, ibv_wc_status_str(status));
	allowed[value] = 1;
	if (others(at, LEN, allowed))
		wrong("round %ld, %s: the memory does not have the WRITE's data", n, what);
}

/* Whether none of its pages is present. */
static int is_new(uint8_t *at)
{
	unsigned char there[LEN / 4096];

	if (mincore(at, LEN, there))
		die("mincore: %s", strerror(errno));
	for (size_t i = 0; i < sizeof(there); i++)
		if (there[i] & 1)
			return 0;
	return 1;
}

/*
 * Freed memory goes back to the kernel, and malloc returns the same address again with empty pages. An allocation of the
 * adapter above the block keeps it in the heap: after some rounds of that, the next block is taken above the allocation,
 * and the old one is not freed, so that malloc does not return to it.
 */
static void heap_rounds(const char *what, long rounds)
{
	long again = 0, stuck = 0;

	use_block(malloc(BLOCK));
	for (long n = 0; n < rounds; n++) {
		memset(inner(block), 1 + n % 60, LEN);
		read_back(inner(block), block_mr, 1 + n % 60, what, n);
		write_there(inner(block), block_mr, 64 + n % 60, what, n);
		if (stuck < 16)
			free(block);
		else
			stuck = 0;
		uint8_t *new = malloc(BLOCK);
		if (!new)
			die("no memory");
		if (new == block && is_new(inner(block))) {
			again++;
			stuck = 0;
			/* No thread has touched it yet: the adapter is the first. */
			read_back(inner(block), block_mr, 0, what, n);
		} else {
			stuck++;
		}
		use_block(new);
	}
	free(block);
	printf("  %s: %ld rounds, %ld times new at the same address\n", what, rounds, again);
	if (again < rounds / 2)
		wrong("%s: malloc rarely returned the same address with new pages", what);
}

/* Frees space in the heap for the adapter's allocations, so that the block stays at the top of the heap. */
static void make_room(void)
{
	void *blocks[BLOCK / 16384 - 1];
	const size_t count = sizeof(blocks) / sizeof(*blocks);

	for (size_t i = 0; i < count; i++)
		blocks[i] = malloc(8192);
	if (!malloc(8192))
		die("no memory");
	for (size_t i = 0; i < count; i++)
		free(blocks[i]);
}

static void heap(const char *name)
{
	/* Blocks have mappings of their own: free() unmaps them. */
	mallopt(M_MMAP_THRESHOLD, BLOCK / 2);
	heap_rounds("mapped blocks", opt.rounds / 2);
	/* Blocks are on the heap: free() lowers the break. */
	mallopt(M_MMAP_THRESHOLD, 4 * BLOCK);
	mallopt(M_TRIM_THRESHOLD, BLOCK / 4);
	mallopt(M_TOP_PAD, 0);
	make_room();
	heap_rounds("the top of the heap", opt.rounds / 2);
	if (ibv_dereg_mr(block_mr))
		wrong("ibv_dereg_mr");
	printf("%s: %ld rounds, %ld wrong\n", name, opt.rounds / 2 * 2, failures);
}

/* Rounds of a fork test: `child` when the child has read its memory, `parent` when it must compare the memory. */
static struct { _Atomic long child, parent; } *turns;

static int child_of_fork(const uint8_t *before, long n, int writes)
{
	static uint8_t copy[LEN];
	int same;

	memcpy(copy, before, LEN);
	if (writes) {
		memset((uint8_t *)before, 255, LEN);
		memset(copy, 255, LEN);
	}
	turns->child = n;
	wait_for(&turns->parent, n);
	same = !memcmp(copy, before, LEN);
	return same ? 0 : 1;
}

/* Parent and child must keep their own bytes, whether the child, the parent or a transfer writes first. */
static void forks(const char *name)
{
	uint8_t *at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, at, LEN, RDMA);

	turns = mmap(NULL, sizeof(*turns), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!mr || turns == MAP_FAILED)
		die("no on-demand region: %s", strerror(errno));
	for (long n = 1; n <= opt.rounds; n++) {
		uint8_t old = 1 + n % 60, fresh = 64 + n % 60, put = 128 + n % 60;
		int status, child_writes = n % 3 == 0, in_flight = n % 3 == 1;

		memset(at, old, LEN);
		read_back(at, mr, old, "before the fork", n);
		if (in_flight)
			send_request(WRITE, (uintptr_t)at, mr->rkey, LEN, put);
		pid_t pid = fork();
		if (pid < 0)
			die("fork: %s", strerror(errno));
		if (!pid)
			_exit(child_of_fork(at, n, child_writes));
		if (in_flight && (status = wait_for_reply()) != IBV_WC_SUCCESS)
			die("round %ld: WRITE during the fork ends with %s", n, ibv_wc_status_str(status));
		if (!in_flight)
			wait_for(&turns->child, n);
		read_back(at, mr, in_flight ? put : old, "after the fork", n);
		wait_for(&turns->child, n);
		if (n % 2) {
			memset(at, fresh, LEN);
			read_back(at, mr, fresh, "after the parent's write", n);
		}
		write_there(at, mr, put, "after the fork", n);
		turns->parent = n;
		if (waitpid(pid, &status, 0) != pid || status)
			wrong("round %ld: the child's memory has changed", n);
	}
	printf("%s: %ld rounds, %ld wrong\n", name, opt.rounds, failures);
	if (ibv_dereg_mr(mr))
		wrong("ibv_dereg_mr");
}

#endif
