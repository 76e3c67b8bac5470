//! A busy machine: one process per core that computes and never sleeps.

use super::cores;
use anyhow::{Result, bail};
use std::time::{Duration, Instant};
use weir_stage::{Child, Side, Stage};

/// A loop ends by itself after this time, which is longer than a measurement may take: a measurement of UCX is two runs
/// of up to 135 s.
const LIMIT: Duration = Duration::from_secs(300);
/// Time limit for a loop to start.
const START: Duration = Duration::from_secs(10);
/// CPU time that a loop has used when it counts as started.
const STARTED: Duration = Duration::from_millis(20);

/// Running loops. Dropping them ends them; the kernel ends them with the thread that started them.
pub struct Loops {
    children: Vec<Child>,
}

impl Loops {
    /// Returns an error if a loop has ended: what was measured meanwhile was not, or not always, under load.
    pub fn still_run(&mut self) -> Result<()> {
        for child in &mut self.children {
            if child.poll()?.is_some() {
                bail!("a busy loop ended during the measurement: {}", child.printed()?);
            }
        }
        Ok(())
    }
}

/// Starts a loop on each core that this process may use, and waits until all of them run.
pub fn start(stage: &Stage) -> Result<Loops> {
    let weir = std::env::current_exe()?;
    let spawn = |core: usize| {
        let mut command = stage.command(Side::A, &weir);
        command.args(["bench", "--busy-loop", &core.to_string()]);
        Child::spawn(&mut command, format!("busy loop on core {core}"))
    };
    let mut children = cores::allowed()?.into_iter().map(spawn).collect::<Result<Vec<Child>>>()?;
    let begun = Instant::now();
    for child in &mut children {
        while child.cpu().is_ok_and(|used| used < STARTED) && child.poll()?.is_none() {
            if begun.elapsed() > START {
                bail!("a busy loop did not start within {START:?}: {}", child.printed()?);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if child.poll()?.is_some() {
            bail!("a busy loop ended at once: {}", child.printed()?);
        }
    }
    Ok(Loops { children })
}

/// Computes on a core until the time limit. This is what the child processes run.
pub fn spin(core: usize) -> Result<()> {
    if !cores::pin(core) {
        bail!("this process cannot run on core {core}");
    }
    let end = Instant::now() + LIMIT;
    let mut sum = 0_u64;
    while Instant::now() < end {
        for i in 0..10_000 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(i));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn a_loop_that_has_ended_is_an_error() {
        let spawn = |program: &str, arguments: &[&str]| {
            // Dropping a child kills its process group.
            Child::spawn(Command::new(program).args(arguments).process_group(0), program).unwrap()
        };
        let mut loops = Loops { children: vec![spawn("sleep", &["60"])] };
        loops.still_run().unwrap();
        let mut ended = spawn("true", &[]);
        while ended.poll().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        loops.children.push(ended);
        let error = loops.still_run().unwrap_err().to_string();
        assert!(error.contains("ended during the measurement") && error.contains("true"), "{error}");
    }

    #[test]
    fn a_loop_on_a_core_that_does_not_exist_is_an_error() {
        assert!(spin(1 << 20).unwrap_err().to_string().contains("1048576"));
    }
}
