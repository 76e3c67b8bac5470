//! The four ways to register a program's memory (Li et al., SC'16, section VII).

use std::fmt;
use std::str::FromStr;

/// How buffers of the program are registered, and when their pages are prefetched. Bounce buffers are pinned always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Buffers are pinned, and stay so in a cache.
    PinDown,
    /// Buffers are registered on demand. Nothing is prefetched.
    OdpNative,
    /// Buffers are registered on demand, and prefetched when they are registered: not by operations that find them in the
    /// cache of registrations.
    OdpEnhanced,
    /// Buffers are registered on demand, and prefetched while control messages travel, and again when the program waits.
    #[default]
    OdpOptimal,
}

/// A moment at which pages can be prefetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// An operation has registered its buffer, which was not registered before, or the program has registered memory.
    /// No control message has left yet.
    Registered,
    /// A control message has just left, and its answer takes a round trip (V.B.1).
    ControlSent,
    /// The program waits again after it has computed, and data are still to come (V.C).
    WaitsAgain,
    /// The answer has come while the program computed, and the pages may be gone (V.C).
    AnswerWasEarly,
    /// A WRITE out of the program's memory is about to be posted (VI.B).
    BeforeWrite,
    /// A READ into the program's memory has just been posted (VI.B).
    ReadPosted,
    /// Processes synchronise, and peers may use this process's windows from now on (VI.B, VI.C).
    Synchronises,
}

impl Scheme {
    /// All schemes, in the order of the paper's figures.
    pub const ALL: [Scheme; 4] = [Scheme::PinDown, Scheme::OdpEnhanced, Scheme::OdpOptimal, Scheme::OdpNative];

    /// Whether buffers of the program are registered on demand; otherwise they are pinned.
    pub fn on_demand(self) -> bool {
        self != Scheme::PinDown
    }

    /// Whether pages are prefetched at this moment.
    pub fn prefetches(self, moment: Moment) -> bool {
        match self {
            Scheme::PinDown | Scheme::OdpNative => false,
            Scheme::OdpEnhanced => moment == Moment::Registered,
            Scheme::OdpOptimal => moment != Moment::Registered,
        }
    }

    /// Its name in settings, such as `odp-optimal`.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::PinDown => "pin-down",
            Scheme::OdpNative => "odp-native",
            Scheme::OdpEnhanced => "odp-enhanced",
            Scheme::OdpOptimal => "odp-optimal",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Scheme {
    type Err = String;

    fn from_str(name: &str) -> Result<Scheme, String> {
        let known = Scheme::ALL.into_iter().find(|scheme| scheme.name() == name);
        known.ok_or_else(|| {
            let names: Vec<&str> = Scheme::ALL.iter().map(|scheme| scheme.name()).collect();
            format!("unknown scheme {name:?}: it is one of {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        for scheme in Scheme::ALL {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
        }
        assert!("pinned".parse::<Scheme>().unwrap_err().contains("odp-optimal"));
    }
}
