//! Several network interfaces used as one.
//!
//! | file | |
//! | --- | --- |
//! | `spec` | which interfaces: `eth1,eth2=4`, or `auto` |
//! | `interfaces` | what the kernel says of them |
//! | `departures` | packets that leave: those of one link become one send |

mod departures;
mod interfaces;
mod spec;

pub use departures::{Departures, Ends};
pub use interfaces::{Interface, InterfaceError, Interfaces};
pub use spec::{LinksSpec, LinksSpecError, Named};
