//! Both sides in virtual time: the protocol of `weir_transport::edge` between two simulated hosts.

use super::found::Found;
use super::setting::Setting;
use anyhow::{Result, bail};

/// What reports call the simulated hosts.
pub const ADAPTER: &str = "hosts of E 3.2.1 and 3.3.1";

/// What the simulator finds for a setting.
pub fn found(_setting: &Setting) -> Result<Found> {
    bail!("this is not simulated yet")
}
