/* How programs print what is refused. */
#ifndef REFUSED_H
#define REFUSED_H
#include <errno.h>
#include <stdio.h>

static inline void refused(const char *name, int error)
{
	printf("%s: %d\n", name, error);
}

/* A call that returns an object, or NULL and errno. */
#define NO_OBJECT(name, call) (errno = 0, refused(name, (call) ? 0 : errno))

#endif
