/*
 * Shows ThreadSanitizer what has an order although no code that is compiled with it says so. Otherwise two threads that
 * take a contended lock in turn would be reported as a data race: Rust's standard library is compiled without it.
 *
 * scripts/sanitize.sh links this file into each test program, with the linker's option --wrap for each function, and
 * defines the names of std's functions, which change with each release of Rust. Uncontended locks need nothing: they are
 * inlined into Weir's code and compiled with it. ThreadSanitizer knows a lock by the address of its futex, which is where
 * these objects begin.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

void __tsan_acquire(void *address);
void __tsan_release(void *address);

/* Declares REAL, the function of this symbol, and WRAPPED, which callers get in place of it. */
#define WRAP(symbol, type, real, wrapped, ...)            \
	type real(__VA_ARGS__) __asm__("__real_" symbol); \
	type wrapped(__VA_ARGS__) __asm__("__wrap_" symbol)

/* Rust passes these arguments as C does: pointers, integers, and a Duration as its two numbers. */
WRAP(MUTEX_LOCK, void, real_lock, wrapped_lock, void *);
WRAP(RWLOCK_READ, void, real_read, wrapped_read, void *);
WRAP(RWLOCK_WRITE, void, real_write, wrapped_write, void *);
WRAP(CONDVAR_WAIT, void, real_wait, wrapped_wait, void *, void *);
WRAP(CONDVAR_WAIT_TIMEOUT, bool, real_wait_timeout, wrapped_wait_timeout, void *, void *, uint64_t, uint32_t);
WRAP(ONCE_CALL, void, real_call, wrapped_call, void *, bool, void *, void *, void *);
WRAP(SCOPE_END, void, real_end, wrapped_end, char *, bool);
WRAP("__tsan_atomic64_fetch_sub", uint64_t, real_fetch_sub, wrapped_fetch_sub, volatile uint64_t *, uint64_t, int);
WRAP("syscall", long, real_syscall, wrapped_syscall, long, long, long, long, long, long, long);

void wrapped_lock(void *mutex)
{
	real_lock(mutex);
	__tsan_acquire(mutex);
}

void wrapped_read(void *lock)
{
	real_read(lock);
	__tsan_acquire(lock);
}

void wrapped_write(void *lock)
{
	real_write(lock);
	__tsan_acquire(lock);
}

/* Unlocks and locks the mutex. */
void wrapped_wait(void *condvar, void *mutex)
{
	__tsan_release(mutex);
	real_wait(condvar, mutex);
	__tsan_acquire(mutex);
}

bool wrapped_wait_timeout(void *condvar, void *mutex, uint64_t seconds, uint32_t nanoseconds)
{
	__tsan_release(mutex);
	bool notified = real_wait_timeout(condvar, mutex, seconds, nanoseconds);
	__tsan_acquire(mutex);
	return notified;
}

/* The closure runs in this call, or has run in another. */
void wrapped_call(void *once, bool ignore_poisoning, void *closure, void *methods, void *caller)
{
	real_call(once, ignore_poisoning, closure, methods, caller);
	__tsan_release(once);
	__tsan_acquire(once);
}

/*
 * A thread of std::thread::scope ends. The thread that waits loads a word of this object, of which the offset depends on
 * the release of Rust: it is one of the first three.
 */
void wrapped_end(char *scope, bool panicked)
{
	for (size_t offset = 0; offset < 3 * sizeof(void *); offset += sizeof(void *))
		__tsan_release(scope + offset);
	real_end(scope, panicked);
}

/*
 * The count of an Arc: its last owner passes a fence before it drops the value, and ThreadSanitizer knows no fences. So
 * it sees the count fall with acquire-release order. Weir itself subtracts in no weaker order.
 */
uint64_t wrapped_fetch_sub(volatile uint64_t *count, uint64_t amount, int order)
{
	return real_fetch_sub(count, amount, order == __ATOMIC_RELEASE ? __ATOMIC_ACQ_REL : order);
}

/*
 * Weir maps and unmaps its own memory by system calls, and ThreadSanitizer intercepts the functions of libc only: the next
 * mapping at an address seems to be the one before it. The kernel puts an unmapping before the mapping that reuses it.
 */
long wrapped_syscall(long number, long a, long b, long c, long d, long e, long f)
{
	static char unmapped;

	if (number == SYS_munmap)
		__tsan_release(&unmapped);
	long result = real_syscall(number, a, b, c, d, e, f);
	if (number == SYS_mmap)
		__tsan_acquire(&unmapped);
	return result;
}
