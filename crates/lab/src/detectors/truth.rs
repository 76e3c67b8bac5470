//! The truth of each kind: what an expert with the simulator's log and the same packets would say.
//!
//! | kind | it is true of a half if |
//! | --- | --- |
//! | damming | its adapter lost a request during a replay, and a timeout or a sequence NAK brought it back |
//! | flood | READs of four QPs dropped responses 2 ms after their pages came and took others; false if none did twice |
//! | write-flood | for missing pages, dropped ACKs or responses, 96 packets and three times the new ones went again |
//! | responder-page-fault | an RNR NAK was sent because a page was missing |
//! | requester-page-fault | a response to a READ was dropped because a page was missing, or its event not served |
//! | retry-exhausted | its QP failed with a retry counter that was exceeded, and packets show the silence after it |
//! | peer-stopped | the server's QPs vanished while the client waited |
//! | timeout | an ACK timer ran out, not for damming, and the QP went on |
//! | loss | the network lost packets, and the requester went back for it |
//! | reordering | a request arrived after a later one |
//! | rnr-storm | a request got ten RNR NAKs, or 40 requests and three of ten did |
//! | rnr-timer-zero | an RNR NAK with code 0 was sent |
//! | slow-receiver | an RNR NAK was sent because no receive was posted |
//! | remote-error | a NAK refused a request |
//! | out-of-window | six packets or more arrived twice, and few went again for other reasons |
//! | bad-icrc | a packet arrived with a changed bit |
//! | congestion | a switch marked a packet |
//! | small-messages | 1100 messages or more of 230 bytes at most, twelve open, had nearly as many ACKs |
//!
//! Where a kind is a matter of degree, values near its bounds are [`Truth::Either`].

use super::facts::{Again, Facts, Why};
use super::log::{Failed, Half, Log, What};
use super::rig::SIDES;
use super::scenario::{Ending, Scenario};
use std::collections::{HashMap, HashSet};
use weir_analyze::FindingKind;

/// What is right to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    Yes,
    No,
    /// A borderline case.
    Either,
    /// It happened, and the captures have not all packets that show it.
    Hidden,
}

/// The packets that captures have.
#[derive(Debug, Default)]
pub struct View {
    /// By side: how often the capture of client or server has each packet.
    pub seen: [HashMap<u64, u32>; 2],
    /// Time of the last frame, ns.
    pub last: u64,
    /// Packets are cut, so that no ICRC can be checked.
    pub cut: bool,
}

impl View {
    pub fn has(&self, packet: u64) -> bool {
        self.seen.iter().any(|seen| seen.contains_key(&packet))
    }

    /// The capture of one side.
    pub fn of(&self, side: usize) -> View {
        let mut one = View { last: self.last, cut: self.cut, ..View::default() };
        one.seen[side] = self.seen[side].clone();
        one
    }

    fn all(&self, packets: &[u64]) -> bool {
        packets.iter().all(|packet| self.has(*packet))
    }

    /// Whether the capture of the host that it arrived at has it.
    pub fn arrives(&self, half: &Half, request: bool, packet: u64) -> bool {
        let host = if request { half.ends.responder.host } else { half.ends.requester.host };
        SIDES.iter().zip(&self.seen).any(|(side, seen)| *side == host && seen.contains_key(&packet))
    }
}

/// The truth about one kind in one half.
pub fn of_half(kind: FindingKind, half: &Half, facts: &Facts, view: &View) -> Truth {
    let judge = Judge { half, facts, view };
    match kind {
        FindingKind::Damming => judge.damming(),
        FindingKind::WriteFlood => judge.write_flood(),
        FindingKind::ResponderPageFault => judge.not_ready(|nak| nak.page),
        FindingKind::SlowReceiver => judge.not_ready(|nak| !nak.page),
        FindingKind::RequesterPageFault => judge.requester_page_fault(),
        FindingKind::RetryExhausted => judge.exhausted(),
        FindingKind::Timeout => judge.timeout(),
        FindingKind::Loss => judge.loss(),
        FindingKind::Reordering => judge.reordering(),
        FindingKind::RnrStorm => judge.storm(),
        FindingKind::RnrTimerZero => {
            let zero: Vec<u64> = facts.not_ready.iter().filter(|nak| nak.timer == 0).map(|nak| nak.nak).collect();
            judge.any(zero.iter().map(|nak| vec![*nak]))
        }
        FindingKind::RemoteError => judge.any(facts.refusals.iter().map(|nak| vec![*nak])),
        FindingKind::OutOfWindow => judge.out_of_window(),
        FindingKind::BadIcrc => match judge.arrivals(|packet| packet.lost == Some(weir_sim::Loss::Damage)) {
            Truth::Yes if view.cut => Truth::Hidden,
            truth => truth,
        },
        FindingKind::Congestion => judge.arrivals(|packet| packet.marked),
        FindingKind::SmallMessages => judge.small_messages(),
        FindingKind::Flood | FindingKind::PeerStopped => Truth::Either,
    }
}

/// The truth about flood at the client.
pub fn flood(log: &Log, facts: &[Facts], view: &View) -> Truth {
    let (mut stuck, mut shown, mut some) = (0, 0, false);
    let taken = first_taken(log);
    for (half, facts) in log.halves.iter().zip(facts).filter(|(half, _)| half.ends.requester.host == SIDES[0]) {
        let late: Vec<_> = facts.drops.iter().filter(|drop| drop.read && drop.late.is_some()).collect();
        let longest = late.iter().filter_map(|drop| drop.late).max().unwrap_or(0);
        if late.len() >= 2 && longest >= LONG {
            stuck += 1;
            let shows = |drop: &&&super::facts::Drop| {
                let page = drop.operation.map(|at| half.buffers[at].0 / 4096);
                let first = page.and_then(|page| taken.get(&page)).copied().unwrap_or(u64::MAX);
                drop.at > first.saturating_add(LONG) && view.all(&[drop.response, drop.repetition])
            };
            shown += usize::from(late.iter().filter(shows).count() >= 2);
        }
        some |= late.len() >= 2;
    }
    match (stuck, shown) {
        (0, _) if !some => Truth::No,
        (0..=3, _) => Truth::Either,
        (_, 0) => Truth::Hidden,
        (_, 1..=3) => Truth::Either,
        _ => Truth::Yes,
    }
}

/// When the first READ of the client into each page was completed. That its page has come can be seen from then on.
fn first_taken(log: &Log) -> HashMap<u64, u64> {
    let mut taken = HashMap::new();
    for half in log.halves.iter().filter(|half| half.ends.requester.host == SIDES[0]) {
        for (operation, at) in &half.completed {
            let first = taken.entry(half.buffers[*operation as usize].0 / 4096).or_insert(*at);
            *first = (*at).min(*first);
        }
    }
    taken
}

/// The truth about a server that stopped, as the client sees it.
pub fn peer_stopped(scenario: &Scenario, log: &Log, facts: &[Facts], view: &View) -> Truth {
    let (Ending::PeerStops(_), Some(stopped)) = (scenario.end, log.stopped) else {
        return if falls_silent(log, facts, view) { Truth::Hidden } else { Truth::No };
    };
    let mut answered = false;
    let mut waits = false;
    for (half, facts) in log.halves.iter().zip(facts).filter(|(half, _)| half.ends.requester.host == SIDES[0]) {
        if half.ends.responder.host != SIDES[1] {
            continue;
        }
        answered |= half.packets.iter().any(|packet| !packet.what.is_request() && view.has(packet.id));
        waits |= facts
            .go_backs
            .iter()
            .any(|back| back.why == Why::Timeout && back.at > stopped && view.all(&[back.before, back.repetition]));
    }
    if answered && waits { Truth::Yes } else { Truth::Either }
}

/// Whether the client waits for a host of which its capture has no packet any more, through two timeouts or more: a
/// network that loses all packets until the end cannot be told from a peer that stopped.
fn falls_silent(log: &Log, facts: &[Facts], view: &View) -> bool {
    let of_client = |half: &&Half| half.ends.requester.host == SIDES[0];
    let last_from = |host| {
        let sent = log.halves.iter().flat_map(|half| {
            let from = |p: &&super::log::PacketLog| {
                let sender = if p.what.is_request() { half.ends.requester } else { half.ends.responder };
                let receiver = if p.what.is_request() { half.ends.responder } else { half.ends.requester };
                sender.host == host && receiver.host == SIDES[0] && view.has(p.id)
            };
            half.packets.iter().filter(from).map(|p| p.sent)
        });
        sent.max()
    };
    let mut waiting = log.halves.iter().zip(facts).filter(|(half, _)| of_client(half));
    waiting.any(|(half, facts)| {
        if facts.go_backs.iter().filter(|back| back.why == Why::Timeout).count() < 2 {
            return false; // most: to look for the host's last packet takes long
        }
        let Some(last) = last_from(half.ends.responder.host) else { return false };
        let waits = |back: &&super::facts::GoBack| {
            back.why == Why::Timeout && back.at > last && view.all(&[back.before, back.repetition])
        };
        facts.go_backs.iter().filter(waits).count() >= 2
    })
}

/// So long after their page, dropped responses are a flood, ns.
const LONG: u64 = 2_000_000;

struct Judge<'a> {
    half: &'a Half,
    facts: &'a Facts,
    view: &'a View,
}

impl Judge<'_> {
    /// True if one of these can be seen: each is shown by several packets.
    fn any(&self, mut shown_by: impl Iterator<Item = Vec<u64>>) -> Truth {
        let mut hidden = false;
        let seen = shown_by.any(|packets| {
            let seen = self.view.all(&packets);
            hidden |= !seen;
            seen
        });
        match (seen, hidden) {
            (true, _) => Truth::Yes,
            (_, true) => Truth::Hidden,
            _ => Truth::No,
        }
    }

    fn damming(&self) -> Truth {
        let backs = self.facts.go_backs.iter().filter(|back| back.why != Why::ResponseMissing);
        let truth = self.any(backs.filter_map(|back| {
            let [lost, read] = back.dammed?;
            Some(vec![lost, read, back.repetition])
        }));
        // Another repetition may hide that the adapter lost a request, and packets that came twice begin replays, too.
        // Adapters without the flaw drop what is behind a repeated READ that waits for its page: the packets are the same.
        let same = self.facts.dammed > 0 || self.facts.go_backs.iter().any(|back| back.behind_read);
        if truth != Truth::Yes && same { Truth::Either } else { truth }
    }

    fn not_ready(&self, counts: impl Fn(&super::facts::NotReady) -> bool) -> Truth {
        let naks = self.facts.not_ready.iter().filter(|nak| counts(nak));
        self.any(naks.map(|nak| [Some(nak.nak), nak.request].into_iter().flatten().collect()))
    }

    fn requester_page_fault(&self) -> Truth {
        let reads = self.facts.drops.iter().filter(|drop| drop.read);
        let truth = self.any(reads.map(|drop| vec![drop.response, drop.repetition]));
        if truth == Truth::No && !self.facts.drops.is_empty() { Truth::Either } else { truth }
    }

    fn ended(&self) -> bool {
        let gone = |p: &super::log::PacketLog| p.lost == Some(weir_sim::Loss::NoDestination);
        matches!(self.half.failed, Some((Failed::Retries, _)))
            || self.half.packets.iter().any(gone)
            || self.is_silent_at_the_end()
    }

    /// Two timeouts or more until the end of the capture, and no response since: to the packets, the peer is gone.
    fn is_silent_at_the_end(&self) -> bool {
        let last = self.last_response();
        let waits = |back: &&super::facts::GoBack| {
            back.why == Why::Timeout && back.at > last && self.view.all(&[back.before, back.repetition])
        };
        self.facts.go_backs.iter().filter(waits).count() >= 2
    }

    /// When the last response that the captures have was sent, ns.
    fn last_response(&self) -> u64 {
        let responses = self.half.packets.iter().filter(|p| !p.what.is_request() && self.view.has(p.id));
        responses.map(|p| p.sent).max().unwrap_or(0)
    }

    fn timeout(&self) -> Truth {
        let timeouts = || self.facts.go_backs.iter().filter(|back| back.why == Why::Timeout);
        if self.ended() && timeouts().next().is_some() {
            return Truth::Either; // it is part of what ended the connection
        }
        // Damming, or a loss at the same moment: the packets do not tell.
        let both = |back: &super::facts::GoBack| back.dammed.is_some() && back.lost || back.doubled || back.behind_read;
        let own = timeouts().filter(|back| back.dammed.is_none() && !both(back));
        match self.any(own.map(|back| vec![back.before, back.repetition])) {
            Truth::No if timeouts().any(both) => Truth::Either,
            truth => truth,
        }
    }

    fn loss(&self) -> Truth {
        let backs = self.facts.go_backs.iter().filter(|back| back.lost);
        let truth = self.any(backs.map(|back| match back.nak {
            Some(nak) => vec![nak],
            None => vec![back.before, back.repetition],
        }));
        if truth != Truth::No {
            return if self.lost_at_the_end() { Truth::Either } else { truth };
        }
        let late = !self.facts.late_requests.is_empty() || !self.facts.late_responses.is_empty();
        let went_back = self.facts.go_backs.iter().any(|back| back.why != Why::Timeout && back.dammed.is_none());
        // A responder that drops a request behind a READ that waits for its page asks for it as for a lost one. One that
        // goes on with a READ in the middle, although it was repeated, leaves out a response that looks lost.
        let dropped = |back: &super::facts::GoBack| back.doubled || back.behind_read || back.left_out;
        match self.facts.lost > 0 || self.facts.go_backs.iter().any(dropped) {
            true => Truth::Either,
            // A packet that comes late looks lost where it was sent.
            false if late && went_back && !self.reordering_is_seen() => Truth::Hidden,
            false if self.ended() => Truth::Either,
            // Packets that nothing explains: the peer is away, or slower than the timer.
            false => match self.timeout() {
                Truth::No => Truth::No,
                _ => Truth::Either,
            },
        }
    }

    /// Whether all losses are of packets to a peer that is silent from then on: it may have stopped.
    fn lost_at_the_end(&self) -> bool {
        let last = self.last_response();
        self.is_silent_at_the_end() && self.facts.go_backs.iter().all(|back| !back.lost || back.at > last)
    }

    fn reordering_is_seen(&self) -> bool {
        // A response that comes late cannot be told from its repetition.
        self.facts.late_responses.is_empty()
            && self.facts.late_requests.iter().all(|packet| self.view.arrives(self.half, true, *packet))
    }

    fn reordering(&self) -> Truth {
        let is_first = |packet: &u64| self.view.arrives(self.half, true, *packet) && !self.came_again_before(*packet);
        if self.facts.late_requests.iter().any(is_first) {
            return Truth::Yes;
        }
        let some = !self.facts.late_requests.is_empty() || !self.facts.late_responses.is_empty();
        if some { Truth::Hidden } else { Truth::No }
    }

    /// Whether a repetition of a packet came before the packet: the packets look as if it had come twice.
    fn came_again_before(&self, packet: u64) -> bool {
        let packets = &self.half.packets;
        let Some(late) = packets.iter().find(|late| late.id == packet) else { return false };
        let same = |p: &&super::log::PacketLog| p.repeated && p.psn == late.psn && p.what == late.what;
        let before = |again: &super::log::PacketLog| again.arrived.is_some() && again.arrived < late.arrived;
        packets.iter().filter(same).any(|again| before(again) && self.view.arrives(self.half, true, again.id))
    }

    fn exhausted(&self) -> Truth {
        let Some((why, _)) = self.half.failed else { return Truth::No };
        let silence = |since: u64| self.view.last.saturating_sub(since);
        let seen = |p: &&super::log::PacketLog| self.view.has(p.id);
        match why {
            Failed::Refused => Truth::No,
            Failed::RnrRetries => {
                let nak = self.half.packets.iter().rev().filter(seen).find(|p| matches!(p.what, What::RnrNak(_)));
                let Some(nak) = nak else { return Truth::Hidden };
                let What::RnrNak(code) = nak.what else { return Truth::Hidden };
                let delay = weir_wire::RnrTimer::new(code).delay().as_nanos() as u64;
                if silence(nak.sent) > 25 * delay.max(1_000_000) { Truth::Yes } else { Truth::Hidden }
            }
            Failed::Retries => {
                let Some(last) = self.facts.go_backs.iter().rev().find(|back| back.why == Why::Timeout) else {
                    return Truth::Hidden;
                };
                let sent: Vec<u64> = self
                    .half
                    .packets
                    .iter()
                    .filter(seen)
                    .filter(|p| p.what.is_request() && p.psn == last.psn)
                    .map(|p| p.sent)
                    .collect();
                let [first, .., end] = sent[..] else { return Truth::Hidden };
                let interval = (end - first) / (sent.len() as u64 - 1);
                let is_shown = sent.len() >= 4 && silence(end) > 2 * interval + interval / 5;
                if is_shown { Truth::Yes } else { Truth::Hidden }
            }
        }
    }

    /// Requests that were seen, without repetitions.
    fn new_requests(&self) -> u64 {
        let new = |p: &&super::log::PacketLog| p.what.is_request() && !p.repeated && self.view.has(p.id);
        self.half.packets.iter().filter(new).count() as u64
    }

    fn write_flood(&self) -> Truth {
        let count = |again: Again| {
            let all = self.facts.data_again.iter().filter(|(id, why)| *why == again && self.view.has(*id));
            all.count() as u64
        };
        let (page, deaf) = (count(Again::Page), count(Again::Deaf));
        let (all, new) = (page + deaf, self.new_requests().max(1));
        let pages: HashSet<u32> = self.facts.not_ready.iter().filter(|nak| nak.page).map(|nak| nak.psn).collect();
        if all < 48 || (all as f64) < 1.5 * new as f64 || (pages.len() < 2 && deaf < 48) {
            Truth::No
        } else if all >= 96 && all >= 3 * new && (pages.len() >= 5 && page >= 96 || deaf >= 96) {
            Truth::Yes
        } else {
            Truth::Either
        }
    }

    fn storm(&self) -> Truth {
        let mut by_psn: HashMap<u32, u64> = HashMap::new();
        for nak in self.facts.not_ready.iter().filter(|nak| self.view.has(nak.nak)) {
            *by_psn.entry(nak.psn).or_default() += 1;
        }
        let (all, most) = (by_psn.values().sum::<u64>(), by_psn.values().max().copied().unwrap_or(0));
        let share = all as f64 / self.new_requests().max(1) as f64;
        if most >= 10 || all >= 40 && share > 0.3 {
            Truth::Yes
        } else if most <= 6 && (all < 26 || share < 0.13) {
            Truth::No
        } else {
            Truth::Either
        }
    }

    fn out_of_window(&self) -> Truth {
        if self.half.packets.iter().all(|packet| packet.twice.is_none()) {
            return Truth::No;
        }
        // Requests that arrive twice; or responses that do, or are sent again for a request that arrived twice.
        let counts = |p: &&super::log::PacketLog| {
            let request = p.what.is_request();
            let is = match p.what {
                What::Ask | What::Data => p.twice.is_some(),
                What::Response => p.twice.is_some() || p.repeated,
                _ => false,
            };
            is && self.view.arrives(self.half, request, p.id)
        };
        let twice = self.half.packets.iter().filter(counts).count() + self.old_acks();
        let again = |p: &&super::log::PacketLog| p.what.is_request() && p.repeated && self.view.has(p.id);
        let again = self.half.packets.iter().filter(again).count();
        match twice {
            6.. if twice > 3 * again => Truth::Yes,
            0..=2 => Truth::No,
            _ if twice < again => Truth::No,
            _ => Truth::Either,
        }
    }

    /// ACKs that came once more after a later one. The last ACK may come again: adapters repeat it.
    fn old_acks(&self) -> usize {
        let acks =
            self.half.packets.iter().filter(|p| p.what == What::Ack && self.view.arrives(self.half, false, p.id));
        let mut arrivals: Vec<(u64, u32)> = acks
            .flat_map(|p| [p.arrived, p.twice].into_iter().flatten().map(|at| (at, self.half.offset(p.psn))))
            .collect();
        arrivals.sort_unstable();
        let (mut seen, mut last) = (HashSet::new(), 0);
        let mut is_old = |(_, psn): &(u64, u32)| {
            last = last.max(*psn);
            !seen.insert(*psn) && *psn < last
        };
        arrivals.iter().filter(|arrival| is_old(arrival)).count()
    }

    fn arrivals(&self, is: impl Fn(&super::log::PacketLog) -> bool) -> Truth {
        let mut hidden = false;
        for packet in self.half.packets.iter().filter(|packet| is(packet)) {
            if self.view.arrives(self.half, packet.what.is_request(), packet.id) {
                return Truth::Yes;
            }
            hidden = true;
        }
        if hidden { Truth::Hidden } else { Truth::No }
    }

    fn small_messages(&self) -> Truth {
        let (mut messages, mut bytes, mut acks) = (0u64, 0u64, 0u64);
        for packet in self.half.packets.iter().filter(|packet| self.view.has(packet.id)) {
            if packet.what.is_request() && !packet.repeated {
                messages += u64::from(packet.ends);
                bytes += u64::from(packet.payload);
            }
            acks += u64::from(packet.what == What::Ack);
        }
        let mean = bytes / messages.max(1);
        let share = acks as f64 / messages.max(1) as f64;
        if messages >= 1100 && mean <= 230 && self.half.depth >= 12 && share > 0.93 {
            // Only the requester's side shows how many are open.
            let own = |p: &super::log::PacketLog| p.what.is_request() && self.view.arrives(self.half, false, p.id);
            if self.half.packets.iter().any(own) { Truth::Yes } else { Truth::Hidden }
        } else if messages < 900 || mean > 290 || self.half.depth < 6 || share < 0.86 {
            Truth::No
        } else {
            Truth::Either
        }
    }
}
