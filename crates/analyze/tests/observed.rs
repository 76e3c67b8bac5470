//! What the adapters of running processes report gives the same findings as captures, at any time.

#[path = "common/documents.rs"]
mod documents;
#[path = "common/packets.rs"]
mod packets;

use documents::{finding, kinds};
use packets::{REQUESTER, RESPONDER, START, headers};
use std::collections::HashSet;
use weir_analyze::report::Document;
use weir_analyze::{Analysis, Observed, Options};
use weir_capture::packet::Address;

/// T fig 5.3: the second READ is lost while the first is replayed.
const DAMMING: [(u64, bool, &str, u32); 8] = [
    (0, true, "read", 5),
    (140_000, false, "rnr", 5),
    (451_000, false, "response", 5),
    (3_968_000, true, "read", 5),
    (3_970_000, true, "read", 6),
    (4_051_000, false, "response", 5),
    (541_748_000, true, "read", 6),
    (541_755_000, false, "response", 6),
];
/// The adapter at the requester, and that at the responder.
const OF_REQUESTER: u16 = 0;
const OF_RESPONDER: u16 = 1;
/// The time of a packet on its way, ns.
const ON_THE_WAY: u64 = 2000;

fn observe(analysis: &mut Analysis, source: u16, number: u64, packet: (u64, bool, &str, u32)) {
    observe_over(analysis, source, number, packet, false);
}

fn observe_over(analysis: &mut Analysis, source: u16, number: u64, packet: (u64, bool, &str, u32), over_links: bool) {
    let (time, from_requester, what, psn) = packet;
    let (headers, payload) = headers(from_requester, what, psn, None);
    let [requester, responder] = [1, 2].map(|last| Address::Ipv4([10, 0, 0, last].into()));
    let sent = from_requester == (source == OF_REQUESTER);
    let ((from, from_qp), to) =
        if from_requester { ((requester, REQUESTER), responder) } else { ((responder, RESPONDER), requester) };
    let time = START + time + if sent { 0 } else { ON_THE_WAY };
    analysis
        .observed(source, &Observed { time, number, sent, from, to, from_qp, headers: &headers, payload, over_links });
}

fn document(report: &weir_analyze::Report<'_>) -> Document {
    Document::new(report, &["a".to_owned(), "b".to_owned()])
}

fn expected() -> HashSet<&'static str> {
    HashSet::from(["damming", "responder-page-fault"])
}

#[test]
fn packets_that_both_sides_report_count_once() {
    let mut analysis = Analysis::new(Options::default());
    for (at, packet) in DAMMING.into_iter().enumerate() {
        // In the order of their times: the sender reports a packet first.
        let sources = if packet.1 { [OF_REQUESTER, OF_RESPONDER] } else { [OF_RESPONDER, OF_REQUESTER] };
        sources.into_iter().for_each(|source| observe(&mut analysis, source, at as u64 + 1, packet));
    }
    let document = document(&analysis.finish());
    assert_eq!(kinds(&document), expected());
    let dammed = finding(&document, "damming");
    assert_eq!((dammed.count, &dammed.frames[..], &dammed.frame_files[..]), (1, &[5, 7][..], &[0, 0][..]));
    assert_eq!(dammed.cost_ns, 537_695_000, "times are those of the requester's side");
    assert_eq!(document.capture.packets, 8);
    assert_eq!((document.connections.len(), document.connections[0].pairing), (1, "setup"));
}

#[test]
fn findings_are_there_before_the_end_and_stay() {
    let mut analysis = Analysis::new(Options::default());
    let mut seen = Vec::new();
    for (at, packet) in DAMMING.into_iter().enumerate() {
        observe(&mut analysis, OF_REQUESTER, at as u64 + 1, packet);
        seen.push(kinds(&document(&analysis.report())));
    }
    assert!(seen[0].is_empty(), "{seen:?}");
    assert_eq!(seen[1], HashSet::from(["responder-page-fault"]), "the RNR NAK");
    assert_eq!(seen[5], seen[1]);
    assert_eq!(seen[6], expected(), "the repetition shows the loss");
    let last = document(&analysis.report());
    let end = document(&analysis.finish());
    assert_eq!(kinds(&end), expected());
    assert_eq!(finding(&end, "damming").cost_ns, finding(&last, "damming").cost_ns);
}

#[test]
fn the_other_side_goes_on_where_a_process_has_ended() {
    let mut analysis = Analysis::new(Options::default());
    for (at, packet) in DAMMING.into_iter().enumerate() {
        if at == 4 {
            analysis.source_ended(OF_REQUESTER);
        }
        let source = if at < 4 { OF_REQUESTER } else { OF_RESPONDER };
        observe(&mut analysis, source, at as u64 + 1, packet);
    }
    analysis.missed(3);
    let document = document(&analysis.finish());
    assert_eq!(kinds(&document), expected());
    assert_eq!((document.capture.packets, document.capture.missed), (8, 3));
    assert_eq!(finding(&document, "damming").frame_files, [1, 1]);
}

#[test]
fn packets_over_several_links_may_overtake_each_other() {
    for (over_links, expected) in [(false, HashSet::from(["reordering"])), (true, HashSet::new())] {
        let mut analysis = Analysis::new(Options::default());
        for (at, psn) in [1, 2, 4, 5, 3, 6].into_iter().enumerate() {
            let packet = (at as u64 * 1000, true, "write", psn);
            observe_over(&mut analysis, OF_RESPONDER, at as u64 + 1, packet, over_links);
        }
        observe(&mut analysis, OF_RESPONDER, 7, (10_000, false, "ack", 6));
        assert_eq!(kinds(&document(&analysis.finish())), expected, "over links: {over_links}");
    }
}
