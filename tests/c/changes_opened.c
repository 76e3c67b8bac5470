/* A program without RDMA code that opens changes.c as a library: Weir interposes none of its functions. */
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
	void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	int (*changes)(int, char **) = library ? dlsym(library, "changes") : NULL;

	if (!changes) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	return changes(argc - 1, argv + 1);
}
