//! Runs real programs on the built library: two processes on one address, and two processes in two network namespaces.
//!
//! `make test` builds the library first. By hand: `make build`, then `cargo test -p weir-cli --test e2e -- FILTER`.
//! Each test is a [`Trial`], named `topology/what`. The trials run one after another unless `--test-threads` is given,
//! because some of them measure time.

// The runner reads the results from standard output; other text would split a result's line.
#![warn(clippy::print_stdout)]

mod allow;
mod analyze;
mod applications;
mod attack;
mod bed;
mod benches;
mod capture;
mod capture_ring;
mod command;
mod doctor;
mod edge;
mod ending;
mod examples;
mod fabric;
mod faults;
mod firewall;
mod flood;
mod flood_local;
mod foreign;
mod fork;
mod guards;
mod idle;
mod install;
mod interop;
mod invalidate;
mod kernel;
mod killed;
mod links;
mod live;
mod loading;
mod local;
mod matrix;
mod messaging;
mod micro;
mod mpi;
mod multicast;
mod network;
mod pingpong;
mod profiles;
mod qperf;
mod raw;
mod rdmacm;
mod rdmacm_ends;
mod read_order;
mod roce_peer;
mod soak;
mod stat;
mod stream;
mod surroundings;
mod threads;
mod transports;
mod tune;
mod ucx;
mod users;
mod verify;

use bed::{Bed, Topology};
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    // A filter selects from the whole matrix.
    let whole = arguments.filter.is_some() || std::env::var("E2E_MATRIX").is_ok_and(|matrix| matrix == "whole");
    let trials = match bed::built() {
        Ok(()) => trials(whole),
        Err(why) => vec![Trial::test("the library is built", move || Err(why.into()))],
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trials(whole: bool) -> Vec<Trial> {
    if let Some(why) = Topology::Veth.missing() {
        eprintln!("tests between two namespaces are ignored: {why}");
    }
    [
        command::trials(),
        pingpong::trials(),
        verify::trials(),
        foreign::trials(),
        allow::trials(),
        attack::trials(),
        firewall::trials(),
        flood::trials(),
        flood_local::trials(),
        fork::trials(),
        guards::trials(),
        doctor::trials(whole),
        edge::trials(),
        ending::trials(),
        examples::trials(),
        fabric::trials(),
        idle::trials(),
        install::trials(),
        interop::trials(),
        kernel::trials(),
        killed::trials(),
        loading::trials(),
        links::trials(whole),
        local::trials(),
        users::trials(),
        soak::trials(),
        stat::trials(),
        stream::trials(),
        surroundings::trials(),
        tune::trials(),
        threads::trials(),
        invalidate::trials(),
        multicast::trials(),
        network::trials(),
        rdmacm::trials(),
        rdmacm_ends::trials(),
        transports::trials(whole),
        analyze::trials(),
        live::trials(),
        capture::trials(),
        capture_ring::trials(),
        matrix::trials(whole),
        micro::trials(),
        profiles::trials(),
        qperf::trials(whole),
        raw::trials(),
        ucx::trials(whole),
        applications::trials(),
        messaging::trials(whole),
        mpi::trials(whole),
        read_order::trials(),
        benches::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A trial in a topology; ignored where this machine cannot provide the topology.
fn trial(topology: Topology, name: &str, test: impl FnOnce(&Bed) -> anyhow::Result<()> + Send + 'static) -> Trial {
    let run = move || test(topology.bed()?).map_err(|error| Failed::from(format!("{error:#}")));
    needing_root(Trial::test(format!("{topology}/{name}"), run), topology.missing().is_none())
}

/// Ignores the trial with the reason "needs root" unless `available`.
fn needing_root(trial: Trial, available: bool) -> Trial {
    if available { trial } else { trial.with_kind("needs root").with_ignored_flag(true) }
}
