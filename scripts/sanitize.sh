#!/bin/sh
# Runs tests under ThreadSanitizer or AddressSanitizer, on the stable toolchain. What they see: CONTRIBUTING.md.
# Usage: scripts/sanitize.sh thread|address [ARGUMENTS OF cargo test]      without arguments: the tests below
# Set TSAN_OPTIONS, ASAN_OPTIONS to add options of the run-time libraries.
set -eu
cd "$(dirname "$0")/.."

sanitizer=${1:-}
case $sanitizer in
    thread | address) shift ;;
    *) sed -n '2,4s/^# //p' "$0" >&2; exit 2 ;;
esac
triple=$(rustc -vV | sed -n 's/^host: //p')
libraries=$(rustc --print sysroot)/lib/rustlib/$triple/lib
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}/sanitize/$sanitizer"
mkdir -p "$CARGO_TARGET_DIR"
# Options of the linker; in a file, so that a change of them does not build everything again.
link=$CARGO_TARGET_DIR/link
: >"$link.new"

# Both sanitizers are unstable options of the compiler. The standard library is compiled without them.
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-Zsanitizer=$sanitizer -Cunsafe-allow-abi-mismatch=sanitizer -Clink-arg=@$link"
# Reports name lines; the rest of the debug information doubles the time of a build.
export CARGO_PROFILE_DEV_DEBUG=line-tables-only CARGO_PROFILE_DEV_BUILD_OVERRIDE_DEBUG=false
# Build scripts and procedural macros are compiled without RUSTFLAGS if a target is named.
export CARGO_BUILD_TARGET="$triple"

# Prints the symbol of a function of the standard library.
symbol() {
    found=$(readelf -sW "$libraries"/libstd-*.rlib 2>/dev/null |
        awk '$4 == "FUNC" && $5 != "LOCAL" { print $8 }' | grep -E "^_R.*$1\$" || true)
    case $found in
        *[!A-Za-z0-9_]* | '') echo "sanitize: std has another function than $1: change scripts/sanitize.sh" >&2; exit 1 ;;
    esac
    echo "$found"
}

# Compiles tsan_order.c, and has the linker put its functions in place of others.
show_order() {
    object=$CARGO_TARGET_DIR/tsan_order-$(cksum <scripts/tsan_order.c | cut -d' ' -f1).o
    set --
    for pair in MUTEX_LOCK:4sync5mutex5futex.*14lock_contended RWLOCK_READ:4sync6rwlock5futex.*14read_contended \
            RWLOCK_WRITE:4sync6rwlock5futex.*15write_contended CONDVAR_WAIT:4sync7condvar5futex.*4wait \
            CONDVAR_WAIT_TIMEOUT:4sync7condvar5futex.*12wait_timeout ONCE_CALL:4sync4once5futex.*4Once4call \
            SCOPE_END:9ScopeData29decrement_num_running_threads; do
        symbol=$(symbol "${pair#*:}")
        set -- "$@" "-D${pair%%:*}=\"$symbol\""
        echo "-Wl,--wrap=$symbol" >>"$link.new"
    done
    printf '%s\n' -Wl,--wrap=__tsan_atomic64_fetch_sub -Wl,--wrap=syscall >>"$link.new"
    "${CC:-cc}" -O2 -Wall -Wextra -Werror "$@" -c -o "$object" scripts/tsan_order.c
    echo "\"$object\"" >>"$link.new"
}

# The C programs of crates/verbs and the library are compiled by cc with the same sanitizer, and get Rust's run-time
# library: cc takes it for its own by this name. The program contains it, and the library refers to that.
runtime=$CARGO_TARGET_DIR/runtime
mkdir -p "$runtime"
short=$(echo "$sanitizer" | cut -c1)san
ln -sf "$libraries/librustc-stable_rt.$short.a" "$runtime/lib$short.a"
flags="-g -fsanitize=$sanitizer -static-lib$short -L$runtime -rdynamic -Wno-error"
export LDFLAGS="-Wl,-z,undefs"
# A library that is compiled without it.
unset WEIR_LIB_DIR

# Weir answers ENOMEM where malloc returns NULL. Without handlers of the sanitizer: it would set them by Weir's sigaction(3)
# before it is ready for code that is compiled with it.
options="allow_addr2line=1 allocator_may_return_null=1
    handle_segv=0 handle_sigbus=0 handle_sigfpe=0 handle_sigill=0 handle_abort=0"
if [ "$sanitizer" = thread ]; then
    show_order
    export TSAN_OPTIONS="$options suppressions=$PWD/scripts/tsan.supp history_size=4 ${TSAN_OPTIONS:-}"
    # Backtraces of panics are made under a lock of std that ThreadSanitizer does not see.
    export RUST_BACKTRACE=0
    LDFLAGS="$LDFLAGS @$link"
else
    flags="$flags -fsanitize=undefined -fno-sanitize-recover=all"
    # What a process has until its end is no leak, and LeakSanitizer takes it for one where threads run or /proc is missing.
    export ASAN_OPTIONS="$options detect_leaks=0 ${ASAN_OPTIONS:-}"
fi
# Cargo does not know of this file, but links again what is missing.
cmp -s "$link.new" "$link" ||
    find "$CARGO_TARGET_DIR/$triple/debug/deps" -type f -executable -delete 2>/dev/null || true
mv "$link.new" "$link"
export WEIR_TEST_CFLAGS="$flags"

# Prints "--test NAME" for each file of tests of these crates, but not for those that $skipped lists.
tests_of() {
    for crate; do
        for file in crates/"$crate"/tests/*.rs; do
            name=$(basename "$file" .rs)
            case " $skipped " in *" $name "*) ;; *) echo "--test $name" ;; esac
        done
    done | sort -u
}

if [ $# = 0 ]; then
    # Without the tests of the crate layer: its functions in place of dlsym(3) run before the sanitizer is ready.
    # Loom runs its models on stacks of its own, which no sanitizer knows, and there is no race in them to find.
    skipped="arming gathering handover polling standby"
    left_out=
    if [ "$sanitizer" = thread ]; then
        set -- -p weir-guarded -p weir-userfault -p weir-capture -p weir-link -p weir-device -p weir-verbs
        # Those of threads.
        tests="--test in_place --test hooks --test modify --test paging --test memory --test history --test recorder
            --test threads --test twice --test oracle --test objects"
    else
        set -- -p weir-wire -p weir-transport -p weir-guarded -p weir-userfault -p weir-capture -p weir-link \
            -p weir-links -p weir-device -p weir-verbs
        # Programs that are compiled without it cannot load the library: those of the system, and those with a layer.
        # It keeps what is freed, needs more memory than a limit, maps memory where some has gone, and has stacks of its own.
        skipped="$skipped library layered guarded changes memory_limit mapped signals"
        tests=$(tests_of wire transport capture link device verbs)
        # Programs of the system, and a limit of mlock(2), which does nothing here.
        left_out="a_port_reports_changes_of_its_interface a_port_follows_its_peer_end
            an_interface_is_shown_and_active_as_soon_as a_region_that_profile_or_limit_do_not_permit"
    fi
    # shellcheck disable=SC2086 # a list of words
    set -- "$@" --lib $tests --
    # Tests that count what an engine does in time, which is too slow here.
    left_out="$left_out many_idle_qps_of_one_peer although_many_qps_are_idle memory_of_a_flushed_work_request
        requesters_resume_by_their_own_events"
    for name in $left_out; do
        set -- "$@" --skip "$name"
    done
fi
# It runs ignored tests too, if this machine has what they need.
SKIPS=allowed exec scripts/test.py "$@"
