//! `weir-stream`: bytes of all kinds of streams, what each option does, errors that leave the next job alone.

use crate::bed::{Bed, Topology, WEIR, library};
use crate::trial;
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use weir_lab::stream::equations::signal_period;
use weir_lab::stream::{Amount, Areas, Found, Job, Place, Sides, Signal};
use weir_stage::{Child, Finished, Protocol, Side};

const LIMIT: Duration = Duration::from_secs(60);

pub fn trials() -> Vec<Trial> {
    let everywhere = Topology::ALL.into_iter().flat_map(|topology| {
        [
            trial(topology, "weir-stream: every byte, of all sizes, numbers, periods and offsets", bytes),
            trial(topology, "weir-stream: a side that polls does not sleep, and the other one does", polling),
        ]
    });
    let once = [
        trial(Topology::Loopback, "weir-stream: periods, depths and ACKs are as asked for", options),
        trial(Topology::Loopback, "weir-stream --jobs: an error leaves the next job alone", errors),
        trial(Topology::Loopback, "weir-stream reports wrong arguments", exit_codes),
        trial(Topology::Loopback, "weir-stream --stay serves one client after another, one of which is killed", stay),
        trial(Topology::Loopback, "weir-stream: a side ends soon after the other is killed", killed),
        trial(Topology::Loopback, "weir lab runs an experiment with weir-stream", laboratory),
    ];
    everywhere.chain(once).collect()
}

fn program() -> String {
    library().join("weir-stream").display().to_string()
}

fn server(bed: &Bed, port: u16, words: &str) -> Result<Child> {
    let line = format!("{} --device {} --port {port} {words}", program(), bed.stage.device());
    let mut server = Child::spawn(&mut bed.weir(Side::A, &[], line.split_whitespace()), "the server")?;
    server.wait_listening(Protocol::Tcp, port, Duration::from_secs(10))?;
    Ok(server)
}

fn client(bed: &Bed, port: u16, words: &str) -> Command {
    let line = format!("{} --device {} --port {port} {words}", program(), bed.stage.device());
    let mut client = bed.weir(Side::B, &[], line.split_whitespace());
    client.arg(bed.stage.address(Side::A).to_string());
    client
}

/// Both sides, with jobs in a file. Returns a line of JSON for each of them.
fn run(bed: &Bed, lines: &[String]) -> Result<Vec<Value>> {
    let folder = tempfile::tempdir()?;
    let input = written(folder.path(), lines)?;
    let port = bed.stage.free_port(Side::A)?;
    let server = server(bed, port, "")?;
    let mut client = client(bed, port, "--jobs --timeout 20");
    let client = Child::spawn(client.stdin(input), "the client")?.wait(LIMIT)?;
    let server = server.wait(Duration::from_secs(5))?;
    ensure!(client.status.success() && server.status.success(), "{}\n{}", server.printed(), client.printed());
    let shown: Result<Vec<Value>, _> = client.stdout.lines().map(serde_json::from_str).collect();
    let shown = shown.with_context(|| client.printed())?;
    ensure!(shown.len() == lines.len(), "{} lines for {} jobs: {}", shown.len(), lines.len(), client.printed());
    Ok(shown)
}

/// A file with these lines, open for reading.
fn written(folder: &Path, lines: &[String]) -> Result<std::fs::File> {
    let path = folder.join("jobs");
    writeln!(std::fs::File::create(&path)?, "{}", lines.join("\n"))?;
    Ok(std::fs::File::open(path)?)
}

/// What is found for each of these jobs, all of which must succeed.
fn found(bed: &Bed, jobs: &[Job]) -> Result<Vec<Found>> {
    let lines: Vec<String> = jobs.iter().map(|job| job.arguments().join(" ")).collect();
    let shown = run(bed, &lines)?.into_iter().zip(&lines);
    shown
        .map(|(value, line)| serde_json::from_value(value.clone()).with_context(|| format!("{line}: {value}")))
        .collect()
}

fn short() -> Job {
    let [warm_up, time] = [5, 20].map(Duration::from_millis);
    Job { size: 4096, warm_up, amount: Amount::Time(time), ..Job::default() }
}

fn bytes(bed: &Bed) -> Result<()> {
    let base = Job { verify: true, ..short() };
    let mut jobs = vec![];
    for (size, outstanding, offset) in [
        (1, 1, 0),
        (1, 128, 4095),
        (7, 3, 9),
        (4095, 8, 2),
        (4097, 16, 64),
        (65536, 128, 4000),
        (100_000, 2, 1),
        (1 << 20, 5, 0),
        (8 << 20, 2, 31),
    ] {
        for signal in [Signal::Every(1), Signal::Half, Signal::Equation, Signal::Every(2 * outstanding)] {
            jobs.push(Job { size, outstanding, offset, signal, ..base.clone() });
        }
    }
    jobs.push(Job { size: 64 << 20, amount: Amount::Bytes(64 << 20), ..base.clone() });
    jobs.push(Job { size: 100, outstanding: 4096, amount: Amount::Bytes(1 << 20), ..base.clone() });
    jobs.push(Job { outstanding: 1, areas: Areas::One, ..base.clone() });
    jobs.push(Job { polls: Sides::BOTH, outstanding: 16, ..base.clone() });
    jobs.push(Job { warm_up: Duration::ZERO, amount: Amount::Bytes(1), ..base });
    for (job, found) in jobs.iter().zip(found(bed, &jobs)?) {
        ensure!(found.messages > 0 && found.bytes == found.messages * job.size, "{job:?}: {found:?}");
        ensure!(found.checked == found.bytes && found.wrong == 0, "{job:?}: {found:?}");
        let gbits = found.bytes as f64 * 8e-9 / found.seconds;
        ensure!((found.gbits / gbits - 1.0).abs() < 1e-3, "{job:?}: {found:?}");
        match job.amount {
            Amount::Time(time) => ensure!(found.seconds >= time.as_secs_f64(), "{job:?}: {found:?}"),
            Amount::Bytes(bytes) => ensure!(found.messages == bytes.div_ceil(job.size), "{job:?}: {found:?}"),
        }
    }
    Ok(())
}

fn polling(bed: &Bed) -> Result<()> {
    let (sender, receiver) = (true, false);
    let all = [Sides::NONE, Sides::BOTH, Sides { sender, receiver }, Sides { sender: receiver, receiver: sender }];
    let jobs = all.map(|polls| Job { polls, ..short() });
    for (job, found) in jobs.iter().zip(found(bed, &jobs)?) {
        for (polls, side) in [(job.polls.sender, found.sender), (job.polls.receiver, found.receiver)] {
            ensure!((side.sleeps == 0) == polls, "{job:?}: {found:?}");
            // A side that polls uses a core, unless it has to share it.
            ensure!(!polls || side.cpu() > found.seconds * 0.05, "{job:?}: {found:?}");
        }
    }
    Ok(())
}

fn options(bed: &Bed) -> Result<()> {
    let base = Job { outstanding: 16, amount: Amount::Bytes(100 << 12), warm_up: Duration::ZERO, ..short() };
    let mut jobs: Vec<Job> = [Signal::Every(3), Signal::Half, Signal::Equation]
        .into_iter()
        .flat_map(|signal| [0, 17, 64].map(|depth| Job { signal, depth, ..base.clone() }))
        .collect();
    jobs.push(Job { size: 40_000, signal: Signal::Equation, ..base.clone() });
    jobs.push(Job { areas: Areas::One, ..base.clone() });
    let here = Place { cpus: Some("0".into()), node: None };
    jobs.push(Job { sender: here.clone(), receiver: here, ..base.clone() });
    for (job, found) in jobs.iter().zip(found(bed, &jobs)?) {
        let depth = if job.depth == 0 { 2 * job.outstanding } else { job.depth };
        let signal = match job.signal {
            Signal::Every(n) => n,
            Signal::Half => job.outstanding / 2,
            Signal::Equation => signal_period(job.size, job.outstanding, found.depth),
        };
        ensure!(found.depth >= depth && found.signal == signal, "{job:?}: {found:?}");
        // One for every eighth message, and for the last one.
        ensure!(found.acks == found.messages.div_ceil(8), "{job:?}: {found:?}");
        ensure!(found.checked == 0, "{job:?}: {found:?}");
    }
    let lines =
        ["--size 1K --bytes 1K", "--size 2Ki --offset 12", "--ack-every 3 --outstanding 8 --bytes 8M --areas one"];
    let shown = run(bed, &lines.map(|words| format!("{words} --warm-up 0")))?;
    ensure!(shown[0]["size"] == 1024 && shown[0]["messages"] == 1 && shown[0]["acks"] == 1, "{shown:?}");
    ensure!(shown[1]["size"] == 2048 && shown[1]["offset"] == 12 && shown[1]["areas"] == "separate", "{shown:?}");
    ensure!(shown[2]["messages"] == 8 && shown[2]["acks"] == 3 && shown[2]["areas"] == "one", "{shown:?}");
    ensure!(shown[2]["device"] == bed.stage.device().as_str() && shown[2]["poll"] == "none", "{shown:?}");
    Ok(())
}

fn errors(bed: &Bed) -> Result<()> {
    let wrong = [
        ("--size 0", "--size"),
        ("--size 2G", "1 GiB"),
        ("--size 12x", "`12x` is not a number of bytes"),
        ("--outstanding 0", "--outstanding"),
        ("--outstanding 8 --depth 8", "--depth: at least 9"),
        ("--depth 1000000", "max_qp_wr"),
        ("--outstanding 8 --signal 17", "greater --depth"),
        ("--signal 0", "--signal"),
        ("--ack-every 5", "--ack-every: at most"),
        ("--offset 4096", "--offset"),
        ("--size 128M --outstanding 33", "4 GiB"),
        ("--areas one --verify", "--areas separate"),
        ("--time 0", "--bytes"),
        ("--time 21s", "--timeout"),
        ("--time 3h", "`3h` is not a time"),
        ("--sender-cpus 0-", "not a list of CPUs"),
        ("--sender-cpus 1023", "--sender-cpus"),
        ("--receiver-cpus 1023", "the server: --receiver-cpus"),
        ("--sender-node 1000", "no NUMA node 1000"),
        ("--receiver-node 1000", "the server: --receiver-node"),
        ("--device x", "not an option of a job"),
        ("--frobnicate", "`--frobnicate`"),
        ("--poll all", "`all`"),
        ("--size", "a value is missing"),
        ("word", "`word`"),
    ];
    // A good job after each of them, on the same connection.
    let good = "--size 3000 --outstanding 4 --warm-up 1ms --bytes 30000 --verify";
    let lines: Vec<String> = wrong.iter().flat_map(|(words, _)| [words.to_string(), good.to_owned()]).collect();
    for (pair, (words, message)) in run(bed, &lines)?.chunks(2).zip(wrong) {
        let why = pair[0]["error"].as_str().with_context(|| format!("{words}: {}", pair[0]))?;
        ensure!(why.contains(message), "{words}: {why}");
        ensure!(pair[1]["checked"] == 30000 && pair[1]["wrong"] == 0, "after {words}: {}", pair[1]);
    }
    Ok(())
}

fn exit_codes(bed: &Bed) -> Result<()> {
    let alone = |words: &str| -> Result<Finished> {
        let words = format!("{} {words}", program());
        Child::spawn(&mut bed.weir(Side::A, &[], words.split_whitespace()), "weir-stream")?
            .wait(Duration::from_secs(15))
    };
    for (words, message) in [
        ("--size 0 127.0.0.1", "--size"),
        ("--size 0", "--size"),
        ("one two", "one host"),
        ("--jobs", "--jobs"),
        ("--stay 127.0.0.1", "--stay"),
        ("--mtu 5", "--mtu"),
        ("--timeout 0", "--timeout"),
    ] {
        let ended = alone(words)?;
        ensure!(ended.status.code() == Some(2) && ended.stderr.contains(message), "{words}: {}", ended.printed());
    }
    let help = alone("--help")?.success()?;
    ensure!(help.stdout.contains("--outstanding") && help.stdout.contains("Exit code"), "{}", help.printed());
    // One job, which the server refuses.
    let port = bed.stage.free_port(Side::A)?;
    let server_side = server(bed, port, "")?;
    let ended = Child::spawn(&mut client(bed, port, "--receiver-node 1000"), "the client")?.wait(LIMIT)?;
    ensure!(ended.status.code() == Some(2) && ended.stderr.contains("no NUMA node 1000"), "{}", ended.printed());
    let ended = server_side.wait(Duration::from_secs(5))?;
    ensure!(ended.status.code() == Some(2) && ended.stderr.contains("no NUMA node 1000"), "{}", ended.printed());
    // Text, and the limit of the MTU.
    let line = format!("{} --device {{dev}} --port {{port}} --mtu 1024 --time 20ms --verify", program());
    let text = bed.pair(&[], &line, LIMIT)?.client.stdout;
    for words in ["1048576 bytes, 4 outstanding", "MTU 1024", "Gbit/s", "messages/s", "sleeps", " compared, 0 wrong"] {
        ensure!(text.contains(words), "`{words}` is missing: {text}");
    }
    Ok(())
}

fn stay(bed: &Bed) -> Result<()> {
    let port = bed.stage.free_port(Side::A)?;
    let mut server = server(bed, port, "--stay")?;
    let one = |words: &str| Child::spawn(&mut client(bed, port, words), "the client");
    for size in [100, 200] {
        let ended = one(&format!("--json --time 10ms --size {size}"))?.wait(LIMIT)?.success()?;
        let shown: Value = serde_json::from_str(&ended.stdout)?;
        ensure!(shown["size"] == size, "{shown}");
    }
    let refused = one("--receiver-node 1000")?.wait(LIMIT)?;
    ensure!(refused.status.code() == Some(2), "{}", refused.printed());
    // Dropping it kills it.
    drop(busy(&mut client(bed, port, "--jobs"))?);
    one("--json --time 10ms")?.wait(Duration::from_secs(20))?.success()?;
    ensure!(server.poll()?.is_none(), "the server has ended: {}", server.printed()?);
    Ok(())
}

/// A client that has done a short job, and does a long one.
fn busy(client: &mut Command) -> Result<Child> {
    let (input, mut jobs) = std::io::pipe()?;
    client.stdin(input);
    let mut child = Child::spawn(client, "the client")?;
    jobs.write_all(b"--warm-up 1ms --time 10ms\n--time 20s\n")?;
    let end = std::time::Instant::now() + LIMIT;
    while !child.has_output()? {
        ensure!(child.poll()?.is_none() && std::time::Instant::now() < end, "{}", child.printed()?);
        std::thread::sleep(Duration::from_millis(5));
    }
    // The long job has memory to register and peers to meet, which takes less.
    std::thread::sleep(Duration::from_millis(200));
    Ok(child)
}

fn killed(bed: &Bed) -> Result<()> {
    for poll in ["none", "both"] {
        for of_server in [true, false] {
            let port = bed.stage.free_port(Side::A)?;
            let server = server(bed, port, "")?;
            let client = busy(&mut client(bed, port, &format!("--jobs --poll {poll}")))?;
            let (dies, lives) = if of_server { (server, client) } else { (client, server) };
            ensure!(dies.runs(), "it has ended before");
            drop(dies);
            let ended = lives.wait(Duration::from_secs(5))?;
            let said = ended.stderr.contains("the other side has closed the connection");
            ensure!(ended.status.code() == Some(2) && said, "--poll {poll}: {}", ended.printed());
        }
    }
    Ok(())
}

/// One experiment stands for all that use it; each job once. `fdr-numa` needs two nodes.
fn laboratory(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut command = bed.bare(Side::A, WEIR);
    command.args(["lab", "run", "fdr-cache", "fdr-numa", "--live", "--trials", "1", "--json", "--out"]);
    let ended = Child::spawn(command.arg(folder.path()), "weir lab run")?.wait(LIMIT)?.success()?;
    let shown: Value = serde_json::from_str(&ended.stdout)?;
    let claims = shown[0]["claims"].as_array().context("no claims")?;
    ensure!(shown[0]["id"] == "fdr-cache" && claims.iter().all(|claim| claim["weir"].is_number()), "{shown:#}");
    let rows = std::fs::read_to_string(folder.path().join("fdr-cache.csv"))?;
    ensure!(rows.contains("1048576,16,8,32,0,one,none"), "{rows}");
    let one_node = !Path::new("/sys/devices/system/node/node1").exists();
    ensure!(!one_node || ended.stderr.contains("skipping fdr-numa: it needs two NUMA nodes"), "{}", ended.stderr);
    Ok(())
}
