/*
 * ODP memory that changes during transfers: it is unmapped, moved, protected, emptied, replaced, given back to
 * malloc or forked. Two processes; the program observes the contents of the memory through a second mapping.
 *
 *   invalidate CASE [-d DEVICE] [-g GID_INDEX] [-n ROUNDS] [-r]
 *
 * CASE is munmap, mremap, mprotect, dontneed, replace, malloc or fork. -r makes raw system calls, which no interposed
 * function can see. After a call has returned, a transfer in progress must not read or write the old memory.
 */
#include "invalidate_rig.h"
#include "invalidate_race.h"
#include "invalidate_heap.h"

static const struct { const char *name; void (*run)(const char *); } cases[] = {
	{ "munmap", race }, { "mremap", race }, { "mprotect", race }, { "dontneed", race },
	{ "replace", race }, { "malloc", heap }, { "fork", forks },
};

int main(int argc, char **argv)
{
	int option;

	while ((option = getopt(argc, argv, "d:g:n:r")) != -1)
		switch (option) {
		case 'd': opt.device = optarg; break;
		case 'g': opt.gid = atoi(optarg); break;
		case 'n': opt.rounds = atol(optarg); break;
		case 'r': opt.raw = 1; break;
		default: return 2;
		}
	for (size_t i = 0; optind < argc && i < sizeof(cases) / sizeof(*cases); i++)
		if (!strcmp(argv[optind], cases[i].name)) {
			open_both();
			if (is_far)
				serve();
			else
				cases[i].run(cases[i].name);
			return close_both();
		}
	fprintf(stderr, "usage: invalidate CASE [-d DEVICE] [-g GID_INDEX] [-n ROUNDS] [-r]\n");
	return 2;
}
