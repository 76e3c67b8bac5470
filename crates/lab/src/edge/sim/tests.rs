use super::*;
use crate::edge::setting::{Flush, Links, Platform, Sending};

fn gbits(setting: &Setting, costs: Costs) -> f64 {
    with(setting, costs).unwrap().gbits
}

#[test]
fn a_host_without_costs_gives_the_rate_of_the_links() {
    // 8956 of 9038 bytes on the wire are payload.
    let share = 8956.0 / 9038.0;
    for (links, test, nominal) in [
        (Links::of(1, 1.0), Test::OneWay, 1.0),
        (Links::of(8, 1.0), Test::OneWay, 8.0),
        (Links::of(1, 10.0), Test::TwoWay, 20.0),
        (Links::rated(vec![10.0, 1.0]), Test::OneWay, 11.0),
    ] {
        let found = gbits(&Setting::base(links, test, 8956 * 20), Costs::NONE);
        assert!((found / (nominal * share) - 1.0).abs() < 0.01, "{found} of {nominal}");
    }
}

#[test]
fn twice_the_cost_of_copies_halves_a_rate_that_they_bound() {
    let setting = Setting::base(Links::of(2, 10.0), Test::OneWay, 1 << 20);
    let copying = |each: f64| gbits(&setting, Costs { copy_out: each, ..Costs::NONE });
    assert!((copying(1.0) - 8.0).abs() < 0.1, "{}", copying(1.0));
    assert!((copying(1.0) / copying(2.0) - 2.0).abs() < 0.02);
}

#[test]
fn the_simulation_repeats_itself() {
    let setting = Setting::base(Links::of(4, 1.0), Test::TwoWay, 65_536);
    assert_eq!(found(&setting).unwrap().gbits, found(&setting).unwrap().gbits);
}

#[test]
fn a_ping_pong_takes_what_its_parts_take() {
    let setting = Setting::base(Links::of(1, 1.0), Test::PingPong, 4);
    let costs = Costs { wire: 5000.0, ..Costs::NONE };
    // 90 bytes take 0.72 µs.
    let latency = with(&setting, costs).unwrap().latency;
    assert!((latency - 5.72).abs() < 0.01, "{latency}");
    let slower = with(&setting, Costs { interrupt: 1000.0, ..costs }).unwrap().latency;
    assert!((slower - latency - 1.0).abs() < 0.01, "{slower}");
}

#[test]
fn a_cpu_is_not_used_for_more_than_its_time() {
    for test in Test::ALL {
        let base = Setting::base(Links::of(8, 1.0), test, 131_072);
        for (setting, most) in [(base.clone(), 1.0), (base.polling(), 2.0)] {
            let cpu = found(&setting).unwrap().cpu;
            assert!(cpu.iter().all(|side| side.total() <= most + 0.01), "{test:?} {cpu:?}");
        }
    }
    let skipped = Setting::base(Links::of(1, 1.0), Test::OneWay, 131_072).moving(Sending::Skipped, Receiving::Skipped);
    assert_eq!(Setting { platform: Platform::ZeroCopy, ..skipped.clone() }.links, skipped.links);
    assert_eq!(found(&skipped).unwrap().cpu.map(|side| side.send + side.receive), [0.0, 0.0]);
}

#[test]
fn whole_pages_are_remapped_and_others_copied() {
    let setting = Setting::zero_copy(Test::OneWay, 65_536).moving(Sending::Gathered, Receiving::Remapped(Flush::Full));
    let aligned = found(&setting).unwrap().cpu[1];
    assert!(aligned.receive == 0.0 && aligned.remap > 0.3, "{aligned:?}");
    // A page's worth of each operation is before the first whole page of the destination, and behind the last.
    let Found { gbits, cpu: [_, odd], .. } = found(&Setting { offset: 1, ..setting }).unwrap();
    let copied = gbits / 8.0 * Costs::of(Platform::ZeroCopy).copy_in / 16.0;
    assert!((odd.receive / copied - 1.0).abs() < 0.05 && odd.remap > 0.3, "{odd:?}, {copied}");
}

#[test]
fn interrupts_are_few_where_the_thread_always_has_work() {
    let base = Setting::base(Links::of(8, 1.0), Test::TwoWay, 131_072);
    let notice = |setting: &Setting| found(setting).unwrap().cpu[0].notice;
    assert!(notice(&base) < 0.05, "{}", notice(&base));
    // A program that only sends gets them.
    assert!(notice(&Setting { test: Test::OneWay, ..base.clone() }) > 0.3);
    // With polling, the thread takes what is left of its own CPU.
    let polled = found(&Setting { test: Test::OneWay, ..base }.polling()).unwrap().cpu[0];
    assert!(polled.notice > 0.9 && (polled.total() - 2.0).abs() < 0.05, "{polled:?}");
}
