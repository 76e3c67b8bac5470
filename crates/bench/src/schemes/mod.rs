//! `weir bench schemes`: programs of MPI over `weir-odp` with each scheme of registration: time, page faults, prefetches
//! and pinned memory side by side (figures 10 and 11 and tables I and II of "Designing MPI Library with On-Demand Paging
//! (ODP) of InfiniBand: Challenges and Benefits").
//!
//! The programs are those of the paper that can be had, and kernels of our own that are like others of it; or the user's.

mod application;
mod kernel;
mod report;
mod run;
mod summary;

use super::request::Request;
use anyhow::{Result, bail, ensure};
use application::Application;
use report::{Report, Row};
use run::Job;
use std::process::ExitCode;
use weir_stage::missing;

/// The schemes, as `WEIR_ODP_SCHEME` has them: pinned memory first, with which the others are compared.
const SCHEMES: [&str; 4] = ["pin-down", "odp-native", "odp-enhanced", "odp-optimal"];

/// Names of the applications and what they are, for `--list`.
pub fn applications() -> Vec<(&'static str, &'static str)> {
    Application::ALL.iter().map(|application| (application.name, application.what)).collect()
}

/// Runs the applications with each scheme in turns, and prints a table for each.
pub fn run(request: &Request<'_>) -> Result<ExitCode> {
    let rounds = request.rounds.unwrap_or(if request.quick { 1 } else { 3 });
    let mut reports = vec![];
    if let Some(own) = &request.own {
        ensure!(request.names.is_empty(), "either names of applications or a command; use: weir bench schemes -- …");
        let job = Job::own(own)?;
        reports.push(measure(&job, &job.shown(), "", rounds)?);
    } else {
        for application in select(request.names)? {
            let job = Job::of(application, request.quick)?;
            reports.push(measure(&job, application.name, application.what, rounds)?);
        }
    }
    if request.json {
        println!("{:#}", serde_json::to_value(&reports)?);
    } else {
        print!("{}", reports.iter().map(Report::text).collect::<Vec<_>>().join("\n"));
    }
    let failed = reports.iter().any(Report::has_failed);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Those that are named, by name or by the first part of a name; without names, all that can run here.
fn select(names: &[String]) -> Result<Vec<&'static Application>> {
    let matches = |application: &Application, name: &str| {
        application.name == name || application.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'))
    };
    if let Some(unknown) = names.iter().find(|name| !Application::ALL.iter().any(|known| matches(known, name))) {
        bail!("unknown application {unknown:?}; `weir bench --list` lists them");
    }
    let named = |a: &&Application| names.is_empty() || names.iter().any(|name| matches(a, name));
    let (can, cannot): (Vec<_>, Vec<_>) =
        Application::ALL.iter().filter(named).partition(|application| missing(application.programs()).is_empty());
    let packages = missing(cannot.iter().flat_map(|application| application.programs()));
    let left: Vec<&str> = cannot.iter().map(|application| application.name).collect();
    ensure!(!can.is_empty(), "{}: apt install {}", left.join(", "), packages.join(" "));
    if !left.is_empty() {
        eprintln!("weir bench schemes: without {}: apt install {}", left.join(", "), packages.join(" "));
    }
    Ok(can)
}

fn measure(job: &Job, name: &str, what: &str, rounds: u32) -> Result<Report> {
    let mut rows: Vec<Row> = SCHEMES.iter().map(|scheme| Row::new(scheme)).collect();
    for round in 1..=rounds {
        for row in rows.iter_mut().filter(|row| row.failed.is_none()) {
            eprintln!("weir bench schemes: {name}, {}, round {round} of {rounds}", row.scheme);
            match job.run(row.scheme) {
                Ok(run) => row.runs.push(run),
                Err(error) => row.failed = Some(format!("{error:#}")),
            }
        }
    }
    Ok(Report { name: name.to_owned(), what: what.to_owned(), rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_are_selected_by_name_or_its_first_part() {
        assert!(select(&["no-such".into()]).unwrap_err().to_string().contains("no-such"));
        let of = |name: &str| select(&[name.to_owned()]).map(|found| found.len());
        // Whether they can run depends on the machine.
        assert!(of("lammps-lj-4").map_or(true, |found| found == 1));
        assert!(of("lammps").map_or(true, |found| found == 4));
    }
}
