//! What the parts of a transfer cost on this machine (E 3.3.2): copies, memory, system calls, buffers, pinning, remapping.

use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted};
use crate::data::Data;
use crate::edge::primitives::{self, Pages, Primitives};
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Bars, Panel, Series};
use anyhow::Result;
use weir_wire::edge::{HEADER_LEN, PIECE_LEN};

pub const EXPERIMENT: Experiment = Experiment {
    id: "edge-primitives",
    title: "MultiEdge: what the parts of a transfer cost",
    source: "E fig. 3.6 and 3.7, tables 3.1 and 3.2",
    not_simulated: Some("it measures this machine: its memory, its page tables and its system calls"),
    not_live: |_| None,
    paper: "Two Opteron 244 of 1.8 GHz, each with memory of its own. Copies are faster within the caches (64 and 512 KB); beyond \
            them one CPU copies about 1 GByte/s, two about 2. Reads are faster than writes. Pinning a page takes 3.6 µs, \
            remapping one 1 µs; both grow almost linearly with the number of pages, and the first page that is pinned costs \
            more than the others.",
    figures: &[
        PaperFigure {
            name: "E fig. 3.6",
            axes: "Copy throughput over the size of the copy.",
            shows: "One CPU sustains about 1 GByte/s, two about 2; up to 64 and 512 KBytes copies are faster.",
            here: "Size on a logarithmic axis, GB/s; one and two threads. Grey: the sustained rates of the text.",
            drawings: 1,
        },
        PaperFigure {
            name: "E fig. 3.7",
            axes: "Time to pin and to remap over the number of pages.",
            shows: "Both grow almost linearly; the first pinned page costs more; remapping costs less than pinning.",
            here: "Both axes are logarithmic. mlock(2) and mremap(2) in place of functions of the kernel. Grey: the times of one \
                   page in table 3.2, as many times as there are pages.",
            drawings: 1,
        },
        PaperFigure {
            name: "E table 3.1",
            axes: "Reads and writes, MB/s, of local and of remote memory.",
            shows: "One CPU, local: 2500 and 1875; remote: 1845 and 1461; two CPUs, remote: 3086 and 2546.",
            here: "GB/s. Remote memory is measured where there are several NUMA nodes.",
            drawings: 1,
        },
        PaperFigure {
            name: "E table 3.2",
            axes: "Times of ioctl, a buffer, pinning and remapping a page, µs.",
            shows: "0.25 to 1.15, 0.85 to 1.05, 3.2 to 3.8, 0.9 to 1.1.",
            here: "The middles of these ranges beside this machine's times. The buffer is one of the program, not of the kernel.",
            drawings: 1,
        },
    ],
    fixed_adapters: true,
    one_seed: false,
    run,
};

/// Middles of the ranges of E table 3.2, µs.
const IOCTL: f64 = 0.7;
const BUFFER: f64 = 0.95;
const PIN: f64 = 3.5;
const REMAP: f64 = 1.0;

/// Sizes of copies that are within the caches, and beyond them.
const SMALL: u64 = 16 << 10;
const LARGE: u64 = 64 << 20;

fn run(bench: &Bench<'_>) -> Result<Report> {
    (bench.progress)(1, 0);
    bench.note("this machine", 1);
    let found = primitives::measured()?;
    (bench.progress)(0, 1);
    let not_live = if found.memory.remote.is_some() { "" } else { "Remote memory: this machine has one NUMA node." };
    let (panels, bars) = (vec![copies(&found), pages(&found)], vec![memory(&found), calls(&found)]);
    Ok(Report { claims: claims(&found), panels, bars, data: table(&found), not_live, ..Report::default() })
}

fn claims(found: &Primitives) -> Vec<Claim> {
    let copy = |bytes, threads| found.memory.copy(bytes, threads);
    let [one, many] = [1, 512].map(|pages| found.pages(pages));
    let some = found.pages(64);
    let further = |time: fn(&Pages) -> f64| (time(&many) - time(&one)) / 511.0;
    let mut claims = vec![
        Claim::at_least(
            Predicted,
            "a copy of 16 KiB, against one of 64 MiB",
            "faster within the caches",
            1.5,
            copy(SMALL, 1) / copy(LARGE, 1),
            "times",
        )
        .from("E fig. 3.6"),
        Claim::within(
            Predicted,
            "copies of 64 MiB: two threads, against one",
            2.0,
            (1.5, 2.5),
            copy(LARGE, 2) / copy(LARGE, 1),
            "times",
        )
        .from("E fig. 3.6")
        .lacks(
            "The processors of the thesis have memory of their own each. The cores of this machine share theirs, and other \
             programs use it.",
        ),
        Claim::within(
            Predicted,
            "reads against writes, one thread",
            2500.0 / 1875.0,
            (1.0, 2.0),
            found.memory.read(1) / found.memory.write(1),
            "times",
        )
        .from("E table 3.1")
        .lacks("Long writes need not read what they replace on today's processors."),
        Claim::at_most(Predicted, "an empty ioctl", "about 0.2; 0.25 to 1.15 in the table", 1.15, found.calls.ioctl, "µs")
            .from("E table 3.2"),
    ];
    let linear = |name: &str, time: fn(&Pages) -> f64| {
        let ratio = time(&many) / time(&some);
        Claim::within(Predicted, format!("{name} 512 pages, against 64"), 8.0, (5.0, 9.0), ratio, "times")
            .from("E fig. 3.7")
    };
    claims.extend([
        linear("pinning", Pages::pinned),
        linear("remapping", |pages| pages.remap).lacks(FLUSH),
        Claim::at_least(
            Predicted,
            "pinning: the first page, against each further one",
            "more expensive than the rest",
            1.5,
            one.pinned() / further(Pages::pinned),
            "times",
        )
        .from("E fig. 3.7"),
        Claim::at_most(
            Predicted,
            "remapping 512 pages, against pinning them",
            "lower: 1 and 3.6 µs a page",
            1.0,
            many.remap / many.pinned(),
            "",
        )
        .from("E fig. 3.7")
        .lacks(CALLS),
        Claim::at_most(
            Predicted,
            "remapping one page, against pinning it",
            "lower: 1 and 3.6 µs",
            1.0,
            one.remap / one.pinned(),
            "",
        )
        .from("E table 3.2")
        .lacks(CALLS),
    ]);
    claims
}

/// Why a system call differs from what the thesis measures.
const CALLS: &str = "mremap(2) moves a mapping: the kernel makes and removes descriptions of it, takes locks, and flushes the TLB. The \
                     thesis changes entries of the page table alone.";

/// Why the time of a remapping does not grow as the number of pages does.
const FLUSH: &str = "mremap(2) has a fixed cost. Up to 33 pages Linux invalidates the TLB page by page, beyond it flushes all of it, \
                     which is cheaper for the call: the two mechanisms of E fig. 3.10.";

fn copies(found: &Primitives) -> Panel {
    let line = |threads: u32, name: &str| {
        let all = found.memory.copies.iter().filter(|copy| copy.threads == threads);
        Series::line(name, all.map(|copy| (copy.bytes as f64, copy.gigabytes)).collect::<Vec<_>>())
    };
    let guide = |rate: f64, name: &str| Series::guide(name, [(4096.0, rate), (LARGE as f64, rate)]);
    let series = vec![
        line(1, "one thread"),
        line(2, "two threads"),
        guide(1.0, "E: one CPU, sustained"),
        guide(2.0, "E: two CPUs, sustained"),
    ];
    Panel::new("Copies", Axis::sizes("size of a copy"), Axis::log("GB/s copied").showing(0.5, 200.0), series)
}

fn pages(found: &Primitives) -> Panel {
    let line = |name: &str, time: fn(&Pages) -> f64| {
        Series::line(name, found.pages.iter().map(|row| (row.pages as f64, time(row))).collect::<Vec<_>>())
    };
    let guide = |each: f64, name: &str| Series::guide(name, [(1.0, each), (512.0, 512.0 * each)]);
    let series = vec![
        line("pin (mlock)", Pages::pinned),
        line("remap (mremap)", |pages| pages.remap),
        guide(PIN, "E: 3.5 µs for each pinned page"),
        guide(REMAP, "E: 1 µs for each remapped page"),
    ];
    Panel::new("Pinning and remapping", Axis::log("pages"), Axis::log("time (µs)"), series)
}

fn memory(found: &Primitives) -> Bars {
    let memory = &found.memory;
    let mut bars: Vec<(String, f64)> = vec![
        ("read, one thread".into(), memory.read(1)),
        ("write, one thread".into(), memory.write(1)),
        ("read, two threads".into(), memory.read(2)),
        ("write, two threads".into(), memory.write(2)),
    ];
    if let Some(remote) = memory.remote {
        bars.extend([("read, remote".into(), remote.read), ("write, remote".into(), remote.write)]);
    }
    let thesis = [
        ("E: read, one CPU, local", 2.5),
        ("E: write, one CPU, local", 1.875),
        ("E: read, one CPU, remote", 1.845),
        ("E: write, one CPU, remote", 1.461),
        ("E: read, two CPUs, remote", 3.086),
        ("E: write, two CPUs, remote", 2.546),
    ];
    bars.extend(thesis.map(|(name, rate)| (name.into(), rate)));
    Bars { title: "Reads and writes of 64 MiB".into(), x: Axis::linear("GB/s"), bars }
}

fn calls(found: &Primitives) -> Bars {
    let one = found.pages(1);
    let bars = [
        ("ioctl", found.calls.ioctl),
        ("E: ioctl", IOCTL),
        ("buffer of 9000 bytes", found.calls.buffer),
        ("E: buffer, in the kernel", BUFFER),
        ("pin a page", one.pinned()),
        ("E: pin a page", PIN),
        ("remap a page", one.remap),
        ("E: remap a page", REMAP),
        ("write a header, with CRC-32", found.calls.write_header),
        ("read a header", found.calls.read_header),
    ];
    Bars {
        title: "Calls, buffers, pages, headers".into(),
        x: Axis::linear("time (µs)"),
        bars: bars.map(|(name, time)| (name.into(), time)).into(),
    }
}

fn table(found: &Primitives) -> Data {
    let mut data = Data::new(["what", "bytes or pages", "threads", "here", "unit", "thesis"]);
    let mut row = |what: &str, amount: f64, threads: u32, here: f64, unit: &str, thesis: f64| {
        data.push([what.into(), amount.into(), threads.into(), here.into(), unit.into(), thesis.into()]);
    };
    let none = f64::NAN;
    let Primitives { memory, calls, pages } = found;
    for copy in &memory.copies {
        let thesis = if copy.bytes == LARGE { f64::from(copy.threads) } else { none };
        row("copy", copy.bytes as f64, copy.threads, copy.gigabytes, "GB/s", thesis);
    }
    for threads in [1, 2] {
        let thesis = |local: f64| if threads == 1 { local } else { none };
        row("read", LARGE as f64, threads, memory.read(threads), "GB/s", thesis(2.5));
        row("write", LARGE as f64, threads, memory.write(threads), "GB/s", thesis(1.875));
    }
    if let Some(remote) = memory.remote {
        row("read remote", LARGE as f64, 1, remote.read, "GB/s", 1.845);
        row("write remote", LARGE as f64, 1, remote.write, "GB/s", 1.461);
    }
    row("system call", none, 1, calls.system_call, "µs", none);
    row("ioctl", none, 1, calls.ioctl, "µs", IOCTL);
    row("buffer", 9000.0, 1, calls.buffer, "µs", BUFFER);
    let header = (HEADER_LEN + PIECE_LEN) as f64;
    row("write header", header, 1, calls.write_header, "µs", none);
    row("read header", header, 1, calls.read_header, "µs", none);
    for Pages { pages, pin, unpin, remap } in pages {
        let (amount, single) = (f64::from(*pages), |thesis: f64| if *pages == 1 { thesis } else { none });
        row("pin", amount, 1, pin.unwrap_or(none), "µs", single(PIN));
        row("unpin", amount, 1, unpin.unwrap_or(none), "µs", none);
        row("remap", amount, 1, *remap, "µs", single(REMAP));
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_as_in_the_thesis_meets_all_claims() {
        let text = r#"{"memory":{"copies":[{"bytes":16384,"threads":1,"gigabytes":4.0},{"bytes":16384,"threads":2,"gigabytes":8.0},
            {"bytes":67108864,"threads":1,"gigabytes":1.0},{"bytes":67108864,"threads":2,"gigabytes":2.0}],
            "reads":[{"threads":1,"gigabytes":2.5},{"threads":2,"gigabytes":5.0}],
            "writes":[{"threads":1,"gigabytes":1.875},{"threads":2,"gigabytes":3.75}],"remote":null,"not_remote":"one node"},
            "calls":{"system_call":0.1,"ioctl":0.2,"buffer":1.0,"write_header":0.05,"read_header":0.05},
            "pages":[{"pages":1,"pin":3.6,"unpin":2.0,"remap":1.0},{"pages":64,"pin":70.0,"unpin":40.0,"remap":60.0},
            {"pages":512,"pin":550.0,"unpin":300.0,"remap":450.0}]}"#;
        let found: Primitives = serde_json::from_str(text).unwrap();
        let claims = claims(&found);
        assert!(claims.len() == 9 && claims.iter().all(Claim::holds), "{claims:#?}");
        assert_eq!(table(&found).rows.len(), 4 + 4 + 5 + 9);
    }
}
