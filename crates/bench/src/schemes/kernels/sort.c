/* Like NAS IS: ranks sort numbers. Each step sends each number to the rank of its range (MPI_Alltoallv). */
#include "kernel.h"

#define NUMBERS (1 << 20) /* of each rank */

static uint64_t state;

static uint32_t next(void)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33);
}

static int ascending(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static int owner(uint32_t number)
{
	return (int)((uint64_t)number * (uint64_t)ranks >> 31);
}

int main(int argc, char **argv)
{
	int steps = begin(argc, argv), room = 0;
	uint32_t *mine = allocate(NUMBERS, 4), *sorted = allocate(NUMBERS, 4), *got = NULL;
	int *sent = allocate((size_t)ranks, 4), *from = allocate((size_t)ranks, 4);
	int *coming = allocate((size_t)ranks, 4), *to = allocate((size_t)ranks, 4);

	start_clock();
	for (int step = 0; step < steps; step++) {
		uint64_t sum = 0, arrived[2] = { 0, 0 }, all[3], totals[3];
		state = (uint64_t)(step * ranks + rank + 1);
		memset(sent, 0, (size_t)ranks * 4);
		for (int i = 0; i < NUMBERS; i++) {
			mine[i] = next();
			sum += mine[i];
			sent[owner(mine[i])]++;
		}
		MPI_Alltoall(sent, 1, MPI_INT, coming, 1, MPI_INT, MPI_COMM_WORLD);
		int total = 0;
		for (int r = 0, at = 0; r < ranks; r++) {
			from[r] = at, to[r] = total;
			at += sent[r], total += coming[r];
		}
		/* As programs do that do not know how much will come: memory that is new when it must grow. */
		if (total > room) {
			free(got);
			room = total;
			got = allocate((size_t)room, 4);
		}
		int *place = allocate((size_t)ranks, 4);
		memcpy(place, from, (size_t)ranks * 4);
		for (int i = 0; i < NUMBERS; i++)
			sorted[place[owner(mine[i])]++] = mine[i];
		free(place);
		MPI_Alltoallv(sorted, sent, from, MPI_UINT32_T, got, coming, to, MPI_UINT32_T, MPI_COMM_WORLD);
		for (int i = 0; i < total; i++) {
			if (owner(got[i]) != rank)
				fail("a number of another rank's range has come");
			arrived[0] += got[i];
		}
		arrived[1] = (uint64_t)total;
		all[0] = sum, all[1] = arrived[0], all[2] = arrived[1];
		MPI_Allreduce(all, totals, 3, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
		if (totals[0] != totals[1] || totals[2] != (uint64_t)NUMBERS * (uint64_t)ranks)
			fail("numbers were lost or changed");
	}
	qsort(got, (size_t)to[ranks - 1] + (size_t)coming[ranks - 1], 4, ascending);
	stop_clock();
	free(mine), free(sorted), free(got), free(sent), free(from), free(coming), free(to);
	MPI_Finalize();
	return 0;
}
