//! An adapter's properties. The protocol asks the profile; nothing asks for a profile by name.

use std::time::Duration;

/// A named set of adapter properties.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// What `--profile` calls it.
    pub name: String,
    /// No ACK timeout is shorter, whatever the attributes say.
    pub ack_timeout_floor: Duration,
    /// The timeout is this times T_tr = 4.096 µs · 2^n; IBTA 9.7.6.1.3 allows 1 to 4.
    pub ack_timeout_factor: f64,
    /// The RNR wait is this times what the NAK says.
    pub rnr_wait_factor: f64,
}

impl Profile {
    /// A perfect adapter. The floor is a few ms because a software peer may be off its core for that long.
    pub fn ideal() -> Self {
        Profile {
            name: "ideal".into(),
            ack_timeout_floor: Duration::from_millis(4),
            ack_timeout_factor: 1.0,
            rnr_wait_factor: 1.0,
        }
    }
}
