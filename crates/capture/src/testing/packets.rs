//! A packet of every opcode.

use weir_wire::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Headers, Ieth, ImmDt, Opcode, Psn, Reth, XrcEth};

/// All opcodes that name an operation of their service.
pub fn opcodes() -> impl Iterator<Item = Opcode> {
    (0..=255).map(Opcode).filter(|opcode| opcode.operation().is_some())
}

/// BTH to pad of a packet: each field has a value of its own. `payload` must be 0 if the opcode carries none.
pub fn transport(opcode: Opcode, payload: usize) -> Vec<u8> {
    let pad = payload.wrapping_neg() % 4;
    let bth = Bth {
        solicited: true,
        mig_req: opcode.0 & 1 == 0,
        pad: pad as u8,
        pkey: 0x8123,
        congestion: 0x40,
        ack_req: true,
        ..Bth::new(opcode, 0x12_3456, Psn::new(0x65_4300 | u32::from(opcode.0)))
    };
    let mut headers = Headers::new(bth);
    headers.put(Deth { qkey: 0x8001_0203.into(), src_qp: 0x0a_0b0c.into() });
    headers.put(XrcEth { srq: 0x77.into() });
    headers.put(Feth { flags: 0x13.into() });
    headers.put(Reth { va: 0x1122_3344_5566_7788.into(), rkey: 0xc1c2_c3c4.into(), dma_len: 10_000.into() });
    headers.put(AtomicEth {
        va: 0x2122_3344_5566_7788.into(),
        rkey: 0xd1d2_d3d4.into(),
        swap_or_add: 0x3122_3344_5566_7788.into(),
        compare: 0x4122_3344_5566_7788.into(),
    });
    headers.put(Aeth::new(0x1f, 0x71_7273));
    headers.put(AtomicAckEth { original: 0x5122_3344_5566_7788.into() });
    headers.put(ImmDt { imm: 0xa1a2_a3a4.into() });
    headers.put(Ieth { rkey: 0xb1b2_b3b4.into() });
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes);
    bytes.extend((0..payload).map(|n| n as u8));
    bytes.extend(vec![0; pad]);
    bytes
}
