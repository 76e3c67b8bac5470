/*
 * Like a program over Global Arrays: matrices that all ranks hold together, in windows. A rank takes the next task from
 * a counter (MPI_Fetch_and_op), gets the blocks that it needs under locks of their owners (MPI_Get), multiplies them,
 * and adds its result to the owner's block (MPI_Accumulate).
 */
#include "kernel.h"

#define BLOCK 128 /* rows and columns of a block, which has 128 KiB */
#define ELEMENTS ((size_t)BLOCK * BLOCK)

static int side; /* blocks in a row of each matrix */

/* Elements are small whole numbers, so that sums are exact in any order. */
static double element(int matrix, int row, int column)
{
	return matrix == 0 ? (double)((row + 2 * column) % 5) : (double)((3 * row + column) % 4);
}

static int owner(int block)
{
	return block % ranks;
}

static MPI_Aint place(int block)
{
	return (MPI_Aint)((size_t)(block / ranks) * ELEMENTS);
}

static void get(MPI_Win window, int block, double *to)
{
	MPI_Win_lock(MPI_LOCK_SHARED, owner(block), 0, window);
	MPI_Get(to, ELEMENTS, MPI_DOUBLE, owner(block), place(block), ELEMENTS, MPI_DOUBLE, window);
	MPI_Win_unlock(owner(block), window);
}

static void add(MPI_Win window, int block, const double *from)
{
	MPI_Win_lock(MPI_LOCK_EXCLUSIVE, owner(block), 0, window);
	MPI_Accumulate(from, ELEMENTS, MPI_DOUBLE, owner(block), place(block), ELEMENTS, MPI_DOUBLE, MPI_SUM, window);
	MPI_Win_unlock(owner(block), window);
}

static long next_task(MPI_Win counter)
{
	long one = 1, task;

	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, counter);
	MPI_Fetch_and_op(&one, &task, MPI_LONG, 0, 0, MPI_SUM, counter);
	MPI_Win_unlock(0, counter);
	return task;
}

static void multiply(const double *a, const double *b, double *c)
{
	memset(c, 0, ELEMENTS * 8);
	for (int i = 0; i < BLOCK; i++)
		for (int k = 0; k < BLOCK; k++)
			for (int j = 0; j < BLOCK; j++)
				c[i * BLOCK + j] += a[i * BLOCK + k] * b[k * BLOCK + j];
}

int main(int argc, char **argv)
{
	double *parts[3], *a, *b, *c;
	MPI_Win windows[3], counter;
	long *tasks;

	side = begin(argc, argv);
	size_t blocks = ((size_t)(side * side) + (size_t)ranks - 1) / (size_t)ranks;
	for (int m = 0; m < 3; m++) {
		/* Memory of windows that MPI allocates can be shared by the ranks of a host, and then nothing travels. */
		parts[m] = allocate(blocks * ELEMENTS, 8);
		MPI_Win_create(parts[m], (MPI_Aint)(blocks * ELEMENTS * 8), 8, MPI_INFO_NULL, MPI_COMM_WORLD, &windows[m]);
		for (int block = rank; m < 2 && block < side * side; block += ranks)
			for (size_t i = 0; i < ELEMENTS; i++)
				parts[m][(size_t)place(block) + i] =
					element(m, block / side * BLOCK + (int)i / BLOCK, block % side * BLOCK + (int)i % BLOCK);
	}
	tasks = allocate(1, sizeof(long));
	MPI_Win_create(tasks, rank == 0 ? sizeof(long) : 0, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &counter);
	a = allocate(ELEMENTS, 8), b = allocate(ELEMENTS, 8), c = allocate(ELEMENTS, 8);
	start_clock();
	for (long task; (task = next_task(counter)) < (long)side * side * side;) {
		int i = (int)(task / side / side), j = (int)(task / side % side), k = (int)(task % side);
		get(windows[0], i * side + k, a);
		get(windows[1], k * side + j, b);
		multiply(a, b, c);
		add(windows[2], i * side + j, c);
	}
	stop_clock();
	for (int block = rank; block < side * side; block += ranks)
		for (size_t at = 0; at < ELEMENTS; at++) {
			int row = block / side * BLOCK + (int)at / BLOCK, column = block % side * BLOCK + (int)at % BLOCK;
			double sum = 0;
			for (int k = 0; k < side * BLOCK; k++)
				sum += element(0, row, k) * element(1, k, column);
			if (parts[2][(size_t)place(block) + at] != sum)
				fail("an element of the product is wrong");
		}
	free(a), free(b), free(c);
	MPI_Win_free(&counter);
	free(tasks);
	for (int m = 0; m < 3; m++) {
		MPI_Win_free(&windows[m]);
		free(parts[m]);
	}
	MPI_Finalize();
	return 0;
}
