//! What other processes see of the interfaces of a device that joins several: an entry of the sheet for each, renewed
//! some times a second.

use crate::os::clock;
use crate::stat::sheet;
use weir_link::{Carrier, LinkReport};

/// The entries are renewed at most so often (nanoseconds).
const PERIOD: u64 = 100_000_000;
/// Where there are thousands of peers, the work takes at most this part of the time.
const PART: u64 = 100;

/// The interfaces of a device, by number.
pub struct LinkRows {
    rows: Vec<Row>,
    /// They are not renewed before.
    due: u64,
    /// Something may have changed since they were renewed.
    is_behind: bool,
}

struct Row {
    shown: Option<&'static sheet::Link>,
    /// Bytes of this carrier that the entry has. An earlier carrier of the device may have put others there.
    counted: u64,
    sum: Sum,
}

/// What a carrier says of the links of an interface.
#[derive(Clone, Copy, Default)]
struct Sum {
    peers: u64,
    peers_up: u64,
    bytes: u64,
    rate: f64,
    loss: f64,
    /// Nanoseconds, and how many round trips they are.
    round_trips: (u64, u64),
}

impl LinkRows {
    /// With the entries of the interfaces; `None` if there is none.
    pub fn new(shown: Vec<Option<&'static sheet::Link>>) -> Option<LinkRows> {
        if shown.iter().all(Option::is_none) {
            return None;
        }
        let rows = shown.into_iter().map(|shown| Row { shown, counted: 0, sum: Sum::default() });
        Some(LinkRows { rows: rows.collect(), due: 0, is_behind: false })
    }

    /// A turn has done something: renews the entries now, or soon.
    pub fn turn(&mut self, carrier: &dyn Carrier, now: u64) {
        self.is_behind = true;
        if now < self.due {
            return;
        }
        let began = clock::now().0;
        self.is_behind = self.renew(carrier);
        let took = clock::now().0 - began;
        self.due = now + PERIOD.max(took * PART);
    }

    /// When a turn is to renew the entries.
    pub fn next(&self) -> Option<u64> {
        self.is_behind.then_some(self.due)
    }

    /// The carrier ends: its last bytes, and no peers.
    pub fn end(&mut self, carrier: &dyn Carrier) {
        self.renew(carrier);
        for Row { shown, sum, counted } in &mut self.rows {
            *sum = Sum { bytes: sum.bytes, ..Sum::default() };
            if let Some(shown) = shown {
                sum.show(shown, counted);
            }
        }
    }

    /// Returns whether something has changed.
    fn renew(&mut self, carrier: &dyn Carrier) -> bool {
        for (interface, row) in (0..).zip(&mut self.rows) {
            row.sum = Sum { bytes: carrier.bytes_of_ended_links(interface), ..Sum::default() };
        }
        carrier.links(&mut |link| {
            if let Some(row) = self.rows.get_mut(usize::from(link.interface)) {
                row.sum.add(&link);
            }
        });
        let mut has_changed = false;
        for Row { shown, sum, counted } in &mut self.rows {
            if let Some(shown) = shown {
                has_changed |= sum.show(shown, counted);
            }
        }
        has_changed
    }
}

impl Sum {
    fn add(&mut self, link: &LinkReport) {
        self.peers += 1;
        self.bytes += link.bytes;
        self.loss = self.loss.max(link.loss);
        if link.is_up {
            self.peers_up += 1;
            self.rate = self.rate.max(link.rate);
            if let Some(round_trip) = link.round_trip {
                self.round_trips.0 += round_trip.as_nanos() as u64;
                self.round_trips.1 += 1;
            }
        }
    }

    /// Returns whether the entry has changed.
    fn show(&self, shown: &sheet::Link, counted: &mut u64) -> bool {
        let more = self.bytes.saturating_sub(*counted);
        *counted += more;
        shown.bytes_sent.bump(more);
        let (total, round_trips) = self.round_trips;
        let changed = [
            shown.peers.renew(self.peers),
            shown.peers_up.renew(self.peers_up),
            shown.rate.renew(self.rate as u64),
            shown.loss.renew((self.loss * 1e6) as u64),
            shown.round_trip.renew(total.checked_div(round_trips).unwrap_or(0)),
        ];
        more > 0 || changed.contains(&true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::Adapter;
    use crate::config::Icrc;
    use crate::engine::Engine;
    use crate::engine::testing::{Rig, connected, exchange};
    use crate::os::interfaces::DeviceInfo;
    use crate::slot::Slot;
    use crate::stat::publish::{self, private_links};
    use crate::stat::read;
    use std::time::Duration;
    use weir_links::{Interface, Interfaces};
    use weir_transport::{Data, SendOp, Service};

    fn link(interface: u8, is_up: bool, bytes: u64, rate: f64) -> LinkReport {
        let round_trip = Some(Duration::from_nanos(rate as u64 + 3));
        LinkReport { interface, is_up, bytes, rate, loss: 0.5 / rate, round_trip }
    }

    /// Peers, those to which the interface is used, bytes, rate, loss, round trip.
    fn shown(link: &sheet::Link) -> [u64; 6] {
        [&link.peers, &link.peers_up, &link.bytes_sent, &link.rate, &link.loss, &link.round_trip].map(sheet::Word::get)
    }

    /// What is in the entries once a turn may renew them.
    fn renewed(rig: &mut Rig, entries: &[Option<&'static sheet::Link>]) -> Vec<[u64; 6]> {
        rig.engine.link_rows.as_mut().unwrap().due = 0;
        rig.turn();
        entries.iter().map(|entry| shown(entry.unwrap())).collect()
    }

    #[test]
    fn an_interface_has_the_sum_over_its_peers_and_bytes_of_ended_connections_stay() {
        let mut rig = Rig::new(7, Icrc::Auto);
        let entries = private_links(2);
        rig.engine.link_rows = LinkRows::new(entries.clone());
        rig.wire().links =
            vec![link(0, true, 10, 100.0), link(1, false, 4, 9.0), link(0, false, 5, 500.0), link(0, true, 1, 200.0)];
        // The number of no interface: the links between addresses that none has.
        rig.wire().links.push(link(u8::MAX, true, 7, 1.0));
        assert_eq!(renewed(&mut rig, &entries), [[3, 2, 16, 200, 5000, 153], [1, 0, 4, 0, 55_555, 0]]);
        // The first connection ends, and another goes on.
        rig.wire().links = vec![link(0, true, 3, 200.0), link(1, true, 5, 10.0)];
        rig.wire().ended_bytes = [15, 0];
        assert_eq!(renewed(&mut rig, &entries), [[1, 1, 18, 200, 2500, 203], [1, 1, 5, 10, 50_000, 13]]);
        // The device is closed and opened again.
        drop(rig);
        assert_eq!(
            entries.iter().map(|entry| shown(entry.unwrap())).collect::<Vec<_>>(),
            [[0, 0, 18, 0, 0, 0], [0, 0, 5, 0, 0, 0]]
        );
        let mut rig = Rig::new(7, Icrc::Auto);
        rig.engine.link_rows = LinkRows::new(entries.clone());
        rig.wire().links = vec![link(0, true, 2, 50.0)];
        assert_eq!(renewed(&mut rig, &entries), [[1, 1, 20, 50, 10_000, 53], [0, 0, 5, 0, 0, 0]]);
    }

    #[test]
    fn entries_are_renewed_some_times_a_second_until_nothing_changes() {
        let (mut a, mut b) = (Rig::new(8, Icrc::Auto), Rig::new(9, Icrc::Auto));
        let qps = connected(&mut a, &mut b, Service::Rc);
        let entries = private_links(1);
        a.engine.link_rows = LinkRows::new(entries.clone());
        a.wire().links = vec![link(0, true, 1, 1.0)];
        let bytes = || entries[0].unwrap().bytes_sent.get();
        let due = |rig: &Rig| rig.engine.link_rows.as_ref().unwrap().due;
        a.turn();
        let first = due(&a);
        assert!(bytes() == 1 && first >= clock::now().0 + PERIOD / 2);
        a.wire().links[0].bytes = 2;
        b.post_recv(&qps[1], 1, &[]);
        a.post_send(&qps[0], 1, SendOp::Send, Data::Inline(&[]));
        exchange(&mut a, &mut b);
        assert!(bytes() == 1 && due(&a) == first, "not yet");
        assert!(a.engine.next_due <= first, "a turn comes without a packet");
        assert_eq!(renewed(&mut a, &entries)[0][2], 2);
        assert!(a.engine.link_rows.as_ref().unwrap().next().is_some(), "it has changed");
        renewed(&mut a, &entries);
        assert_eq!(a.engine.link_rows.as_ref().unwrap().next(), None, "nothing has changed");
    }

    #[test]
    fn other_processes_see_the_interfaces_of_a_joined_device_only() {
        let adapter = Adapter::open("weir_lo", None).unwrap();
        let shown = |name: &str| {
            let found = read::process(&publish::own_folder().unwrap()).unwrap();
            let device = found.devices.into_iter().find(|device| device.name == name).unwrap();
            device.links.into_iter().map(|link| link.interface).collect::<Vec<_>>()
        };
        let interface = |name: &str, n: u8| Interface {
            name: name.into(),
            index: n.into(),
            mac: None,
            is_up: true,
            mtu: 65536,
            speed: 0,
            addresses: vec![([127, 0, 0, n].into(), 8)],
        };
        let links = Interfaces { all: vec![interface("eth1", 1), interface("eth2", 2)], lists_all: false };
        let joined = DeviceInfo { name: "weir_links0".into(), links, ..adapter.device.clone() };
        let entry = publish::device(&joined.name, 1).unwrap();
        let (slot, ports) = Slot::claim(weir_link::DisabledFeatures::empty()).unwrap();
        let engine = Engine::new(&joined, &adapter.config, &adapter.profile, slot, ports, entry, false).unwrap();
        assert!(engine.link_rows.is_some());
        assert_eq!((shown("weir_links0"), shown("weir_lo")), (vec!["eth1".to_owned(), "eth2".into()], vec![]));
    }

    #[test]
    fn a_device_that_no_other_process_sees_renews_nothing() {
        assert!(LinkRows::new(vec![]).is_none() && LinkRows::new(vec![None, None]).is_none());
    }
}
