//! What a rule looks for in a frame.

use super::Headers;

/// A header that a pattern needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    Ethernet,
    /// The EtherType after a VLAN tag.
    EtherType,
    /// The identifier and priority in a VLAN tag.
    Vlan,
    Ipv4,
    Ipv6,
    Tcp,
    Udp,
    Vxlan,
}

/// Bytes of a header, with their mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub layer: Layer,
    /// Offset of the bytes in the header.
    pub offset: usize,
    len: usize,
    value: [u8; 16],
    mask: [u8; 16],
}

/// Fields that must all match. A field without bytes needs its header to be there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pattern(Vec<Field>);

impl Pattern {
    /// Needs a header.
    pub fn need(&mut self, layer: Layer) {
        self.add(layer, 0, &[], &[]);
    }

    /// Adds a field of at most 16 bytes, unless its mask is zero. `value` and `mask` are equally long.
    pub fn add(&mut self, layer: Layer, offset: usize, value: &[u8], mask: &[u8]) {
        debug_assert!(value.len() == mask.len() && value.len() <= 16);
        if !value.is_empty() && mask.iter().all(|byte| *byte == 0) {
            return;
        }
        let mut field = Field { layer, offset, len: value.len(), value: [0; 16], mask: [0; 16] };
        for (at, (value, mask)) in value.iter().zip(mask).enumerate() {
            (field.value[at], field.mask[at]) = (value & mask, *mask);
        }
        self.0.push(field);
    }

    /// Returns whether a frame has what the pattern looks for.
    pub fn matches(&self, frame: &[u8], headers: &Headers) -> bool {
        self.0.iter().all(|field| field.matches(frame, headers).unwrap_or(false))
    }

    /// The destination address, if the pattern has all its bits.
    pub(crate) fn exact_destination(&self) -> Option<[u8; 6]> {
        let exact =
            |field: &&Field| field.layer == Layer::Ethernet && field.offset == 0 && field.mask[..6] == [0xff; 6];
        self.0.iter().find(exact).and_then(|field| field.value[..6].try_into().ok())
    }

    /// The fields of the Ethernet header: offset, value and mask.
    pub(crate) fn ethernet(&self) -> impl Iterator<Item = (usize, &[u8], &[u8])> {
        let fields = self.0.iter().filter(|field| field.layer == Layer::Ethernet);
        fields.map(|field| (field.offset, &field.value[..field.len], &field.mask[..field.len]))
    }
}

impl Field {
    fn matches(&self, frame: &[u8], headers: &Headers) -> Option<bool> {
        let header = match self.layer {
            Layer::Ethernet => 0,
            Layer::EtherType => headers.ether_type?,
            Layer::Vlan => headers.vlan?,
            Layer::Ipv4 => headers.ipv4?,
            Layer::Ipv6 => headers.ipv6?,
            Layer::Tcp => headers.tcp?,
            Layer::Udp => headers.udp?,
            Layer::Vxlan => headers.vxlan?,
        };
        let bytes = frame.get(header + self.offset..)?.get(..self.len)?;
        let wanted = self.value.iter().zip(&self.mask);
        Some(bytes.iter().zip(wanted).all(|(byte, (value, mask))| byte & mask == *value))
    }
}
