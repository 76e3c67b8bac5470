#!/bin/sh
# Looks for failures that short tests do not find: many random cases, fuzzing, races and ping-pongs. Each step prints
# its name and seed and has a time limit; after a failed step the others still run.
# Usage: scripts/soak.sh     SOAK_CASES=… and so on, see below, set the amounts
set -eu
cd "$(dirname "$0")/.."

cases=${SOAK_CASES:-20000}
rounds=${SOAK_ROUNDS:-1000000}
races=${SOAK_RACES:-100000}
# 100,000 take about ten minutes of CPU time.
sequences=${SOAK_SEQUENCES:-1000000}
seconds=${SOAK_FUZZ_SECONDS:-300}
# A day.
simulated=${SOAK_SIMULATED_SECONDS:-86400}
live=${SOAK_LIVE_SECONDS:-1800}
# One half of them on one host, and one between two.
kills=${SOAK_KILLS:-1000}
packets=${SOAK_PACKETS:-10000000}
# The seed of all steps; PROPTEST_RNG_SEED=N make soak repeats a run.
PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
export PROPTEST_RNG_SEED

failed=
step() {
    name=$1
    shift
    echo
    echo "== $name"
    begun=$(date +%s)
    if "$@"; then outcome=passed; else outcome=FAILED; failed="$failed, $name"; fi
    echo "== $name: $outcome after $(($(date +%s) - begun)) s"
}

# All of them run, whatever fails.
properties() {
    outcome=0
    for test in weir-wire:properties weir-wire:connections weir-capture:garbage weir-analyze:fuzz \
            weir-transport:properties weir-transport:page_fault_properties weir-transport:edge_hostile \
            weir-cm:properties weir-cm:faults weir-lab:guard_properties \
            weir-msg:random weir-msg:hostile weir-msg:connections weir-msg:flow weir-msg:registrations; do
        PROPTEST_CASES=$cases timeout 3600 cargo test -p "${test%:*}" --test "${test#*:}" || {
            echo "failed: $test"
            outcome=1
        }
    done
    PROPTEST_CASES=$cases timeout 3600 cargo test -p weir-device --lib -- engine::fuzz || outcome=1
    return "$outcome"
}

# $1: the test's name, or a part of it. $2: number of rounds.
end_to_end() {
    E2E_ROUNDS=$2 timeout 10800 cargo test -p weir-cli --test e2e -- "$1"
}

sequences_of_verbs() {
    ORACLE_SEED=$PROPTEST_RNG_SEED ORACLE_SEQUENCES=$sequences timeout 28800 \
        cargo test -p weir-verbs --test oracle -- --nocapture
}

simulated_day() {
    SIM_SECONDS=$simulated timeout 14400 cargo test --release -p weir-sim --test day -- --nocapture
}

mixed_traffic() {
    E2E_SECONDS=$live timeout $((live * 5 + 600)) cargo test -p weir-cli --test e2e -- "four processes" --nocapture
}

step "$cases cases of each property, seed $PROPTEST_RNG_SEED" properties
step "$simulated virtual s of random work and faults, seed $PROPTEST_RNG_SEED" simulated_day
step "$sequences random sequences of verbs, seed $PROPTEST_RNG_SEED" sequences_of_verbs
step "$rounds ping-pongs of threads" end_to_end "wake-up" "$rounds"
step "$races races of invalidation" end_to_end "ODP memory" "$races"
step "$live s of mixed traffic of four processes" mixed_traffic
step "$kills SIGKILLs at random instants" end_to_end "killed at random" "$((kills / 2))"
step "$packets packets of a flood" end_to_end "do not grow under a flood" "$packets"
step "tests under ThreadSanitizer" scripts/sanitize.sh thread
step "tests under AddressSanitizer" scripts/sanitize.sh address
step "$seconds s of each fuzz target, seed $PROPTEST_RNG_SEED" \
    env FUZZ_SECONDS="$seconds" FUZZ_SEED="$PROPTEST_RNG_SEED" scripts/fuzz.sh
if [ -n "$failed" ]; then
    echo "soak: failed: ${failed#, }"
    exit 1
fi
echo "soak: all passed"
