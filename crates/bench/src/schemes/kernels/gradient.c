/*
 * Like NAS CG: conjugate gradients. The matrix is the Laplacian of a cube of points, in slices of planes. Each product
 * exchanges a plane with both neighbours, and two sums over all ranks follow. A step solves the system, with a number
 * of products that is enough for it.
 */
#include "kernel.h"
#include <math.h>

#define SIDE 96
#define PLANE ((size_t)SIDE * SIDE)
#define PRODUCTS 75

static size_t planes;

static double dot(const double *a, const double *b)
{
	double sum = 0, all;

	for (size_t i = PLANE; i < (planes + 1) * PLANE; i++)
		sum += a[i] * b[i];
	MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	return all;
}

/* The planes before the first and behind the last are the neighbours'. */
static void exchange(double *x)
{
	int below = rank > 0 ? rank - 1 : MPI_PROC_NULL, above = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
	MPI_Request requests[4];

	MPI_Irecv(x, PLANE, MPI_DOUBLE, below, 1, MPI_COMM_WORLD, &requests[0]);
	MPI_Irecv(x + (planes + 1) * PLANE, PLANE, MPI_DOUBLE, above, 2, MPI_COMM_WORLD, &requests[1]);
	MPI_Isend(x + PLANE, PLANE, MPI_DOUBLE, below, 2, MPI_COMM_WORLD, &requests[2]);
	MPI_Isend(x + planes * PLANE, PLANE, MPI_DOUBLE, above, 1, MPI_COMM_WORLD, &requests[3]);
	MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
}

static void product(const double *x, double *y)
{
	for (size_t z = 1; z <= planes; z++)
		for (size_t i = 0; i < SIDE; i++)
			for (size_t j = 0; j < SIDE; j++) {
				size_t at = z * PLANE + i * SIDE + j;
				double sum = 6.5 * x[at] - x[at - PLANE] - x[at + PLANE];
				if (i > 0)
					sum -= x[at - SIDE];
				if (i + 1 < SIDE)
					sum -= x[at + SIDE];
				if (j > 0)
					sum -= x[at - 1];
				if (j + 1 < SIDE)
					sum -= x[at + 1];
				y[at] = sum;
			}
}

static void solve(double *x, double *r, double *p, double *q)
{
	double rho = dot(r, r);

	for (int n = 0; n < PRODUCTS; n++) {
		exchange(p);
		product(p, q);
		double alpha = rho / dot(p, q), before = rho;
		for (size_t i = PLANE; i < (planes + 1) * PLANE; i++) {
			x[i] += alpha * p[i];
			r[i] -= alpha * q[i];
		}
		rho = dot(r, r);
		for (size_t i = PLANE; i < (planes + 1) * PLANE; i++)
			p[i] = r[i] + rho / before * p[i];
	}
}

int main(int argc, char **argv)
{
	int steps = begin(argc, argv);

	planes = SIDE / (size_t)ranks;
	if (planes * (size_t)ranks != SIDE)
		fail("the number of ranks must divide 96");
	size_t room = (planes + 2) * PLANE;
	double *x = allocate(room, 8), *r = allocate(room, 8), *p = allocate(room, 8), *q = allocate(room, 8);
	double *solution = allocate(room, 8), *right = allocate(room, 8);

	/* The right side is the product of the matrix and a solution that is known. */
	for (size_t i = PLANE; i < (planes + 1) * PLANE; i++)
		solution[i] = 1 + (double)((i + (size_t)rank * planes * PLANE) % 7);
	exchange(solution);
	product(solution, right);
	start_clock();
	for (int step = 0; step < steps; step++) {
		memset(x, 0, room * 8);
		memcpy(r, right, room * 8);
		memcpy(p, right, room * 8);
		solve(x, r, p, q);
		double error = 0;
		for (size_t i = PLANE; i < (planes + 1) * PLANE; i++)
			error = fmax(error, fabs(x[i] - solution[i]));
		if (!(error < 1e-6))
			fail("the solution is wrong");
	}
	stop_clock();
	free(x), free(r), free(p), free(q), free(solution), free(right);
	MPI_Finalize();
	return 0;
}
