/*
 * Random traffic between all ranks, every byte checked, while memory is freed, mapped anew and paged out.
 *
 *   mpi_random SEED ROUNDS       prints "ok RANKS" on rank 0, or what differs on any rank
 *
 * All ranks draw the same plan from the seed: which rank sends what to which, with which tag. Each rank draws for itself
 * when it posts, computes and changes memory. Then: order, wildcards, probes, truncation, cancellation, synchronous
 * sends, a flood of messages that no receive matches, and windows.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

#define PAGE 4096
/* Longest message, bytes. */
#define MOST (2 << 20)
/* Messages of a round. */
#define MESSAGES 24
/* Messages that one rank sends before the receiver posts anything. */
#define FLOOD 4000

static int rank, ranks;
static uint64_t plan_state, own_state;

#define REQUIRE(what)                                                                            \
	do {                                                                                     \
		if (!(what)) {                                                                   \
			printf("rank %d, line %d: %s is false\n", rank, __LINE__, #what);        \
			fflush(stdout);                                                          \
			MPI_Abort(MPI_COMM_WORLD, 1);                                            \
		}                                                                                \
	} while (0)

/* xorshift64*. */
static uint64_t draw(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}

static uint64_t plan(uint64_t below)
{
	return draw(&plan_state) % below;
}

static uint64_t own(uint64_t below)
{
	return draw(&own_state) % below;
}

/* Sizes of all magnitudes, and those around powers of two, where protocols change. */
static size_t size(void)
{
	size_t base = (size_t)1 << plan(22), less = plan(3);

	if (plan(4) == 0)
		return base > less ? base - less : 0;
	return plan(base < MOST ? base + 1 : MOST);
}

static unsigned char byte_of(uint64_t salt, size_t at)
{
	return (unsigned char)(salt * 31 + at * 7 + (at >> 8) * 13 + (at >> 16));
}

static void fill(unsigned char *bytes, size_t len, uint64_t salt)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = byte_of(salt, i);
}

static int holds(const unsigned char *bytes, size_t len, uint64_t salt)
{
	for (size_t i = 0; i < len; i++)
		if (bytes[i] != byte_of(salt, i))
			return 0;
	return 1;
}

static size_t whole_pages(size_t len)
{
	return (len + 2 * PAGE) / PAGE * PAGE;
}

/* Memory of its own mapping; often at the address of one that was just unmapped. */
static unsigned char *map(size_t len)
{
	unsigned char *memory = mmap(NULL, whole_pages(len), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	REQUIRE(memory != MAP_FAILED);
	return memory;
}

/* The kernel may take the pages at any time; their contents stay. Without swap nothing happens. */
static void page_out(unsigned char *memory, size_t len)
{
	madvise(memory, whole_pages(len), MADV_PAGEOUT);
}

static void compute(void)
{
	volatile uint64_t sum = 0;
	uint64_t loops = own(20000);

	while (loops--)
		sum += loops;
	if (own(20) == 0)
		usleep((useconds_t)own(2000));
}

struct message {
	int from, to, tag;
	size_t len;
	uint64_t salt;
	unsigned char *memory;
	MPI_Request request;
	int posted;
};

/* One round: ranks post their part of the plan in any order, as long as the messages of two ranks with one tag keep theirs. */
static void round_of_messages(int number)
{
	struct message messages[MESSAGES];
	int open = 0, count;
	MPI_Status status;

	for (int i = 0; i < MESSAGES; i++) {
		struct message *m = &messages[i];
		m->from = (int)plan((uint64_t)ranks);
		m->to = (int)plan((uint64_t)ranks);
		m->len = size();
		/* Tags are the message's own, so that receives can be posted in any order. */
		m->tag = number % 8 * MESSAGES + i;
		m->salt = plan(1 << 30);
		m->posted = 0;
		m->memory = NULL;
	}
	/* Both ends of a message to the rank itself are this rank's: it is sent here, and received below. */
	for (int i = 0; i < MESSAGES; i++) {
		struct message *m = &messages[i];
		m->request = MPI_REQUEST_NULL;
		if (m->from != rank && m->to != rank)
			continue;
		m->memory = map(m->len);
		open++;
	}
	unsigned char *own_receives[MESSAGES] = {NULL};
	MPI_Request own_requests[MESSAGES];

	for (int i = 0; i < MESSAGES; i++)
		own_requests[i] = MPI_REQUEST_NULL;
	while (open > 0) {
		int i = (int)own(MESSAGES);
		struct message *m = &messages[i];
		if (m->posted || m->memory == NULL)
			continue;
		m->posted = 1;
		open--;
		if (m->from == rank) {
			fill(m->memory, m->len, m->salt);
			if (own(8) == 0)
				page_out(m->memory, m->len);
			MPI_Isend(m->memory, (int)m->len, MPI_BYTE, m->to, m->tag, MPI_COMM_WORLD, &m->request);
		}
		if (m->to == rank) {
			unsigned char *into = m->memory;
			MPI_Request *request = &m->request;
			if (m->from == rank) {
				into = own_receives[i] = map(m->len);
				request = &own_requests[i];
			}
			/* Fresh memory, or memory with contents. */
			if (own(2))
				memset(into, 0xee, m->len);
			MPI_Irecv(into, (int)m->len, MPI_BYTE, own(2) ? m->from : MPI_ANY_SOURCE, m->tag, MPI_COMM_WORLD, request);
			if (own(8) == 0)
				page_out(into, m->len);
		}
		if (own(3) == 0)
			compute();
	}
	for (int i = 0; i < MESSAGES; i++) {
		struct message *m = &messages[i];
		if (m->memory == NULL)
			continue;
		if (own(4) == 0)
			compute();
		if (own(8) == 0 && m->from == rank)
			page_out(m->memory, m->len);
		MPI_Wait(&m->request, &status);
		if (m->from == rank)
			REQUIRE(holds(m->memory, m->len, m->salt)); /* The sender's bytes are as they were. */
		if (m->to == rank && m->from != rank) {
			MPI_Get_count(&status, MPI_BYTE, &count);
			REQUIRE((size_t)count == m->len && status.MPI_SOURCE == m->from && status.MPI_TAG == m->tag);
			REQUIRE(holds(m->memory, m->len, m->salt));
		}
		if (own_receives[i] != NULL) {
			MPI_Wait(&own_requests[i], &status);
			REQUIRE(holds(own_receives[i], m->len, m->salt));
			munmap(own_receives[i], whole_pages(m->len));
		}
		/* The next mapping is likely to get this address. */
		munmap(m->memory, whole_pages(m->len));
	}
}

/* Messages of one rank with one tag arrive in order, whatever their sizes; a probe tells the size. */
static void order(void)
{
	enum { COUNT = 60 };
	const size_t sizes[] = {0, 8, 3000, 9000, 16384, 16385, 70000, 300000};
	int other = rank ^ 1;
	MPI_Request requests[COUNT];
	unsigned char *out[COUNT];

	if (other >= ranks)
		return;
	for (int i = 0; i < COUNT; i++) {
		size_t len = sizes[i % 8];
		out[i] = map(len + 4);
		fill(out[i], len, (uint64_t)i);
		memcpy(out[i] + len, &i, 4);
		MPI_Isend(out[i], (int)len + 4, MPI_BYTE, other, 7, MPI_COMM_WORLD, &requests[i]);
	}
	for (int i = 0; i < COUNT; i++) {
		size_t len = sizes[i % 8];
		MPI_Status status;
		MPI_Message claimed;
		int count, sent;
		unsigned char *in = map(len + 4);
		if (i % 3 == 0)
			MPI_Mprobe(other, MPI_ANY_TAG, MPI_COMM_WORLD, &claimed, &status);
		else
			MPI_Probe(MPI_ANY_SOURCE, 7, MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_BYTE, &count);
		REQUIRE((size_t)count == len + 4);
		if (i % 3 == 0)
			MPI_Mrecv(in, count, MPI_BYTE, &claimed, &status);
		else
			MPI_Recv(in, count, MPI_BYTE, status.MPI_SOURCE, 7, MPI_COMM_WORLD, &status);
		memcpy(&sent, in + len, 4);
		REQUIRE(sent == i && holds(in, len, (uint64_t)i));
		munmap(in, whole_pages(len + 4));
	}
	MPI_Waitall(COUNT, requests, MPI_STATUSES_IGNORE);
	for (int i = 0; i < COUNT; i++)
		munmap(out[i], whole_pages(sizes[i % 8] + 4));
}

/* A message that is longer than the receive is an error of the receive, and nothing is written behind its buffer. */
static void truncation(void)
{
	const size_t sizes[] = {100, 5000, 40000, 1 << 20};
	int other = rank ^ 1, class;

	if (other >= ranks)
		return;
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	for (int i = 0; i < 4; i++) {
		size_t len = sizes[i];
		unsigned char *out = map(len), *in = map(len);
		MPI_Request request;
		fill(out, len, (uint64_t)rank);
		memset(in, 0xee, len);
		MPI_Isend(out, (int)len, MPI_BYTE, other, 8, MPI_COMM_WORLD, &request);
		int error = MPI_Recv(in, (int)len / 2, MPI_BYTE, other, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Error_class(error, &class);
		REQUIRE(error != MPI_SUCCESS && class == MPI_ERR_TRUNCATE);
		for (size_t at = len / 2; at < len; at++)
			REQUIRE(in[at] == 0xee);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		munmap(out, whole_pages(len));
		munmap(in, whole_pages(len));
	}
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

/* A cancelled receive takes no message. */
static void cancellation(void)
{
	int other = rank ^ 1, value = rank, got = -1, lost = -1, cancelled;
	MPI_Request request;
	MPI_Status status;

	MPI_Barrier(MPI_COMM_WORLD);
	if (other < ranks) {
		MPI_Irecv(&lost, 1, MPI_INT, other, 9, MPI_COMM_WORLD, &request);
		MPI_Cancel(&request);
		MPI_Wait(&request, &status);
		MPI_Test_cancelled(&status, &cancelled);
		REQUIRE(cancelled);
	}
	/* The other rank sends only now. */
	MPI_Barrier(MPI_COMM_WORLD);
	if (other >= ranks)
		return;
	MPI_Sendrecv(&value, 1, MPI_INT, other, 9, &got, 1, MPI_INT, other, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	REQUIRE(got == other && lost == -1);
}

/* A synchronous send ends after its receive has begun. */
static void synchronous(void)
{
	const size_t sizes[] = {0, 100, 100000};
	int other = rank ^ 1;

	if (other >= ranks)
		return;
	for (int i = 0; i < 3; i++) {
		unsigned char *memory = map(sizes[i]);
		MPI_Request request;
		int done;
		if (rank % 2 == 0) {
			fill(memory, sizes[i], 5);
			MPI_Issend(memory, (int)sizes[i], MPI_BYTE, other, 10, MPI_COMM_WORLD, &request);
			usleep(2000);
			MPI_Test(&request, &done, MPI_STATUS_IGNORE);
			REQUIRE(!done);
			MPI_Send(NULL, 0, MPI_BYTE, other, 11, MPI_COMM_WORLD);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
		} else {
			MPI_Recv(NULL, 0, MPI_BYTE, other, 11, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Recv(memory, (int)sizes[i], MPI_BYTE, other, 10, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			REQUIRE(holds(memory, sizes[i], 5));
		}
		munmap(memory, whole_pages(sizes[i]));
	}
}

/* Rank 0 gets many messages that no receive matches, and the last of each rank first. */
static void flood(void)
{
	MPI_Request *requests = malloc(FLOOD * sizeof(*requests));
	int *values = malloc((FLOOD + 1) * sizeof(*values));

	if (rank > 0) {
		for (int i = 0; i < FLOOD; i++) {
			values[i] = rank * FLOOD + i;
			MPI_Isend(&values[i], 1, MPI_INT, 0, 12, MPI_COMM_WORLD, &requests[i]);
		}
		values[FLOOD] = rank;
		MPI_Send(&values[FLOOD], 1, MPI_INT, 0, 13, MPI_COMM_WORLD);
		MPI_Waitall(FLOOD, requests, MPI_STATUSES_IGNORE);
	} else {
		int value;
		for (int from = 1; from < ranks; from++) {
			MPI_Recv(&value, 1, MPI_INT, from, 13, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			REQUIRE(value == from);
		}
		for (int from = ranks - 1; from > 0; from--)
			for (int i = 0; i < FLOOD; i++) {
				MPI_Recv(&value, 1, MPI_INT, from, 12, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				REQUIRE(value == from * FLOOD + i);
			}
	}
	free(requests);
	free(values);
}

/* Each rank writes to its part of each window and reads it back, while the windows' pages are taken. */
static void windows(int rounds)
{
	const size_t part = 200000;
	unsigned char *memory = map(part * (size_t)ranks), *out = map(part), *in = map(part);
	MPI_Win window;

	MPI_Win_create(memory, (MPI_Aint)(part * (size_t)ranks), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	for (int round = 0; round < rounds; round++) {
		size_t len = size() % part, at = plan(part - len);
		int active = (int)plan(2);
		uint64_t salt = plan(1 << 30);
		fill(out, len, salt + (uint64_t)rank);
		if (own(3) == 0)
			page_out(memory, part * (size_t)ranks);
		if (active)
			MPI_Win_fence(0, window);
		for (int i = 0; i < ranks; i++) {
			int target = (rank + i) % ranks;
			MPI_Aint place = (MPI_Aint)(part * (size_t)rank + at);
			if (!active)
				MPI_Win_lock(own(2) ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE, target, 0, window);
			MPI_Put(out, (int)len, MPI_BYTE, target, place, (int)len, MPI_BYTE, window);
			if (!active)
				MPI_Win_unlock(target, window);
		}
		if (active)
			MPI_Win_fence(0, window);
		if (own(3) == 0)
			page_out(memory, part * (size_t)ranks);
		for (int i = 0; i < ranks; i++) {
			int target = (rank + i) % ranks;
			memset(in, 0, len);
			MPI_Win_lock(MPI_LOCK_SHARED, target, 0, window);
			MPI_Get(in, (int)len, MPI_BYTE, target, (MPI_Aint)(part * (size_t)rank + at), (int)len, MPI_BYTE, window);
			MPI_Win_unlock(target, window);
			REQUIRE(holds(in, len, salt + (uint64_t)rank));
		}
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
		for (int from = 0; from < ranks; from++)
			REQUIRE(holds(memory + part * (size_t)from + at, len, salt + (uint64_t)from));
		MPI_Win_unlock(rank, window);
		MPI_Barrier(MPI_COMM_WORLD);
	}
	MPI_Win_free(&window);
	munmap(memory, whole_pages(part * (size_t)ranks));
	munmap(out, whole_pages(part));
	munmap(in, whole_pages(part));
}

/* Sums of all ranks at rank 0, one by one and as a vector. */
static void accumulated(void)
{
	enum { COUNT = 100 };
	int64_t *memory = (int64_t *)map(sizeof(int64_t) * (COUNT + 1)), one = 1, before, values[COUNT];
	MPI_Win window;

	memset(memory, 0, sizeof(int64_t) * (COUNT + 1));
	MPI_Win_create(memory, sizeof(int64_t) * (COUNT + 1), sizeof(int64_t), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	for (int i = 0; i < COUNT; i++)
		values[i] = i;
	MPI_Win_fence(0, window);
	MPI_Accumulate(values, COUNT, MPI_INT64_T, 0, 1, COUNT, MPI_INT64_T, MPI_SUM, window);
	MPI_Win_fence(0, window);
	for (int i = 0; i < 50; i++) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
		MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_SUM, window);
		MPI_Win_unlock(0, window);
		REQUIRE(before >= i && before < 50 * ranks);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
		REQUIRE(memory[0] == 50 * ranks);
		for (int i = 0; i < COUNT; i++)
			REQUIRE(memory[i + 1] == (int64_t)i * ranks);
		MPI_Win_unlock(0, window);
	}
	MPI_Win_free(&window);
	munmap(memory, whole_pages(sizeof(int64_t) * (COUNT + 1)));
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	REQUIRE(argc == 3);
	uint64_t seed = strtoull(argv[1], NULL, 0);
	int rounds = atoi(argv[2]);
	plan_state = seed * 2 + 1;
	own_state = (seed + 77) * 1000003 + (uint64_t)rank * 7919 + 1;
	for (int i = 0; i < rounds; i++)
		round_of_messages(i);
	order();
	truncation();
	cancellation();
	synchronous();
	flood();
	windows(rounds / 4 + 1);
	accumulated();
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("ok %d\n", ranks);
	MPI_Finalize();
	return 0;
}
