//! Several network interfaces used as one.
//!
//! | file | |
//! | --- | --- |
//! | `spec` | which interfaces: `eth1,eth2=4`, or `auto` |
//! | `interfaces` | what the kernel says of them |
//! | `bundle` | a carrier that uses them for the packets of an adapter |
//! | `departures` | packets that leave: those of one link become one send |

mod bundle;
mod departures;
mod interfaces;
mod spec;

pub use bundle::{Bundle, Settings};
pub use departures::{Departures, Ends};
pub use interfaces::{Interface, InterfaceError, Interfaces};
pub use spec::{LinksSpec, LinksSpecError, Named};
