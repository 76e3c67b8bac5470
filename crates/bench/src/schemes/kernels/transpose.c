/*
 * Like NAS FT: a matrix of complex numbers in slices of rows is transposed (MPI_Alltoall), as the Fourier transform of a
 * cube does between its dimensions.
 */
#include "kernel.h"

#define SIDE 1024

struct complex {
	double re, im;
};

int main(int argc, char **argv)
{
	int steps = begin(argc, argv);
	size_t rows = SIDE / (size_t)ranks, block = rows * rows;

	if (rows * (size_t)ranks != SIDE)
		fail("the number of ranks must divide 1024");
	struct complex *matrix = allocate(rows * SIDE, sizeof *matrix), *out = allocate(rows * SIDE, sizeof *out);
	struct complex *in = allocate(rows * SIDE, sizeof *in);

	for (size_t i = 0; i < rows * SIDE; i++) {
		matrix[i].re = (double)((size_t)rank * rows + i / SIDE);
		matrix[i].im = (double)(i % SIDE);
	}
	start_clock();
	for (int step = 0; step < steps; step++) {
		for (size_t r = 0; r < (size_t)ranks; r++)
			for (size_t i = 0; i < rows; i++)
				memcpy(&out[r * block + i * rows], &matrix[i * SIDE + r * rows], rows * sizeof *out);
		MPI_Alltoall(out, (int)(2 * block), MPI_DOUBLE, in, (int)(2 * block), MPI_DOUBLE, MPI_COMM_WORLD);
		for (size_t r = 0; r < (size_t)ranks; r++)
			for (size_t i = 0; i < rows; i++)
				for (size_t j = 0; j < rows; j++)
					matrix[j * SIDE + r * rows + i] = in[r * block + i * rows + j];
		/* Odd: the number of transpositions so far. */
		int odd = step % 2 == 0;
		for (size_t i = 0; i < rows * SIDE; i++) {
			double row = (double)((size_t)rank * rows + i / SIDE), column = (double)(i % SIDE);
			if (matrix[i].re != (odd ? column : row) || matrix[i].im != (odd ? row : column))
				fail("an element is in the wrong place");
		}
	}
	stop_clock();
	free(matrix), free(out), free(in);
	MPI_Finalize();
	return 0;
}
