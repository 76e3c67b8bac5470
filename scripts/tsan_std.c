/*
 * Shows ThreadSanitizer the synchronisation within Rust's standard library, which is compiled without it. Otherwise two
 * threads that take a contended lock in turn would be reported as a data race.
 *
 * scripts/sanitize.sh links this file into each test program, with the linker's option --wrap for each function, and
 * defines the names of the functions, which change with each release of Rust. Uncontended locks need nothing: they are
 * inlined into Weir's code and compiled with it. ThreadSanitizer knows a lock by the address of its futex, which is where
 * these objects begin.
 */
#include <stdbool.h>
#include <stdint.h>

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
WRAP("__tsan_atomic64_fetch_sub", uint64_t, real_fetch_sub, wrapped_fetch_sub, volatile uint64_t *, uint64_t, int);

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
 * The count of an Arc: its last owner passes a fence before it drops the value, and ThreadSanitizer knows no fences. So
 * it sees the count fall with acquire-release order. Weir itself subtracts in no weaker order.
 */
uint64_t wrapped_fetch_sub(volatile uint64_t *count, uint64_t amount, int order)
{
	return real_fetch_sub(count, amount, order == __ATOMIC_RELEASE ? __ATOMIC_ACQ_REL : order);
}
