//! The body of the fuzz target `bundle`: a hostile host beside two machines with several links.

use super::world::{CONTROL, Machine, PORT, World, now, number, packet};
use super::*;
use std::time::Duration;
use weir_trials::Input;
use weir_wire::edge::{Header, MAX_HEADER_LEN, Order, Seq};

const STEPS: usize = 200;
/// First byte of what the hostile host sends to QPs: no packet of a machine begins so.
const HOSTILE: u8 = 0xee;

/// Any datagrams of a host that does not see what the machines send, and can use any address: each packet of the machines
/// arrives once, and those to one QP in order.
pub fn bundle(bytes: &[u8]) {
    let mut input = Input(bytes);
    let first = input.byte();
    let networks: [&[u8]; 2] = if first & 1 == 0 { [&[1, 2, 3], &[3, 1, 2]] } else { [&[1, 2], &[1, 2]] };
    let mut world = World::new(networks, 1);
    world.machines.iter_mut().for_each(|machine| machine.has_strangers = true);
    let mut sent: [Vec<(u32, u32)>; 2] = Default::default();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let what = input.byte();
        match what % 8 {
            0 => world.run(Duration::from_micros(1 << (input.byte() % 15))),
            1 | 2 => {
                let n = usize::from(what >> 7);
                let packets: Vec<_> = (0..1 + u32::from(what >> 3 & 7))
                    .map(|k| {
                        let (qpn, k) = (k % 3, sent[n].len() as u32);
                        sent[n].push((qpn, k));
                        packet(qpn, k, 20 + usize::from(input.byte()) * 5)
                    })
                    .collect();
                world.machines[n].send(&packets);
            }
            3 => world.machines[usize::from(what >> 7)].send(&[vec![CONTROL; 40]]),
            _ => hostile(&mut world, &mut input),
        }
    }
    // Room for packets that went again.
    world.run(Duration::from_secs(2));
    for (n, sent) in sent.iter().enumerate() {
        check(&world.machines[1 - n], sent);
    }
}

/// One datagram of the hostile host.
fn hostile(world: &mut World, input: &mut Input<'_>) {
    let what = input.byte();
    let to_host = 1 + (what & 1);
    let network = 1 + (what >> 1 & 3) % 3;
    let own = |host: u8, port: u16| SocketAddr::from(([10, 0, network, host], port));
    // From its own address, or as if it were the other machine.
    let from = match what >> 3 & 3 {
        0 | 1 => own(3 - to_host, PORT),
        2 => own(3, PORT),
        _ => own(3, 4791),
    };
    let bytes = match what >> 5 {
        0 => raw(input),
        1 | 2 => hello(input),
        3 => {
            // Half of a hello.
            let bytes = hello(input);
            bytes[..bytes.len() / 2].to_vec()
        }
        _ => header(input),
    };
    if bytes.is_empty() {
        return;
    }
    let mut net = world.net.lock().unwrap();
    net.sent += 1;
    let key = (now(), net.sent);
    net.flying.insert(key, (from, own(to_host, PORT), bytes));
}

fn raw(input: &mut Input<'_>) -> Vec<u8> {
    let len = usize::from(input.byte());
    let mut bytes = input.bytes(len).to_vec();
    if matches!(bytes.first(), Some(4 | &CONTROL)) {
        bytes[0] = HOSTILE;
    }
    bytes
}

fn hello(input: &mut Input<'_>) -> Vec<u8> {
    let what = input.byte();
    let addresses = (0..input.byte() % 5).map(|n| weir_wire::edge::Address {
        interface: n,
        address: [10, 0, input.byte() % 5, input.byte() % 5].into(),
        prefix: 24,
        mtu: input.word(),
        speed: input.word(),
    });
    let addresses = addresses.collect();
    let hello = Hello {
        ask: u64::from(input.byte()),
        answer: if what & 1 == 0 { 0 } else { u64::from(input.word()) },
        connection: if what & 2 == 0 { u32::from(input.byte()) } else { input.word() },
        first: Seq(input.word()),
        lists_all: what & 4 != 0,
        pieces: what & 8 != 0,
        refuses: what & 0x10 != 0,
        unknown: what & 0x20 != 0,
        addresses,
    };
    hello.encode()
}

/// A packet of some connection: its number is a guess.
fn header(input: &mut Input<'_>) -> Vec<u8> {
    let what = input.byte();
    let has_packet = what & 1 != 0;
    let header = Header {
        connection: input.word(),
        link: what >> 1 & 3,
        count: if has_packet { input.word() } else { 0 },
        packet: has_packet.then(|| (Seq(input.word()), Order::Any)),
        received: Some(Seq(input.word())),
        sent: input.word(),
        asks: false,
    };
    let mut bytes = vec![0; MAX_HEADER_LEN];
    let len = header.emit(None, None, &mut bytes);
    bytes.truncate(len);
    if has_packet {
        bytes.extend([HOSTILE; 40]);
    }
    bytes
}

/// Each packet came once, as it was sent, and in order for its QP.
fn check(machine: &Machine, sent: &[(u32, u32)]) {
    let got: Vec<_> = machine.got.iter().filter(|got| got[0] == 4).collect();
    for qpn in 0..3 {
        let came = got.iter().map(|got| number(got)).filter(|(to, _)| *to == qpn);
        assert!(came.eq(sent.iter().copied().filter(|(to, _)| *to == qpn)), "QP {qpn} of machine {}", machine.host);
    }
    for got in got {
        let (qpn, n) = number(got);
        assert_eq!(**got, packet(qpn, n, got.len() - 12), "its bytes");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_hostile_host_keeps_no_packet_of_others() {
        weir_trials::run("bundle", super::bundle);
    }
}
