//! Opens the device that is measured.

use super::TuneArgs;
use anyhow::{Result, bail};
use weir_lab::stream::Measure;

/// What measures, and the device that it uses.
pub struct Opened {
    pub measure: Box<dyn Measure>,
    /// Name of the device.
    pub adapter: String,
    /// The adapter is Weir.
    pub weir: bool,
}

/// A pair of programs on `args.device`, the receiver on `args.peer` if it is given.
pub fn open(_args: &TuneArgs) -> Result<Opened> {
    bail!("there is nothing that measures yet")
}
