//! `contrib/weir.lua` in tshark prints every field of frames, and of the other packets between Weir peers.

mod common;

use common::dissected;
use weir_wire::{
    Aeth, Bth, Destination, Headers, Ieth, ImmDt, Opcode, Operation, Placement, Psn, Service, XrcEth, frame,
};

/// What tshark prints for each packet.
const FIELDS: [&str; 24] = [
    "weir.opcode",
    "weir.se",
    "weir.m",
    "weir.pad",
    "weir.version",
    "weir.pkey",
    "weir.dest_qp",
    "weir.ack_request",
    "weir.psn",
    "weir.address",
    "weir.rkey",
    "weir.message",
    "weir.offset",
    "weir.length",
    "weir.srq",
    "weir.immediate",
    "weir.invalidated_rkey",
    "weir.syndrome",
    "weir.msn",
    "weir.payload_length",
    "weir.icrc",
    "infiniband.bth.opcode",
    "_ws.malformed",
    "weir.malformed",
];

/// What tshark prints for a hello.
const HELLO_FIELDS: [&str; 15] = [
    "weir_hello.version",
    "weir_hello.icrc_auto",
    "weir_hello.frames",
    "weir_hello.shared_memory",
    "weir_hello.proofs",
    "weir_hello.boot_id",
    "weir_hello.ask",
    "weir_hello.answer",
    "weir_hello.alive",
    "weir_hello.window",
    "weir_hello.patience",
    "weir_hello.mark",
    "weir_hello.proof",
    "weir_hello.checksum",
    "weir_hello.malformed",
];

/// A frame of an opcode with all its headers, and what tshark must print for it.
fn example(opcode: Opcode) -> (Vec<u8>, Vec<String>) {
    let payload = [7; 61];
    let bth = Bth { ack_req: true, solicited: true, pad: 3, ..Bth::new(opcode, 0x12_3456, Psn::new(0x65_4321)) };
    let mut headers = Headers::new(bth);
    headers.put(XrcEth { srq: 0x77.into() });
    headers.put(ImmDt { imm: 0xa1a2_a3a4.into() });
    headers.put(Aeth::new(0x1f, 5));
    headers.put(Ieth { rkey: 0xb1b2_b3b4.into() });
    let write = (0x06..=0x0b).contains(&(opcode.0 & 0x1f));
    let destination = match write {
        true => Destination::Memory { address: 0x1122_3344_5566_7788, rkey: 0xc1c2_c3c4 },
        false => Destination::Message { number: 0xd1_d2d3 },
    };
    let mut bytes = vec![0; frame::HEADER_LEN];
    frame::emit(&headers, &Placement { destination, offset: 4096, length: 10_000 }, &mut bytes);
    bytes.extend(payload);
    bytes.extend([0; 3]);
    bytes.extend(0x0102_0304_u32.to_le_bytes());
    let when = |present: bool, text: &str| if present { text.to_owned() } else { String::new() };
    let fields = vec![
        format!("{:#04x}", opcode.0),
        "1".into(),
        "1".into(),
        "3".into(),
        "1".into(),
        "0xffff".into(),
        "0x123456".into(),
        "1".into(),
        0x65_4321.to_string(),
        when(write, "0x1122334455667788"),
        when(write, "0xc1c2c3c4"),
        when(!write, &0xd1_d2d3.to_string()),
        "4096".into(),
        "10000".into(),
        when(opcode.has_xrceth(), &0x77.to_string()),
        when(opcode.has_imm(), "a1a2a3a4"),
        when(opcode.has_ieth(), "0xb1b2b3b4"),
        when(opcode.has_aeth(), "0x1f"),
        when(opcode.has_aeth(), "5"),
        "61".into(),
        "0x01020304".into(),
        String::new(),
        String::new(),
        String::new(),
    ];
    (bytes, fields)
}

#[test]
#[ignore = "needs tshark"]
fn the_dissector_prints_every_field_of_every_frame() {
    let opcodes = (0..=255).map(Opcode).filter(|opcode| frame::is_framed(*opcode));
    let (datagrams, expected): (Vec<_>, Vec<_>) = opcodes.map(example).unzip();
    let printed = dissected(&datagrams, &FIELDS);
    assert_eq!(printed.len(), 48);
    for (printed, expected) in printed.iter().zip(&expected) {
        for (field, (printed, expected)) in FIELDS.iter().zip(printed.iter().zip(expected)) {
            assert_eq!(printed, expected, "{field}");
        }
    }
}

#[test]
#[ignore = "needs tshark"]
fn the_dissector_takes_roce_packets_and_malformed_frames_too() {
    let mut ack = Headers::new(Bth::new(Opcode::new(Service::Rc, Operation::Acknowledge), 5, Psn::new(9)));
    ack.put(Aeth::new(0x1f, 5));
    let mut bytes = vec![0; ack.len()];
    ack.emit(&mut bytes);
    bytes.extend([0; 4]);
    // The payload of this frame does not fit its message.
    let (mut bad, _) = example(Opcode::new(Service::Rc, Operation::SendMiddle));
    bad[28..32].fill(0);
    let printed = dissected(&[bytes, bad], &FIELDS);
    let column = |name| FIELDS.iter().position(|field| *field == name).unwrap();
    assert_eq!(printed[0][column("infiniband.bth.opcode")], "17");
    assert_eq!((printed[1][column("weir.length")].as_str(), printed[1][column("weir.icrc")].as_str()), ("0", ""));
    assert_ne!(printed[1][column("weir.malformed")], "");
}

/// A hello by the layout in docs/wire-and-hello.md, each field with a value of its own.
fn hello(offers: u8, proofs: u8) -> Vec<u8> {
    let mut hello = b"WEIR".to_vec();
    hello.extend([2, offers, proofs, 0]);
    hello.extend(0x10..0x20);
    for long in [0x1111_2222_3333_4444_u64, 0x5555_6666_7777_8888, 0x9999_aaaa_bbbb_cccc] {
        hello.extend(long.to_be_bytes());
    }
    for word in [65_536_u32, 60_000, 7] {
        hello.extend(word.to_be_bytes());
    }
    hello.extend([0; 4]);
    for proof in 0..proofs {
        hello.extend([0xe0 + proof; 20]);
    }
    hello.extend(0x0102_0304_0506_0708_u64.to_be_bytes());
    hello
}

#[test]
#[ignore = "needs tshark"]
fn the_dissector_prints_every_field_of_a_hello() {
    for (offers, bits) in [(0, ["0", "0", "0"]), (1, ["1", "0", "0"]), (2, ["0", "1", "0"]), (4, ["0", "0", "1"])] {
        let printed = dissected(&[hello(offers, 2)], &HELLO_FIELDS);
        let proofs = format!("{},{}", "e0".repeat(20), "e1".repeat(20));
        let expected = [
            "2",
            bits[0],
            bits[1],
            bits[2],
            "2",
            "101112131415161718191a1b1c1d1e1f",
            "0x1111222233334444",
            "0x5555666677778888",
            "0x9999aaaabbbbcccc",
            "65536",
            "60000",
            "7",
            &proofs,
            "0x0102030405060708",
            "",
        ];
        for (field, (printed, expected)) in HELLO_FIELDS.iter().zip(printed[0].iter().zip(expected)) {
            assert_eq!(printed, expected, "{field}");
        }
    }
    let column = |name| HELLO_FIELDS.iter().position(|field| *field == name).unwrap();
    // A length that does not fit the number of proofs, a hello that is too short, and one of another version.
    let (mut long, short, mut later) = (hello(0, 1), hello(0, 0)[..60].to_vec(), hello(7, 0));
    long.push(0);
    later[4] = 3;
    let printed = dissected(&[long, short, later], &HELLO_FIELDS);
    assert_ne!(printed[0][column("weir_hello.malformed")], "");
    assert_ne!(printed[1][column("weir_hello.malformed")], "");
    assert_eq!(
        (printed[2][column("weir_hello.version")].as_str(), printed[2][column("weir_hello.ask")].as_str()),
        ("3", "")
    );
}
