//! Connections over several links are analyzed as if there were one link: what links send again, lose and reorder is no
//! finding about QPs, and what QPs do is found as without them.

#[path = "common/documents.rs"]
mod documents;
#[path = "common/packets.rs"]
mod packets;

use documents::{finding, kinds};
use packets::{REQUESTER, RESPONDER, START, headers};
use std::collections::HashSet;
use std::net::IpAddr;
use weir_analyze::report::Document;
use weir_analyze::{Analysis, Options};
use weir_capture::{Frame, LinkType};
use weir_wire::edge::{Ack, Header, Hello, MAX_ACK_LEN, MAX_HEADER_LEN, Order, Seq};
use weir_wire::ip::Envelope;
use weir_wire::{ICRC_LEN, ROCE_PORT, icrc};

/// The number of the connection that packets of the requester have, and those of the responder.
const CONNECTIONS: [u32; 2] = [0x1234_5678, 0x9abc_def0];
/// The first packets of both.
const FIRST: [u32; 2] = [u32::MAX - 2, 500];

/// What goes over a link.
#[derive(Clone, Copy, Debug)]
enum What {
    /// Sequence number, from 0; name and PSN of the packet.
    Packet(u32, &'static str, u32),
    /// All packets of the other side before this one have arrived.
    Acknowledgement(u32),
    Hello,
}

/// A datagram in a capture.
#[derive(Clone, Copy, Debug)]
struct Sent {
    microseconds: u64,
    from_requester: bool,
    link: u8,
    what: What,
}

/// How packets are encoded.
#[derive(Clone, Copy, Debug)]
enum Encoding {
    Links(fn(Seq) -> Order),
    /// Each packet on port 4791 with the addresses of the first link, as a control.
    Plain,
}

/// Each packet follows the one before it, as those of one QP do.
const CHAINED: Encoding = Encoding::Links(|seq| Order::AfterOne(seq.minus(1)));
const ANY_ORDER: Encoding = Encoding::Links(|_| Order::Any);

fn packet(microseconds: u64, from_requester: bool, link: u8, seq: u32, name: &'static str, psn: u32) -> Sent {
    Sent { microseconds, from_requester, link, what: What::Packet(seq, name, psn) }
}

/// Both hellos.
fn hellos() -> [Sent; 2] {
    [true, false].map(|from_requester| Sent { microseconds: 0, from_requester, link: 0, what: What::Hello })
}

fn frame(sent: &Sent, encoding: Encoding) -> Option<Vec<u8>> {
    let Sent { from_requester, link, what, .. } = *sent;
    let side = usize::from(!from_requester);
    let sender_first = Seq(FIRST[side]);
    let header = |packet, received: u32| Header {
        connection: CONNECTIONS[side],
        link,
        count: 0,
        packet,
        received: Some(Seq(FIRST[1 - side]).plus(received)),
        sent: 0,
        asks: false,
    };
    let (link, payload) = match what {
        What::Packet(seq, name, psn) => {
            let extra = if name == "rnr" { 14 } else { 1000 };
            let (headers, payload) = headers(from_requester, name, psn, Some(extra));
            let mut inner = vec![0; headers.len() + payload.next_multiple_of(4) as usize];
            headers.emit(&mut inner);
            // Right for no addresses at all.
            inner.extend([0xcc; ICRC_LEN]);
            match encoding {
                Encoding::Plain => {
                    let body = inner.len() - ICRC_LEN;
                    let icrc = icrc::compute(&envelope(from_requester, 0, [50_000, ROCE_PORT]), &inner[..body]);
                    inner[body..].copy_from_slice(&icrc.to_le_bytes());
                    return Some(ethernet(&envelope(from_requester, 0, [50_000, ROCE_PORT]), &inner));
                }
                Encoding::Links(order) => {
                    let seq = sender_first.plus(seq);
                    let header = header(Some((seq, order(seq))), 0);
                    let mut bytes = vec![0; header.wire_len()];
                    header.emit(None, None, &mut bytes);
                    (link, [bytes, inner].concat())
                }
            }
        }
        _ if matches!(encoding, Encoding::Plain) => return None,
        What::Acknowledgement(received) => {
            let mut bytes = vec![0; MAX_HEADER_LEN + MAX_ACK_LEN];
            let len = header(None, received).emit(Some(&Ack::default()), None, &mut bytes);
            (link, bytes[..len].to_vec())
        }
        What::Hello => {
            let hello =
                Hello { ask: 1, answer: 2, connection: CONNECTIONS[1 - side], first: sender_first, ..Hello::default() };
            (link, hello.encode())
        }
    };
    let ports = if from_requester { [20_481, 20_482] } else { [20_482, 20_481] };
    Some(ethernet(&envelope(from_requester, link, ports), &payload))
}

fn envelope(from_requester: bool, link: u8, [src_port, dst_port]: [u16; 2]) -> Envelope {
    let [one, other] = [1, 2].map(|host| IpAddr::from([10, 0, link, host]));
    let [src, dst] = if from_requester { [one, other] } else { [other, one] };
    Envelope { src, dst, src_port, dst_port, ip_id: 0, dont_fragment: true }
}

fn ethernet(envelope: &Envelope, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; 48];
    let len = envelope.emit(payload.len(), 0, 64, &mut head);
    [&[2; 12][..], &[0x08, 0x00], &head[..len], payload].concat()
}

/// The document of captures, each a file.
fn analyzed(files: &[&[Sent]], encoding: Encoding) -> Document {
    let mut analysis = Analysis::new(Options::default());
    for (file, sent) in files.iter().enumerate() {
        for (at, sent) in sent.iter().enumerate() {
            let Some(bytes) = frame(sent, encoding) else { continue };
            let time = START + sent.microseconds * 1000;
            analysis.frame(file as u16, &Frame::new(at as u64 + 1, time, LinkType::Ethernet, &bytes));
        }
    }
    let names: Vec<String> = (0..files.len()).map(|file| format!("{file}.pcap")).collect();
    Document::new(&analysis.finish(), &names)
}

fn set(kinds: &[&'static str]) -> HashSet<&'static str> {
    kinds.iter().copied().collect()
}

/// WRITEs and their ACKs, each direction over both links in turn.
fn alternating(count: u32) -> Vec<Sent> {
    let write = |n: u32| packet(10 * u64::from(n), true, (n % 2) as u8, n, "write", n);
    let ack = |n: u32| packet(10 * u64::from(n) + 5, false, ((n + 1) % 2) as u8, n, "ack", n);
    (0..count).flat_map(|n| [write(n), ack(n)]).collect()
}

/// Nothing is found, and all packets are those of one connection.
#[track_caller]
fn assert_clean(document: &Document, packets: u64) {
    assert_eq!(kinds(document), set(&[]));
    let [connection] = &document.connections[..] else { panic!("{} connections", document.connections.len()) };
    let qps: HashSet<Option<u32>> = connection.ends.iter().map(|end| end.qp).collect();
    assert_eq!(qps, HashSet::from([Some(REQUESTER), Some(RESPONDER)]));
    let [half, ..] = &connection.halves[..] else { panic!("no requests") };
    assert_eq!((half.packets, half.repeats), (packets, 0));
}

#[test]
fn the_links_of_a_connection_are_one_connection() {
    let sent = alternating(100);
    for encoding in [CHAINED, ANY_ORDER] {
        assert_clean(&analyzed(&[&sent], encoding), 200);
        let with_hellos = [&hellos()[..], &sent].concat();
        let document = analyzed(&[&with_hellos], encoding);
        assert_clean(&document, 200);
        assert_eq!((document.capture.packets, document.capture.link_datagrams), (200, 2));
        let addresses = document.connections[0].ends.clone().map(|end| end.address);
        assert_eq!(addresses, ["10.0.0.1", "10.0.0.2"], "those of the hellos");
    }
}

#[test]
fn a_packet_that_is_sent_again_over_another_link_counts_once() {
    let mut sent = alternating(40);
    for n in [30, 20, 11, 5] {
        let copy = Sent { link: 1 - sent[n].link, microseconds: sent[n].microseconds + 400, ..sent[n] };
        sent.push(copy);
    }
    sent.sort_by_key(|sent| sent.microseconds);
    for encoding in [CHAINED, ANY_ORDER] {
        let document = analyzed(&[&sent], encoding);
        assert_clean(&document, 80);
        assert_eq!((document.capture.packets, document.capture.copies), (80, 4));
    }
    let plain = analyzed(&[&sent], Encoding::Plain);
    assert_ne!(plain.connections[0].halves[0].repeats, 0, "without the header they are repetitions");
}

#[test]
fn links_that_overtake_each_other_lose_and_reorder_nothing() {
    // The second link is 35 µs slower, and one packet comes 12 ms late over the first.
    let arrives = |n: u32| match n {
        40 => 12_400,
        _ => 10 * u64::from(n) + if n % 2 == 1 { 35 } else { 0 },
    };
    let write = |n: u32| packet(arrives(n), true, (n % 2) as u8, n, "write", n);
    let mut sent: Vec<Sent> = (0..80).map(write).collect();
    sent.sort_by_key(|sent| sent.microseconds);
    // The responder answers what it has performed.
    let performed = |n: u32| (0..=n).map(arrives).max().unwrap_or(0);
    sent.extend((0..80).map(|n| packet(performed(n) + 3, false, 0, n, "ack", n)));
    sent.sort_by_key(|sent| sent.microseconds);
    for encoding in [CHAINED, ANY_ORDER] {
        for begin in [&[][..], &hellos()] {
            assert_clean(&analyzed(&[&[begin, &sent].concat()], encoding), 160);
        }
    }
    assert_ne!(kinds(&analyzed(&[&sent], Encoding::Plain)), set(&[]), "without the header they are late");
}

#[test]
fn random_links_show_nothing() {
    let mut seed = 0x9e37_79b9_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let (mut sent, mut performed, mut copies) = (hellos().to_vec(), 0, 0);
    for n in 0..3000 {
        let left = 1000 + 4 * u64::from(n);
        let delay = 20 + random(200);
        sent.push(packet(left + delay, true, random(4) as u8, n, "send", n));
        if random(20) == 0 {
            sent.push(packet(left + delay + 1 + random(5000), true, random(4) as u8, n, "send", n));
            copies += 1;
        }
        performed = performed.max(left + delay);
        sent.push(packet(performed + 2, false, random(4) as u8, n, "ack", n));
    }
    sent.sort_by_key(|sent| sent.microseconds);
    for encoding in [CHAINED, ANY_ORDER] {
        let document = analyzed(&[&sent], encoding);
        assert_clean(&document, 6000);
        assert_eq!(document.capture.copies, copies);
    }
}

#[test]
fn what_qps_do_is_found_over_links_too() {
    // A READ that is repeated because the requester dropped its response: the packets have new sequence numbers.
    let mut sent = vec![packet(0, true, 0, 0, "read", 5), packet(5, false, 1, 0, "response", 5)];
    sent.extend([packet(527, true, 1, 1, "read", 5), packet(620, false, 0, 1, "response", 5)]);
    // The first packets are gathered until then, and both directions are taken together.
    sent.extend([packet(9000, true, 0, 2, "write", 6), packet(9005, false, 0, 2, "ack", 6)]);
    let document = analyzed(&[&sent], CHAINED);
    assert_eq!(kinds(&document), set(&["requester-page-fault"]));
    let fault = finding(&document, "requester-page-fault");
    assert_eq!((fault.count, fault.cost_ns, fault.cost_packets), (1, 522_000, 1));
}

#[test]
fn packets_that_the_capture_lacks_hold_up_what_follows_until_the_peer_has_them() {
    let mut sent = hellos().to_vec();
    for n in 0..2 {
        sent.extend([packet(10 * n, true, 0, n as u32, "read", n as u32)]);
        sent.extend([packet(10 * n + 5, false, 1, n as u32, "response", n as u32)]);
    }
    // The capture lacks the packet with the sequence number 2, which was one of another QP.
    sent.extend((3..6).map(|n| packet(10 * u64::from(n), true, 0, n, "read", n - 1)));
    sent.push(Sent { microseconds: 60, from_requester: false, link: 1, what: What::Acknowledgement(6) });
    sent.extend((3..6).map(|n| packet(10 * u64::from(n) + 35, false, 0, n - 1, "response", n - 1)));
    // They complete before the next one leaves.
    sent.extend((6..40).flat_map(|n| {
        [
            packet(100 * u64::from(n), true, 0, n, "read", n - 1),
            packet(100 * u64::from(n) + 5, false, 0, n - 1, "response", n - 1),
        ]
    }));
    let document = analyzed(&[&sent], ANY_ORDER);
    assert_clean(&document, 78);
    assert_eq!(document.capture.link_datagrams, 3);
    let latency = document.connections[0].halves[0].latency_max_ns;
    assert!(latency.is_some_and(|latency| (35_000..36_000).contains(&latency)), "{latency:?}");
}

#[test]
fn captures_of_both_sides_are_one_connection() {
    let sent = alternating(60);
    let [client, server] = [0, 20].map(|delay| {
        let mut sent: Vec<Sent> = sent
            .iter()
            .map(|sent| Sent {
                microseconds: sent.microseconds + if sent.from_requester { delay } else { 20 - delay },
                ..*sent
            })
            .collect();
        sent.sort_by_key(|sent| sent.microseconds);
        sent
    });
    for files in [[&client[..], &server], [&server, &client]] {
        let document = analyzed(&files, CHAINED);
        assert_eq!(document.connections.len(), 1);
        assert_eq!(document.capture.copies, 0, "another place is no other link");
        assert_clean(&document, 120);
    }
}

/// What QPs send in bursts, at the requester: some messages meet RNR NAKs, some responses are dropped.
fn bursts(count: u64) -> Vec<(u64, bool, &'static str, u32)> {
    let mut all = Vec::new();
    let mut psn = 0;
    for burst in 0..count {
        let (start, of) = (1000 + 20_000 * burst, 1 + burst as u32 % 7);
        let mut row = |at: u64, from_requester: bool, name: &'static str, of: u32| {
            all.extend((0..of).map(|n| (start + at + u64::from(n), from_requester, name, psn + n)));
        };
        match burst % 4 {
            0 => {
                row(0, true, "write", of);
                row(100, false, "ack", of);
            }
            1 => {
                row(0, true, "read", of);
                row(100, false, "response", of);
            }
            2 => {
                row(0, true, "send", of);
                row(100, false, "rnr", 1);
                row(5000, true, "send", of);
                row(5100, false, "ack", of);
            }
            _ => {
                row(0, true, "read", of);
                row(100, false, "response", of);
                row(1500, true, "read", of);
                row(1600, false, "response", of);
            }
        }
        psn += of;
    }
    all
}

#[test]
fn the_analysis_is_that_of_a_link_without_flaws() {
    let mut seed = 0x2545_f491_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let (mut ideal, mut seen) = (hellos().to_vec(), hellos().to_vec());
    let (mut seqs, mut performed) = ([0, 0], 0);
    for (left, from_requester, name, psn) in bursts(200) {
        let seq = seqs[usize::from(from_requester)];
        seqs[usize::from(from_requester)] += 1;
        // What leaves is captured where it leaves; what comes is late by a time of its own.
        let arrived = left + if from_requester { 0 } else { random(60) };
        if !from_requester {
            performed = performed.max(arrived);
        }
        let at = if from_requester { left } else { performed };
        ideal.push(packet(at, from_requester, 0, seq, name, psn));
        seen.push(packet(arrived, from_requester, random(3) as u8, seq, name, psn));
        if random(10) == 0 {
            seen.push(packet(arrived + 1 + random(300), from_requester, random(3) as u8, seq, name, psn));
        }
    }
    ideal.sort_by_key(|sent| sent.microseconds);
    seen.sort_by_key(|sent| sent.microseconds);
    let facts = |document: &Document| {
        let findings = document.findings.iter();
        let findings = findings.map(|finding| (finding.kind, finding.count, finding.cost_ns, finding.text.clone()));
        (findings.collect::<Vec<_>>(), format!("{:?}", document.connections))
    };
    let expected = facts(&analyzed(&[&ideal], Encoding::Plain));
    assert!(expected.0.len() >= 2, "{expected:?}");
    for encoding in [CHAINED, ANY_ORDER] {
        let document = analyzed(&[&seen], encoding);
        assert!(document.capture.copies > 50);
        assert_eq!(facts(&document), expected);
    }
}

#[test]
fn any_numbers_and_times_are_taken_and_counted_once() {
    const ORDERS: [Encoding; 4] = [
        CHAINED,
        ANY_ORDER,
        Encoding::Links(|seq| Order::AfterOne(seq.plus(seq.0 % 9))),
        Encoding::Links(|seq| Order::AfterAll(seq.minus(seq.0 % 5000))),
    ];
    let mut seed = 0xdead_beef_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for encoding in ORDERS {
        for spread in [30, 300, 20_000, 1 << 32] {
            let mut sent = if spread == 300 { hellos().to_vec() } else { vec![] };
            let begin = sent.len() as u64;
            for n in 0..3000 {
                let name = ["read", "write", "ack", "response", "rnr"][random(5) as usize];
                let from_requester = matches!(name, "read" | "write");
                let what = match random(10) {
                    0 => What::Acknowledgement(random(spread) as u32),
                    _ => What::Packet((n + random(spread)) as u32, name, random(50) as u32),
                };
                sent.push(Sent { microseconds: n + random(2000), from_requester, link: random(64) as u8, what });
            }
            let capture = analyzed(&[&sent], encoding).capture;
            assert_eq!(capture.frames, begin + 3000);
            assert_eq!(capture.packets + capture.copies + capture.link_datagrams, capture.frames);
            assert_eq!((capture.packets, capture.unparsed), (capture.reliable, 0));
        }
    }
}
