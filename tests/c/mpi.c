/*
 * Checks MPI on all ranks, every byte: messages of all sizes in both directions, all collectives, one-sided windows
 * with active and passive synchronisation, atomics.
 *
 *   mpi            prints "ok RANKS" on rank 0, or what differs on any rank
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

#define REQUIRE(what)                                                                            \
	do {                                                                                     \
		if (!(what)) {                                                                   \
			printf("rank %d, line %d: %s is false\n", rank, __LINE__, #what);        \
			fflush(stdout);                                                          \
			MPI_Abort(MPI_COMM_WORLD, 1);                                            \
		}                                                                                \
	} while (0)

/* Bytes that depend on the sender, the tag and the place. */
static unsigned char byte_of(int from, int tag, size_t at)
{
	return (unsigned char)(from * 31 + tag * 17 + at * 7 + (at >> 8) * 13 + (at >> 16));
}

static void fill(unsigned char *bytes, size_t len, int from, int tag)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = byte_of(from, tag, i);
}

static int holds(const unsigned char *bytes, size_t len, int from, int tag)
{
	for (size_t i = 0; i < len; i++)
		if (bytes[i] != byte_of(from, tag, i))
			return 0;
	return 1;
}

/* A ring: each rank sends to the next and receives from the one before; every size around the protocols' limits. */
static void messages(void)
{
	const size_t most = 4 << 20;
	unsigned char *out = malloc(most), *in = malloc(most + 1);
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, tag = 1;

	for (size_t base = 1; base <= most; base *= 2)
		for (int off = -1; off <= 1; off++, tag++) {
			size_t len = base + off;
			MPI_Request requests[2];
			MPI_Status status;
			int count;
			if (len > most)
				continue;
			fill(out, len, rank, tag);
			memset(in, 0, len + 1);
			if (tag % 2) {
				MPI_Irecv(in, (int)most, MPI_BYTE, before, tag, MPI_COMM_WORLD, &requests[0]);
				MPI_Isend(out, (int)len, MPI_BYTE, next, tag, MPI_COMM_WORLD, &requests[1]);
			} else { /* unexpected at the receiver */
				MPI_Isend(out, (int)len, MPI_BYTE, next, tag, MPI_COMM_WORLD, &requests[1]);
				MPI_Barrier(MPI_COMM_WORLD);
				MPI_Irecv(in, (int)most, MPI_BYTE, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &requests[0]);
			}
			MPI_Wait(&requests[0], &status);
			MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
			MPI_Get_count(&status, MPI_BYTE, &count);
			REQUIRE((size_t)count == len && status.MPI_SOURCE == before && status.MPI_TAG == tag);
			REQUIRE(holds(in, len, before, tag) && in[len] == 0);
		}
	/* Many short messages in flight, received in another order. */
	enum { MANY = 300 };
	MPI_Request requests[2 * MANY];
	int values[MANY], got[MANY];
	for (int i = 0; i < MANY; i++) {
		values[i] = rank * 1000 + i;
		MPI_Isend(&values[i], 1, MPI_INT, next, 1000 + i, MPI_COMM_WORLD, &requests[i]);
	}
	for (int i = 0; i < MANY; i++)
		MPI_Irecv(&got[MANY - 1 - i], 1, MPI_INT, before, 1000 + MANY - 1 - i, MPI_COMM_WORLD, &requests[MANY + i]);
	MPI_Waitall(2 * MANY, requests, MPI_STATUSES_IGNORE);
	for (int i = 0; i < MANY; i++)
		REQUIRE(got[i] == before * 1000 + i);
	/* Every second block: a derived type. */
	MPI_Datatype every_second;
	MPI_Type_vector(1000, 3, 6, MPI_INT, &every_second);
	MPI_Type_commit(&every_second);
	int *wide = malloc(6000 * sizeof *wide), *narrow = malloc(3000 * sizeof *narrow);
	for (int i = 0; i < 6000; i++)
		wide[i] = rank * 10000 + i;
	MPI_Sendrecv(wide, 1, every_second, next, 5, narrow, 3000, MPI_INT, before, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (int i = 0; i < 3000; i++)
		REQUIRE(narrow[i] == before * 10000 + i / 3 * 6 + i % 3);
	MPI_Type_free(&every_second);
	free(wide), free(narrow), free(out), free(in);
}

static void collectives(size_t len)
{
	int n = (int)len;
	int64_t *a = malloc(len * ranks * sizeof *a), *b = malloc(len * ranks * sizeof *b);
	int *counts = malloc(ranks * sizeof *counts), *places = malloc(ranks * sizeof *places);

	MPI_Barrier(MPI_COMM_WORLD);
	for (int root = 0; root < ranks; root++) {
		for (int i = 0; i < n; i++)
			a[i] = rank == root ? root * 7 + i : -1;
		MPI_Bcast(a, n, MPI_INT64_T, root, MPI_COMM_WORLD);
		for (int i = 0; i < n; i++)
			REQUIRE(a[i] == root * 7 + i);
		for (int i = 0; i < n * ranks; i++)
			a[i] = rank == root ? root + i : -1;
		MPI_Scatter(a, n, MPI_INT64_T, b, n, MPI_INT64_T, root, MPI_COMM_WORLD);
		for (int i = 0; i < n; i++)
			REQUIRE(b[i] == root + rank * n + i);
		MPI_Gather(b, n, MPI_INT64_T, a, n, MPI_INT64_T, root, MPI_COMM_WORLD);
		for (int i = 0; rank == root && i < n * ranks; i++)
			REQUIRE(a[i] == root + i);
		for (int i = 0; i < n; i++)
			a[i] = rank + i;
		MPI_Reduce(a, b, n, MPI_INT64_T, MPI_MAX, root, MPI_COMM_WORLD);
		for (int i = 0; rank == root && i < n; i++)
			REQUIRE(b[i] == ranks - 1 + i);
	}
	for (int i = 0; i < n; i++)
		a[i] = (int64_t)(rank + 1) * (i + 1);
	MPI_Allreduce(a, b, n, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < n; i++)
		REQUIRE(b[i] == (int64_t)ranks * (ranks + 1) / 2 * (i + 1));
	MPI_Allgather(a, n, MPI_INT64_T, b, n, MPI_INT64_T, MPI_COMM_WORLD);
	for (int i = 0; i < n * ranks; i++)
		REQUIRE(b[i] == (int64_t)(i / n + 1) * (i % n + 1));
	MPI_Scan(a, b, n, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < n; i++)
		REQUIRE(b[i] == (int64_t)(rank + 1) * (rank + 2) / 2 * (i + 1));
	MPI_Exscan(a, b, n, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; rank > 0 && i < n; i++)
		REQUIRE(b[i] == (int64_t)rank * (rank + 1) / 2 * (i + 1));
	for (int i = 0; i < n * ranks; i++)
		a[i] = rank * 100000 + i;
	MPI_Alltoall(a, n, MPI_INT64_T, b, n, MPI_INT64_T, MPI_COMM_WORLD);
	for (int i = 0; i < n * ranks; i++)
		REQUIRE(b[i] == i / n * 100000 + rank * n + i % n);
	MPI_Reduce_scatter_block(a, b, n, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < n; i++)
		REQUIRE(b[i] == (int64_t)ranks * (ranks - 1) / 2 * 100000 + (int64_t)ranks * (rank * n + i));
	/* Counts that differ: rank r has n / (r + 1) values. */
	for (int r = 0, at = 0; r < ranks; at += counts[r++]) {
		counts[r] = n / (r + 1);
		places[r] = at;
	}
	for (int i = 0; i < counts[rank]; i++)
		a[i] = rank * 100000 + i;
	MPI_Allgatherv(a, counts[rank], MPI_INT64_T, b, counts, places, MPI_INT64_T, MPI_COMM_WORLD);
	for (int r = 0; r < ranks; r++)
		for (int i = 0; i < counts[r]; i++)
			REQUIRE(b[places[r] + i] == r * 100000 + i);
	MPI_Request request;
	for (int i = 0; i < n; i++)
		a[i] = 1;
	MPI_Iallreduce(a, b, n, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD, &request);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	for (int i = 0; i < n; i++)
		REQUIRE(b[i] == ranks);
	free(a), free(b), free(counts), free(places);
}

/* Each rank has a window of a block for each rank. */
static void windows(size_t len)
{
	size_t total = len * ranks;
	unsigned char *memory, *block = malloc(len);
	int next = (rank + 1) % ranks;
	MPI_Win window;

	MPI_Win_allocate(total + 64, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
	memset(memory, 0, total + 64);
	MPI_Win_fence(0, window);
	fill(block, len, rank, 1);
	for (int r = 0; r < ranks; r++)
		MPI_Put(block, (int)len, MPI_BYTE, r, rank * len, (int)len, MPI_BYTE, window);
	MPI_Win_fence(0, window);
	for (int r = 0; r < ranks; r++)
		REQUIRE(holds(memory + r * len, len, r, 1));
	MPI_Win_fence(0, window);
	memset(block, 0, len);
	MPI_Get(block, (int)len, MPI_BYTE, next, rank * len, (int)len, MPI_BYTE, window);
	MPI_Win_fence(0, window);
	REQUIRE(holds(block, len, rank, 1));

	/* Passive: every rank adds to rank 0's counter, and fetches what was there before. */
	int64_t one = 1, before = -1, *counter = (int64_t *)(memory + total);
	uintptr_t aligned = ((uintptr_t)counter + 7) & ~(uintptr_t)7;
	MPI_Aint place = (MPI_Aint)(aligned - (uintptr_t)memory), places[1] = {place};
	MPI_Bcast(places, 1, MPI_AINT, 0, MPI_COMM_WORLD);
	MPI_Win_lock_all(0, window);
	for (int i = 0; i < 50; i++) {
		MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, places[0], MPI_SUM, window);
		MPI_Win_flush(0, window);
		REQUIRE(before >= i && before < 50 * ranks);
	}
	MPI_Win_unlock_all(window);
	MPI_Barrier(MPI_COMM_WORLD);
	int64_t sum = -1;
	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
	MPI_Get(&sum, 1, MPI_INT64_T, 0, places[0], 1, MPI_INT64_T, window);
	MPI_Win_unlock(0, window);
	REQUIRE(sum == 50 * ranks);
	MPI_Barrier(MPI_COMM_WORLD);

	/* Accumulate to the next rank, after what it has; get-accumulate returns what was there. */
	int64_t values[64], old[64];
	for (int i = 0; i < 64; i++)
		values[i] = rank + i;
	MPI_Win_fence(0, window);
	memset(memory, 0, total);
	MPI_Win_fence(0, window);
	int fits = total >= sizeof values;
	if (fits)
		for (int r = 0; r < ranks; r++)
			MPI_Accumulate(values, 64, MPI_INT64_T, r, 0, 64, MPI_INT64_T, MPI_SUM, window);
	MPI_Win_fence(0, window);
	for (int i = 0; fits && i < 64; i++)
		REQUIRE(((int64_t *)memory)[i] == (int64_t)ranks * (ranks - 1) / 2 + (int64_t)ranks * i);
	MPI_Win_fence(0, window);
	if (fits)
		MPI_Get_accumulate(values, 64, MPI_INT64_T, old, 64, MPI_INT64_T, next, 0, 64, MPI_INT64_T, MPI_REPLACE, window);
	MPI_Win_fence(0, window);
	for (int i = 0; fits && i < 64; i++) {
		REQUIRE(old[i] == (int64_t)ranks * (ranks - 1) / 2 + (int64_t)ranks * i);
		REQUIRE(((int64_t *)memory)[i] == (rank + ranks - 1) % ranks + i);
	}
	/* General active target: a window opened for the rank before only. */
	MPI_Group world, to, from;
	int previous = (rank + ranks - 1) % ranks;
	MPI_Comm_group(MPI_COMM_WORLD, &world);
	MPI_Group_incl(world, 1, &next, &to);
	MPI_Group_incl(world, 1, &previous, &from);
	MPI_Win_post(from, 0, window);
	MPI_Win_start(to, 0, window);
	fill(block, len, rank, 9);
	MPI_Put(block, (int)len, MPI_BYTE, next, 0, (int)len, MPI_BYTE, window);
	MPI_Win_complete(window);
	MPI_Win_wait(window);
	REQUIRE(holds(memory, len, previous, 9));
	MPI_Group_free(&world), MPI_Group_free(&to), MPI_Group_free(&from);
	MPI_Win_free(&window);
	free(block);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	messages();
	for (size_t len = 1; len <= 100000; len *= 10)
		collectives(len);
	for (size_t len = 8; len <= 1 << 20; len *= 16)
		windows(len);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("ok %d\n", ranks);
	MPI_Finalize();
	return 0;
}
