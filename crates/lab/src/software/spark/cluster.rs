//! A cluster of Spark: a master, two workers, and one application after the other.

use super::{Application, Spark};
use crate::software::counters::Watch;
use crate::software::place::{Scene, TRANSPORTS};
use crate::software::{Counters, Observe, Place, Setting};
use anyhow::Result;
use serde::Deserialize;
use std::process::Command;
use std::time::Duration;
use weir_stage::{Child, Finished, Protocol, Side};

/// Time limit for the master to listen, and for a worker to register.
const START: Duration = Duration::from_secs(60);
/// Interval of looking whether a worker has registered.
const TICK: Duration = Duration::from_millis(50);
/// What the master logs for each worker.
const REGISTERED: &str = "Registering worker";

/// A running cluster.
pub struct Cluster<'a> {
    spark: &'a Spark,
    master: String,
    // Dropping them ends the processes with their executors, before the folder goes that they write to.
    _workers: Vec<Child>,
    _master: Child,
    scene: Scene<'a>,
}

/// An application that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// From the end of Spark's start to the result; `None` if it failed.
    pub seconds: Option<f64>,
    /// What was computed.
    pub result: Option<f64>,
    /// Why it failed.
    pub why: String,
    pub counters: Counters,
}

/// The line that an application prints.
#[derive(Deserialize)]
struct Printed {
    seconds: f64,
    result: f64,
}

impl Ended {
    /// Of an application for which there was no cluster, or which did not start.
    pub fn failed(error: &anyhow::Error) -> Ended {
        Ended { seconds: None, result: None, why: format!("{error:#}"), counters: Counters::default() }
    }
}

impl<'a> Cluster<'a> {
    /// Starts the master, and a worker on each side.
    pub fn start(spark: &'a Spark, place: &'a Place, setting: &'a Setting, observe: Observe) -> Result<Cluster<'a>> {
        let scene = place.scene(setting, observe)?;
        let stage = &place.stage;
        let (port, host) = (stage.free_port(Side::A)?, stage.address(Side::A).to_string());
        let mut master = spark.java(scene.plain(Side::A, spark.java.program("java")), &scene, Side::A);
        master.args(["-Xmx256m", "-cp", &spark.jars(), "org.apache.spark.deploy.master.Master"]);
        master.args(["--host", &host, "--port", &port.to_string(), "--webui-port", "0"]);
        let mut master = Child::spawn(&mut master, "Spark's master")?;
        master.wait_listening(Protocol::Tcp, port, START)?;
        let url = format!("spark://{host}:{port}");
        let worker = |side: Side| -> Result<Child> {
            let mut worker = spark.java(scene.weir(side, spark.java.program("java")), &scene, side);
            worker.args(["-Xmx256m", "-cp", &spark.jars(), "org.apache.spark.deploy.worker.Worker"]);
            worker.args(["--host", &stage.address(side).to_string(), "--webui-port", "0"]);
            worker.args(["--cores", &spark.cores.to_string(), "--memory", "2g", "--work-dir"]);
            worker.arg(scene.folder.path().join(format!("work-{side:?}"))).arg(&url);
            Child::spawn(&mut worker, format!("Spark's worker on side {side:?}"))
        };
        let mut workers = vec![worker(Side::A)?, worker(Side::B)?];
        let deadline = std::time::Instant::now() + START;
        while master.printed()?.matches(REGISTERED).count() < workers.len() {
            for worker in &mut workers {
                anyhow::ensure!(worker.runs(), "{}", worker.printed()?);
            }
            anyhow::ensure!(std::time::Instant::now() < deadline, "no worker registered: {}", master.printed()?);
            std::thread::sleep(TICK);
        }
        Ok(Cluster { spark, scene, master: url, _workers: workers, _master: master })
    }

    /// Runs an application to its end, or to the limit. After a failure a new cluster is needed: executors may be stuck.
    pub fn run(&mut self, application: Application, size: u32, limit: Duration) -> Result<Ended> {
        let spark = self.spark;
        let stage = &self.scene.place.stage;
        let host = stage.address(Side::A).to_string();
        let classes = format!("{}:{}", spark.plugin.display(), spark.ucx.libraries().unwrap_or_default().display());
        let options: Vec<(&str, String)> = vec![
            ("master", self.master.clone()),
            ("driver.host", host.clone()),
            ("driver.bindAddress", host),
            ("executor.memory", "768m".into()),
            ("executor.cores", spark.cores.to_string()),
            ("executor.instances", "2".into()),
            ("cores.max", (2 * spark.cores).to_string()),
            ("jars", spark.applications.display().to_string()),
            ("driver.extraClassPath", classes.clone()),
            ("executor.extraClassPath", classes),
            ("shuffle.manager", "org.apache.spark.shuffle.UcxShuffleManager".into()),
            (
                "shuffle.sort.io.plugin.class",
                "org.apache.spark.shuffle.compat.spark_3_0.UcxLocalDiskShuffleDataIO".into(),
            ),
            ("shuffle.readHostLocalDisk", "false".into()),
            ("shuffle.ucx.driver.port", stage.free_port(Side::A)?.to_string()),
            // SparkUCX waits so long for the address of a peer, and 100 ms by default.
            ("network.timeout", "120s".into()),
            ("ui.enabled", "false".into()),
            ("local.dir", self.scene.folder.path().display().to_string()),
        ];
        let mut driver = spark.java(self.scene.watched(Side::A, spark.java.program("java")), &self.scene, Side::A);
        driver.arg("-Xmx512m");
        driver.args(options.iter().map(|(name, value)| format!("-Dspark.{name}={value}")));
        let plugin = [&spark.applications, &spark.plugin].map(|path| path.display().to_string()).join(":");
        driver.args(["-cp", &format!("{plugin}:{}", spark.jars()), "Applications", application.name()]);
        // A shuffle has a partition for each task.
        driver.args([(2 * spark.cores).to_string(), size.to_string()]);
        let watch = Watch::begin(&self.scene.counters());
        let ended = Child::spawn(&mut driver, application.name())?.wait(limit);
        let counters = watch.end();
        let failed = |why: String| Ended { seconds: None, result: None, why, counters };
        let finished = match ended {
            Ok(finished) => finished,
            Err(_) => return Ok(failed(format!("it did not end within {} s", limit.as_secs()))),
        };
        Ok(match printed(&finished) {
            Some(Printed { seconds, result }) if finished.status.success() => {
                Ended { seconds: Some(seconds), result: Some(result), why: String::new(), counters }
            }
            _ => failed(reason(&finished)),
        })
    }

    /// The libraries that the last driver used to register memory on demand, if they are observed.
    pub fn registrars(&self) -> Result<Vec<String>> {
        self.scene.registrars()
    }
}

impl Spark {
    /// Adds what each of Spark's processes gets.
    fn java(&self, mut command: Command, scene: &Scene<'_>, side: Side) -> Command {
        let address = scene.place.stage.address(side).to_string();
        command.env("JAVA_HOME", &self.java.home).env("SPARK_HOME", &self.home).env("SPARK_SCALA_VERSION", "2.12");
        command.env("SPARK_LOCAL_IP", &address).env("SPARK_LOCAL_HOSTNAME", &address);
        // A driver listens, which UCX does by TCP where it has no librdmacm.
        command.env("UCX_TLS", format!("{TRANSPORTS},tcp")).envs(self.ucx.variables(scene.setting.memory));
        command
    }

    fn jars(&self) -> String {
        format!("{}/jars/*", self.home.display())
    }
}

fn printed(finished: &Finished) -> Option<Printed> {
    finished.stdout.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

/// Why an application failed: the first error of UCX in its output, otherwise the first exception, otherwise its last lines.
fn reason(finished: &Finished) -> String {
    let text = format!("{}\n{}", finished.stderr, finished.stdout);
    let of = |word: &str| text.lines().find_map(|line| line.split_once(word).map(|(_, rest)| rest.trim().to_owned()));
    let found = of("UcxException: ").or_else(|| of("Exception: "));
    found.map_or_else(|| finished.last_lines(), |line| line.chars().take(200).collect())
}
