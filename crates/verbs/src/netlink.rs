//! Answers to what programs ask the kernel's RDMA subsystem by netlink: devices, ports, and a few settings.
//!
//! UCX (from 1.20) asks for a device, `rdma link` and pyverbs for all ports. The numbers are those of
//! <rdma/rdma_netlink.h> and <linux/netlink.h>.

use crate::device::number_of;
use weir_device::DeviceInfo;

const HEADER: usize = 16;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_MULTI: u16 = 0x2;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;

/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, …)`.
const NLDEV: u16 = 5 << 10;
const GET: u16 = NLDEV | 1;
const PORT_GET: u16 = NLDEV | 5;
const SYS_GET: u16 = NLDEV | 6;

const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const CAP_FLAGS: u16 = 4;
const FW_VERSION: u16 = 5;
const NODE_GUID: u16 = 6;
const SYS_IMAGE_GUID: u16 = 7;
const PORT_STATE: u16 = 12;
const PORT_PHYS_STATE: u16 = 13;
const DEV_NODE_TYPE: u16 = 14;
const NDEV_INDEX: u16 = 50;
const NDEV_NAME: u16 = 51;
const NETNS_MODE: u16 = 66;
const DEV_PROTOCOL: u16 = 67;
const COPY_ON_FORK: u16 = 93;

/// The messages that answer those of a datagram, one datagram each. Malformed messages end the datagram, as in the
/// kernel. `port` is the sender's netlink port.
pub fn answer(mut request: &[u8], port: u32, devices: &[DeviceInfo]) -> Vec<Vec<u8>> {
    let mut answers = vec![];
    while let Some(header) = Header::read(request) {
        let (message, rest) = request.split_at(header.len);
        request = rest.get(header.len.next_multiple_of(4) - header.len..).unwrap_or_default();
        let mut reply = Reply { header, port, bytes: vec![] };
        match reply.to(message, devices) {
            Ok(()) => {
                if header.flags & NLM_F_DUMP == NLM_F_DUMP {
                    reply.message(NLMSG_DONE, NLM_F_MULTI, |bytes| bytes.extend(0i32.to_ne_bytes()));
                } else if header.flags & NLM_F_ACK != 0 {
                    reply.error(0, message);
                }
            }
            Err(error) => {
                reply.bytes.clear();
                reply.error(error, message);
            }
        }
        answers.push(reply.bytes);
    }
    answers
}

/// `struct nlmsghdr`.
#[derive(Clone, Copy)]
struct Header {
    len: usize,
    kind: u16,
    flags: u16,
    sequence: u32,
}

impl Header {
    fn read(bytes: &[u8]) -> Option<Header> {
        let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let header = Header {
            len,
            kind: u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?),
            flags: u16::from_ne_bytes(bytes.get(6..8)?.try_into().ok()?),
            sequence: u32::from_ne_bytes(bytes.get(8..12)?.try_into().ok()?),
        };
        (HEADER..=bytes.len()).contains(&len).then_some(header)
    }
}

struct Reply {
    header: Header,
    port: u32,
    bytes: Vec<u8>,
}

impl Reply {
    fn to(&mut self, message: &[u8], devices: &[DeviceInfo]) -> Result<(), i32> {
        let dump = self.header.flags & NLM_F_DUMP == NLM_F_DUMP;
        let wanted = attribute(&message[HEADER..], DEV_INDEX);
        let named = devices.iter().filter(|device| wanted.is_none_or(|index| index as usize == number_of(device)));
        match self.header.kind {
            GET if dump => devices.iter().for_each(|device| self.device(device)),
            GET => self.device(named.clone().next().filter(|_| wanted.is_some()).ok_or(libc::EINVAL)?),
            PORT_GET if dump => named.for_each(|device| self.device_port(device)),
            PORT_GET => {
                let device = named.clone().next().filter(|_| wanted.is_some()).ok_or(libc::EINVAL)?;
                if attribute(&message[HEADER..], PORT_INDEX) != Some(1) {
                    return Err(libc::EINVAL);
                }
                self.device_port(device);
            }
            SYS_GET => self.message(SYS_GET, 0, |bytes| {
                // Devices belong to one network namespace; memory for RDMA is copied at a fork.
                put(bytes, NETNS_MODE, &[0]);
                put(bytes, COPY_ON_FORK, &[1]);
            }),
            _ => return Err(libc::EOPNOTSUPP),
        }
        Ok(())
    }

    fn device(&mut self, device: &DeviceInfo) {
        self.message(GET, self.multi(), |bytes| {
            name(bytes, device);
            put(bytes, PORT_INDEX, &1u32.to_ne_bytes());
            put(bytes, CAP_FLAGS, &0u64.to_ne_bytes());
            put_text(bytes, FW_VERSION, env!("CARGO_PKG_VERSION"));
            put(bytes, NODE_GUID, &device.guid.to_ne_bytes());
            put(bytes, SYS_IMAGE_GUID, &device.guid.to_ne_bytes());
            put(bytes, DEV_NODE_TYPE, &[1]);
            put_text(bytes, DEV_PROTOCOL, "roce");
        });
    }

    fn device_port(&mut self, device: &DeviceInfo) {
        self.message(PORT_GET, self.multi(), |bytes| {
            name(bytes, device);
            put(bytes, PORT_INDEX, &1u32.to_ne_bytes());
            put(bytes, CAP_FLAGS, &u64::from(crate::query::PORT_CAPABILITIES).to_ne_bytes());
            put(bytes, PORT_STATE, &[if device.up { 4 } else { 1 }]);
            put(bytes, PORT_PHYS_STATE, &[if device.up { 5 } else { 3 }]);
            put(bytes, NDEV_INDEX, &device.ifindex.to_ne_bytes());
            put_text(bytes, NDEV_NAME, &device.ifname);
        });
    }

    fn multi(&self) -> u16 {
        if self.header.flags & NLM_F_DUMP == NLM_F_DUMP { NLM_F_MULTI } else { 0 }
    }

    fn error(&mut self, error: i32, message: &[u8]) {
        self.message(NLMSG_ERROR, 0, |bytes| {
            bytes.extend((-error).to_ne_bytes());
            bytes.extend(message);
        });
    }

    fn message(&mut self, kind: u16, flags: u16, body: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.header.sequence.to_ne_bytes());
        self.bytes.extend(self.port.to_ne_bytes());
        body(&mut self.bytes);
        let len = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Which device it is.
fn name(bytes: &mut Vec<u8>, device: &DeviceInfo) {
    put(bytes, DEV_INDEX, &(number_of(device) as u32).to_ne_bytes());
    put_text(bytes, DEV_NAME, &device.name);
}

fn put_text(bytes: &mut Vec<u8>, kind: u16, text: &str) {
    put(bytes, kind, &[text.as_bytes(), &[0]].concat());
}

/// `struct nlattr` and its value.
fn put(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// The number in an attribute of a request.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<u32> {
    loop {
        let len = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        if kind == wanted {
            return Some(u32::from_ne_bytes(attributes.get(4..len)?.get(..4)?.try_into().ok()?));
        }
        attributes = attributes.get(len.max(4).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Vec<DeviceInfo> {
        weir_device::devices().unwrap()
    }

    fn request(kind: u16, flags: u16, attributes: &[(u16, u32)]) -> Vec<u8> {
        let mut reply = Reply { header: Header { len: 0, kind, flags, sequence: 7 }, port: 0, bytes: vec![] };
        reply.message(kind, flags, |bytes| {
            attributes.iter().for_each(|(kind, value)| put(bytes, *kind, &value.to_ne_bytes()));
        });
        reply.bytes
    }

    fn kinds(answer: &[u8]) -> Vec<(u16, u16)> {
        let (mut rest, mut kinds) = (answer, vec![]);
        while let Some(header) = Header::read(rest) {
            assert_eq!(header.sequence, 7);
            kinds.push((header.kind, header.flags));
            rest = rest.get(header.len.next_multiple_of(4)..).unwrap_or_default();
        }
        assert!(rest.is_empty());
        kinds
    }

    #[test]
    fn a_dump_lists_all_devices_and_ends() {
        let devices = devices();
        for kind in [GET, PORT_GET] {
            let answers = answer(&request(kind, NLM_F_DUMP | NLM_F_ACK, &[]), 5, &devices);
            let mut wanted = vec![(kind, NLM_F_MULTI); devices.len()];
            wanted.push((NLMSG_DONE, NLM_F_MULTI));
            assert_eq!(answers.iter().map(|answer| kinds(answer)).collect::<Vec<_>>(), [wanted]);
            let text = answers[0].clone();
            let name = devices[0].name.as_bytes();
            assert!(text.windows(name.len()).any(|window| window == name));
        }
    }

    #[test]
    fn one_device_is_asked_for_by_its_number() {
        let devices = devices();
        let index = number_of(&devices[0]) as u32;
        for (kind, attributes, wanted) in [
            (GET, &[(DEV_INDEX, index)][..], GET),
            (GET, &[(DEV_INDEX, 9999)], NLMSG_ERROR),
            (GET, &[], NLMSG_ERROR),
            (PORT_GET, &[(DEV_INDEX, index), (PORT_INDEX, 1)], PORT_GET),
            (PORT_GET, &[(DEV_INDEX, index), (PORT_INDEX, 2)], NLMSG_ERROR),
            (SYS_GET, &[], SYS_GET),
            (NLDEV | 77, &[], NLMSG_ERROR),
            (16, &[], NLMSG_ERROR),
        ] {
            let answers = answer(&request(kind, 1, attributes), 5, &devices);
            assert_eq!(
                answers.iter().map(|answer| kinds(answer)).collect::<Vec<_>>(),
                [[(wanted, 0)]],
                "{attributes:?}"
            );
        }
        let answers = answer(&request(GET, 1 | NLM_F_ACK, &[(DEV_INDEX, index)]), 5, &devices);
        assert_eq!(kinds(&answers[0]), [(GET, 0), (NLMSG_ERROR, 0)]);
    }

    #[test]
    fn malformed_requests_get_no_answer_or_an_error() {
        let devices = devices();
        let good = request(GET, 1, &[(DEV_INDEX, 0)]);
        for len in 0..good.len() {
            assert!(answer(&good[..len], 5, &devices).is_empty());
        }
        for at in HEADER..good.len() {
            for byte in [0, 1, 3, 0xff] {
                let mut bad = good.clone();
                bad[at] = byte;
                assert_eq!(answer(&bad, 5, &devices).len(), 1);
            }
        }
    }
}
