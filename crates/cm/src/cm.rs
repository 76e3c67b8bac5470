//! The value that holds everything, and what its parts share.

use crate::connection::State;
use crate::pacing::Pacing;
use crate::table::Table;
use crate::times::time;
use crate::{Address, Config, ConnectionId, Error, Event};
use std::collections::VecDeque;
use weir_transport::Instant;
use weir_wire::cm::{Drep, Message};
use weir_wire::mad::Mad;

/// How many MADs may wait for `poll_transmit` when one more answers a MAD that belongs to no connection.
const MAX_WAITING: usize = 256;

/// All connections of a process (IBTA chapter 12). Every call may make MADs to send, events and another deadline:
/// after it, the caller asks `poll_transmit`, `poll_event` and `poll_timeout`.
pub struct Cm {
    pub(crate) config: Config,
    pub(crate) table: Table,
    /// Answers to SIDR_REQs, the oldest first: they are kept for repetitions.
    pub(crate) answered: VecDeque<u32>,
    pub(crate) pacing: Pacing,
    /// Connections were forgotten at that time: the requests that wait for their places have not left yet.
    pub(crate) freed: Option<Instant>,
    outgoing: VecDeque<(Address, Mad)>,
    events: VecDeque<Event>,
}

impl Cm {
    pub fn new(config: Config) -> Cm {
        let table = Table::new(&config);
        Cm {
            config,
            table,
            answered: VecDeque::new(),
            pacing: Pacing::default(),
            freed: None,
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self) -> Option<(Address, Mad)> {
        // Not earlier: the caller may have forgotten them too.
        if let Some(now) = self.freed {
            self.send_waiting(now);
        }
        self.outgoing.pop_front()
    }

    /// The next event. No event of a forgotten connection comes.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.table.at(event.id().0).events -= 1;
        Some(event)
    }

    /// When `handle_timeout` has to be called; it can be later or earlier after every other call.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.table.first_deadline().into_iter().chain(self.pacing.next_due()).min()
    }

    /// How many connections and resolutions there are, with those in timewait.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Panics unless all parts agree.
    #[cfg(feature = "testing")]
    pub fn check(&self) {
        self.table.check();
        self.pacing.check(self.table.connections());
        assert!(self.answered.len() <= self.config.max_half_open);
        for event in &self.events {
            let connection = self.table.get(event.id().0).expect("an event's connection exists");
            assert!(connection.events > 0 && !connection.forgotten);
        }
    }

    /// The connection's number in the table and its state.
    pub(crate) fn find(&self, id: ConnectionId) -> Result<(u32, State), Error> {
        let connection = self.table.get(id.0).filter(|connection| !connection.forgotten).ok_or(Error::UnknownId)?;
        Ok((id.0, connection.state))
    }

    /// Sends a message of the connection, and keeps it for repetitions.
    pub(crate) fn send(&mut self, id: u32, message: &Message, tid: u64, modifier: u32) {
        self.keep(id, message, tid, modifier);
        self.repeat(id);
    }

    /// Keeps a message of the connection for repetitions.
    pub(crate) fn keep(&mut self, id: u32, message: &Message, tid: u64, modifier: u32) {
        self.table.at(id).last = Some(Box::new(message.emit(tid, modifier)));
    }

    /// Sends the connection's last message again.
    pub(crate) fn repeat(&mut self, id: u32) {
        let connection = self.table.at(id);
        if let Some(mad) = &connection.last {
            self.outgoing.push_back((connection.address, **mad));
        }
    }

    /// Sends a message that is repeated without an answer.
    pub(crate) fn ask(&mut self, now: Instant, id: u32, message: &Message, tid: u64, modifier: u32) {
        self.send(id, message, tid, modifier);
        let connection = self.table.at(id);
        connection.retries_left = connection.max_retries;
        let deadline = now + connection.interval;
        self.table.set_deadline(id, Some(deadline));
    }

    /// Sends a message that nothing is kept of. Unless the caller wants to send it, it is dropped where too many wait.
    pub(crate) fn answer(&mut self, to: &Address, message: &Message, tid: u64) {
        if self.outgoing.len() < MAX_WAITING {
            self.outgoing.push_back((*to, message.emit(tid, 0)));
        }
    }

    /// Reports an event, if the caller has not forgotten the connection.
    pub(crate) fn report(&mut self, event: Event) {
        let connection = self.table.at(event.id().0);
        if !connection.forgotten {
            connection.events += 1;
            self.events.push_back(event);
        }
    }

    /// Drops the events of a connection that the caller forgets.
    pub(crate) fn drop_events(&mut self, id: u32) {
        // A caller that takes all events before it forgets a connection costs no search.
        if std::mem::take(&mut self.table.at(id).events) > 0 {
            self.events.retain(|event| event.id() != ConnectionId(id));
        }
    }

    /// A transaction ID of the process's own.
    pub(crate) fn tid(&self, id: u32) -> u64 {
        self.config.seed & !u64::from(u32::MAX) | u64::from(id)
    }

    /// The connection is over, and its peer's communication ID and QP are free.
    pub(crate) fn end(&mut self, id: u32) {
        self.answered(id);
        self.table.release_remote(id);
        self.table.set_deadline(id, None);
        let connection = self.table.at(id);
        connection.state = State::Idle;
        connection.last = None;
        if connection.forgotten {
            self.table.remove(id);
        }
    }

    /// The connection is over, but packets may be on their way (IBTA 12.9).
    pub(crate) fn enter_timewait(&mut self, now: Instant, id: u32) {
        self.answered(id);
        let connection = self.table.at(id);
        connection.state = State::Timewait;
        connection.last = None;
        let deadline = now + connection.timewait.max(time(0));
        self.table.set_deadline(id, Some(deadline));
    }

    /// Confirms the peer's DREQ, and enters timewait (IBTA 12.9).
    pub(crate) fn confirm_disconnection(&mut self, now: Instant, id: u32, tid: u64, private: [u8; 224]) {
        self.enter_timewait(now, id);
        let remote_comm_id = self.table.at(id).remote_comm_id();
        self.send(id, &Drep { local_comm_id: id, remote_comm_id, private }.into(), tid, 0);
    }
}
