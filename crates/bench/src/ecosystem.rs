//! `weir bench ecosystem`: UCX, libfabric and Open MPI over Weir, against themselves over TCP and UDP. And two processes of
//! one host, against the programs' own shared memory.

use super::fabric::Provider;
use super::measure::Measurement;
use super::mpi::{Carrier, Library, Speed, Test};
use super::peers::Over;
use super::request::Request;
use super::rows::{self, Bar, Comparison, Row};
use super::turns;
use anyhow::Result;
use std::process::ExitCode;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Measures and prints the results: between two network namespaces first, then on one host.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    turns::run_apart_and_together("weir bench ecosystem", rows::select(rows(), request.names)?, request)
}

/// All rows.
pub fn rows() -> Vec<Row> {
    network_rows().into_iter().chain(host_rows()).collect()
}

fn network_rows() -> Vec<Row> {
    let (tcp, rdm) = ([Provider::Tcp], [Provider::TcpRxm, Provider::UdpRxd]);
    let with_bar = |row: Row| {
        let bar = if row.is_latency() { Bar::AtMost(1.0) } else { Bar::AtLeast(1.0) };
        Row { comparisons: row.comparisons.into_iter().map(|c| Comparison { bar: Some(bar), ..c }).collect(), ..row }
    };
    let rows = [
        ucx(["ucx-lat-8", "ucx-64k", "ucx-1m"], Over::Tcp),
        fabric(["fabric-msg-lat-8", "fabric-msg-64k", "fabric-msg-1m"], Provider::Verbs, &tcp),
        fabric(["fabric-rdm-lat-8", "fabric-rdm-64k", "fabric-rdm-1m"], Provider::VerbsRxm, &rdm),
        mpi(["mpi-lat-8", "mpi-64k", "mpi-1m"], Carrier::OwnTcp),
    ];
    rows.into_iter().flatten().map(with_bar).collect()
}

fn host_rows() -> Vec<Row> {
    let shm = [Provider::Shm];
    let rows = [
        ucx(["host-ucx-lat-8", "host-ucx-64k", "host-ucx-1m"], Over::SharedMemory),
        fabric(["host-fabric-msg-lat-8", "host-fabric-msg-64k", "host-fabric-msg-1m"], Provider::Verbs, &shm),
        fabric(["host-fabric-rdm-lat-8", "host-fabric-rdm-64k", "host-fabric-rdm-1m"], Provider::VerbsRxm, &shm),
        mpi(["host-mpi-lat-8", "host-mpi-64k", "host-mpi-1m"], Carrier::SharedMemory),
    ];
    rows.into_iter().flatten().collect()
}

/// Tagged messages of 8 bytes, and streams of 64 KiB and 1 MiB.
fn ucx(names: [&'static str; 3], over: Over) -> Vec<Row> {
    let latency = |over| Measurement::UcxLatency { test: "tag_lat", size: 8, over };
    let stream = |size| move |over| Measurement::Ucx { test: "tag_bw", size, over };
    let [short, long, longest] = names;
    let row = |name, what, of: &dyn Fn(Over) -> Measurement| {
        Row::new(name, what, of(Over::Weir), vec![Comparison::without_bar(of(over))])
    };
    vec![
        row(short, "UCX, tagged messages of 8 B, half round trip, median", &latency),
        row(long, "UCX, stream of tagged messages of 64 KiB", &stream(64 * KIB)),
        row(longest, "UCX, stream of tagged messages of 1 MiB", &stream(MIB)),
    ]
}

/// Ping-pongs of libfabric.
///
/// On one host both kinds of endpoints are compared with `shm`, which has unconnected ones only.
fn fabric(names: [&'static str; 3], weir: Provider, others: &[Provider]) -> Vec<Row> {
    let latency = |provider| Measurement::FabricLatency { provider, size: 8 };
    let rate = |size| move |provider| Measurement::FabricRate { provider, size };
    let [short, long, longest] = names;
    let row = |name, what, of: &dyn Fn(Provider) -> Measurement| {
        Row::new(name, what, of(weir), others.iter().map(|other| Comparison::without_bar(of(*other))).collect())
    };
    vec![
        row(short, "libfabric, fi_pingpong 8 B, half round trip, mean", &latency),
        row(long, "libfabric, fi_pingpong 64 KiB, one message at a time", &rate(64 * KIB)),
        row(longest, "libfabric, fi_pingpong 1 MiB, one message at a time", &rate(MIB)),
    ]
}

/// Two ranks of Open MPI: `pml ucx` over Weir, `pml ob1` with its own `btl` over the other.
fn mpi(names: [&'static str; 3], over: Carrier) -> Vec<Row> {
    let of = |test, size| move |over| Measurement::Mpi(Speed { library: Library::OpenMpi, over, test, size });
    let (latency, stream) = (of(Test::Latency, 8), |size| of(Test::Bandwidth, size));
    let [short, long, longest] = names;
    let row = |name, what, of: &dyn Fn(Carrier) -> Measurement| {
        Row::new(name, what, of(Carrier::WeirUcx), vec![Comparison::without_bar(of(over))])
    };
    vec![
        row(short, "Open MPI, pml ucx against pml ob1, messages of 8 B, half round trip, median", &latency),
        row(long, "Open MPI, pml ucx against pml ob1, windows of 64 messages of 64 KiB", &stream(64 * KIB)),
        row(longest, "Open MPI, pml ucx against pml ob1, windows of 16 messages of 1 MiB", &stream(MIB)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Unit;
    use crate::rows::Baseline;
    use crate::turns::ONE_HOST;
    use std::collections::HashSet;

    #[test]
    fn each_program_is_compared_with_itself_in_the_same_quantity_and_size() {
        for row in rows() {
            for comparison in &row.comparisons {
                let Baseline::Measured(other) = comparison.baseline else { panic!("{}", row.name) };
                assert_eq!(other.unit(), row.subject.unit(), "{}", row.name);
                assert_eq!(other.programs(), row.subject.programs(), "{}", row.name);
                let (ours, theirs) = (row.subject.describe(), other.describe());
                let size = |text: &str| text.rsplitn(3, ' ').take(2).map(str::to_owned).collect::<Vec<_>>();
                assert_eq!(size(&ours), size(&theirs), "{}", row.name);
                assert_eq!(ours.split(' ').next(), theirs.split(' ').next(), "{}", row.name);
                assert_ne!(ours, theirs);
            }
        }
    }

    #[test]
    fn bars_are_those_between_namespaces_and_weir_must_not_be_slower() {
        for row in rows() {
            let bar = match (row.name.starts_with(ONE_HOST), row.subject.unit()) {
                (true, _) => None,
                (false, Unit::Seconds) => Some(Bar::AtMost(1.0)),
                (false, _) => Some(Bar::AtLeast(1.0)),
            };
            assert!(row.comparisons.iter().all(|comparison| comparison.bar == bar), "{}", row.name);
        }
        assert_eq!(rows().iter().map(|row| row.name).collect::<HashSet<_>>().len(), rows().len());
        assert_eq!(rows::select(rows(), &["mpi".into()]).unwrap().len(), 3);
        assert_eq!(rows::select(rows(), &["host-mpi".into(), "ucx".into()]).unwrap().len(), 6);
    }
}
