/*
 * Communication and computation of MPI that need more memory than there is.
 *
 *   core MEMORY COMMUNICATION COMPUTATION PASSES ROUNDS
 *
 * Rank 1 receives COMMUNICATION bytes from rank 0. Then it computes on random pages of COMPUTATION bytes, PASSES times as
 * many as there are. It prints the times as `weir-odp core` does; MEMORY is the name that it prints. Afterwards, outside of
 * the measured time, it compares the bytes that it has received.
 */
#include "odp_work.h"
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096
#define CHUNK ((size_t)1 << 20)

static int rank;

static void fail(const char *why)
{
	fprintf(stderr, "core, rank %d: %s\n", rank, why);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

/* New pages, none of them present. */
static uint8_t *fresh(size_t len)
{
	uint8_t *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		fail("no memory");
	madvise(at, len, MADV_NOHUGEPAGE);
	return at;
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15;
	return x ^ (x >> 29);
}

static void pattern(uint8_t *at, size_t len, size_t from)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t word = mix(from + i);
		memcpy(at + i, &word, 8);
	}
}

static void receive_and_compute(const char *memory, uint8_t *buffer, size_t communication, size_t computation, int passes,
				int rounds)
{
	uint8_t *work = fresh(computation), *expected = malloc(CHUNK);
	size_t pages = computation / PAGE;
	struct rusage before, after;
	uint64_t state = 1;
	int wrong = 0;

	double start = MPI_Wtime();
	for (size_t at = 0; at < communication; at += CHUNK)
		MPI_Recv(buffer + at, CHUNK, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	double exchanged = MPI_Wtime(), waited = waited_for_core();
	getrusage(RUSAGE_SELF, &before);
	for (int pass = 0; pass < passes; pass++)
		for (size_t i = 0; i < pages; i++)
			compute((uint64_t *)(work + (state = mix(state + 1)) % pages * PAGE), PAGE / 8, rounds);
	double computed = MPI_Wtime();
	getrusage(RUSAGE_SELF, &after);
	waited = waited_for_core() - waited;
	for (size_t at = 0; at < communication; at += CHUNK) {
		pattern(expected, CHUNK, at);
		wrong |= memcmp(buffer + at, expected, CHUNK) != 0;
	}
	print_times(memory, exchanged - start, computed - exchanged, waited, &before, &after, wrong);
	free(expected);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (argc != 6)
		fail("usage: core MEMORY COMMUNICATION COMPUTATION PASSES ROUNDS");
	size_t communication = (size_t)atoll(argv[2]) / CHUNK * CHUNK, computation = (size_t)atoll(argv[3]);
	uint8_t *buffer = fresh(communication);
	char done = 0;

	if (rank == 0) {
		pattern(buffer, communication, 0);
		for (size_t at = 0; at < communication; at += CHUNK)
			MPI_Send(buffer + at, CHUNK, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
		MPI_Recv(&done, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else {
		receive_and_compute(argv[1], buffer, communication, computation, atoi(argv[4]), atoi(argv[5]));
		MPI_Send(&done, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
	}
	munmap(buffer, communication);
	MPI_Finalize();
	return 0;
}
