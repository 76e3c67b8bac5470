use super::*;
use crate::fake::Adapter;
use clap::Parser;
use std::sync::{Arc, Mutex};
use weir_lab::stream::{Found, Job, Measure};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: TuneArgs,
}

fn parse(line: &str) -> TuneArgs {
    Command::try_parse_from(line.split(' ')).map(|command| command.args).unwrap_or_else(|error| panic!("{error}"))
}

/// The model, and a limit of runs after which every run fails.
struct Limited {
    adapter: Arc<Mutex<Adapter>>,
    runs: usize,
}

impl Measure for Limited {
    fn measure(&mut self, job: &Job) -> Result<Found> {
        self.runs = self.runs.checked_sub(1).context("the peer is gone")?;
        self.adapter.lock().unwrap().measure(job)
    }
}

fn opened(adapter: &Arc<Mutex<Adapter>>, runs: usize) -> Opened {
    let measure = Box::new(Limited { adapter: Arc::clone(adapter), runs });
    Opened { measure, adapter: "fake0".into(), weir: false }
}

#[test]
fn options_become_a_plan() {
    let plan = plan(&parse("tune --quick --sizes 1M,4K,64K --budget 20s --peer b"));
    assert_eq!((plan.sizes.clone(), plan.budget), (vec![4 << 10, 64 << 10, 1 << 20], 20.0));
    assert!(plan.places.iter().all(|place| place.receiver == weir_lab::stream::Place::default()));
    assert!(Command::try_parse_from(["tune", "--sizes", "4X"]).is_err());
}

#[test]
fn an_interrupted_run_continues_and_measures_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("tune --quick --sizes 32K,1M --state {}", folder.path().join("state.json").display());
    let adapter = Arc::new(Mutex::new(Adapter::new(3, 0.01)));
    let jobs = || adapter.lock().unwrap().jobs.len();
    let error = tune(&parse(&line), |_| Ok(opened(&adapter, 40))).unwrap_err();
    assert!(error.to_string().contains("the peer is gone"), "{error}");
    assert_eq!(jobs(), 40);
    let findings = tune(&parse(&line), |_| Ok(opened(&adapter, usize::MAX))).unwrap();
    assert_eq!(findings.runs as usize, jobs(), "the results of both runs count, once");
    assert!(findings.failures.is_empty());
    let again = tune(&parse(&format!("{line} --show")), |_| unreachable!("everything is there")).unwrap();
    assert_eq!((again.runs, again.best.len(), again.subject.adapter.as_str()), (findings.runs, 2, "fake0"));
    let other = tune(&parse(&format!("{line} --budget 50s")), |_| unreachable!()).unwrap_err();
    assert!(other.to_string().contains("--fresh"), "{other}");
    // A complete run does not stand for another one.
    let before = jobs();
    tune(&parse(&line), |_| Ok(opened(&adapter, usize::MAX))).unwrap();
    assert!(jobs() > before + 40);
    let before = jobs();
    tune(&parse(&format!("{line} --fresh")), |_| Ok(opened(&adapter, usize::MAX))).unwrap();
    assert!(jobs() > before + 40);
}

#[test]
fn the_command_fails_with_the_first_error_if_nothing_can_be_measured() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("tune --quick --sizes 4K --state {}", folder.path().join("state.json").display());
    let adapter = Arc::new(Mutex::new(Adapter { refuses: vec![4096], ..Adapter::new(3, 0.01) }));
    let error = tune(&parse(&line), |_| Ok(opened(&adapter, usize::MAX))).unwrap_err().to_string();
    assert!(error.contains("4096 bytes do not fit"), "{error}");
    assert!(!folder.path().join("state.json").exists(), "the next run tries again");
}

#[test]
fn a_file_that_is_no_state_is_not_replaced() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "mine").unwrap();
    let error = tune(&parse(&format!("tune --state {}", file.path().display())), |_| unreachable!()).unwrap_err();
    assert!(error.to_string().contains("--fresh"), "{error}");
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "mine");
}

#[test]
fn wrong_bytes_are_an_error() {
    let found = Adapter::new(1, 0.0).measure(&Job::default()).unwrap();
    assert!(intact(found.clone()).is_ok());
    assert!(intact(Found { wrong: 3, checked: 5, ..found }).unwrap_err().contains("3 of 5 bytes"));
}

#[test]
fn a_page_needs_a_folder() {
    let error = run(parse("tune --html /no/such/folder/x.html")).unwrap_err().to_string();
    assert!(error.contains("--html /no/such/folder/x.html"), "{error}");
}
