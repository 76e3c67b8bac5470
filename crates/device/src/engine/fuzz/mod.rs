//! The bodies of the fuzz targets for a whole engine; unit tests call them too.
//!
//! Two engines have a connection with transfers. A hostile peer sends anything to one of them, from its own addresses and
//! from that of the other engine, but does not see what the two send to each other. All transfers end with the right bytes.

mod arrivals;
mod hellos;
mod hostile;
mod world;

use crate::engine::peers::hello::{Hello, MAX_LEN, MAX_PROOFS};
use crate::engine::peers::proof::checksum;
use crate::relay::message;
use weir_link::Inbox;
use weir_trials::Input;
use world::World;

/// The most steps of an input.
const STEPS: usize = 256;

/// Any datagrams, hellos among them, while QPs come, work and go.
pub fn engine(bytes: &[u8]) {
    steps(bytes, |world, input| match input.byte() % 16 {
        0 => world.pass(input),
        1 => world.carry(),
        2 | 3 => world.transfer(input),
        4 => hostile::qp(world, input),
        5 => hostile::post(world, input),
        6 => hellos::arrive(world, input),
        7 => arrivals::raw(world, input),
        8 => arrivals::again(world, input),
        _ => arrivals::packets(world, input),
    });
}

/// Any bytes as a hello with a right check sum, and any hellos while QPs come and go. No peer gets more hellos than it
/// sends, unless a QP is bound to it.
pub fn hello(bytes: &[u8]) {
    decode(bytes);
    steps(bytes, |world, input| {
        match input.byte() % 8 {
            0 => world.pass(input),
            1 => world.carry(),
            2 => world.transfer(input),
            3 => hostile::qp(world, input),
            _ => hellos::arrive(world, input),
        }
        world.check_answers();
    });
}

/// Any bytes as a message of the process that holds port 4791: each packet lies in it, and goes to its QP.
pub fn hand_over(bytes: &[u8]) {
    let mut world = World::new();
    hostile::qps(&mut world);
    let mut inbox = Inbox::new(1);
    let len = bytes.len().min(message::LONGEST).min(inbox.bytes.len());
    inbox.bytes[..len].copy_from_slice(&bytes[..len]);
    let (mut end, mut again, mut used) = (0, Box::new([0; message::LONGEST]), Some(0));
    for arrival in message::packets(&bytes[..len]) {
        assert!(arrival.start > end && arrival.start + arrival.len <= len, "a packet outside of the message");
        end = arrival.start + arrival.len;
        let packet = &bytes[arrival.start..end];
        used = used.and_then(|used| message::append(&mut again, used, &arrival, packet));
        world.deliver(&inbox, &arrival);
    }
    if let Some(used) = used {
        let parts =
            |bytes: &[u8]| message::packets(bytes).map(|a| (a.from, a.to, a.ifindex, a.len)).collect::<Vec<_>>();
        assert_eq!(parts(&again[..used]), parts(&bytes[..len]), "what is appended again is the same");
    }
    world.finish();
}

/// A new world takes steps until the input ends.
fn steps(bytes: &[u8], step: impl Fn(&mut World, &mut Input<'_>)) {
    let mut input = Input(bytes);
    let mut world = World::new();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        step(&mut world, &mut input);
    }
    world.finish();
}

/// What is decoded encodes to a hello that decodes to the same.
fn decode(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if let Some(end) = bytes.len().checked_sub(8) {
        let sum = checksum(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum.to_be_bytes());
    }
    let Some((hello, proofs)) = Hello::decode(&bytes) else { return };
    let proofs: Vec<_> = proofs.collect();
    let mut again = [0; MAX_LEN];
    let len = hello.encode(&proofs, &mut again);
    let (decoded, kept) = Hello::decode(&again[..len]).expect("a hello that this side has encoded");
    assert_eq!((decoded, kept.collect::<Vec<_>>()), (hello, proofs[..proofs.len().min(MAX_PROOFS)].to_vec()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_datagrams_change_no_transfer_of_others() {
        weir_trials::run("engine", engine);
    }

    #[test]
    fn hostile_hellos_change_no_transfer_of_others() {
        weir_trials::run("hello", hello);
    }

    #[test]
    fn any_bytes_are_a_message_of_the_holder() {
        weir_trials::run("hand_over", hand_over);
    }
}
