//! What a node can be set to.

use crate::error::Error;
use std::time::Duration;
use weir_links::LinksSpec;
use weir_transport::edge::{Parameters, Scheduler};

/// The UDP port of a node that listens, unless it is given another.
pub const DEFAULT_PORT: u16 = 19_790;
/// The environment variable with the links of a node that is not given any.
pub const LINKS_VARIABLE: &str = "WEIR_LINKS";

/// Which threads take packets (thesis 3.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// A thread of the node sleeps until packets come, and takes them.
    #[default]
    Events,
    /// Threads of the program take them in the calls that ask for events. The node's thread does so when they stop.
    Polling,
}

/// How a node works.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where a node listens; 0: at a port that is free.
    pub port: u16,
    /// The interfaces to use. `None`: those of `WEIR_LINKS`, or `auto`.
    pub links: Option<LinksSpec>,
    pub mode: Mode,
    pub scheduler: Scheduler,
    pub parameters: Parameters,
    /// A connection fails if its peer says nothing for so long. A peer that is idle is asked.
    pub patience: Duration,
    /// Connections that the program has not taken yet, at most.
    pub backlog: usize,
    /// WRITEs are copied when their packets are sent. Otherwise they are sent from where they are.
    pub copy_sends: bool,
    /// Packets are copied before their bytes are copied to their place.
    pub copy_receives: bool,
    /// Measure where CPU time goes: clocks are read several times for each packet.
    pub measure: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            port: DEFAULT_PORT,
            links: None,
            mode: Mode::default(),
            scheduler: Scheduler::default(),
            parameters: Parameters::TUNED,
            patience: Duration::from_secs(5),
            backlog: 16,
            copy_sends: false,
            copy_receives: false,
            measure: false,
        }
    }
}

impl Options {
    /// The links, of the options or of the environment.
    pub(crate) fn links(&self) -> Result<LinksSpec, Error> {
        match (&self.links, std::env::var(LINKS_VARIABLE)) {
            (Some(links), _) => Ok(links.clone()),
            (None, Ok(text)) => text.parse().map_err(|error| Error::Links(format!("{LINKS_VARIABLE}: {error}"))),
            (None, Err(_)) => Ok(LinksSpec::Auto),
        }
    }

    /// Why a node cannot be as these say.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let window = self.parameters.window;
        if !(1..=weir_wire::edge::MAX_WINDOW).contains(&window) {
            return Err(Error::Invalid(format!("a window of {window} packets: give 1 to 4097")));
        }
        if self.patience < Duration::from_millis(50) {
            return Err(Error::Invalid(format!("a patience of {:?}: give 50 ms at least", self.patience)));
        }
        Ok(())
    }
}
