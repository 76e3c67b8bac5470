//! SparkUCX: built from a checkout, on a cluster of Spark of two workers, each with an executor.
//!
//! Side A has the master, a worker and the driver, side B the other worker, as the two machines of T 6.2 had.

mod cluster;
mod java;

pub use cluster::{Cluster, Ended};
pub use java::Java;

use super::Ucx;
use super::argo::built;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_stage::locate;

/// What the build and the runs need besides the checkout and a Java.
pub const NEEDS: [&str; 1] = ["mvn"];

const APPLICATIONS: &str = include_str!("Applications.java");
/// Spark itself, from Maven Central.
const POM: &str = include_str!("pom.xml");
/// The plugin in the checkout's folder `target`.
const PLUGIN: &str = "spark-ucx-1.0-for-spark-3.0-jar-with-dependencies.jar";

/// SparkUCX, Spark, and the applications.
pub struct Spark {
    pub java: Java,
    pub ucx: Ucx,
    /// SPARK_HOME: a folder with Spark's `jars`.
    home: PathBuf,
    plugin: PathBuf,
    applications: PathBuf,
    /// Tasks of an executor at a time. Each has a thread, and so a UCX worker with QPs of its own.
    cores: u32,
}

/// An application, named as Spark's example with the same computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Application {
    SparkTc,
    Recommendation,
    RankingMetrics,
}

impl Application {
    pub const ALL: [Application; 3] = [Application::SparkTc, Application::Recommendation, Application::RankingMetrics];

    /// The name of Spark's example.
    pub fn name(self) -> &'static str {
        match self {
            Application::SparkTc => "SparkTC",
            Application::Recommendation => "RecommendationExample",
            Application::RankingMetrics => "RankingMetricsExample",
        }
    }

    /// Vertices of the graph, or users: as in Spark's examples, and fewer in a quick run.
    pub fn size(self, quick: bool) -> u32 {
        match (self, quick) {
            (Application::SparkTc, false) => 100,
            (Application::SparkTc, true) => 20,
            (_, false) => 30,
            (_, true) => 10,
        }
    }
}

impl Spark {
    /// Builds the plugin, unless the checkout has it, and the applications; gets Spark from Maven Central, unless it is there.
    /// `cores`: the tasks of an executor at a time.
    pub fn build(checkout: &Path, java: Java, ucx: Ucx, cores: u32) -> Result<Spark> {
        let checkout = checkout.canonicalize().with_context(|| format!("--sparkucx {}", checkout.display()))?;
        let manager = checkout.join("src/main/scala/org/apache/spark/shuffle/compat/spark_3_0/UcxShuffleManager.scala");
        ensure!(manager.is_file(), "--sparkucx: {} is no checkout of SparkUCX for Spark 3.0", checkout.display());
        let target = checkout.join("target");
        let plugin = target.join(PLUGIN);
        if !plugin.is_file() {
            let mut package = maven(&java, &checkout)?;
            package.args(["-DskipTests", "-Pspark-3.0", "package"]);
            built(package, "the build of SparkUCX")?;
        }
        let home = target.join("weir");
        let jars = home.join("jars");
        std::fs::create_dir_all(&home).with_context(|| home.display().to_string())?;
        // The last file of the copy that Spark needs; a copy that was interrupted begins again.
        let whole = home.join("complete");
        if !whole.is_file() {
            std::fs::write(home.join("pom.xml"), POM)?;
            let mut copy = maven(&java, &home)?;
            copy.args(["dependency:copy-dependencies", "-DincludeScope=runtime"]);
            copy.arg(format!("-DoutputDirectory={}", jars.display()));
            built(copy, "getting Spark from Maven Central")?;
            std::fs::write(&whole, "")?;
        }
        let applications = home.join("applications.jar");
        let classes = tempfile::tempdir()?;
        let source = classes.path().join("Applications.java");
        std::fs::write(&source, APPLICATIONS)?;
        let mut compile = Command::new(java.program("javac"));
        compile.arg("-cp").arg(format!("{}/*", jars.display())).arg("-d").arg(classes.path()).arg(&source);
        built(compile, "javac")?;
        let mut pack = Command::new(java.program("jar"));
        pack.arg("cf").arg(&applications).arg("-C").arg(classes.path()).arg(".");
        built(pack, "jar")?;
        Ok(Spark { java, ucx, home, plugin, applications, cores })
    }
}

/// Maven in a folder, without questions.
fn maven(java: &Java, folder: &Path) -> Result<Command> {
    let mut command = Command::new(locate("mvn")?);
    command.args(["-q", "-B"]).current_dir(folder).env("JAVA_HOME", &java.home);
    Ok(command)
}
