//! The micro-benchmark live: `weir-micro` as two processes under `weir run`, in two network namespaces when root and on
//! loopback otherwise, with a capture of each side.
//!
//! Time is real time. A run ends within its limit, and ends only processes that it has started. The seed decides how
//! long each page fault takes. An adapter's other random choices depend on its QP numbers too, which are random.

use super::ladder::{self, CaptureContext};
use super::{Micro, Operation, Outcome, Paging, PagingCosts, Runner, Sides, Wakeup, Workaround, paging, time};
use crate::environment::clean;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use weir_stage::pair;
use weir_stage::{Child, Protocol, Side, Stage};

/// Time limit for the server to listen.
const START: Duration = Duration::from_secs(15);
/// Time limit of both programs for all but the run itself: opening the device, connecting, closing.
const AROUND: Duration = Duration::from_secs(20);

/// Interval of looking at the client's output. This process sleeps in between, and leaves the cores to the programs.
const TICK: Duration = Duration::from_millis(20);

/// Two processes on this machine. Clones share the stage.
#[derive(Clone)]
pub struct Live {
    stage: Arc<Stage>,
    /// The `weir` command.
    weir: PathBuf,
    /// The folder of its library and of `weir-micro`.
    library: PathBuf,
    /// Time limit for the operations of a run.
    pub limit: Duration,
    /// Where `weir doctor` writes what it finds in the client, as JSON; `None`: the client runs without it.
    pub watch: Option<PathBuf>,
    /// Faults of both sides, as for `weir run --faults`.
    pub faults: Option<String>,
}

/// The output of `weir-micro --json`.
#[derive(Debug, Deserialize)]
struct Printed {
    mtu: u32,
    #[serde(with = "time")]
    time: Duration,
    /// Nanoseconds since 1970.
    start: u64,
    #[serde(with = "time::each")]
    completions: Vec<Option<Duration>>,
    status: Option<String>,
    #[serde(with = "time")]
    cpu: Duration,
    #[serde(with = "time")]
    server_cpu: Duration,
    wrong: u64,
    wakeup: Option<Wakeup>,
    address: u64,
    qps: Vec<[u32; 2]>,
}

impl Live {
    /// Makes the stage. `weir` is the command, `library` the folder of its library and programs.
    pub fn new(weir: impl Into<PathBuf>, library: impl Into<PathBuf>) -> Result<Live> {
        // The papers' MTU of 4096 needs jumbo frames.
        let stage = Arc::new(Stage::new(9000)?);
        let live = Live {
            stage,
            weir: weir.into(),
            library: library.into(),
            limit: Duration::from_secs(60),
            watch: None,
            faults: None,
        };
        ensure!(live.program().is_file(), "{} is not built: run `make build`", live.program().display());
        Ok(live)
    }

    /// Describes the stage.
    pub fn describe(&self) -> String {
        self.stage.describe()
    }

    /// Runs the micro-benchmark and leaves its captures, client.pcapng and server.pcapng, in a folder.
    pub fn run_captured(&mut self, micro: &Micro, profile: &str, seed: u64, folder: &Path) -> Result<Outcome> {
        micro.check()?;
        ensure!(!micro.present, "no program can tell which pages an adapter has: use `touched` in a live run");
        // Not in the folder, which is the caller's. Page faults of the two sides take different times.
        let seeded = tempfile::tempdir()?;
        let profiles = ["server.toml", "client.toml"].map(|name| seeded.path().join(name));
        for (path, seed) in profiles.iter().zip([seed, seed ^ 1 << 40]) {
            std::fs::write(path, weir_profiles::reseeded(profile, seed)?)?;
        }
        let [server, client] = ["server.pcapng", "client.pcapng"].map(|name| folder.join(name));
        let (printed, paging) = self.pair(micro, &profiles, [&server, &client])?;
        ensure!(printed.wrong == 0, "{} received bytes differ from the sent bytes", printed.wrong);
        let context = CaptureContext {
            micro,
            qps: printed.qps,
            mtu: printed.mtu,
            address: printed.address,
            start: Some(printed.start),
        };
        let traffic = ladder::read(&[&client, &server], &context)?;
        Ok(Outcome {
            time: printed.time,
            completions: printed.completions,
            status: printed.status,
            packets: traffic.packets,
            timeouts: traffic.timeouts,
            steps: traffic.steps,
            wakeup: printed.wakeup,
            cpu: Some(printed.cpu + printed.server_cpu),
            paging,
        })
    }

    fn program(&self) -> PathBuf {
        self.library.join("weir-micro")
    }

    /// Runs both sides to their end, with captures in a folder. If the run invalidates, reads the counters of paging
    /// before.
    fn pair(
        &self,
        micro: &Micro,
        profiles: &[PathBuf; 2],
        captures: [&Path; 2],
    ) -> Result<(Printed, Option<PagingCosts>)> {
        let port = self.stage.free_port(Side::A)?;
        let seconds = self.limit.as_secs().max(1).to_string();
        let command = |side: Side| {
            let mut command = clean(self.stage.command(side, &self.weir));
            command.env("WEIR_LIB_DIR", &self.library);
            if let Some(report) = self.watch.as_ref().filter(|_| side == Side::B) {
                command.args(["doctor", "--json", "--output"]).arg(report).arg("--").arg(&self.weir);
            }
            command.args(["run", "--profile"]).arg(&profiles[side as usize]);
            if let Some(faults) = &self.faults {
                command.args(["--faults", faults]);
            }
            if micro.guards.any() {
                command.args(["--guard", &micro.guards.to_string()]);
            }
            command.arg("--capture").arg(captures[side as usize]).arg("--");
            command.arg(self.program()).args(["--device", &self.stage.device(), "--port", &port.to_string()]);
            command.args(["--timeout", &seconds]);
            if micro.invalidate > 0 {
                command.arg("--hold");
            }
            command
        };
        // Both sides wait for the end of their input.
        let (held, end) = std::io::pipe()?;
        let command = |side: Side| -> Result<Command> {
            let mut command = command(side);
            command.stdin(if micro.invalidate > 0 { held.try_clone()?.into() } else { Stdio::inherit() });
            Ok(command)
        };
        let mut server = Child::spawn(&mut command(Side::A)?, "weir-micro (server)")?;
        server.wait_listening(Protocol::Tcp, port, START)?;
        let mut client: Command = command(Side::B)?;
        client.arg("--json").args(arguments(micro)).arg(self.stage.address(Side::A).to_string());
        let mut client = Child::spawn(&mut client, "weir-micro (client)")?;
        let paging = if micro.invalidate > 0 { self.costs(micro, &mut client, &mut server)? } else { None };
        drop(end);
        let ended = pair::finish(server, client, self.limit + AROUND)?;
        // 1: an operation failed; 3: the time limit was reached. Both are outcomes.
        if !matches!(ended.client.status.code(), Some(0 | 1 | 3)) {
            let (client, server) = (ended.client.last_lines(), ended.server.last_lines());
            bail!("{}", if client.contains("has closed the connection") { server } else { client });
        }
        let printed: Printed = serde_json::from_str(&ended.client.stdout).with_context(|| ended.client.printed())?;
        ensure!(micro.invalidate == 0 || paging.is_some(), "a side ended early: {}", ended.client.printed());
        Ok((printed, paging))
    }

    /// The counters of paging once the client has printed its result; `None` if a side ends before.
    fn costs(&self, micro: &Micro, client: &mut Child, server: &mut Child) -> Result<Option<PagingCosts>> {
        while !client.has_output()? {
            if client.poll()?.is_some() || server.poll()?.is_some() {
                return Ok(None);
            }
            std::thread::sleep(TICK);
        }
        let of = |odp: bool, child: &Child| match odp {
            true => paging::read(&self.weir, child.pid(), micro.invalidations()),
            false => Ok(Paging::default()),
        };
        let Sides { client: at_client, server: at_server } = micro.odp;
        Ok(Some(PagingCosts { client: of(at_client, client)?, server: of(at_server, server)? }))
    }
}

impl Runner for Live {
    fn run(&mut self, micro: &Micro, profile: &str, seed: u64) -> Result<Outcome> {
        self.run_captured(micro, profile, seed, tempfile::tempdir()?.path())
    }
}

/// The options of weir-micro's client for this run.
pub fn arguments(micro: &Micro) -> Vec<String> {
    let kind = |operation: Operation| match operation {
        Operation::Read => "read",
        Operation::Write => "write",
        Operation::Send => "send",
    };
    let odp = match micro.odp {
        Sides { client: false, server: false } => "none",
        Sides { client: true, server: false } => "client",
        Sides { client: false, server: true } => "server",
        Sides { client: true, server: true } => "both",
    };
    let mut words = vec![];
    let mut option = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    option("operation", kind(micro.operation).into());
    if let Some(second) = micro.second {
        option("second", kind(second).into());
    }
    option("size", micro.size.to_string());
    option("num-ops", micro.num_ops.to_string());
    option("num-qps", micro.num_qps.to_string());
    option("interval", plain(micro.interval));
    option("odp", odp.into());
    option("rnr-timer", micro.rnr_timer.to_string());
    option("ack-timeout", micro.ack_timeout.to_string());
    option("retry-count", micro.retry_cnt.to_string());
    option("max-rd-atomic", micro.max_rd_atomic.to_string());
    match micro.workaround {
        Some(Workaround::Dummy { every }) => option("dummy-every", plain(every)),
        Some(Workaround::Again { after }) => option("again-after", plain(after)),
        None => {}
    }
    words.extend(micro.in_turn.then(|| "--in-turn".into()));
    if micro.invalidate > 0 {
        words.extend(["--invalidate".into(), micro.invalidate.to_string()]);
    }
    words.extend(micro.touched.then(|| "--touched".into()));
    words.extend(micro.wrong_peer.then(|| "--wrong-peer".into()));
    words
}

/// A time in the format of weir-micro.
fn plain(time: Duration) -> String {
    match time.as_nanos() {
        nanos if nanos % 1_000_000 == 0 => format!("{}ms", nanos / 1_000_000),
        nanos if nanos % 1000 == 0 => format!("{}us", nanos / 1000),
        nanos => format!("{nanos}ns"),
    }
}

/// The command lines, server and client, for the same run on a real adapter.
pub fn by_hand(micro: &Micro) -> [String; 2] {
    let under = if micro.guards.any() { format!("weir run --guard {} -- ", micro.guards) } else { String::new() };
    [format!("{under}weir-micro"), format!("{under}weir-micro {} SERVER", arguments(micro).join(" "))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_becomes_a_command_line() {
        let micro = Micro {
            second: Some(Operation::Send),
            num_ops: 2,
            interval: Duration::from_micros(1500),
            odp: Sides { client: false, server: true },
            touched: true,
            workaround: Some(Workaround::Dummy { every: Duration::from_millis(3) }),
            ..Micro::default()
        };
        assert_eq!(
            by_hand(&micro)[1],
            "weir-micro --operation read --second send --size 100 --num-ops 2 --num-qps 1 --interval 1500us --odp server \
             --rnr-timer 14 --ack-timeout 1 --retry-count 7 --max-rd-atomic 4 --dummy-every 3ms --touched SERVER"
        );
        let guarded = Micro { guards: "dummy,reissue".parse().unwrap(), ..micro };
        assert_eq!(by_hand(&guarded)[0], "weir run --guard dummy,reissue -- weir-micro");
        assert!(by_hand(&guarded)[1].starts_with("weir run --guard dummy,reissue -- weir-micro --operation"));
        assert_eq!([0, 1_500, 2_000_000].map(|nanos| plain(Duration::from_nanos(nanos))), ["0ms", "1500ns", "2ms"]);
    }

    #[test]
    fn the_output_of_weir_micro_is_parsed() {
        let text = r#"{"device":"weir_lo","port":1,"gid":1,"mtu":4096,"cq":131072,"wrs":8192,"time":540.5,
            "start":1795324854176578552,"posted":[0.254,103.328],"completions":[244.732,null],"status":null,"dummies":0,
            "again":0,"cpu":409.0,"server_cpu":175.0,"checked":15000,"wrong":0,
            "wakeup":{"median":6.548,"most":156.551,"sleeps":51},"address":139813786828800,"qps":[[11632584,9255900]]}"#;
        let printed: Printed = serde_json::from_str(text).unwrap();
        assert_eq!((printed.start, printed.time), (1795324854176578552, Duration::from_nanos(540_500)));
        assert_eq!(printed.completions[1], None);
        assert_eq!(printed.wakeup.unwrap().median, Duration::from_nanos(6_548));
    }
}
