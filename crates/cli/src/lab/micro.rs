//! `weir lab micro`: one run of the papers' micro-benchmark, simulated or live.

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use weir_lab::micro::live::{self, Live};
use weir_lab::micro::sim::Simulated;
use weir_lab::micro::{Guards, Micro, Operation, Outcome, Paging, Runner, Sides, Step, Workaround};

/// Arguments of `weir lab micro`. The defaults are those of the papers.
#[derive(Args, Debug)]
pub struct MicroArgs {
    /// The adapter: a profile's name (see `weir profiles`), or a profile file
    #[arg(long, value_name = "NAME", default_value = "connectx4")]
    profile: String,
    /// Run live: two processes on this machine, in real time
    #[arg(long, conflicts_with = "sim")]
    live: bool,
    /// Run on the simulator, in virtual time (the default)
    #[arg(long)]
    sim: bool,
    /// The operation that the client posts
    #[arg(long, value_name = "KIND", value_enum, default_value_t = Kind::Read)]
    operation: Kind,
    /// The kind of all operations after the first [default: as the first]
    #[arg(long, value_name = "KIND", value_enum)]
    second: Option<Kind>,
    /// Size of each operation in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    size: u32,
    /// Number of operations
    #[arg(long, value_name = "N", default_value_t = 2)]
    num_ops: u32,
    /// Number of queue pairs; operation i is posted to QP i mod N
    #[arg(long, value_name = "N", default_value_t = 1)]
    num_qps: u32,
    /// Time between two posts, such as 1ms, 1.5ms or 300us; without a unit: µs
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1ms")]
    interval: Duration,
    /// Post each operation after the completion of the operation before it, and the interval
    #[arg(long)]
    in_turn: bool,
    /// Which sides register their memory on demand
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = OdpSides::Both)]
    odp: OdpSides,
    /// Touch all pages but those of the first operation before the run
    #[arg(long)]
    touched: bool,
    /// After the run, release the pages of ODP memory, N at a time, and show what faults and invalidations cost (live)
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, requires = "live")]
    invalidate: u32,
    /// Minimum RNR NAK timer of the responder, a code from 0 to 31; 14 is 1.28 ms
    #[arg(long, value_name = "CODE", default_value_t = 14)]
    rnr_timer: u8,
    /// Local ACK timeout (C_ACK), 0 to 31: the timeout is at least 4.096 µs · 2^N
    #[arg(long, value_name = "N", default_value_t = 1)]
    ack_timeout: u8,
    /// Retry count: consecutive timeouts before the QP fails, 0 to 7
    #[arg(long, value_name = "N", default_value_t = 7)]
    retry_count: u8,
    /// Maximum number of outstanding READs on each QP
    #[arg(long, value_name = "N", default_value_t = 4)]
    max_rd_atomic: u8,
    /// Workaround: post an operation of one byte at this interval on each QP with outstanding operations
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "again_after")]
    dummy_every: Option<Duration>,
    /// Workaround: post operations again that have not completed after this time
    #[arg(long, value_name = "TIME", value_parser = duration)]
    again_after: Option<Duration>,
    /// Guards of both sides, separated by commas, as those of `weir run --guard`: rnr, dummy, reissue, prefetch, auto
    #[arg(long, value_name = "LIST")]
    guard: Option<Guards>,
    /// Send to a QP that does not exist, to see the ACK timeout
    #[arg(long)]
    wrong_peer: bool,
    /// Seed of random choices; simulations with the same seed give the same results, live runs the same times of page
    /// faults
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Write the packets of both sides to client.pcapng and server.pcapng in this folder
    #[arg(long, value_name = "DIR")]
    capture: Option<PathBuf>,
    /// Print JSON instead of text; times are in µs
    #[arg(long)]
    json: bool,
}

/// An operation.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum Kind {
    Read,
    Write,
    Send,
}

/// Sides with ODP memory.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum OdpSides {
    None,
    Client,
    Server,
    Both,
}

/// Packets that are printed at most.
const SHOWN: usize = 40;
/// Each operation gets a line if there are at most as many.
const FEW: usize = 16;

/// Runs `weir lab micro` and prints the outcome.
pub fn run(args: &MicroArgs) -> Result<ExitCode> {
    let micro = args.micro();
    micro.check()?;
    if let Some(folder) = &args.capture {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let (outcome, runner) = if args.live {
        let mut live = live()?;
        let outcome = match &args.capture {
            None => live.run(&micro, &args.profile, args.seed)?,
            Some(folder) => live.run_captured(&micro, &args.profile, args.seed, folder)?,
        };
        (outcome, format!("live, {}", live.describe()))
    } else {
        let outcome = match &args.capture {
            None => Simulated.run(&micro, &args.profile, args.seed)?,
            Some(folder) => Simulated.run_captured(&micro, &args.profile, args.seed, folder)?,
        };
        (outcome, format!("simulated, seed {}", args.seed))
    };
    if args.json {
        let all = serde_json::json!({
            "profile": args.profile, "live": args.live, "micro": micro, "outcome": outcome,
            "by_hand": live::by_hand(&micro),
        });
        println!("{all:#}");
    } else {
        print!("{}", text(args, &micro, &outcome, &runner));
    }
    Ok(ExitCode::SUCCESS)
}

/// The runner of live runs: this command, and the `weir-micro` of its library folder. All clones use the same stage.
pub fn live() -> Result<Live> {
    let weir = std::env::current_exe().context("cannot find the path of the weir command")?;
    Live::new(weir, weir_stage::library_folder()?)
}

impl MicroArgs {
    fn micro(&self) -> Micro {
        let dummy = self.dummy_every.map(|every| Workaround::Dummy { every });
        Micro {
            operation: self.operation.into(),
            second: self.second.map(Operation::from),
            size: self.size,
            num_ops: self.num_ops,
            num_qps: self.num_qps,
            interval: self.interval,
            in_turn: self.in_turn,
            odp: Sides {
                client: matches!(self.odp, OdpSides::Client | OdpSides::Both),
                server: matches!(self.odp, OdpSides::Server | OdpSides::Both),
            },
            touched: self.touched,
            present: false,
            invalidate: self.invalidate,
            rnr_timer: self.rnr_timer,
            ack_timeout: self.ack_timeout,
            retry_cnt: self.retry_count,
            max_rd_atomic: self.max_rd_atomic,
            workaround: dummy.or(self.again_after.map(|after| Workaround::Again { after })),
            guards: self.guard.unwrap_or_default(),
            wrong_peer: self.wrong_peer,
        }
    }
}

impl From<Kind> for Operation {
    fn from(kind: Kind) -> Operation {
        match kind {
            Kind::Read => Operation::Read,
            Kind::Write => Operation::Write,
            Kind::Send => Operation::Send,
        }
    }
}

fn text(args: &MicroArgs, micro: &Micro, outcome: &Outcome, runner: &str) -> String {
    let mut text = String::new();
    let ms = |time: Duration| format!("{:.3} ms", time.as_secs_f64() * 1e3);
    let mut line = |what: &str, value: String| {
        let _ = writeln!(text, "{what:<12} {value}");
    };
    line("adapter", format!("{}, {runner}", args.profile));
    line("time", ms(outcome.time));
    let done = outcome.completions.iter().flatten().count();
    line("operations", format!("{done} of {} completed", micro.num_ops));
    for (at, end) in outcome.completions.iter().enumerate().filter(|_| outcome.completions.len() <= FEW) {
        line("", format!("{:?} #{at}: {}", micro.kind(at as u32), end.map_or("not completed".into(), ms)));
    }
    let packets = outcome.packets;
    line(
        "packets",
        format!("{} requests ({} of them again), {} responses", packets.requests, packets.repeated, packets.responses),
    );
    line("", format!("{} RNR NAKs, {} sequence NAKs, {} lost", packets.rnr_naks, packets.sequence_naks, packets.lost));
    line("timeouts", outcome.timeouts.to_string());
    if let Some(status) = &outcome.status {
        line("status", status.clone());
    }
    if let Some(cpu) = outcome.cpu {
        line("CPU", format!("{} on both sides; the client polls", ms(cpu)));
    }
    for (side, paging) in outcome.paging.iter().flat_map(|both| [("client", both.client), ("server", both.server)]) {
        line("paging", format!("{side}: {}", costs(&paging)));
    }
    if let Some(wakeup) = outcome.wakeup {
        line("wake-up", format!("late by {:?} (median), {:?} at most", wakeup.median, wakeup.most));
    }
    text.push('\n');
    text.push_str(&ladder(&outcome.steps));
    let [server, client] = live::by_hand(micro);
    let folder = weir_stage::library_folder().map_or("lib/weir".into(), |folder| folder.display().to_string());
    let _ = write!(
        text,
        "\nThe same on two hosts with a real adapter (the program is in {folder}):\n  {server}\n  {client}\n"
    );
    text
}

/// The average page fault and the average invalidation, by part.
fn costs(paging: &Paging) -> String {
    let mut all = vec![];
    for (count, what, parts) in [
        (paging.page_faults_handled, "page faults", &paging.fault()[..]),
        (paging.page_invalidations_handled, "invalidations", &paging.invalidation()[..]),
    ] {
        let parts: Vec<String> = parts.iter().map(|(part, us)| format!("{part} {us:.2}")).collect();
        all.push(format!("{count} {what}, each (µs): {}", parts.join(", ")));
    }
    all.join("; ")
}

/// A line for each packet; arrows of the client's packets point to the right.
fn ladder(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps.iter().take(SHOWN) {
        let arrow = match (step.from_client, step.lost) {
            (true, false) => "client ──▶ server",
            (true, true) => "client ──✗       ",
            (false, false) => "client ◀── server",
            (false, true) => "       ✗── server",
        };
        let operation = step.operation.map_or(String::new(), |at| format!(" #{at}"));
        let lost = if step.lost { ", lost" } else { "" };
        let _ = writeln!(text, "{:>12.3} ms  {arrow}  {}{operation}{lost}", step.time.as_secs_f64() * 1e3, step.what);
    }
    if steps.len() > SHOWN {
        let _ = writeln!(text, "{:>15}  and {} more", "…", steps.len() - SHOWN);
    }
    text
}

/// A time with or without its unit.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == 'µ');
    let seconds = match &text[digits.len()..] {
        "ns" => 1e-9,
        "" | "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        unit => return Err(format!("`{unit}` is not a unit; use ns, us, ms or s")),
    };
    let value: f64 = digits.parse().map_err(|_| format!("`{text}` is not a time; write it as 1.5ms"))?;
    Duration::try_from_secs_f64(value * seconds).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(duration("1500"), duration("1.5ms"));
        assert_eq!(duration("2s"), Ok(Duration::from_secs(2)));
        assert!(duration("2 h").is_err() && duration("-1ms").is_err() && duration("ms").is_err());
    }

    #[test]
    fn each_packet_has_a_line() {
        let step = |from_client: bool, lost: bool| Step {
            time: Duration::from_micros(4565),
            from_client,
            what: "RDMA Read Request".into(),
            operation: Some(1),
            lost,
        };
        let text = ladder(&vec![step(true, true); SHOWN + 2]);
        assert!(text.starts_with("       4.565 ms  client ──✗         RDMA Read Request #1, lost\n"), "{text}");
        assert!(text.ends_with("and 2 more\n"), "{text}");
    }
}
