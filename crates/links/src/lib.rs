//! Several network interfaces used as one.
//!
//! | file | |
//! | --- | --- |
//! | `spec` | which interfaces: `eth1,eth2=4`, or `auto` |
//! | `interfaces` | what the kernel says of them |
//! | `bundle` | a carrier that uses them for the packets of an adapter |
//! | `numbers` | with which connections begin |
//! | `departures` | packets that leave: those of one link become one send |

mod bundle;
mod departures;
mod interfaces;
mod numbers;
mod spec;

pub use bundle::{Bundle, Settings};
pub use departures::{Departures, Ends};
pub use interfaces::is_link_local;
pub use interfaces::{Interface, InterfaceError, Interfaces};
pub use numbers::NumberSource;
pub use spec::{LinksSpec, LinksSpecError, Named};

/// The bodies of the fuzz targets.
#[cfg(feature = "testing")]
pub mod testing {
    pub use crate::bundle::fuzz::bundle as fuzz_bundle;
}
