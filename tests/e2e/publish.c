/*
 * A program with overlapping regions and a library that publishes counters of its own.
 *
 * usage: publish DEVICE
 * Registers 8 pages in two pinned regions that overlap, and one on-demand; deregisters one of the pinned. Publishes a
 * group of counters, forks a child that does the same for itself, and prints "first". After a line on standard input
 * it publishes other values and a second group, ends the first one, and prints "second". It ends at the next line.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../c/fatal.h"
#include "../c/setup.h"

enum { PAGE = 4096, NAME = 32, ROOM = 64 };

static int (*publish)(const char *group, size_t count, const char *const *names, const uint64_t *values);
static size_t (*counters)(char (*names)[NAME], uint64_t *values, size_t room);

/* Weir's counter of this process with this name. */
static uint64_t counter(const char *name)
{
	char names[ROOM][NAME];
	uint64_t values[ROOM];
	size_t count = counters(names, values, ROOM);

	CHECK(count <= ROOM);
	for (size_t i = 0; i < count; i++)
		if (!strcmp(names[i], name))
			return values[i];
	CHECK(!"a counter with this name");
	return 0;
}

/* A child has no counters of its parent, and publishes only when it has opened a device itself. */
static void child_of(const char *device)
{
	const char *name = "calls";
	uint64_t value = 1;
	int status;
	pid_t child = fork();

	CHECK(child >= 0);
	if (child) {
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		return;
	}
	CHECK(publish("weir-odp copy", 1, &name, &value) == ENODEV);
	CHECK(counter("pinned_bytes") == 0 && counter("registrations") == 0);
	CHECK(device_open(device));
	CHECK(publish("child", 1, &name, &value) == 0);
	exit(0);
}

static void wait_for_line(const char *phase)
{
	puts(phase);
	fflush(stdout);
	CHECK(getchar() == '\n');
}

int main(int argc, char **argv)
{
	const char *names[] = { "eager", "pinned_bytes", "pinned_peak" };
	uint64_t values[] = { 12, 1 << 20, 3 << 20 };
	struct ibv_context *context;
	struct ibv_mr *first, *second;
	struct ibv_pd *pd;
	uint8_t *memory;

	CHECK(argc == 2);
	*(void **)&publish = dlsym(RTLD_DEFAULT, "weir_publish");
	*(void **)&counters = dlvsym(RTLD_DEFAULT, "weir_counters", "WEIR_1.0");
	CHECK(publish && counters);
	CHECK(publish("weir-odp odp-optimal", 3, names, values) == ENODEV);
	CHECK(context = device_open(argv[1]));
	CHECK(pd = ibv_alloc_pd(context));
	memory = mmap(NULL, 9 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	CHECK(first = ibv_reg_mr(pd, memory, 5 * PAGE - 1, IBV_ACCESS_LOCAL_WRITE));
	CHECK(second = ibv_reg_mr(pd, memory + 3 * PAGE, 5 * PAGE, IBV_ACCESS_LOCAL_WRITE));
	CHECK(ibv_reg_mr(pd, memory + 8 * PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND));
	CHECK(counter("pinned_bytes") == 8 * PAGE && counter("page_faults") == 0);
	CHECK(!ibv_dereg_mr(second));
	CHECK(counter("pinned_bytes") == 5 * PAGE && counter("pinned_peak") == 8 * PAGE);
	CHECK(counter("registrations") == 3 && counter("registrations_on_demand") == 1);
	CHECK(publish("weir-odp odp-optimal", 3, names, values) == 0);
	child_of(argv[1]);
	wait_for_line("first");

	values[0] = 13;
	CHECK(publish("weir-odp odp-optimal", 0, NULL, NULL) == 0);
	CHECK(publish("weir-odp pin-down", 3, names, values) == 0);
	CHECK(publish("other", 1, names, values) == 0);
	CHECK(!ibv_dereg_mr(first));
	wait_for_line("second");
	return 0;
}
