//! The structures of the header, and what they say.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::time::Duration;
use weir_edge::{Access, Allow, Counters, Error, Event, LinksSpec, Mode, Options, Parameters, Scheduler, Times};

/// `struct edge_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EdgeOptions {
    pub links: *const c_char,
    pub port: c_int,
    pub mode: c_int,
    pub scheduler: c_int,
    pub window: c_int,
    pub patience_ms: c_int,
    pub backlog: c_int,
    pub copy_sends: c_int,
    pub copy_receives: c_int,
    pub measure: c_int,
    pub reserved: [c_int; 8],
}

/// `struct edge_range`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EdgeRange {
    pub address: *mut c_void,
    pub size: usize,
    pub access: c_uint,
}

/// `struct edge_event`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EdgeEvent {
    pub kind: c_int,
    pub error: c_int,
    pub handle: i64,
    pub address: u64,
    pub size: u64,
}

/// `struct edge_counters`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct EdgeCounters {
    pub packets_sent: u64,
    pub bytes_sent: u64,
    pub acknowledgements_sent: u64,
    pub packets_received: u64,
    pub bytes_received: u64,
    pub packets_refused: u64,
    pub sends: u64,
    pub receives: u64,
    pub empty_receives: u64,
    pub sleeps: u64,
    pub completed: u64,
    pub failed: u64,
    pub notified: u64,
    pub poll_ns: u64,
    pub send_copy_ns: u64,
    pub receive_copy_ns: u64,
    pub packet_ns: u64,
    pub device_ns: u64,
}

const SCHEDULERS: [Scheduler; 4] =
    [Scheduler::Auto, Scheduler::RoundRobin, Scheduler::WeightedRoundRobin, Scheduler::Dynamic];
const MODES: [Mode; 2] = [Mode::Events, Mode::Polling];

impl Default for EdgeOptions {
    fn default() -> EdgeOptions {
        let Options { port, parameters, patience, backlog, .. } = Options::default();
        EdgeOptions {
            links: std::ptr::null(),
            port: port.into(),
            mode: 0,
            scheduler: 0,
            window: parameters.window as c_int,
            patience_ms: patience.as_millis() as c_int,
            backlog: backlog as c_int,
            copy_sends: 0,
            copy_receives: 0,
            measure: 0,
            reserved: [0; 8],
        }
    }
}

impl EdgeOptions {
    /// # Safety
    /// `links` is NULL or a terminated text.
    pub unsafe fn read(&self) -> Result<Options, Error> {
        let wrong =
            |what: &str, value: c_int| Error::Invalid(format!("edge_options.{what} is {value}: see weir-edge(3)"));
        let links = match self.links.is_null() {
            true => None,
            // SAFETY: as the caller says.
            false => Some(unsafe { text(self.links) }?),
        };
        let links = links.map(|text| text.parse::<LinksSpec>().map_err(|error| Error::Links(error.to_string())));
        let of = |list: c_int, len: usize| usize::try_from(list).ok().filter(|at| *at < len);
        let window = u32::try_from(self.window).map_err(|_| wrong("window", self.window))?;
        let patience = u64::try_from(self.patience_ms).map_err(|_| wrong("patience_ms", self.patience_ms))?;
        if self.reserved != [0; 8] {
            return Err(Error::Invalid("edge_options.reserved is not 0: call edge_default_options first".into()));
        }
        Ok(Options {
            port: u16::try_from(self.port).map_err(|_| wrong("port", self.port))?,
            links: links.transpose()?,
            mode: MODES[of(self.mode, MODES.len()).ok_or_else(|| wrong("mode", self.mode))?],
            scheduler: SCHEDULERS[of(self.scheduler, 4).ok_or_else(|| wrong("scheduler", self.scheduler))?],
            parameters: Parameters { window, ..Parameters::TUNED },
            patience: Duration::from_millis(patience),
            backlog: usize::try_from(self.backlog).map_err(|_| wrong("backlog", self.backlog))?,
            copy_sends: self.copy_sends != 0,
            copy_receives: self.copy_receives != 0,
            measure: self.measure != 0,
        })
    }
}

/// What ranges allow; `count` -1: the whole process.
///
/// # Safety
/// `ranges` are `count` ranges. The program uses their memory as `Connection::register` says.
pub unsafe fn allow(ranges: *const EdgeRange, count: c_int) -> Result<Allow, Error> {
    if count == -1 {
        // SAFETY: a C program shares all its memory through pointers.
        return Ok(unsafe { Allow::whole_process() });
    }
    let count = usize::try_from(count).ok().filter(|count| *count == 0 || !ranges.is_null());
    let count = count.ok_or_else(|| Error::Invalid("the number of ranges is negative, or there are none".into()))?;
    (0..count).try_fold(Allow::nothing(), |allow, at| {
        // SAFETY: one of `count` ranges.
        let range = unsafe { &*ranges.add(at) };
        // SAFETY: as the caller says.
        Ok(unsafe { allow.and(range.address.cast(), range.size, access(range.access)?) })
    })
}

/// The bits of an access.
pub fn access(bits: c_uint) -> Result<Access, Error> {
    Access::from_bits(bits).ok_or_else(|| Error::Invalid(format!("the access {bits:#x} has unknown bits")))
}

/// A text of the program.
///
/// # Safety
/// It is NULL or terminated.
pub unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Error> {
    if text.is_null() {
        return Err(Error::Invalid("a text is NULL".into()));
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Error::Invalid("a text is not UTF-8".into()))
}

/// A timeout; negative: none.
pub fn timeout(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

impl From<Event> for EdgeEvent {
    fn from(event: Event) -> EdgeEvent {
        match event {
            Event::Completed { handle, result } => {
                let error = result.err().map_or(0, |error| error.errno());
                EdgeEvent { kind: 0, error, handle: handle.into(), ..EdgeEvent::default() }
            }
            Event::Notified { address, bytes } => {
                EdgeEvent { kind: 1, handle: -1, address, size: bytes.into(), ..EdgeEvent::default() }
            }
        }
    }
}

impl EdgeCounters {
    /// What a node has counted.
    pub fn new(counters: &Counters, times: &Times) -> EdgeCounters {
        let ns = |time: Duration| time.as_nanos() as u64;
        EdgeCounters {
            packets_sent: counters.packets_sent,
            bytes_sent: counters.bytes_sent,
            acknowledgements_sent: counters.acknowledgements_sent,
            packets_received: counters.packets_received,
            bytes_received: counters.bytes_received,
            packets_refused: counters.packets_refused,
            sends: counters.sends,
            receives: counters.receives,
            empty_receives: counters.empty_receives,
            sleeps: counters.sleeps,
            completed: counters.completed,
            failed: counters.failed,
            notified: counters.notified,
            poll_ns: ns(times.poll),
            send_copy_ns: ns(times.send_copy),
            receive_copy_ns: ns(times.receive_copy),
            packet_ns: ns(times.packet),
            device_ns: ns(times.device),
        }
    }
}
