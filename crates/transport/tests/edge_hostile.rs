//! A hostile peer over several links does no harm: the bodies of the fuzz targets `edge` and `opening`.

use weir_transport::Instant;
use weir_transport::edge::{Endpoint, Order, Parameters, Refusal, Scheduler, Seq, Setup};
use weir_transport::testing::{TestMemory, fuzz_edge, fuzz_opening};
use weir_wire::edge::{Action, Header, Piece};

#[test]
fn a_hostile_peer_does_no_harm() {
    weir_trials::run("edge", fuzz_edge);
}

#[test]
fn hostile_hellos_make_no_connection() {
    weir_trials::run("opening", fuzz_opening);
}

/// A peer that acknowledges nothing does not fill memory with WRITEs that fail.
#[test]
fn failures_that_the_peer_does_not_take_are_bounded() {
    let first = [Seq(0), Seq(0)];
    let setup = Setup { parameters: Parameters::TUNED, scheduler: Scheduler::Auto, peer: 7, first };
    let mut endpoint = Endpoint::new(setup, &[1], 1400);
    let mut memory = TestMemory { bytes: vec![], accesses: vec![] };
    let mut write = |number: u32| {
        let packet = Some((Seq(number), Order::Any));
        let header = Header { connection: 7, link: 0, count: number, packet, received: None, sent: 0, asks: false };
        let piece =
            Piece { number, action: Action::Write { address: 0, total: 1, notify: false }, offset: 0, bytes: 1 };
        let taken = endpoint.handle(Instant(1), (&header, None), Some(piece), |_| vec![1], &mut memory);
        endpoint.transmit(Instant(1), &mut memory, |_| ());
        taken
    };
    let taken = (0..20_000).take_while(|number| write(*number).is_ok()).count();
    assert!((4096..12_000).contains(&taken), "{taken}");
    assert_eq!(write(taken as u32), Err(Refusal::Failures));
}
