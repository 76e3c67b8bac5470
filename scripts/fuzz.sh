#!/bin/sh
# Fuzzes each target, or those that are named, on the stable toolchain, and prints a table. After a failure the other targets
# still run. If FUZZ_ASAN is set they run with AddressSanitizer, for those that read and write shared memory.
# Usage: scripts/fuzz.sh [--minimize] [TARGET…]
#   --minimize   instead of fuzzing, keep those inputs of fuzz/corpus and of target/fuzz/corpus that reach something of
#                their own
# FUZZ_SECONDS: of each target, 60 by default. FUZZ_SEED: a number; random by default. New inputs are in target/fuzz/corpus.
set -eu
cd "$(dirname "$0")/.."

seconds=${FUZZ_SECONDS:-60}
seed=${FUZZ_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
folder=target/fuzz
# cargo-fuzz writes to the first folder of inputs: what is in git stays as it is.
export CARGO_TARGET_DIR="$PWD/fuzz/target"

minimize=
if [ "${1:-}" = --minimize ]; then
    minimize=yes
    shift
fi
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "missing: cargo-fuzz (builds and runs the fuzz targets): cargo install --locked cargo-fuzz"
    env -u CARGO_TARGET_DIR cargo install --locked cargo-fuzz
fi
sanitizer=none
if [ -n "${FUZZ_ASAN:-}" ]; then
    # AddressSanitizer is an unstable option of the compiler.
    sanitizer=address
    export RUSTC_BOOTSTRAP=1
fi
targets=${*:-$(ls fuzz/fuzz_targets | sed 's/\.rs$//')}
mkdir -p "$folder/log"

begun=$(date +%s)
cargo fuzz build -s "$sanitizer"
echo "built in $(($(date +%s) - begun)) s; seed $seed"

if [ -n "$minimize" ]; then
    for target in $targets; do
        kept=fuzz/corpus/$target
        mkdir -p "$folder/corpus/$target" "$folder/minimal/$target"
        rm -f "$folder/minimal/$target"/*
        # Smaller inputs come first; with those that are kept there is nothing to gain from the rest.
        cargo fuzz run -s "$sanitizer" "$target" "$folder/minimal/$target" "$kept" "$folder/corpus/$target" -- -merge=1 \
            >"$folder/log/$target.merge" 2>&1 || { tail -5 "$folder/log/$target.merge"; exit 1; }
        before=$(ls "$kept" | wc -l)
        rm -f "$kept"/*
        cp "$folder/minimal/$target"/* "$kept"/
        echo "$target: $before inputs, now $(ls "$kept" | wc -l)"
    done
    exit
fi

table=$folder/table
printf '%-12s %12s %8s %12s %8s  %s\n' target executions seconds per-second new result >"$table"
failed=
for target in $targets; do
    log=$folder/log/$target
    mkdir -p "$folder/corpus/$target" "fuzz/corpus/$target"
    before=$(ls "$folder/corpus/$target" | wc -l)
    begun=$(date +%s.%N)
    result=passed
    cargo fuzz run -s "$sanitizer" "$target" "$folder/corpus/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -seed="$seed" -print_final_stats=1 -max_len=4096 >"$log" 2>&1 || result=FAILED
    ended=$(date +%s.%N)
    new=$(($(ls "$folder/corpus/$target" | wc -l) - before))
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -1)
    awk -v target="$target" -v n="${executions:-0}" -v s="$(echo "$ended $begun" | awk '{print $1 - $2}')" \
        -v new="$new" -v result="$result" \
        'BEGIN { printf "%-12s %12d %8.1f %12.0f %8d  %s\n", target, n, s, s ? n / s : 0, new, result }' >>"$table"
    tail -1 "$table"
    if [ "$result" != passed ]; then
        failed="$failed $target"
        grep -E "panicked|ERROR|the artifact|Test unit written" "$log" | head -5 || true
    fi
done
echo
cat "$table"
awk 'NR > 1 { sum += $2 } END { printf "%d executions\n", sum }' "$table"
if [ -n "$failed" ]; then
    echo "fuzz: failed:$failed (logs in $folder/log, inputs in fuzz/artifacts)"
    exit 1
fi
