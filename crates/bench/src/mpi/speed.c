/*
 * Speed of MPI between two ranks.
 *
 *   speed latency BYTES SECONDS      prints "latency S": the median of half round trips, in seconds
 *   speed bandwidth BYTES SECONDS    prints "bandwidth N": messages per second from rank 0 to rank 1
 *   speed put BYTES SECONDS          prints "put S": the median time of locking a window, MPI_Put and unlocking it
 *   speed get BYTES SECONDS          the same with MPI_Get
 *
 * Each message begins with its number, which the receiver checks; the last one has the top bit set. A tenth of the time
 * passes before messages count.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAST ((uint64_t)1 << 63)
/* Messages in flight: as many as this number of bytes holds, within the limits. */
#define WINDOW_BYTES (4 << 20)
#define WINDOW_LEAST 16
#define WINDOW_MOST 64
#define SAMPLES_MOST (1 << 22)

static size_t size;
static double seconds;
static int rank;

static void fail(const char *why)
{
	fprintf(stderr, "speed, rank %d: %s\n", rank, why);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check(const unsigned char *message, uint64_t expected)
{
	uint64_t number;

	memcpy(&number, message, sizeof number);
	if ((number & ~LAST) != expected)
		fail("a message has another number than expected");
}

static int is_last(const unsigned char *message)
{
	uint64_t number;

	memcpy(&number, message, sizeof number);
	return (number & LAST) != 0;
}

/* The number of the next message of rank 0, with LAST when the time is over. */
static void stamp(unsigned char *message, uint64_t number, double begin)
{
	if (MPI_Wtime() - begin >= 1.1 * seconds)
		number |= LAST;
	memcpy(message, &number, sizeof number);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void latency(unsigned char *out, unsigned char *in)
{
	double *samples = malloc(SAMPLES_MOST * sizeof *samples), begin = MPI_Wtime();
	size_t count = 0;
	int last = 0;

	if (!samples)
		fail("no memory");
	for (uint64_t number = 0; !last; number++) {
		if (rank == 0) {
			stamp(out, number, begin);
			last = is_last(out);
			double sent = MPI_Wtime();
			MPI_Send(out, (int)size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
			MPI_Recv(in, (int)size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			double now = MPI_Wtime();
			if (now - begin > 0.1 * seconds && count < SAMPLES_MOST)
				samples[count++] = (now - sent) / 2;
			check(in, number);
		} else {
			MPI_Recv(in, (int)size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			memcpy(out, in, sizeof(uint64_t));
			MPI_Send(out, (int)size, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
			check(in, number);
			last = is_last(in);
		}
	}
	if (rank == 0 && count == 0)
		fail("no round trip was fast enough to count");
	qsort(samples, count, sizeof *samples, ascending);
	if (rank == 0)
		printf("latency %.9g\n", samples[count / 2]);
	free(samples);
}

/* The receiver reports each window, so the sender knows that it has arrived. */
static void bandwidth(unsigned char *messages, int window)
{
	MPI_Request requests[WINDOW_MOST];
	double begin = MPI_Wtime(), from = 0;
	uint64_t counted = 0;
	char report = 0;
	int last = 0;

	for (uint64_t number = 0; !last; number++) {
		if (rank == 0) {
			stamp(messages, number, begin);
			last = is_last(messages);
			for (int i = 1; i < window; i++)
				memcpy(messages + i * size, messages, sizeof number);
		}
		for (int i = 0; i < window; i++) {
			unsigned char *message = messages + i * size;
			if (rank == 0)
				MPI_Isend(message, (int)size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[i]);
			else
				MPI_Irecv(message, (int)size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[i]);
		}
		MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
		if (rank == 0) {
			MPI_Recv(&report, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			double now = MPI_Wtime();
			if (from > 0)
				counted += (uint64_t)window;
			else if (now - begin > 0.1 * seconds)
				from = now;
			if (last && counted > 0)
				printf("bandwidth %.9g\n", (double)counted / (now - from));
		} else {
			MPI_Send(&report, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
			for (int i = 0; i < window; i++)
				check(messages + i * size, number);
			last = is_last(messages);
		}
	}
	if (rank == 0 && counted == 0)
		fail("no window was fast enough to count");
}

/* Rank 1 waits in a receive meanwhile, as MPI libraries need that serve windows in software. */
static void window_access(unsigned char *local, int is_put)
{
	double *samples = malloc(SAMPLES_MOST * sizeof *samples), begin;
	uint64_t number = 0, last;
	unsigned char *memory;
	size_t count = 0;
	MPI_Win window;

	if (!samples)
		fail("no memory");
	/* Memory of a window that MPI allocates can be shared by the ranks of a host, and then nothing travels. */
	memory = calloc(1, size);
	if (!memory)
		fail("no memory");
	MPI_Win_create(memory, (MPI_Aint)size, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	MPI_Barrier(MPI_COMM_WORLD);
	begin = MPI_Wtime();
	for (double now = begin; rank == 0 && now - begin < 1.1 * seconds;) {
		if (is_put)
			memcpy(local, &number, sizeof number);
		double from = MPI_Wtime();
		MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window);
		if (is_put)
			MPI_Put(local, (int)size, MPI_BYTE, 1, 0, (int)size, MPI_BYTE, window);
		else
			MPI_Get(local, (int)size, MPI_BYTE, 1, 0, (int)size, MPI_BYTE, window);
		MPI_Win_unlock(1, window);
		now = MPI_Wtime();
		if (!is_put)
			check(local, 0);
		if (now - begin > 0.1 * seconds && count < SAMPLES_MOST)
			samples[count++] = now - from;
		number++;
	}
	if (rank == 0) {
		if (count == 0)
			fail("no access was fast enough to count");
		number--;
		MPI_Send(&number, sizeof number, MPI_BYTE, 1, 3, MPI_COMM_WORLD);
		qsort(samples, count, sizeof *samples, ascending);
		printf("%s %.9g\n", is_put ? "put" : "get", samples[count / 2]);
	} else {
		MPI_Recv(&last, sizeof last, MPI_BYTE, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window);
		if (is_put)
			check(memory, last);
		MPI_Win_unlock(1, window);
	}
	MPI_Win_free(&window);
	free(memory);
	free(samples);
}

int main(int argc, char **argv)
{
	int ranks, window = 1;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc != 4 || ranks != 2 || (size = (size_t)atol(argv[2])) < sizeof(uint64_t) || size > 1 << 30 ||
	    (seconds = atof(argv[3])) <= 0)
		fail("usage: speed latency|bandwidth|put|get BYTES SECONDS, with 8 bytes at least, on two ranks");
	int is_latency = strcmp(argv[1], "latency") == 0, is_put = strcmp(argv[1], "put") == 0;
	int is_window = is_put || strcmp(argv[1], "get") == 0;
	if (!is_latency && !is_window) {
		window = size < WINDOW_BYTES / WINDOW_MOST ? WINDOW_MOST : (int)(WINDOW_BYTES / size);
		window = window < WINDOW_LEAST ? WINDOW_LEAST : window;
	}
	unsigned char *out = calloc((size_t)window, size), *in = is_latency ? calloc(1, size) : NULL;
	if (!out || (is_latency && !in))
		fail("no memory");
	MPI_Barrier(MPI_COMM_WORLD);
	if (is_window)
		window_access(out, is_put);
	else if (is_latency)
		latency(out, in);
	else
		bandwidth(out, window);
	fflush(stdout);
	free(in), free(out);
	MPI_Finalize();
	return 0;
}
