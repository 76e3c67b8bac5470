//! `weir lab`: repeats the published experiments on the simulator or live, and compares them with the papers' claims.

mod micro;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use weir_lab::bench::Bench;
use weir_lab::experiment::{Done, Experiment, LeftOut};
use weir_lab::experiments::{self, ALL};
use weir_lab::micro::Runner;
use weir_lab::micro::live::Live;
use weir_lab::micro::sim::Simulated;
use weir_lab::output;
use weir_lab::software::Software;

/// Arguments of `weir lab`.
#[derive(Args, Debug)]
pub struct LabArgs {
    #[command(subcommand)]
    action: LabAction,
}

#[derive(Subcommand, Debug)]
enum LabAction {
    /// List the experiments and their publications
    List {
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Run experiments: print tables, write data and figures to a folder
    Run(RunArgs),
    /// Show a scenario of the experiment `detectors`: what the simulator did, and its captures
    Scenario(ScenarioArgs),
    /// Run the papers' micro-benchmark once and print its packets
    Micro(micro::MicroArgs),
}

#[derive(Args, Debug)]
struct ScenarioArgs {
    /// Its seed, from detectors-errors.csv
    #[arg(value_name = "SEED")]
    seed: u64,
    /// The half of a connection; its packets are shown
    #[arg(long, value_name = "N", default_value_t = 0)]
    half: usize,
    /// Folder for client.pcapng and server.pcapng
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct RunArgs {
    /// IDs of the experiments, or `all`
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Adapter to use instead of ConnectX-4; experiments that compare fixed adapters are skipped
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Run live: two processes on this machine, in real time
    #[arg(long, conflicts_with = "sim")]
    live: bool,
    /// Run on the simulator, in virtual time (the default)
    #[arg(long)]
    sim: bool,
    /// Runs of each setting [default: the experiment's own, mostly 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    trials: Option<u32>,
    /// Seeds with which each experiment is repeated to judge its claims; live, of the simulation beside it. `detectors`
    /// draws 100 scenarios for each
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
    /// First seed of all random choices; simulations with the same seed give the same results
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    software: SoftwareArgs,
    /// Folder for data, figures and claims
    #[arg(long, value_name = "DIR", default_value = "weir-lab")]
    out: PathBuf,
    /// Print the claims as JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Also write index.html, a page with all tables, figures and claims
    #[arg(long)]
    html: bool,
    /// Also write README.md, an index of the figures in Markdown
    #[arg(long)]
    markdown: bool,
}

/// The applications of the thesis, which Weir does not include.
#[derive(Args, Debug)]
#[command(next_help_heading = "Applications of the thesis, run live")]
struct SoftwareArgs {
    /// A checkout of ArgoDSM, for the experiment `argo`: git clone https://github.com/etascale/argodsm DIR; git -C DIR
    /// submodule update --init submodules/qd. It is built in DIR/build/weir
    #[arg(long, value_name = "DIR")]
    argodsm: Option<PathBuf>,
    /// A checkout of SparkUCX, for the experiment `spark`: git clone https://github.com/openucx/sparkucx DIR. Maven builds it
    /// in DIR/target, and gets Spark from Maven Central
    #[arg(long, value_name = "DIR")]
    sparkucx: Option<PathBuf>,
    /// Installation of UCX for both [default: the system's]. Releases 1.11 to 1.17 are not fit for memory on demand, Debian
    /// 12's among them
    #[arg(long, value_name = "PREFIX")]
    ucx: Option<PathBuf>,
    /// Development kit of Java 8 to 13 for SparkUCX [default: JAVA_HOME, or one in /usr/lib/jvm]
    #[arg(long, value_name = "HOME")]
    java: Option<PathBuf>,
    /// Few runs of small inputs: each of both experiments takes about four minutes on two cores
    #[arg(long)]
    quick: bool,
}

/// Runs `weir lab`. A claim that does not hold does not make the command fail.
pub fn run(args: LabArgs) -> Result<ExitCode> {
    match args.action {
        LabAction::List { json } => list(json),
        LabAction::Run(args) => run_all(&args),
        LabAction::Scenario(args) => scenario(&args),
        LabAction::Micro(args) => micro::run(&args),
    }
}

fn list(json: bool) -> Result<ExitCode> {
    let shown = |experiment: &&Experiment| {
        serde_json::json!({
            "id": experiment.id, "title": experiment.title, "source": experiment.source,
            "not_simulated": experiment.not_simulated,
        })
    };
    if json {
        println!("{:#}", serde_json::Value::from_iter(ALL.iter().map(shown)));
        return Ok(ExitCode::SUCCESS);
    }
    for experiment in ALL {
        let live_only = |reason| format!("; live only, the simulator cannot run it: {reason}");
        let runs = experiment.not_simulated.map_or_else(String::new, live_only);
        println!("{:15}  {} ({}{runs})", experiment.id, experiment.title, experiment.source);
    }
    Ok(ExitCode::SUCCESS)
}

fn scenario(args: &ScenarioArgs) -> Result<ExitCode> {
    let (text, captures) = weir_lab::detectors::explain(args.seed, args.half)?;
    print!("{text}");
    if let Some(folder) = &args.out {
        std::fs::create_dir_all(folder).with_context(|| format!("--out {}", folder.display()))?;
        for (name, bytes) in ["client.pcapng", "server.pcapng"].iter().zip(captures) {
            let path = folder.join(name);
            std::fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl SoftwareArgs {
    fn software(&self) -> Software {
        Software {
            argodsm: self.argodsm.clone(),
            sparkucx: self.sparkucx.clone(),
            ucx: self.ucx.clone(),
            java: self.java.clone(),
            quick: self.quick,
        }
    }

    /// Whether the caller has the software of an experiment.
    fn is_for(&self, experiment: &Experiment) -> bool {
        match experiment.id {
            "argo" => self.argodsm.is_some(),
            "spark" => self.sparkucx.is_some(),
            _ => false,
        }
    }
}

impl RunArgs {
    /// Whether an experiment runs live: an application does without being told.
    fn is_live(&self, experiment: &Experiment) -> bool {
        self.live || (!self.sim && self.software.is_for(experiment))
    }
}

fn run_all(args: &RunArgs) -> Result<ExitCode> {
    let chosen = experiments::select(&args.ids)?;
    if let Some(profile) = &args.profile {
        weir_profiles::load(profile)?;
    }
    let (mut wanted, mut left_out) = (vec![], vec![]);
    for experiment in chosen {
        match why_left_out(args, experiment) {
            Some(why) => left_out.push(LeftOut { experiment, why }),
            None => wanted.push(experiment),
        }
    }
    for LeftOut { experiment, why } in &left_out {
        eprintln!("weir lab: skipping {}: {why}", experiment.id);
    }
    let option = match () {
        () if left_out.iter().any(|left| left.why.contains("use --live")) => "; add --live",
        () if args.profile.is_some() => "; omit --live or --profile",
        () => "",
    };
    ensure!(!wanted.is_empty(), "all chosen experiments were skipped{option}");
    let mut all = vec![];
    for experiment in wanted {
        let live = args.is_live(experiment);
        let mut done = run_one(args, live, experiment)?;
        if live && experiment.not_simulated.is_none() {
            done.simulated = run_one(args, false, experiment)?.report.claims;
        }
        output::write(&args.out, &done).with_context(|| format!("--out {}", args.out.display()))?;
        if !args.json {
            println!("{}", output::table(&done));
        }
        all.push(done);
    }
    let mut written = vec![("claims.json", output::json(&all, &left_out)? + "\n")];
    if args.html {
        written.push(("index.html", output::page(&all, &left_out)));
    }
    if args.markdown {
        written.push(("README.md", output::index(&all, &left_out)));
    }
    for (name, text) in &written {
        let path = args.out.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    if args.json {
        println!("{}", written[0].1.trim_end());
    }
    let shown = if args.html { args.out.join("index.html") } else { args.out.clone() };
    eprintln!("weir lab: data and figures are in {}", shown.display());
    Ok(ExitCode::SUCCESS)
}

/// Why an experiment does not run with these arguments; `None` if it does.
fn why_left_out(args: &RunArgs, experiment: &Experiment) -> Option<String> {
    if let Some(reason) = experiment.not_simulated.filter(|_| !args.is_live(experiment)) {
        return Some(format!("the simulator cannot run it: {reason}; use --live"));
    }
    if args.is_live(experiment)
        && let Some(reason) = (experiment.not_live)(&args.software.software())
    {
        return Some(reason);
    }
    let fixed = experiment.fixed_adapters && args.profile.is_some();
    fixed.then(|| "it compares fixed adapters, so --profile does not apply".into())
}

/// Makes runners of the micro-benchmark: live or simulated. Live, all have the stage of the first: experiments without the
/// micro-benchmark need none.
fn maker(live: bool) -> Box<Maker> {
    let first: Mutex<Option<Live>> = Mutex::new(None);
    match live {
        true => Box::new(move || {
            let mut first = first.lock().expect("no thread panics with it");
            let live = first.take().map_or_else(micro::live, Ok)?;
            Ok(Box::new(first.insert(live).clone()))
        }),
        false => Box::new(|| Ok(Box::new(Simulated))),
    }
}

type Maker = dyn Fn() -> Result<Box<dyn Runner>> + Sync;

fn run_one(args: &RunArgs, live: bool, experiment: &'static Experiment) -> Result<Done> {
    let make = maker(live);
    let style = ProgressStyle::with_template("{prefix:15} {bar:32} {pos}/{len} runs, {elapsed}")?;
    // Hidden where standard error is no terminal.
    let bar = ProgressBar::new(0).with_style(style).with_prefix(experiment.id);
    let bench = Bench {
        runner: &*make,
        // Live runs need the machine for themselves.
        threads: if live { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) },
        profile: args.profile.as_deref(),
        trials: args.trials,
        seed: args.seed,
        seeds: if live { 1 } else { args.seeds },
        round: AtomicU32::new(0),
        live,
        shrink: if live { 8 } else { 1 },
        software: args.software.software(),
        progress: &|planned, done| {
            bar.inc_length(planned as u64);
            bar.inc(done as u64);
        },
        seen: Mutex::default(),
    };
    let done = experiments::run(experiment, &bench);
    bar.finish_and_clear();
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: LabArgs,
    }

    fn parse(line: &str) -> Result<LabArgs, clap::Error> {
        Command::try_parse_from(line.split(' ')).map(|command| command.args)
    }

    #[test]
    fn a_run_writes_all_files_to_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let line = format!(
            "lab run odp-read damming-trace --sim --trials 1 --seeds 2 --html --markdown --json --out {}",
            out.display()
        );
        assert_eq!(run(parse(&line).unwrap()).unwrap(), ExitCode::SUCCESS);
        for name in
            ["claims.json", "index.html", "README.md", "odp-read.csv", "odp-read-ladder.svg", "damming-trace.json"]
        {
            assert!(out.join(name).is_file(), "{name}");
        }
        let claims: serde_json::Value =
            serde_json::from_slice(&std::fs::read(out.join("claims.json")).unwrap()).unwrap();
        assert_eq!(claims.as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn an_experiment_that_the_simulator_cannot_run_is_listed_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let line = format!("lab run odp-read fault-cost --sim --trials 1 --seeds 1 --markdown --out {}", out.display());
        assert_eq!(run(parse(&line).unwrap()).unwrap(), ExitCode::SUCCESS);
        let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
        let claims: serde_json::Value = serde_json::from_str(&read("claims.json")).unwrap();
        assert_eq!((&claims[0]["id"], &claims[1]["id"]), (&"odp-read".into(), &"fault-cost".into()));
        let why = claims[1]["left_out"].as_str().unwrap();
        assert!(why.contains("no operating system") && why.contains("--live"), "{why}");
        assert!(read("README.md").contains(&format!("| not run: {why} |")));
        let alone = run(parse("lab run fault-cost --sim").unwrap()).unwrap_err();
        assert!(alone.to_string().contains("add --live"), "{alone}");
    }

    #[test]
    fn a_scenario_writes_its_captures() {
        let folder = tempfile::tempdir().unwrap();
        let line = format!("lab scenario 2 --out {}", folder.path().display());
        assert_eq!(run(parse(&line).unwrap()).unwrap(), ExitCode::SUCCESS);
        for name in ["client.pcapng", "server.pcapng"] {
            let mut reader = weir_capture::open(folder.path().join(name)).unwrap();
            assert!(reader.next_frame().unwrap().is_some(), "{name}");
        }
    }

    #[test]
    fn wrong_arguments_are_refused() {
        assert!(parse("lab run").is_err() && parse("lab run all --live --sim").is_err());
        let unknown = run(parse("lab run nothing").unwrap()).unwrap_err();
        assert!(unknown.to_string().contains("weir lab list"), "{unknown}");
        let own = run(parse("lab run timeout connectx6 --profile connectx5").unwrap()).unwrap_err();
        assert!(own.to_string().contains("omit --live or --profile"), "{own}");
        let profile = format!("{:#}", run(parse("lab run odp-read --profile connectx9").unwrap()).unwrap_err());
        assert!(profile.contains("connectx9") && !profile.contains("Micro"), "{profile}");
    }
}
