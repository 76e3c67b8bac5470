//! The papers' micro-benchmark: bytes and completions of `weir-micro`, and live runs with flaws compared to the
//! simulator.

use crate::bed::{Bed, Topology, WEIR, library};
use crate::trial;
use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Failed, Trial};
use serde_json::Value;
use std::sync::OnceLock;
use std::time::Duration;
use weir_lab::micro::live::Live;
use weir_lab::micro::sim::Simulated;
use weir_lab::micro::{Micro, Operation, Outcome, Runner, Sides, Step};
use weir_stage::{Child, Finished, Side};

const BOTH: Sides = Sides { client: true, server: true };
const CLIENT: Sides = Sides { client: true, server: false };
const SERVER: Sides = Sides { client: false, server: true };

pub fn trials() -> Vec<Trial> {
    vec![
        trial(Topology::Loopback, "weir-micro: every operation, with ODP memory, over several QPs", every_operation),
        trial(Topology::Loopback, "weir-micro reports wrong arguments and an adapter without ODP", exit_codes),
        trial(Topology::Loopback, "weir lab micro reports a live run, and the commands to repeat it by hand", command),
        staged("two READs stall under connectx4, one does not", damming),
        staged("live as simulated: intervals at which READs are dammed", damming_range),
        staged("live as simulated: T fig 6.2, a SEND is lost while the READ before it is replayed", argo),
        staged("live as simulated: ACK timeouts", timeout),
        staged("live as simulated: packet flood over 128 QPs", flood_pages),
        staged("live: page faults and invalidations have their time by part", costs),
    ]
}

/// A trial on the stage of [`live`]: two namespaces if root, else loopback.
fn staged(name: &str, test: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::test(format!("lab/{name}"), || test().map_err(|error| Failed::from(format!("{error:#}"))))
}

/// Runs `weir-micro --json` on both sides and returns the output of the client.
fn micro(bed: &Bed, arguments: &str) -> Result<Value> {
    let program = library().join("weir-micro");
    let line = format!("{} --device {{dev}} --port {{port}} --timeout 20 --json {arguments}", program.display());
    let ended = bed.pair(&[], &line, Duration::from_secs(40))?;
    serde_json::from_str(&ended.client.stdout).with_context(|| ended.client.printed())
}

fn every_operation(bed: &Bed) -> Result<()> {
    for (arguments, operations, bytes) in [
        ("--operation read --num-ops 40 --num-qps 7 --interval 100us", 40, 40 * 100),
        ("--operation write --num-ops 9 --num-qps 4 --size 10001", 9, 9 * 10001),
        ("--operation send --num-ops 33 --num-qps 5 --size 5000 --again-after 20ms", 33, 0),
        ("--operation send --num-ops 33 --num-qps 5 --size 5000", 33, 33 * 5000),
        ("--operation read --second send --num-ops 6 --size 4096 --touched", 6, 6 * 4096),
        ("--operation write --second read --num-ops 50 --num-qps 3 --dummy-every 100us --interval 50us", 50, 50 * 100),
        ("--operation read --second send --num-ops 6 --size 4096 --in-turn --interval 26us", 6, 6 * 4096),
        ("--num-ops 1000 --num-qps 100", 1000, 1000 * 100),
    ] {
        let shown = micro(bed, &format!("--odp both {arguments}"))?;
        let completions = shown["completions"].as_array().context("no completions")?;
        ensure!(completions.len() == operations, "{arguments}: {shown}");
        let times: Vec<f64> = completions.iter().filter_map(Value::as_f64).collect();
        ensure!(times.len() == operations && shown["status"].is_null(), "{arguments}: {shown}");
        ensure!(times.iter().copied().fold(0.0, f64::max) == shown["time"], "{arguments}: {shown}");
        ensure!(shown["checked"] == bytes && shown["wrong"] == 0, "{arguments}: {shown}");
        ensure!(shown["mtu"] == 4096 && shown["wrs"] == 8192, "{arguments}: {shown}");
    }
    Ok(())
}

fn exit_codes(bed: &Bed) -> Result<()> {
    let program = library().join("weir-micro");
    let one_side = |words: &str, profile: &str| -> Result<Finished> {
        let words = std::iter::once(program.display().to_string()).chain(words.split_whitespace().map(str::to_owned));
        Child::spawn(&mut bed.weir(Side::A, &["--profile", profile], words), "weir-micro")?
            .wait(Duration::from_secs(15))
    };
    for (words, message) in [
        ("--size 0 127.0.0.1", "--size"),
        ("--interval 3h 127.0.0.1", "`3h` is not a time"),
        ("--operation reed 127.0.0.1", "`reed`"),
        ("one two", "one host"),
    ] {
        let ended = one_side(words, "ideal")?;
        ensure!(ended.status.code() == Some(2) && ended.stderr.contains(message), "{words}: {}", ended.printed());
    }
    let help = one_side("--help", "ideal")?.success()?;
    ensure!(help.stdout.contains("--dummy-every") && help.stdout.contains("Exit code"), "{}", help.printed());
    // ODP memory on an adapter without ODP: the error says what the adapter lacks, and what to do.
    let why = live()?.run(&Micro { odp: CLIENT, ..Micro::default() }, "connectx3", 1).unwrap_err().to_string();
    ensure!(why.contains("no on-demand paging") && why.contains("--odp none"), "{why}");
    Ok(())
}

fn command(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    // The server sends no RNR NAK once the page fault is resolved. connectx4 leaves 0.3 ms for it, which is too short
    // here.
    let slow = profile(SLOW_PAGES)?;
    let slow = slow.0.to_str().context("the path of the profile is not UTF-8")?;
    let run = |words: &[&str]| -> Result<Finished> {
        let mut command = bed.bare(Side::A, WEIR);
        command.args(["lab", "micro", "--live", "--num-ops", "1", "--odp", "server"]).args(words);
        Child::spawn(&mut command, "weir lab micro")?.wait(Duration::from_secs(60))?.success()
    };
    let text = run(&["--profile", slow, "--capture", &folder.path().to_string_lossy()])?.stdout;
    for message in ["1 of 1 completed", "client ◀── server  Acknowledge (RNR NAK) #0", "weir-micro --operation read"]
    {
        ensure!(text.contains(message), "`{message}` is missing: {text}");
    }
    for name in ["client.pcapng", "server.pcapng"] {
        ensure!(folder.path().join(name).metadata()?.len() > 500, "{name} is empty");
    }
    let shown: Value = serde_json::from_str(&run(&["--profile", "ideal", "--json"])?.stdout)?;
    ensure!(shown["live"] == true && shown["profile"] == "ideal", "{shown}");
    // ACK timeouts of `ideal` are at least 4 ms: requests are retransmitted if the server is off its core for longer.
    let packets = ["requests", "repeated"].map(|count| shown["outcome"]["packets"][count].as_u64());
    ensure!(matches!(packets, [Some(all), Some(again)] if all - again == 1), "{shown}");
    ensure!(shown["outcome"]["status"].is_null(), "{shown}");
    ensure!(shown["by_hand"][1].as_str().is_some_and(|line| line.contains("--odp server")), "{shown}");
    Ok(())
}

/// RNR timer 20 means 10.24 ms. connectx4 waits 27 to 44 ms, and the second READ is posted after 12 ms. If the
/// server's thread is off its core for the 0.3 ms until the page fault is resolved, it sends no RNR NAK and nothing is
/// lost: one of five runs must lose a READ. An adapter without the flaw never loses one.
fn damming() -> Result<()> {
    let interval = Duration::from_millis(12);
    let two = Micro { num_ops: 2, interval, odp: BOTH, rnr_timer: 20, ..Micro::default() };
    let stalled = first_matching(&two, |outcome| outcome.packets.lost > 0)?;
    // The ACK timeout is at least 1.7 times 4.096 µs · 2^16, and longer if a process is late.
    ensure!(stalled.time >= Duration::from_millis(400), "{}", shown(&stalled));
    ensure!(stalled.timeouts >= 1 && stalled.status.is_none(), "{}", shown(&stalled));
    let lost = stalled.steps.iter().find(|step| step.lost).context("no step is lost")?;
    ensure!(lost.from_client && lost.operation == Some(1) && lost.what == "RDMA Read Request", "{lost:?}");
    let one = first_matching(&Micro { num_ops: 1, ..two }, |outcome| outcome.packets.rnr_naks > 0)?;
    ensure!(one.timeouts == 0 && one.status.is_none(), "{}", shown(&one));
    ensure!(one.packets.repeated >= 1 && one.packets.lost == 0, "{}", shown(&one));
    Ok(())
}

/// The first of up to five live runs under connectx4 for which `shows` is true.
fn first_matching(micro: &Micro, shows: impl Fn(&Outcome) -> bool) -> Result<Outcome> {
    let mut all = vec![];
    for seed in 1..=5 {
        let outcome = live()?.run(micro, "connectx4", seed)?;
        if shows(&outcome) {
            return Ok(outcome);
        }
        all.push(shown(&outcome));
    }
    bail!("none of five live runs has the expected outcome: {all:#?}")
}

/// READs posted in the middle of the pending period are dammed, READs posted long after it are not. The period lasts
/// 27 to 44 ms for page faults of the server (RNR timer 20) and 24 to 26 ms for those of the client. The simulator is
/// never late. Live, a thread that waits for its core may post the second READ after the period, or resolve a page
/// before its RNR NAK leaves. So each live run is judged by its own packets: the second READ is lost if and only if it
/// was posted in the period. At least one live run must have the outcome that the interval is chosen for.
fn damming_range() -> Result<()> {
    let profile = profile(LONG_PENDING)?;
    for (odp, interval, dammed) in [(SERVER, 13, true), (SERVER, 100, false), (CLIENT, 12, true), (CLIENT, 100, false)]
    {
        let interval = Duration::from_millis(interval);
        let two = Micro { num_ops: 2, interval, odp, rnr_timer: 20, ..Micro::default() };
        let [live, simulated] = both(&two, &profile)?;
        for outcome in &simulated {
            let right = outcome.packets.lost == u64::from(dammed) && outcome.timeouts == u64::from(dammed);
            ensure!(right, "simulated, {interval:?}, {odp:?}: {}", shown(outcome));
        }
        for outcome in &live {
            let second = Second::of(outcome)?;
            ensure!(second.lost == second.taken_up, "live, {interval:?}, {odp:?}: {second:?}, {:#?}", outcome.steps);
            ensure!(outcome.status.is_none(), "live, {interval:?}, {odp:?}: {}", shown(outcome));
        }
        let as_meant = live.iter().filter(|outcome| (outcome.packets.lost > 0) == dammed).count();
        ensure!(as_meant > 0, "live, {interval:?}, {odp:?}: none of {} runs had the intended outcome", live.len());
    }
    Ok(())
}

/// The first transmission of the second READ.
#[derive(Debug)]
struct Second {
    lost: bool,
    /// It was posted while the first READ was pending: it leaves in the burst that retransmits the first READ. A
    /// capture gives all packets of a burst the same time.
    taken_up: bool,
}

impl Second {
    fn of(outcome: &Outcome) -> Result<Second> {
        let requests =
            |operation| outcome.steps.iter().filter(move |s| s.from_client && s.operation == Some(operation));
        let second = requests(1).next().context("no second READ")?;
        let taken_up = requests(0).skip(1).any(|repeated| repeated.time == second.time);
        Ok(Second { lost: second.lost, taken_up })
    }
}

/// The page comes after the READ was repeated: its response leaves, then the READ is replayed for 20 ms, and the SEND that
/// follows the response arrives meanwhile. Every simulated run has the packets of T fig 6.2 in its order, and at least one
/// live run: in the others a thread was late by more than the 16 ms that the times leave.
fn argo() -> Result<()> {
    let profile = profile(LATE_PAGE)?;
    let interval = Duration::from_millis(2);
    let second = Some(Operation::Send);
    let one = Micro { num_ops: 2, second, in_turn: true, interval, odp: SERVER, touched: true, ..Micro::default() };
    let [live, simulated] = both(&Micro { size: 4096, rnr_timer: 20, ..one }, &profile)?;
    let figure = [
        (true, "RDMA Read Request", 0, false),
        (false, "Acknowledge (RNR NAK)", 0, false),
        (true, "RDMA Read Request", 0, false),
        (false, "RDMA Read Response", 0, false),
        (true, "Send", 1, true),
        (false, "RDMA Read Response", 0, false),
        (true, "Send", 1, false),
        (false, "Acknowledge", 1, false),
    ];
    let same = |outcome: &Outcome| {
        let steps = outcome.steps.iter().map(|s| (s.from_client, s.what.as_str(), s.operation, s.lost));
        steps.eq(figure.iter().map(|&(client, what, operation, lost)| (client, what, Some(operation), lost)))
    };
    for outcome in &simulated {
        ensure!(same(outcome) && outcome.timeouts == 1, "simulated: {}, {:#?}", shown(outcome), outcome.steps);
    }
    ensure!(live.iter().any(same), "live: {:#?}", live.iter().map(|outcome| &outcome.steps).collect::<Vec<_>>());
    ensure!(live.iter().all(|outcome| outcome.status.is_none()), "live: an operation failed");
    Ok(())
}

/// Each run has eight timeouts of 1.5 to 2 times 4.096 µs · 2^exponent; exponents below 13 count as 13. No run is
/// shorter, and no simulated run is longer. Live timeouts may be late, but the shortest gap between two requests must
/// be below the least timeout of the next exponent.
fn timeout() -> Result<()> {
    let profile = profile(SHORT)?;
    for exponent in [1, 14] {
        let micro = Micro { ack_timeout: exponent, wrong_peer: true, ..Micro::default() };
        let whole = Duration::from_nanos(4096 << exponent.max(13));
        let [live, simulated] = both(&micro, &profile)?;
        for (world, outcome) in live.iter().map(|o| ("live", o)).chain(simulated.iter().map(|o| ("simulated", o))) {
            let why = || format!("C_ACK {exponent}, {world}: {}", shown(outcome));
            ensure!(outcome.status.as_deref() == Some("transport retry counter exceeded"), why());
            ensure!(outcome.timeouts == 7 && outcome.packets.requests == 8, why());
            ensure!(outcome.time >= whole.mul_f64(8.0 * 1.5), why());
            ensure!(world == "live" || outcome.time <= whole.mul_f64(8.0 * 2.01), why());
        }
        let gaps = live.iter().flat_map(|outcome| outcome.steps.windows(2).map(|two| two[1].time - two[0].time));
        let shortest = gaps.min().context("no requests")?;
        ensure!(shortest < whole.mul_f64(2.0 * 1.5), "C_ACK {exponent}: the shortest live gap is {shortest:?}");
    }
    Ok(())
}

/// Each READ drops two responses or more before its page is present, so its QP resumes by an event of its own: no READ is
/// complete before the events of the others' first drops are served, and every QP retransmits meanwhile. The simulator and
/// live runs agree on that.
fn flood_pages() -> Result<()> {
    let profile = profile(SLOW_EVENTS)?;
    let micro = Micro { num_ops: 128, num_qps: 128, size: 32, odp: CLIENT, ack_timeout: 18, ..Micro::default() };
    let [live, simulated] = both(&micro, &profile)?;
    for (world, outcomes) in [("live", &live), ("simulated", &simulated)] {
        for outcome in outcomes {
            ensure!(outcome.completions.iter().all(Option::is_some), "{world}: {}", shown(outcome));
            ensure!(outcome.status.is_none(), "{world}: {}", shown(outcome));
            let requests = |number| {
                let of = |s: &&Step| s.from_client && s.operation == Some(number);
                outcome.steps.iter().filter(of).count()
            };
            let least = (0..128).map(requests).min();
            ensure!(least >= Some(3), "{world}: a QP did not drop two responses: {least:?}");
            // The fault, and 127 stale events.
            let served = Duration::from_micros(60_000 + 127 * 500);
            let first = outcome.completions.iter().flatten().min().context("no completion")?;
            ensure!(*first >= served, "{world}: a READ is complete after {first:?}, before {served:?}");
        }
    }
    Ok(())
}

/// 16 WRITEs, page by page, with both pages missing; then each page is released. The ideal adapter adds nothing to a
/// fault, the other one the 50 ms of its profile, of which Weir's own parts take some.
fn costs() -> Result<()> {
    let slow = profile(SLOW_PAGES)?;
    let slow = slow.0.to_str().context("the path of the profile is not UTF-8")?;
    let interval = Duration::from_millis(2);
    let pages = Micro { operation: Operation::Write, size: 4096, num_ops: 16, interval, odp: BOTH, ..Micro::default() };
    let pages = Micro { invalidate: 1, ack_timeout: 18, ..pages };
    for (profile, adapter) in [("ideal", 0.0..=0.0), (slow, 25_000.0..=50_000.0)] {
        let outcome = live()?.run(&pages, profile, 1)?;
        let paging = outcome.paging.context("no counters of paging")?;
        ensure!(outcome.status.is_none() && outcome.timeouts == 0, "{}", shown(&outcome));
        for side in [&paging.client, &paging.server] {
            ensure!(side.page_faults_handled >= 16 && side.page_invalidations_handled == 16, "{profile}: {side:?}");
            let fault: f64 = side.fault().iter().map(|(_, us)| us * side.page_faults_handled as f64).sum();
            let invalidation: f64 = side.invalidation().iter().map(|(_, us)| us * 16.0).sum();
            // Each counter is rounded down to microseconds.
            ensure!((side.page_fault_wait_us as f64 - fault).abs() <= fault * 0.05 + 5.0, "{profile}: {side:?}");
            ensure!((side.page_invalidation_us as f64 - invalidation).abs() <= 3.0, "{profile}: {side:?}");
        }
        let [notice, populate, (_, took), table, resume] = paging.server.fault();
        ensure!(adapter.contains(&took), "{profile}: {:?}", paging.server);
        ensure!([notice, populate, table, resume].iter().all(|(_, us)| *us > 0.0), "{profile}: {:?}", paging.server);
    }
    Ok(())
}

/// ConnectX-4 with ACK timeouts of 230 to 268 ms, which keep the test short, and with long pending periods. Page faults
/// are resolved after the RNR NAK leaves and before the retransmission, even if a thread waits for a core.
const LONG_PENDING: &str = "about = \"ConnectX-4 with a short timeout, and long pending\"\nbase = \"connectx4\"\n
[ack_timeout]\nleast_exponent = 15\n
[requester_faults]\nretransmit_us = [24000, 26000]\n
[page_faults]\nresolve_us = [10000, 12000]\n";

/// ConnectX-4 with a page that comes 60 ms after the READ, when the READ was repeated: that takes 27 to 44 ms.
const LATE_PAGE: &str = "about = \"ConnectX-4 with a late page\"\nbase = \"connectx4\"\n
[adapter]\nrepeated_read_us = 20000\n
[ack_timeout]\nleast_exponent = 15\n
[page_faults]\nresolve_us = 60000\n";

/// ACK timeouts of at least 58 ms; a process that waits for its core is late by a few milliseconds.
const SHORT: &str = "about = \"ConnectX-4 with a shorter timeout\"\nbase = \"connectx4\"\n
[ack_timeout]\nleast_exponent = 13\n";

/// RNR NAKs leave long before the page fault is resolved.
const SLOW_PAGES: &str = "about = \"ConnectX-4 with slow pages\"\nbase = \"connectx4\"\n
[page_faults]\nresolve_us = [50000, 50000]\n";

/// A slow flood: all 128 READs drop two responses before the page fault is resolved, even if processes wait for a core.
const SLOW_EVENTS: &str = "about = \"ConnectX-4 with slow pages and slow events\"\nbase = \"connectx4\"\n
[flood]\nstale_us = 500\n
[requester_faults]\nretransmit_us = [12000, 13000]\n
[page_faults]\nresolve_us = [60000, 60000]\n";

/// Writes a profile to a temporary file, which dropping the result deletes.
fn profile(text: &str) -> Result<Profile> {
    let file = tempfile::Builder::new().suffix(".toml").tempfile()?;
    std::fs::write(&file, text)?;
    Ok(Profile(file.into_temp_path()))
}

struct Profile(tempfile::TempPath);

/// One stage for all trials: a veth takes a second to come up.
fn live() -> Result<Live> {
    static LIVE: OnceLock<Result<Live, String>> = OnceLock::new();
    let live = LIVE.get_or_init(|| Live::new(WEIR, library()).map_err(|error| format!("{error:#}")));
    live.clone().map_err(anyhow::Error::msg)
}

/// Five live and five simulated runs. The simulator must return equal outcomes for equal seeds.
fn both(micro: &Micro, profile: &Profile) -> Result<[Vec<Outcome>; 2]> {
    let path = profile.0.to_str().context("the path of the profile is not UTF-8")?;
    let five = |runner: &mut dyn Runner| (1..=5).map(|seed| runner.run(micro, path, seed)).collect::<Result<Vec<_>>>();
    let simulated = five(&mut Simulated)?;
    ensure!(simulated == five(&mut Simulated)?, "the simulator is not deterministic");
    Ok([five(&mut live()?)?, simulated])
}

/// An outcome without its packet ladder, for messages.
fn shown(outcome: &Outcome) -> String {
    let Outcome { time, status, packets, timeouts, .. } = outcome;
    format!("{time:?}, {timeouts} timeouts, {packets:?}, status {status:?}")
}
