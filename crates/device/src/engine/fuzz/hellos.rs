//! Hellos of hostile peers. They have the keys of QPs that are connected to them, and hear what is sent to them.

use super::hostile::far_qp;
use super::world::{World, hostile_address};
use crate::engine::peers::hello::{Hello, MAX_LEN};
use crate::engine::peers::proof::{Demand, PairKey, Proof, alive};
use crate::engine::testing::FIRST_PSN;
use crate::slot::FIRST_PORT;
use std::net::SocketAddr;
use std::time::Duration;
use weir_trials::Input;
use weir_wire::ROCE_PORT;

/// One hello arrives.
pub fn arrive(world: &mut World, input: &mut Input<'_>) {
    let what = input.byte();
    let from = sender(world, input);
    let heard = world.heard.iter().rev().find(|(to, bytes)| *to == from && bytes.starts_with(b"WEIR"));
    let asked = heard.and_then(|(_, bytes)| Hello::decode(bytes)).map(|(hello, _)| hello);
    let nonce = asked.map_or(0, |hello| hello.ask);
    let incarnation = u64::from(input.byte() & 3);
    let answer = match what & 3 {
        0 => 0,
        1 => u64::from(input.byte()),
        _ => nonce,
    };
    let bits = input.byte();
    let hello = Hello {
        ask: if what & 4 == 0 { 0 } else { 1 + u64::from(input.byte()) },
        answer,
        alive: if what & 8 == 0 { alive(incarnation, answer) } else { u64::from(bits) },
        icrc_auto: bits & 1 != 0,
        frames: bits & 2 != 0,
        local: bits & 4 != 0,
        boot_id: if bits & 8 == 0 { asked.map_or([0; 16], |hello| hello.boot_id) } else { [bits; 16] },
        window: input.word(),
        patience: Duration::from_millis(u64::from(input.byte()) << (bits >> 5)),
        mark: if bits & 16 == 0 { 0 } else { asked.map_or(u32::from(bits), |hello| hello.mark) },
    };
    let mut proofs = vec![];
    if what & 0x10 != 0 {
        for (n, qp) in world.hostile.iter().enumerate() {
            let (dest, demand) = (far_qp(n), Demand { tag: 7, incarnation });
            proofs.push(PairKey::new(dest, qp.num, FIRST_PSN).prove(dest, nonce, demand));
        }
    }
    if what & 0x20 != 0 {
        // What it has heard, sent back.
        let last = world.heard.iter().rev().find_map(|(_, bytes)| Hello::decode(bytes).map(|(_, proofs)| proofs));
        proofs.extend(last.into_iter().flatten());
    }
    if what & 0x40 != 0 {
        proofs.extend((0..input.below(50)).map(|n| Proof([n as u8; _])));
    }
    let mut bytes = [0; MAX_LEN];
    let len = hello.encode(&proofs, &mut bytes);
    let rig = &world.rigs[0];
    let (to, port) = (rig.address, if what & 0x80 == 0 { rig.port } else { ROCE_PORT });
    world.arrive(from, to, port, &[bytes[..len].to_vec()]);
    world.carry();
}

/// Mostly a hostile peer, but any host can send as if it were the honest one.
pub fn sender(world: &World, input: &mut Input<'_>) -> SocketAddr {
    let what = input.byte();
    let ip = match what & 15 {
        15 => world.rigs[1].address,
        n => hostile_address(usize::from(n)),
    };
    let port = match what >> 4 {
        0..=9 => FIRST_PORT + if ip == world.rigs[1].address { 6 } else { 7 },
        10 | 11 => 49_152,
        12 => ROCE_PORT,
        n => FIRST_PORT + u16::from(n),
    };
    (ip, port).into()
}
