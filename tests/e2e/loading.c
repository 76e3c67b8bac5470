/*
 * Looks for a Weir device in the ways in which programs load libibverbs, and prints "ok".
 *
 *   linked          it is linked to libibverbs, or to a copy of it under another name
 *   opened          it opens libibverbs.so.1 and asks for a version of each symbol, as NCCL does
 *   plugin FILE     it opens a library that is linked to libibverbs, as Open MPI and UCX do
 *
 * Compiled with LINKED it has `linked`, with PLUGIN it is the library.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define REQUIRE(what)                                                          \
	do {                                                                   \
		if (!(what)) {                                                 \
			printf("line %d: %s is false\n", __LINE__, #what);     \
			exit(1);                                               \
		}                                                              \
	} while (0)

typedef struct ibv_device **list_function(int *count);
typedef const char *name_function(struct ibv_device *device);

/* Whether the folder has this entry. */
static int lists(const char *folder, const char *wanted)
{
	int found = 0;
	DIR *dir = opendir(folder);
	REQUIRE(dir);
	for (struct dirent *entry; (entry = readdir(dir));)
		found |= strcmp(entry->d_name, wanted) == 0;
	closedir(dir);
	return found;
}

/* The files by which UCX and others look for a device. */
static void check_files(const char *device)
{
	char path[PATH_MAX], real[PATH_MAX], text[64] = "";
	struct stat found;

	REQUIRE(lists("/sys/class/infiniband", device));
	snprintf(path, sizeof path, "/sys/class/infiniband/%s", device);
	REQUIRE(realpath(path, real) && strcmp(path, real) == 0);
	/* What the device is attached to; Mooncake leaves out devices without it. */
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/../..", device);
	REQUIRE(realpath(path, real) && strcmp(real, "/sys/devices/virtual") == 0);
	REQUIRE(!realpath("/sys/class/infiniband/absent/../..", real));
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/gid_attrs/types/1", device);
	FILE *file = fopen(path, "r");
	REQUIRE(file && fgets(text, sizeof text, file) && strcmp(text, "RoCE v2\n") == 0);
	fclose(file);
	int folder = open("/sys/class/infiniband", O_RDONLY | O_DIRECTORY);
	REQUIRE(folder >= 0 && fstatat(folder, device, &found, 0) == 0 && S_ISDIR(found.st_mode));
	close(folder);
	REQUIRE(stat("/dev/infiniband/uverbs0", &found) == 0 && S_ISCHR(found.st_mode));
	REQUIRE(access("/dev/infiniband/uverbs0", R_OK | W_OK) == 0);
	REQUIRE(stat("/dev/infiniband/uverbs99", &found) != 0);
}

/* Memory hooks: the functions that everything in this process calls are those of Weir's library. */
static void check_hooks(void)
{
	Dl_info info;
	const char *names[] = {"munmap", "mmap", "madvise", "mprotect", "mremap"};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		void *function = dlsym(RTLD_DEFAULT, names[i]);
		REQUIRE(function && dladdr(function, &info) && strstr(info.dli_fname, "weir/libibverbs.so.1"));
	}
}

static void check(list_function *list, name_function *name)
{
	int count = 0;
	struct ibv_device **devices = list(&count);

	REQUIRE(devices && count > 0);
	REQUIRE(strncmp(name(devices[0]), "weir_", 5) == 0);
	check_files(name(devices[0]));
	check_hooks();
	puts("ok");
}

#ifdef PLUGIN
void check_as_plugin(void)
{
	check(ibv_get_device_list, ibv_get_device_name);
}
#else
int main(int argc, char **argv)
{
	REQUIRE(argc >= 2);
#ifdef LINKED
	if (strcmp(argv[1], "linked") == 0)
		check(ibv_get_device_list, ibv_get_device_name);
#endif
	if (strcmp(argv[1], "opened") == 0) {
		void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
		REQUIRE(library);
		void *list = dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1");
		void *name = dlvsym(library, "ibv_get_device_name", "IBVERBS_1.1");
		REQUIRE(list && name);
		check((list_function *)list, (name_function *)name);
	}
	if (strcmp(argv[1], "plugin") == 0) {
		void *library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
		if (!library)
			puts(dlerror());
		REQUIRE(library);
		void (*run)(void) = (void (*)(void))dlsym(library, "check_as_plugin");
		REQUIRE(run);
		run();
	}
	return 0;
}
#endif
