//! `weir bench messages`: MPI over libfabric's provider `weir-odp`, against the same libraries over libfabric's `tcp` and over
//! UCX by TCP.

use super::measure::Measurement;
use super::mpi::{Carrier, Library, Speed, Test};
use super::request::Request;
use super::rows::{self, Bar, Comparison, Row};
use super::turns;
use anyhow::Result;
use std::process::ExitCode;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Measures and prints the results: between two network namespaces first, then on one host, where Weir's packets go through
/// memory that the processes share.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    turns::run_apart_and_together("weir bench messages", rows::select(rows(), request.names)?, request)
}

/// All rows.
pub fn rows() -> Vec<Row> {
    use Library::{Mpich, OpenMpi};
    use Test::{Bandwidth, Get, Latency, Put};
    let pairs = [
        pair(
            ["ompi-lat-8", "host-ompi-lat-8"],
            "Open MPI, messages of 8 B, half round trip, median",
            OpenMpi,
            Latency,
            8,
        ),
        pair(["ompi-64k", "host-ompi-64k"], "Open MPI, windows of 64 messages of 64 KiB", OpenMpi, Bandwidth, 64 * KIB),
        pair(["ompi-1m", "host-ompi-1m"], "Open MPI, windows of 16 messages of 1 MiB", OpenMpi, Bandwidth, MIB),
        pair(["ompi-put-8", "host-ompi-put-8"], "Open MPI, lock, put 8 B, unlock, median", OpenMpi, Put, 8),
        pair(
            ["ompi-put-64k", "host-ompi-put-64k"],
            "Open MPI, lock, put 64 KiB, unlock, median",
            OpenMpi,
            Put,
            64 * KIB,
        ),
        pair(["ompi-get-8", "host-ompi-get-8"], "Open MPI, lock, get 8 B, unlock, median", OpenMpi, Get, 8),
        pair(
            ["ompi-get-64k", "host-ompi-get-64k"],
            "Open MPI, lock, get 64 KiB, unlock, median",
            OpenMpi,
            Get,
            64 * KIB,
        ),
        pair(["mpich-lat-8", "host-mpich-lat-8"], "MPICH, messages of 8 B, half round trip, median", Mpich, Latency, 8),
        pair(["mpich-64k", "host-mpich-64k"], "MPICH, windows of 64 messages of 64 KiB", Mpich, Bandwidth, 64 * KIB),
        pair(["mpich-1m", "host-mpich-1m"], "MPICH, windows of 16 messages of 1 MiB", Mpich, Bandwidth, MIB),
        pair(["mpich-put-8", "host-mpich-put-8"], "MPICH, lock, put 8 B, unlock, median", Mpich, Put, 8),
        pair(["mpich-put-64k", "host-mpich-put-64k"], "MPICH, lock, put 64 KiB, unlock, median", Mpich, Put, 64 * KIB),
        pair(["mpich-get-8", "host-mpich-get-8"], "MPICH, lock, get 8 B, unlock, median", Mpich, Get, 8),
        pair(["mpich-get-64k", "host-mpich-get-64k"], "MPICH, lock, get 64 KiB, unlock, median", Mpich, Get, 64 * KIB),
    ];
    pairs.into_iter().flatten().collect()
}

/// A row between two namespaces, and the same on one host.
fn pair(names: [&'static str; 2], what: &'static str, library: Library, test: Test, size: usize) -> [Row; 2] {
    let of = |over| Measurement::Mpi(Speed { library, over, test, size });
    let bar = if test == Test::Bandwidth { Bar::AtLeast(1.0) } else { Bar::AtMost(1.0) };
    names.map(|name| {
        let against = [Carrier::FabricTcp, Carrier::UcxTcp].map(|over| Comparison::with_bar(of(over), bar));
        Row::new(name, what, of(Carrier::WeirOdp), against.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Baseline;

    #[test]
    fn each_row_is_compared_with_the_same_test_of_the_same_library() {
        for row in rows() {
            let Measurement::Mpi(ours) = row.subject else { panic!("{}", row.name) };
            assert_eq!(row.comparisons.len(), 2);
            for comparison in row.comparisons {
                let Baseline::Measured(Measurement::Mpi(theirs)) = comparison.baseline else { panic!("{}", row.name) };
                assert_eq!(Speed { over: ours.over, ..theirs }, ours);
                assert_ne!(theirs.over, ours.over);
            }
        }
    }
}
