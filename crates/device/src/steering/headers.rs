//! Where the headers of a frame are.

/// The headers of an Ethernet frame, as offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// The EtherType, after a VLAN tag.
    pub ether_type: Option<usize>,
    /// The identifier and priority of a VLAN.
    pub vlan: Option<usize>,
    pub ipv4: Option<usize>,
    pub ipv6: Option<usize>,
    pub tcp: Option<usize>,
    pub udp: Option<usize>,
    pub vxlan: Option<usize>,
}

const VLAN: [u16; 2] = [0x8100, 0x88a8];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;
const VXLAN_PORT: u16 = 4789;
/// Offset of the EtherType in an untagged frame.
const ETHER_TYPE: usize = 12;

impl Headers {
    /// Finds the headers; what a frame is too short for is absent. A fragment of an IPv4 packet has no header of
    /// transport, except the first.
    pub fn of(frame: &[u8]) -> Headers {
        let mut headers = Headers::default();
        headers.find(frame);
        headers
    }

    fn find(&mut self, frame: &[u8]) -> Option<()> {
        let mut at = ETHER_TYPE;
        let mut kind = word(frame, at)?;
        if VLAN.contains(&kind) {
            word(frame, at + 2)?;
            self.vlan = Some(at + 2);
            at += 4;
            kind = word(frame, at)?;
        }
        self.ether_type = Some(at);
        let network = at + 2;
        let (transport, protocol) = match kind {
            IPV4 => {
                frame.get(network..network + 20)?;
                self.ipv4 = Some(network);
                let first = word(frame, network + 6)? & 0x1fff == 0;
                let length = usize::from(frame[network] & 0xf) * 4;
                (network + length, first.then_some(frame[network + 9])?)
            }
            IPV6 => {
                frame.get(network..network + 40)?;
                self.ipv6 = Some(network);
                (network + 40, frame[network + 6])
            }
            _ => return None,
        };
        match protocol {
            TCP => {
                frame.get(transport..transport + 20)?;
                self.tcp = Some(transport);
            }
            UDP => {
                frame.get(transport..transport + 8)?;
                self.udp = Some(transport);
                if word(frame, transport + 2)? == VXLAN_PORT {
                    frame.get(transport + 8..transport + 16)?;
                    self.vxlan = Some(transport + 8);
                }
            }
            _ => {}
        }
        Some(())
    }
}

fn word(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..at + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}
