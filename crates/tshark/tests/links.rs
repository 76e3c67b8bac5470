//! `contrib/weir.lua` in tshark prints every field of headers of several links, acknowledgements, pieces and hellos, and the
//! packets behind such headers as without them.

mod common;

use common::{dissected, dissected_between};
use weir_capture::testing::{behind, edge_header, frame_of, opcodes, transport};
use weir_wire::edge::{Action, Address, Header, Hello, MAX_HEADER_LEN, Order, Piece, Seq};
use weir_wire::{ICRC_LEN, Opcode, frame};

const HEADER: [&str; 15] = [
    "weir_links.has_packet",
    "weir_links.has_ack",
    "weir_links.asks",
    "weir_links.order_kind",
    "weir_links.has_piece",
    "weir_links.version",
    "weir_links.link",
    "weir_links.connection",
    "weir_links.seq",
    "weir_links.count",
    "weir_links.order",
    "weir_links.received",
    "weir_links.malformed",
    "weir_links.bad_check",
    "weir_links.has_received",
];
const ACK: [&str; 6] = [
    "weir_links.performed",
    "weir_links.failures",
    "weir_links.heard",
    "weir_links.held_us",
    "weir_links.newest",
    "weir_links.bitmap",
];
const PIECE: [&str; 8] = [
    "weir_links.piece.number",
    "weir_links.piece.action",
    "weir_links.piece.notify",
    "weir_links.piece.address",
    "weir_links.piece.offset",
    "weir_links.piece.bytes",
    "weir_links.piece.total",
    "weir_links.piece.payload",
];
const HELLO: [&str; 16] = [
    "weir_links.hello.version",
    "weir_links.hello.lists_all",
    "weir_links.hello.pieces",
    "weir_links.hello.refuses",
    "weir_links.hello.unknown",
    "weir_links.hello.ask",
    "weir_links.hello.answer",
    "weir_links.hello.connection",
    "weir_links.hello.first",
    "weir_links.hello.interface",
    "weir_links.hello.ipv4",
    "weir_links.hello.ipv6",
    "weir_links.hello.prefix",
    "weir_links.hello.mtu",
    "weir_links.hello.speed",
    "weir_links.malformed",
];

/// What tshark prints for each datagram must be these words, of which `-` is nothing.
#[track_caller]
fn assert_printed(printed: &[Vec<String>], fields: &[&str], expected: &[&str]) {
    assert_eq!(printed.len(), expected.len());
    for (printed, expected) in printed.iter().zip(expected) {
        let expected: Vec<&str> = expected.split_whitespace().map(|word| if word == "-" { "" } else { word }).collect();
        assert_eq!(expected.len(), fields.len());
        for (field, (printed, expected)) in fields.iter().zip(printed.iter().zip(expected)) {
            assert_eq!(printed, expected, "{field}");
        }
    }
}

#[test]
#[ignore = "needs tshark"]
fn every_field_of_headers_and_acknowledgements_is_printed() {
    let header = edge_header(0x0102_0304, 5, 77);
    let packet = Some((Seq(77), Order::AfterAll(Seq(70))));
    let question = Header { packet: None, asks: true, count: 9, ..header };
    let alone = Header { packet: None, count: 0, ..header };
    let datagrams = [
        behind(&header, true, None, &[0; 20]),
        behind(&Header { packet, ..header }, false, None, &[0; 20]),
        behind(&question, false, None, &[]),
        behind(&alone, true, None, &[]),
        behind(&Header { received: None, ..header }, false, None, &[0; 20]),
    ];
    let expected = [
        "1 1 0 1 0 2 5 0x01020304 77 84281096 76 387455258 - - 1",
        "1 0 0 2 0 2 5 0x01020304 77 84281096 70 387455258 - - 1",
        "0 0 1 0 0 2 5 0x01020304 - 9 - 387455258 - - 1",
        "0 1 0 0 0 2 5 0x01020304 - 0 - 387455258 - - 1",
        "1 0 0 1 0 2 5 0x01020304 77 84281096 76 - - - 0",
    ];
    assert_printed(&dissected(&datagrams, &HEADER), &HEADER, &expected);
    let ack = "3 1 0,1 4,4 7,8 8000000100000002";
    let none = "- - - - - -";
    assert_printed(&dissected(&datagrams, &ACK), &ACK, &[ack, none, none, ack, none]);
}

#[test]
#[ignore = "needs tshark"]
fn packets_behind_headers_are_dissected_as_without_them() {
    let fields = [
        "infiniband.bth.opcode",
        "infiniband.bth.psn",
        "infiniband.bth.destqp",
        "infiniband.reth.dmalen",
        "weir.opcode",
        "weir.psn",
        "weir.dest_qp",
        "weir.length",
        "weir.malformed",
        "_ws.malformed",
    ];
    let (mut plain, mut covered) = (Vec::new(), Vec::new());
    for opcode in opcodes() {
        let payload = if opcode.has_payload() { 61 } else { 0 };
        let inner = match frame::is_framed(opcode) {
            true => frame_of(opcode, payload),
            false => transport(opcode, payload),
        };
        let inner = [inner, vec![0xcc; ICRC_LEN]].concat();
        covered.push(behind(&edge_header(7, 1, opcode.0.into()), opcode.0 & 1 == 0, None, &inner));
        plain.push(inner);
    }
    let (plain, covered) = (dissected(&plain, &fields), dissected(&covered, &fields));
    assert!(plain.len() > 60 && plain.iter().filter(|row| !row[4].is_empty()).count() == 48);
    assert!(plain.iter().all(|row| row[0].is_empty() != row[4].is_empty()));
    assert_eq!(covered, plain);
}

#[test]
#[ignore = "needs tshark"]
fn every_field_of_a_piece_is_printed_between_any_ports() {
    let write = Action::Write { address: 0x1122_3344_5566_7788, total: 4096, notify: true };
    let piece = |number, action, bytes| Piece { number, action, offset: 1000, bytes };
    let read = Action::Read { address: 0x10 };
    let datagrams =
        [(piece(3, write, 4), &[1, 2, 3, 4][..]), (piece(4, Action::ReadFailed, 0), &[]), (piece(5, read, 77), &[])]
            .map(|(piece, payload)| behind(&edge_header(7, 1, 9), true, Some(&piece), payload));
    // Packets that left in one call may be captured as one: the first is shown.
    let last = Piece { offset: 4092, ..piece(6, write, 4) };
    let last = behind(&edge_header(7, 1, 10), false, Some(&last), &[1, 2, 3, 4]);
    let datagrams = [datagrams.to_vec(), vec![[last.clone(), last].concat()]].concat();
    let expected = [
        "3 0 1 0x1122334455667788 1000 4 4096 01020304",
        "4 5 0 0x0000000000000000 1000 0 0 -",
        "5 3 0 0x0000000000000010 1000 0 77 -",
        "6 0 1 0x1122334455667788 4092 4 4096 01020304",
    ];
    for ports in [[20_500, 20_501], [40_500, 40_501]] {
        assert_printed(&dissected_between(ports, &datagrams, &PIECE), &PIECE, &expected);
    }
    // Between other ports the check decides what is such a packet.
    let mut damaged = datagrams.clone();
    damaged.iter_mut().for_each(|datagram| datagram[4] ^= 1);
    assert_printed(&dissected_between([40_500, 40_501], &damaged, &PIECE), &PIECE, &["- - - - - - - -"; 4]);
    let printed = dissected(&damaged, &HEADER);
    assert!(printed.iter().all(|row| row[12].is_empty() && !row[13].is_empty()), "{printed:?}");
}

#[test]
#[ignore = "needs tshark"]
fn every_field_of_a_hello_is_printed() {
    let address = |interface, text: &str, prefix| Address {
        interface,
        address: text.parse().unwrap(),
        prefix,
        mtu: 9000,
        speed: 10_000,
    };
    let hello = Hello {
        ask: 0x0102_0304_0506_0708,
        answer: 9,
        connection: 0x1112_1314,
        first: Seq(77),
        lists_all: true,
        pieces: false,
        refuses: true,
        unknown: false,
        addresses: vec![address(0, "10.0.0.1", 24), address(3, "fd00::1", 64)],
    };
    let good = hello.encode();
    let expected = "2 1 0 1 0 0x0102030405060708 0x0000000000000009 0x11121314 77 0,3 10.0.0.1 fd00::1 24,64 9000,9000 \
                    10000,10000 -";
    for ports in [[20_500, 20_501], [40_500, 40_501]] {
        assert_printed(&dissected_between(ports, std::slice::from_ref(&good), &HELLO), &HELLO, &[expected]);
    }
    let unknown = Hello::unknown(7).encode();
    let fields = ["weir_links.hello.unknown", "weir_links.hello.refuses", "weir_links.hello.connection"];
    assert_printed(&dissected(std::slice::from_ref(&unknown), &fields), &fields, &["1 0 0x00000007"]);
    let checks = ["weir_links.malformed", "weir_links.bad_check"];
    assert_printed(&dissected(std::slice::from_ref(&good), &checks), &checks, &["- -"]);
    let mut damaged = good.clone();
    damaged[30] ^= 1;
    let printed = dissected(&[damaged, good[..good.len() - 5].to_vec(), good[..30].to_vec()], &checks);
    assert!(printed[0][0].is_empty() && !printed[0][1].is_empty());
    assert!(!printed[1][0].is_empty() && !printed[2][0].is_empty());
}

#[test]
#[ignore = "needs tshark"]
fn a_header_that_does_not_fit_is_malformed() {
    let header = edge_header(7, 1, 9);
    let inner = transport(Opcode(0x04), 8);
    let mut long = behind(&header, true, None, &inner);
    long[MAX_HEADER_LEN + 9] = 128;
    let short = behind(&header, false, None, &[])[..20].to_vec();
    let printed = dissected(&[long, short], &HEADER);
    assert!(printed.iter().all(|row| !row[12].is_empty()), "{printed:?}");
}
