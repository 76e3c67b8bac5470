//! Processes as text tables.

use super::figures::{bytes, microseconds, span, three_digits};
use super::published;
use super::shown::{Device, Link, LinkState, Memory, Paging, Process, Region, Traffic};
use std::fmt::Write;
use std::time::Duration;

/// A list of processes, or with `one` the details of the first. `before`: the last table's processes and the time
/// since, for rates.
pub fn text(processes: &[Process], one: bool, before: Option<(Duration, &[Process])>) -> String {
    match (one, processes) {
        (true, [process, ..]) => {
            let before = before.and_then(|(time, all)| Some((time, all.iter().find(|p| p.pid == process.pid)?)));
            of_one(process, before)
        }
        (_, []) => "no process of this user has a Weir device open\n".to_owned(),
        _ => list(processes),
    }
}

fn list(processes: &[Process]) -> String {
    let mut rows =
        vec![row(["PID", "program", "user", "since", "devices", "QPs", "sent", "received", "pinned", "page faults"])];
    for process in processes {
        let sum = |of: fn(&Traffic) -> u64| process.devices.iter().map(|device| of(&device.traffic)).sum::<u64>();
        let names: Vec<&str> = process.devices.iter().map(|device| device.name.as_str()).collect();
        rows.push(vec![
            process.pid.to_string(),
            process.program.clone(),
            process.user.clone(),
            span(process.seconds),
            names.join(" "),
            sum(|t| t.qps).to_string(),
            bytes(sum(|t| t.bytes_sent) as f64),
            bytes(sum(|t| t.bytes_received) as f64),
            bytes(process.memory.pinned_bytes as f64),
            process.paging.get("page_faults").to_string(),
        ]);
    }
    render(&rows, &[1, 2, 4])
}

fn of_one(process: &Process, before: Option<(Duration, &Process)>) -> String {
    let mut text = format!(
        "{} (process {}) of {}, for {}\n{}\n\n",
        process.program,
        process.pid,
        process.user,
        span(process.seconds),
        process.folder.display()
    );
    text += &devices(process, before);
    text += &memory(&process.memory);
    process.published.iter().for_each(|group| text += &published::text(group));
    let paging = &process.paging;
    if process.regions.is_empty() && paging.get("page_faults") + paging.get("page_prefetch") == 0 {
        text += "\nno on-demand regions\n";
        return text;
    }
    let _ = writeln!(text, "\n{}", events(paging));
    text += &regions(&process.regions);
    let hidden = process.region_count.saturating_sub(process.regions.len() as u64);
    if hidden > 0 {
        let _ = writeln!(text, "and {hidden} more regions");
    }
    text
}

/// Pinned memory and registrations, if there were any.
fn memory(memory: &Memory) -> String {
    if memory.registrations == 0 {
        return String::new();
    }
    format!(
        "\nmemory: {} pinned (at most {}), {} registrations, {} of them on-demand\n",
        bytes(memory.pinned_bytes as f64),
        bytes(memory.pinned_peak as f64),
        memory.registrations,
        memory.registrations_on_demand
    )
}

fn devices(process: &Process, before: Option<(Duration, &Process)>) -> String {
    let mut rows = vec![row(["device", "QPs", "packets sent", "received", "bytes sent", "received", "", ""])];
    let mut interfaces = String::new();
    for device in &process.devices {
        let now = &device.traffic;
        let before =
            before.and_then(|(time, then)| Some((time, then.devices.iter().find(|other| other.name == device.name)?)));
        interfaces += &links(device, before);
        let rate = |of: fn(&Traffic) -> u64| {
            let (time, then) = before?;
            Some(grown(of(now), of(&then.traffic), time))
        };
        rows.push(vec![
            if device.open { device.name.clone() } else { format!("{} (closed)", device.name) },
            now.qps.to_string(),
            now.packets_sent.to_string(),
            now.packets_received.to_string(),
            bytes(now.bytes_sent as f64),
            bytes(now.bytes_received as f64),
            rate(|t| t.bytes_sent).map_or_else(String::new, |rate| format!("out {rate}")),
            rate(|t| t.bytes_received).map_or_else(String::new, |rate| format!("in {rate}")),
        ]);
    }
    render(&rows, &[0]) + &retransmissions(process) + &interfaces
}

/// The interfaces of a device that joins several; empty for another device.
fn links(device: &Device, before: Option<(Duration, &Device)>) -> String {
    if device.links.is_empty() {
        return String::new();
    }
    let name = format!("interface of {}", device.name);
    let mut rows =
        vec![row([name.as_str(), "state", "peers", "bytes sent", "share", "rate", "loss", "round trip", ""])];
    for link in &device.links {
        let then = before.and_then(|(time, then)| {
            Some((time, then.links.iter().find(|other| other.interface == link.interface)?.bytes_sent))
        });
        rows.push(vec![
            link.interface.clone(),
            state(link).to_owned(),
            if link.peers_up == link.peers {
                link.peers.to_string()
            } else {
                format!("{} of {}", link.peers_up, link.peers)
            },
            bytes(link.bytes_sent as f64),
            percent(link.share),
            if link.peers_up == 0 { String::new() } else { format!("{}/s", bytes(link.bytes_per_second as f64)) },
            if link.peers == 0 { String::new() } else { percent(link.loss) },
            link.round_trip_us.map_or_else(String::new, microseconds),
            then.map_or_else(String::new, |(time, then)| format!("out {}", grown(link.bytes_sent, then, time))),
        ]);
    }
    format!("\n{}", render(&rows, &[0, 1]))
}

fn state(link: &Link) -> &'static str {
    match link.state {
        LinkState::Up => "up",
        LinkState::Partly => "partly",
        LinkState::Down => "down",
        LinkState::Unused => "unused",
    }
}

/// How many bytes a second a counter has grown since.
fn grown(now: u64, then: u64, time: Duration) -> String {
    format!("{}/s", bytes(now.saturating_sub(then) as f64 / time.as_secs_f64().max(1e-3)))
}

fn percent(part: f64) -> String {
    let percent = part * 100.0;
    format!("{} %", three_digits(percent, percent.fract() != 0.0))
}

/// Retransmissions by cause, and what was lost or dropped; empty if there is nothing.
fn retransmissions(process: &Process) -> String {
    let mut text = String::new();
    for device in &process.devices {
        let traffic = &device.traffic;
        let kinds = [
            ("timeouts", traffic.ack_timeouts),
            ("sequence NAKs", traffic.sequence_naks),
            ("responses missing", traffic.implied_naks),
            ("RNR NAKs", traffic.rnr_naks),
        ];
        let seen: Vec<String> =
            kinds.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name}")).collect();
        if !seen.is_empty() {
            let _ = writeln!(text, "{}: retransmissions after {}", device.name, seen.join(", "));
        }
        let lost = [
            (traffic.packets_lost, "packets lost by the adapter itself"),
            (traffic.without_receive, "messages of UC dropped because no receive was posted"),
            (traffic.ring_full, "packets lost to full shared memory"),
            (traffic.wrong_icrc, "packets dropped because of a wrong ICRC"),
            (traffic.wrong_sender, "packets dropped because they came from another address than the QP's peer"),
        ];
        for (count, what) in lost.into_iter().filter(|(count, _)| *count > 0) {
            let _ = writeln!(text, "{}: {count} {what}", device.name);
        }
    }
    text
}

/// Paging events, a line for each kind.
fn events(paging: &Paging) -> String {
    let mut rows = vec![row(["paging", "events", "handled", "pages", "time", "each"])];
    for (what, counted, kind) in [
        ("page faults", "page_faults", "page_fault"),
        ("invalidations", "page_invalidations", "page_invalidation"),
        ("prefetches", "page_prefetch", "page_prefetch"),
    ] {
        let handled = paging.get(&format!("{counted}_handled"));
        let time = paging.get(&format!("{kind}_us"));
        rows.push(vec![
            what.to_owned(),
            paging.get(counted).to_string(),
            handled.to_string(),
            paging.get(&format!("{kind}_pages")).to_string(),
            microseconds(time as f64),
            if handled == 0 { String::new() } else { microseconds(time as f64 / handled as f64) },
        ]);
    }
    let mut text = render(&rows, &[0]);
    for (what, name) in [
        ("joined a fault on the same pages", "page_faults_merged"),
        ("failed: unmapped memory, or no permission", "page_faults_failed"),
        ("collided with an invalidation", "page_contentions"),
    ] {
        if paging.get(name) > 0 {
            let _ = writeln!(text, "  of the faults {} {what}", paging.get(name));
        }
    }
    text + &parts(paging)
}

/// The parts of the average page fault, from the access until the QP continues, and of the average invalidation.
fn parts(paging: &Paging) -> String {
    let mut text = String::new();
    for (what, counted, whole, parts) in [
        ("a page fault", "page_faults", "page_fault_wait", &FAULT[..]),
        ("an invalidation", "page_invalidations", "page_invalidation", &INVALIDATION[..]),
    ] {
        let handled = paging.get(&format!("{counted}_handled"));
        if handled == 0 {
            continue;
        }
        let each = |name: &str| microseconds(paging.get(&format!("{name}_us")) as f64 / handled as f64);
        let parts: Vec<String> = parts.iter().map(|(part, name)| format!("{part} {}", each(name))).collect();
        let _ = writeln!(text, "  {what} takes {} on average: {}", each(whole), parts.join(", "));
    }
    text
}

/// Parts and the names of their counters.
const FAULT: [(&str, &str); 5] = [
    ("notice", "page_fault_notice"),
    ("populate", "page_fault_populate"),
    ("adapter", "page_fault_adapter"),
    ("table", "page_fault_table"),
    ("resume", "page_fault_resume"),
];
const INVALIDATION: [(&str, &str); 3] = [
    ("table", "page_invalidation_table"),
    ("quiesce", "page_invalidation_quiesce"),
    ("rest", "page_invalidation_rest"),
];

fn regions(regions: &[Region]) -> String {
    let mut rows = vec![row(["region", "lkey", "bytes", "faults", "pages", "invalidations", "pages", "prefetched"])];
    for region in regions {
        rows.push(vec![
            region.length.map_or("everything".to_owned(), |_| format!("{:#x}", region.addr)),
            format!("{:#010x}", region.lkey),
            region.length.map_or(String::new(), |length| bytes(length as f64)),
            region.paging.get("page_faults").to_string(),
            region.paging.get("page_fault_pages").to_string(),
            region.paging.get("page_invalidations").to_string(),
            region.paging.get("page_invalidation_pages").to_string(),
            region.paging.get("page_prefetch_pages").to_string(),
        ]);
    }
    if regions.is_empty() { String::new() } else { render(&rows, &[0]) }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

/// Pads each column to its widest cell; the columns in `left` are left-aligned, the others right-aligned.
fn render(rows: &[Vec<String>], left: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if left.contains(&column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_device::stat::read;

    #[test]
    fn faults_and_invalidations_have_their_parts() {
        let counters = [
            ("page_faults", 3),
            ("page_faults_handled", 2),
            ("page_fault_wait_ns", 200_000),
            ("page_fault_notice_ns", 100_000),
            ("page_fault_populate_ns", 6000),
            ("page_fault_table_ns", 1000),
            ("page_fault_resume_ns", 93_000),
        ];
        let text = events(&Paging::of(&counters.map(|(name, value)| (name.to_owned(), value))));
        let line = "a page fault takes 100 µs on average: notice 50 µs, populate 3 µs, adapter 0 µs, table 0.50 µs, \
                    resume 46.5 µs\n";
        assert!(text.contains(line) && !text.contains("an invalidation"), "{text}");
    }

    fn link(interface: &str, peers: u64, peers_up: u64, bytes_sent: u64) -> read::Link {
        let round_trip = (peers_up > 0).then_some(Duration::from_micros(17));
        let (interface, rate, loss) = (interface.to_owned(), 100 << 20, 0.0025);
        read::Link { interface, peers, peers_up, bytes_sent, rate, loss, round_trip }
    }

    fn joined(links: &[read::Link]) -> Device {
        Device {
            name: "weir_links0".into(),
            open: true,
            uverbs: "uverbs0".into(),
            traffic: Traffic::default(),
            paging: Paging::default(),
            links: links.iter().map(|link| Link::of(link, links)).collect(),
        }
    }

    #[test]
    fn each_interface_of_a_device_has_a_row() {
        let device = joined(&[
            link("eth1", 3, 3, 3 << 20),
            link("eth2", 3, 1, 1 << 20),
            link("eth3", 2, 0, 0),
            link("lo", 0, 0, 0),
        ]);
        let text = "
interface of weir_links0  state    peers  bytes sent  share       rate    loss  round trip
eth1                      up           3    3.00 MiB   75 %  100 MiB/s  0.25 %       17 µs
eth2                      partly  1 of 3    1.00 MiB   25 %  100 MiB/s  0.25 %       17 µs
eth3                      down    0 of 2         0 B    0 %             0.25 %
lo                        unused       0         0 B    0 %
";
        assert_eq!(links(&device, None), text);
        let before = joined(&[link("eth1", 3, 3, 1 << 20)]);
        let later = links(&device, Some((Duration::from_secs(2), &before)));
        assert!(later.contains("17 µs  out 1.00 MiB/s\neth2") && later.matches("out").count() == 1, "{later}");
        assert_eq!(links(&joined(&[]), None), "", "a device of one interface");
    }

    #[test]
    fn pinned_memory_has_a_line_once_there_was_a_registration() {
        assert_eq!(memory(&Memory::default()), "");
        let some = Memory { pinned_bytes: 4096, pinned_peak: 3 << 20, registrations: 5, registrations_on_demand: 2 };
        let line = "\nmemory: 4.00 KiB pinned (at most 3.00 MiB), 5 registrations, 2 of them on-demand\n";
        assert_eq!(memory(&some), line);
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [row(["a", "bb"]), row(["ccc", "d"])];
        assert_eq!(render(&rows, &[0]), "a    bb\nccc   d\n");
    }
}
