//! Flow steering: which raw QPs get an Ethernet frame.

mod counters;
mod filter;
mod headers;
mod pattern;
pub mod spread;

use crate::Errno;
pub use counters::{Counter, Counters};
pub use filter::program;
pub use headers::Headers;
pub use pattern::{Field, Layer, Pattern};
use spread::Spread;
use std::sync::Arc;
use weir_link::Membership;

/// The frames that a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Those that its pattern matches.
    Normal,
    /// Those that no rule of the first kind matches.
    AllDefault,
    /// Those to multicast addresses that no rule of the first kind matches.
    MulticastDefault,
}

/// A steering rule, as the verbs create it.
#[derive(Clone)]
pub struct Rule {
    pub kind: Kind,
    /// Rules of lower priorities (numerically) are tried first.
    pub priority: u16,
    pub pattern: Pattern,
    /// Matching frames are dropped.
    pub drops: bool,
    /// Count matching frames.
    pub counters: Vec<Arc<Counters>>,
}

/// Where matching frames go.
#[derive(Clone)]
pub(crate) enum Destination {
    /// A raw QP, by number.
    Qp(u32),
    /// Receive work queues, by a hash.
    Spread(Arc<Spread>),
}

/// The rules of an adapter.
#[derive(Default)]
pub(crate) struct Rules(Vec<Entry>);

/// A rule with its identifier and destination.
pub(crate) struct Entry {
    pub id: u64,
    /// The QP that it was created for.
    pub qp: u32,
    pub rule: Rule,
    pub to: Destination,
}

/// Rules of an adapter at most: each is tried for each frame.
pub(crate) const MOST: usize = 1024;

impl Rules {
    /// Adds a rule. ENOMEM beyond the limit.
    pub fn add(&mut self, entry: Entry) -> Result<(), Errno> {
        if self.0.len() == MOST {
            return Err(Errno(libc::ENOMEM));
        }
        let order = |entry: &Entry| (entry.rule.kind != Kind::Normal, entry.rule.priority, entry.rule.kind as u8);
        let at = self.0.partition_point(|other| order(other) <= order(&entry));
        self.0.insert(at, entry);
        Ok(())
    }

    /// Removes a rule.
    pub fn remove(&mut self, id: u64) -> Option<Entry> {
        let at = self.0.iter().position(|entry| entry.id == id)?;
        Some(self.0.remove(at))
    }

    /// A rule that was created for a QP.
    pub fn of_qp(&self, qp: u32) -> Option<u64> {
        self.0.iter().find(|entry| entry.qp == qp).map(|entry| entry.id)
    }

    /// All rules, in the order in which they are tried.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter().map(|entry| &entry.rule)
    }

    /// The rules that get a frame: the first that matches, and equal ones, so that several QPs can have the same frames.
    pub fn matching<'a>(&'a self, frame: &'a [u8], headers: &'a Headers) -> impl Iterator<Item = &'a Entry> {
        let at = self.0.iter().position(|entry| entry.rule.matches(frame, headers)).unwrap_or(self.0.len());
        let (found, rest) = self.0[at..].split_first().unzip();
        let equal = move |entry: &&Entry| found.is_some_and(|found: &Entry| found.rule.equals(&entry.rule));
        found.into_iter().chain(rest.unwrap_or_default().iter().filter(equal))
    }
}

impl Rule {
    fn matches(&self, frame: &[u8], headers: &Headers) -> bool {
        let multicast = frame.first().is_some_and(|byte| byte & 1 != 0);
        match self.kind {
            Kind::AllDefault => true,
            Kind::MulticastDefault => multicast,
            Kind::Normal => self.pattern.matches(frame, headers),
        }
    }

    fn equals(&self, other: &Rule) -> bool {
        self.kind == other.kind && self.priority == other.priority && self.pattern == other.pattern
    }

    /// The frames that the interface must receive for this rule, beyond those to its own addresses.
    pub(crate) fn membership(&self) -> Option<Membership> {
        match self.kind {
            Kind::AllDefault => Some(Membership::Promiscuous),
            Kind::MulticastDefault => Some(Membership::AllMulticast),
            Kind::Normal => self.pattern.exact_destination().map(Membership::Address),
        }
    }

    /// Counts a frame that it matches.
    pub(crate) fn count(&self, bytes: usize) {
        self.counters.iter().for_each(|counters| counters.count(bytes));
    }
}

#[cfg(test)]
mod tests;
