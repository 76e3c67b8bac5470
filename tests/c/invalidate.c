/*
 * On-demand memory that changes while transfers are under way: unmapped, moved, protected, emptied, replaced, given
 * back to malloc, forked. Two processes; what the memory holds is observed through a second mapping of it.
 *
 *   invalidate CASE [-d DEVICE] [-g GID_INDEX] [-n ROUNDS] [-r]
 *
 * CASE is munmap, mremap, mprotect, dontneed, replace, malloc or fork. -r makes raw system calls, which no function of a
 * library can see. After a call has returned, a transfer that was under way must read and write nothing there any more.
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
