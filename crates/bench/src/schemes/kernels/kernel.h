/*
 * What the kernels have in common. A kernel is a program of MPI that prints "time SECONDS" from rank 0: from when all
 * ranks are ready until all have their results, which the kernel has checked.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static double began;

static void fail(const char *why)
{
	fprintf(stderr, "rank %d: %s\n", rank, why);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *allocate(size_t count, size_t size)
{
	void *memory = calloc(count, size);

	if (!memory)
		fail("no memory");
	return memory;
}

/* The command's only argument: how often the kernel's step is done. */
static int begin(int argc, char **argv)
{
	int steps = argc == 2 ? atoi(argv[1]) : 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (steps < 1)
		fail("usage: the number of steps");
	return steps;
}

static void start_clock(void)
{
	MPI_Barrier(MPI_COMM_WORLD);
	began = MPI_Wtime();
}

static void stop_clock(void)
{
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("time %.6f\n", MPI_Wtime() - began);
	fflush(stdout);
}
