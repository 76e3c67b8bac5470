#!/bin/sh
# Runs tests with a sanitizer of the compiler, on the stable toolchain; prints what it finds and fails then.
#
#   scripts/sanitize.sh thread     ThreadSanitizer: the tests of the device (engine, queues, paging table, resolver, rings)
#   scripts/sanitize.sh address    AddressSanitizer: the tests of the crates with unsafe code, and programs in C on the library
#
# The standard library is compiled without the sanitizers: they do not see its own accesses to memory and its locks.
# Weir's locks tell ThreadSanitizer by themselves (crates/device/src/os/sanitizer.rs); scripts/tsan.supp has the rest.
set -eu
cd "$(dirname "$0")/.."

kind=${1:-}
case $kind in
thread) more='--cfg weir_tsan' ;;
address) more= ;;
*)
    sed -n 's/^# \{0,1\}//; 2,6p' "$0"
    exit 2
    ;;
esac
# Sanitizers are an unstable option of the compiler.
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-Zsanitizer=$kind -Cunsafe-allow-abi-mismatch=sanitizer $more"
export CARGO_TARGET_DIR="$PWD/target/sanitize/$kind"
# With a target, build scripts and macros are compiled without the sanitizer.
target=$(rustc -vV | sed -n 's/^host: //p')

failed=
step() {
    echo
    echo "== $*"
    "$@" || failed="$failed
  $*"
}

if [ "$kind" = thread ]; then
    export TSAN_OPTIONS="suppressions=$PWD/scripts/tsan.supp exitcode=66 history_size=4 ${TSAN_OPTIONS:-}"
    # The standard library prints backtraces under a lock of its own, which is not seen either.
    export RUST_BACKTRACE=0
    # Those that are left out count hellos of a second of real time, in which this build does much less.
    step cargo test --target "$target" -p weir-device --lib -- \
        --skip prove_themselves_by_few_hellos --skip a_proof_that_was_lost_comes_with_the_next_answer
else
    # The process of a test keeps what it allocates for its whole life, on purpose: the library's adapters.
    # A test asks for more memory than there is.
    export ASAN_OPTIONS="detect_leaks=0 allocator_may_return_null=1 ${ASAN_OPTIONS:-}"
    for package in weir-wire weir-capture weir-transport weir-device weir-link weir-links weir-msg; do
        step cargo test --target "$target" -p "$package" --lib
    done
    # gcc's runtime serves the program, and the library with it.
    cargo build --target "$target" -p weir-verbs
    LDFLAGS=-fsanitize=address crates/verbs/link.sh "$CARGO_TARGET_DIR/$target/debug" "$CARGO_TARGET_DIR/linked"
    export WEIR_LIB_DIR="$CARGO_TARGET_DIR/linked/lib/weir"
    # The programs' runners are as always.
    unset RUSTFLAGS
    export CARGO_TARGET_DIR="$PWD/target"
    for test in answers attributes cancel closes domains extended later objects oracle paging refusals signals tags twice verify; do
        step env TEST_CFLAGS='-fsanitize=address -g' cargo test -p weir-verbs --test "$test"
    done
fi
if [ -n "$failed" ]; then
    echo
    echo "sanitize: failed:$failed"
    exit 1
fi
echo "sanitize: nothing found"
