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
    vec![
        row("ompi-lat-8", "Open MPI, messages of 8 B, half round trip, median", OpenMpi, Latency, 8),
        row("ompi-64k", "Open MPI, windows of 64 messages of 64 KiB", OpenMpi, Bandwidth, 64 * KIB),
        row("ompi-1m", "Open MPI, windows of 16 messages of 1 MiB", OpenMpi, Bandwidth, MIB),
        row("ompi-put-8", "Open MPI, lock, put 8 B, unlock, median", OpenMpi, Put, 8),
        row("ompi-put-64k", "Open MPI, lock, put 64 KiB, unlock, median", OpenMpi, Put, 64 * KIB),
        row("ompi-get-8", "Open MPI, lock, get 8 B, unlock, median", OpenMpi, Get, 8),
        row("ompi-get-64k", "Open MPI, lock, get 64 KiB, unlock, median", OpenMpi, Get, 64 * KIB),
        row("mpich-lat-8", "MPICH, messages of 8 B, half round trip, median", Mpich, Latency, 8),
        row("mpich-64k", "MPICH, windows of 64 messages of 64 KiB", Mpich, Bandwidth, 64 * KIB),
        row("mpich-1m", "MPICH, windows of 16 messages of 1 MiB", Mpich, Bandwidth, MIB),
        row("mpich-put-8", "MPICH, lock, put 8 B, unlock, median", Mpich, Put, 8),
        row("mpich-put-64k", "MPICH, lock, put 64 KiB, unlock, median", Mpich, Put, 64 * KIB),
        row("mpich-get-8", "MPICH, lock, get 8 B, unlock, median", Mpich, Get, 8),
        row("mpich-get-64k", "MPICH, lock, get 64 KiB, unlock, median", Mpich, Get, 64 * KIB),
        row("host-ompi-lat-8", "Open MPI, messages of 8 B, half round trip, median", OpenMpi, Latency, 8),
        row("host-ompi-64k", "Open MPI, windows of 64 messages of 64 KiB", OpenMpi, Bandwidth, 64 * KIB),
        row("host-ompi-1m", "Open MPI, windows of 16 messages of 1 MiB", OpenMpi, Bandwidth, MIB),
        row("host-ompi-put-8", "Open MPI, lock, put 8 B, unlock, median", OpenMpi, Put, 8),
        row("host-ompi-put-64k", "Open MPI, lock, put 64 KiB, unlock, median", OpenMpi, Put, 64 * KIB),
        row("host-ompi-get-8", "Open MPI, lock, get 8 B, unlock, median", OpenMpi, Get, 8),
        row("host-ompi-get-64k", "Open MPI, lock, get 64 KiB, unlock, median", OpenMpi, Get, 64 * KIB),
        row("host-mpich-lat-8", "MPICH, messages of 8 B, half round trip, median", Mpich, Latency, 8),
        row("host-mpich-64k", "MPICH, windows of 64 messages of 64 KiB", Mpich, Bandwidth, 64 * KIB),
        row("host-mpich-1m", "MPICH, windows of 16 messages of 1 MiB", Mpich, Bandwidth, MIB),
        row("host-mpich-put-8", "MPICH, lock, put 8 B, unlock, median", Mpich, Put, 8),
        row("host-mpich-put-64k", "MPICH, lock, put 64 KiB, unlock, median", Mpich, Put, 64 * KIB),
        row("host-mpich-get-8", "MPICH, lock, get 8 B, unlock, median", Mpich, Get, 8),
        row("host-mpich-get-64k", "MPICH, lock, get 64 KiB, unlock, median", Mpich, Get, 64 * KIB),
    ]
}

fn row(name: &'static str, what: &'static str, library: Library, test: Test, size: usize) -> Row {
    let of = |over| Measurement::Mpi(Speed { library, over, test, size });
    let bar = if test == Test::Bandwidth { Bar::AtLeast(1.0) } else { Bar::AtMost(1.0) };
    let against = [Carrier::FabricTcp, Carrier::UcxTcp].map(|over| Comparison::with_bar(of(over), bar));
    Row::new(name, what, of(Carrier::WeirOdp), against.into())
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
