//! A MAD to a message and back.

use super::bits::{Bits, Value};
use super::{Drep, Dreq, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use crate::mad::{BASE_VERSION, CLASS_CM, CM_VERSION, LEN, METHOD_SEND, Mad, MadHeader};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    #[error("{0} bytes, a MAD has 256")]
    Length(usize),
    #[error("no MAD of connection management: class {class:#x} version {version}, method {method:#x}")]
    Class { class: u8, version: u8, method: u8 },
    #[error("attribute {0:#06x} is no message of a connection")]
    Attribute(u16),
}

/// Everything after the header.
const BODY: Bits = Bits { first: 0, width: (LEN - MadHeader::LEN) * 8 };

macro_rules! messages {
    ($($name:ident = $attribute:literal),* $(,)?) => {
        /// A message (IBTA 12.6, 12.11).
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Message {
            $($name($name)),*
        }

        impl Message {
            /// The attribute ID of its MAD (IBTA 16.7).
            pub fn attribute(&self) -> u16 {
                match self {
                    $(Message::$name(_) => $attribute),*
                }
            }

            fn get(attribute: u16, body: &[u8]) -> Option<Message> {
                match attribute {
                    $($attribute => Some(Message::$name(Value::get(body, BODY))),)*
                    _ => None,
                }
            }

            fn put(&self, body: &mut [u8]) {
                match self {
                    $(Message::$name(message) => message.put(body, BODY)),*
                }
            }
        }

        $(impl From<$name> for Message {
            fn from(message: $name) -> Message {
                Message::$name(message)
            }
        })*
    };
}

messages! {
    Req = 0x0010, Mra = 0x0011, Rej = 0x0012, Rep = 0x0013, Rtu = 0x0014, Dreq = 0x0015, Drep = 0x0016,
    SidrReq = 0x0017, SidrRep = 0x0018,
}

impl Message {
    /// The message of a MAD, and the header's transaction ID and attribute modifier. The kernel ignores the header's
    /// other fields too.
    pub fn parse(mad: &[u8]) -> Result<(MadHeader, Message), MessageError> {
        let Ok(mad): Result<&Mad, _> = mad.try_into() else { return Err(MessageError::Length(mad.len())) };
        let (header, body) = MadHeader::read_from_prefix(mad).expect("a MAD is longer than its header");
        let MadHeader { class, class_version: version, method, .. } = header;
        if (header.base_version, class, version, method) != (BASE_VERSION, CLASS_CM, CM_VERSION, METHOD_SEND) {
            return Err(MessageError::Class { class, version, method });
        }
        let attribute = header.attribute.get();
        Ok((header, Message::get(attribute, body).ok_or(MessageError::Attribute(attribute))?))
    }

    /// The MAD of the message.
    pub fn emit(&self, tid: u64, modifier: u32) -> Mad {
        let mut mad = [0; LEN];
        let mut header = MadHeader::new_zeroed();
        header.base_version = BASE_VERSION;
        header.class = CLASS_CM;
        header.class_version = CM_VERSION;
        header.method = METHOD_SEND;
        header.tid = tid.into();
        header.attribute = self.attribute().into();
        header.modifier = modifier.into();
        header.write_to_prefix(&mut mad).expect("a MAD is longer than its header");
        self.put(&mut mad[MadHeader::LEN..]);
        mad
    }
}
