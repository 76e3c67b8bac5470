//! The messages of connection management: every field in its place, and any bytes.

use proptest::prelude::*;
use weir_wire::cm::{
    Message, MessageError, Mra, Path, RejectReason, Rep, Req, ServiceId, SidrRep, SidrReq, SidrStatus,
};
use weir_wire::mad::{LEN, Mad, MadHeader};

/// The MAD of an attribute with that body.
fn with_body(attribute: u16, body: &[u8]) -> Mad {
    let mut mad = Message::Req(Req::default()).emit(3, 4);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[MadHeader::LEN..].copy_from_slice(body);
    mad
}

/// The bytes of a message's body that are not zero, by their offset (IBTA 12.6).
fn nonzero(message: impl Into<Message>) -> Vec<(usize, u8)> {
    let mad = message.into().emit(0, 0);
    mad[MadHeader::LEN..].iter().copied().enumerate().filter(|(_, byte)| *byte != 0).collect()
}

proptest! {
    #[test]
    fn every_message_is_the_same_after_its_bytes(
        attribute in 0x10_u16..=0x18,
        body in prop::collection::vec(any::<u8>(), LEN - MadHeader::LEN),
        tid in any::<u64>(),
        modifier in any::<u32>(),
    ) {
        let (_, message) = Message::parse(&with_body(attribute, &body)).unwrap();
        prop_assert_eq!(message.attribute(), attribute);
        let (header, again) = Message::parse(&message.emit(tid, modifier)).unwrap();
        prop_assert_eq!((header.tid.get(), header.modifier.get()), (tid, modifier));
        prop_assert_eq!(again, message);
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(Message::parse(&bytes).is_err());
    }
}

#[test]
fn other_lengths_classes_methods_and_attributes_are_errors() {
    let good = Message::Req(Req::default()).emit(0, 0);
    assert!(Message::parse(&good).is_ok());
    assert_eq!(Message::parse(&good[..255]), Err(MessageError::Length(255)));
    assert_eq!(Message::parse(&[&good[..], &[0]].concat()), Err(MessageError::Length(257)));
    for (byte, value) in [(0, 2), (1, 0x03), (2, 1), (3, 0x83)] {
        let mut mad = good;
        mad[byte] = value;
        assert!(matches!(Message::parse(&mad), Err(MessageError::Class { .. })), "byte {byte}");
    }
    for attribute in [0, 0x000f, 0x0019, 0x001a, 0x0110] {
        assert_eq!(Message::parse(&with_body(attribute, &[0; 232])), Err(MessageError::Attribute(attribute)));
    }
}

#[test]
fn the_header_is_that_of_connection_management() {
    let mad = Message::Mra(Mra::default()).emit(0x0102_0304_0506_0708, 0x0a0b_0c0d);
    assert_eq!(mad[..8], [1, 7, 2, 3, 0, 0, 0, 0]);
    assert_eq!(mad[8..24], [1, 2, 3, 4, 5, 6, 7, 8, 0, 0x11, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d]);
}

#[test]
fn fields_of_req_that_tshark_shows_wrongly_are_in_their_bits() {
    let path = Path { flow_label: 0xabcde, packet_rate: 0x2a, ..Path::default() };
    let req = Req { primary: path.clone(), ..Req::default() };
    assert_eq!(nonzero(req), [(88, 0xab), (89, 0xcd), (90, 0xe0), (91, 0x2a)]);
    let req = Req { alternate: path, ..Req::default() };
    assert_eq!(nonzero(req), [(132, 0xab), (133, 0xcd), (134, 0xe0), (135, 0x2a)]);
}

#[test]
fn vendors_of_ece_are_in_reserved_bytes() {
    assert_eq!(nonzero(Req { ece_vendor: 0x01_02_03, ..Req::default() }), [(5, 1), (6, 2), (7, 3)]);
    let rep = Rep { ece_vendor_high: 1, ece_vendor_middle: 2, ece_vendor_low: 3, ..Rep::default() };
    assert_eq!(nonzero(rep), [(15, 1), (19, 2), (23, 3)]);
}

#[test]
fn mra_says_which_message_and_how_long() {
    let mut mra = Mra { local_comm_id: 1, remote_comm_id: 2, message: 1, service_timeout: 24, ..Mra::default() };
    mra.private[221] = 9;
    assert_eq!(nonzero(mra), [(3, 1), (7, 2), (8, 0x40), (9, 0xc0), (231, 9)]);
}

#[test]
fn fields_of_sidr_are_in_their_bytes() {
    let mut req = SidrReq { request_id: 1, pkey: 2, service_id: ServiceId(3), ..SidrReq::default() };
    (req.private[0], req.private[215]) = (4, 5);
    assert_eq!(nonzero(req), [(3, 1), (5, 2), (15, 3), (16, 4), (231, 5)]);
    let mut rep = SidrRep { request_id: 1, status: SidrStatus(2), info_len: 3, ..SidrRep::default() };
    (rep.qpn, rep.service_id, rep.qkey) = (0x00ab_cdef, ServiceId(5), 6);
    (rep.info[0], rep.info[71], rep.private[0], rep.private[135]) = (7, 8, 9, 10);
    let expected = [(3, 1), (4, 2), (5, 3), (8, 0xab), (9, 0xcd), (10, 0xef), (19, 5), (23, 6), (24, 7), (95, 8)];
    assert_eq!(nonzero(rep), [&expected[..], &[(96, 9), (231, 10)]].concat());
}

#[test]
fn reasons_have_texts() {
    assert_eq!(RejectReason::STALE_CONNECTION.to_string(), "stale connection (10)");
    assert_eq!(RejectReason(34).to_string(), "reason 34");
}
