//! Properties that hold for any headers and any bytes.

use proptest::prelude::*;
use std::net::IpAddr;
use weir_wire::ip::Envelope;
use weir_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Destination, Deth, Extension, Feth, Headers, ICRC_LEN, Ieth, ImmDt,
    MAX_HEADERS, Opcode, Packet, ParseError, Placement, Psn, Reth, Syndrome, XrcEth, frame, icrc,
};

fn opcodes() -> Vec<Opcode> {
    (0..=255).map(Opcode).filter(|opcode| opcode.operation().is_some()).collect()
}

/// Random contents for a header, if the opcode has it.
fn fill<T: Extension>(headers: &mut Headers, bytes: &mut impl Iterator<Item = u8>) {
    let bytes: Vec<u8> = bytes.take(size_of::<T>()).collect();
    headers.put(T::read_from_bytes(&bytes).unwrap());
}

prop_compose! {
    fn headers()(
        opcode in prop::sample::select(opcodes()),
        (solicited, mig_req, ack_req) in any::<(bool, bool, bool)>(),
        (pkey, congestion, dest_qp, reserved, psn) in (any::<u16>(), any::<u8>(), 0..1u32 << 24, 0..128u8, any::<u32>()),
        bytes in prop::collection::vec(any::<u8>(), 100),
    ) -> Headers {
        let mut bth = Bth::new(opcode, dest_qp, Psn::new(psn));
        (bth.solicited, bth.mig_req, bth.ack_req) = (solicited, mig_req, ack_req);
        (bth.pkey, bth.congestion, bth.reserved) = (pkey, congestion, reserved);
        let mut bytes = bytes.into_iter();
        let mut headers = Headers::new(bth);
        fill::<Deth>(&mut headers, &mut bytes);
        fill::<XrcEth>(&mut headers, &mut bytes);
        fill::<Feth>(&mut headers, &mut bytes);
        fill::<Reth>(&mut headers, &mut bytes);
        fill::<AtomicEth>(&mut headers, &mut bytes);
        fill::<Aeth>(&mut headers, &mut bytes);
        fill::<AtomicAckEth>(&mut headers, &mut bytes);
        fill::<ImmDt>(&mut headers, &mut bytes);
        fill::<Ieth>(&mut headers, &mut bytes);
        headers
    }
}

/// The bytes of a RoCE packet.
fn encoded(headers: &Headers, payload: &[u8], icrc: u32) -> Vec<u8> {
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes);
    finish(bytes, headers, payload, icrc)
}

/// Appends payload, pad and ICRC.
fn finish(mut bytes: Vec<u8>, headers: &Headers, payload: &[u8], icrc: u32) -> Vec<u8> {
    bytes.extend(payload);
    bytes.resize(bytes.len() + usize::from(headers.bth.pad), 0);
    bytes.extend(icrc.to_le_bytes());
    bytes
}

/// A placement that fits an opcode and its RETH.
fn placement(headers: &Headers, offset: u32, length: u32, address: u64, key: u32) -> Placement {
    let write = matches!(headers.bth.opcode.0 & 0x1f, 0x06..=0x0b);
    let destination = match (write, headers.get::<Reth>()) {
        (true, Some(reth)) => Destination::Memory { address: reth.va.get(), rkey: reth.rkey.get() },
        (true, None) => Destination::Memory { address, rkey: key },
        (false, _) => Destination::Message { number: key >> 8 },
    };
    Placement { destination, offset, length }
}

fn envelope(v6: bool, ports: (u16, u16), ip_id: u16, dont_fragment: bool) -> Envelope {
    let texts = if v6 { ["fe80::1", "fe80::2"] } else { ["10.0.0.1", "10.0.0.2"] };
    let [src, dst]: [IpAddr; 2] = texts.map(|text| text.parse().unwrap());
    Envelope { src, dst, src_port: ports.0, dst_port: ports.1, ip_id, dont_fragment }
}

proptest! {
    // PROPTEST_CASES raises the number of cases: `make soak` sets it.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(2000)))]

    #[test]
    fn an_emitted_packet_is_parsed(headers in headers(), payload in prop::collection::vec(any::<u8>(), 0..300), icrc: u32) {
        let mut headers = headers;
        headers.bth.pad = (payload.len().wrapping_neg() % 4) as u8;
        prop_assert!(headers.len() <= MAX_HEADERS);
        let bytes = encoded(&headers, &payload, icrc);
        prop_assert_eq!(Packet::parse(&bytes), Ok(Packet { headers, payload: &payload, icrc, placement: None }));
        // Any prefix shorter than the headers and the ICRC is refused.
        for len in 0..headers.len() + ICRC_LEN {
            let cut = Packet::parse(&bytes[..len]);
            prop_assert!(matches!(cut, Err(ParseError::Truncated { len: l, need }) if l == len && need > len), "{:?}", cut);
        }
    }

    #[test]
    fn a_frame_is_parsed_as_the_packet_with_the_same_content(
        headers in headers(),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        (icrc, offset, rest, address, key) in any::<(u32, u16, u16, u64, u32)>(),
    ) {
        prop_assume!(frame::is_framed(headers.bth.opcode));
        let mut headers = headers;
        headers.bth.pad = (payload.len().wrapping_neg() % 4) as u8;
        headers.bth.reserved = 0;
        let length = u32::from(offset) + payload.len() as u32 + u32::from(rest);
        if let Some(reth) = headers.get::<Reth>() {
            headers.put(Reth { dma_len: length.into(), ..reth });
        }
        let placement = placement(&headers, offset.into(), length, address, key);
        let roce = encoded(&headers, &payload, icrc);
        let roce = Packet::parse(&roce).unwrap();
        let mut bytes = vec![0xee; frame::HEADER_LEN];
        prop_assert_eq!(frame::emit(&headers, &placement, &mut bytes), frame::HEADER_LEN);
        let bytes = finish(bytes, &headers, &payload, icrc);
        prop_assert_eq!(frame::parse_any(&bytes), Ok(Packet { placement: Some(placement), ..roce }));
        prop_assert_eq!(Packet::parse(&bytes), Err(ParseError::Version(frame::VERSION)));
    }

    #[test]
    fn any_bytes_are_no_frame_or_emitted_again(
        opcode in prop::option::of(prop::sample::select(opcodes())),
        mut bytes in prop::collection::vec(any::<u8>(), 0..120),
        zeros in any::<[bool; 5]>(),
    ) {
        if let (Some(opcode), Some([first, flags])) = (opcode, bytes.first_chunk_mut()) {
            *first = opcode.0;
            *flags = *flags & 0xf0 | frame::VERSION;
        }
        // Fields that must be zero in many frames, and a message that is long enough.
        for (zero, range) in zeros.into_iter().zip([8..9, 12..21, 24..26, 32..36, 36..40]) {
            if let Some(field) = bytes.get_mut(range).filter(|_| zero) {
                field.fill(0);
            }
        }
        if let Ok(packet) = frame::parse(&bytes) {
            let placement = packet.placement.unwrap();
            prop_assert!(u64::from(placement.offset) + packet.payload.len() as u64 <= u64::from(placement.length));
            let mut again = vec![0; frame::HEADER_LEN];
            frame::emit(&packet.headers, &placement, &mut again);
            let pad = usize::from(packet.headers.bth.pad);
            prop_assert_eq!(&again[..], &bytes[..frame::HEADER_LEN]);
            prop_assert_eq!(frame::HEADER_LEN + packet.payload.len() + pad + ICRC_LEN, bytes.len());
        }
    }

    #[test]
    fn any_bytes_are_refused_or_emitted_again(
        opcode in prop::option::of(prop::sample::select(opcodes())),
        bytes in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        let mut bytes = bytes;
        if let (Some(opcode), Some([first, flags])) = (opcode, bytes.first_chunk_mut()) {
            *first = opcode.0;
            *flags &= 0xf0;
        }
        if let Ok(packet) = Packet::parse(&bytes) {
            let mut again = [0; MAX_HEADERS];
            let len = packet.headers.emit(&mut again);
            prop_assert_eq!(&again[..len], &bytes[..len]);
            let rest = bytes.len() - len - ICRC_LEN;
            prop_assert_eq!(packet.payload, &bytes[len..len + rest - usize::from(packet.headers.bth.pad)]);
            prop_assert_eq!(&packet.icrc.to_le_bytes()[..], &bytes[len + rest..]);
        }
    }

    #[test]
    fn the_icrc_does_not_cover_fields_that_change_on_the_path(
        v6: bool, ports: (u16, u16), ip_id: u16, dont_fragment: bool,
        body in prop::collection::vec(any::<u8>(), 12..200),
        (tos, ttl, checksum, flow, resv8) in any::<(u8, u8, u16, u32, u8)>(),
    ) {
        let envelope = envelope(v6, ports, ip_id, dont_fragment);
        let mut ip_udp = [0; 48];
        let len = envelope.emit(body.len() + ICRC_LEN, tos, ttl, &mut ip_udp);
        ip_udp[len - 2..len].copy_from_slice(&checksum.to_be_bytes());
        if v6 {
            let flow = (u32::from_be_bytes(*ip_udp.first_chunk().unwrap()) | flow & 0xf_ffff).to_be_bytes();
            ip_udp[..4].copy_from_slice(&flow);
        } else {
            weir_wire::ip::fill_ipv4_checksum(&mut ip_udp);
        }
        let expected = icrc::compute(&envelope, &body);
        let mut marked = body.clone();
        marked[4] = resv8; // FECN, BECN
        prop_assert_eq!(icrc::compute_framed(&ip_udp[..len], &marked), expected);
    }

    #[test]
    fn a_changed_bit_is_detected(
        v6: bool, ip_id: u16,
        body in prop::collection::vec(any::<u8>(), 12..200),
        bit: prop::sample::Index,
    ) {
        let envelope = envelope(v6, (20480, 4791), ip_id, true);
        let mut datagram = [&body[..], &icrc::compute(&envelope, &body).to_le_bytes()].concat();
        prop_assert_eq!(icrc::verify(&envelope, &datagram), icrc::Verdict::Good);
        let bit = bit.index(datagram.len() * 8);
        datagram[bit / 8] ^= 1 << (bit % 8);
        // The ICRC does not cover byte 4. One changed bit never looks like a different Identification.
        let expected = if bit / 8 == 4 { icrc::Verdict::Good } else { icrc::Verdict::Bad };
        prop_assert_eq!(icrc::verify(&envelope, &datagram), expected);
    }

    #[test]
    fn aeth_keeps_its_parts(syndrome: u8, msn in 0..1u32 << 24) {
        let aeth = Aeth::new(syndrome, msn);
        prop_assert_eq!((aeth.syndrome(), aeth.msn()), (syndrome, msn));
        prop_assert_eq!(Syndrome::from_byte(syndrome).to_byte(), syndrome);
    }

    #[test]
    fn psn_distances_are_exact_within_half_of_the_space(a: u32, distance in -(1i32 << 23)..1 << 23) {
        let a = Psn::new(a);
        let b = if distance >= 0 { a.plus(distance as u32) } else { a.minus(distance.unsigned_abs()) };
        prop_assert_eq!(b.since(a), distance);
        prop_assert_eq!(b.before(a), distance < 0);
    }
}
