//! A busy machine: one process per core that computes and never sleeps.

use super::cores;
use anyhow::{Result, bail};
use std::time::{Duration, Instant};
use weir_stage::{Child, Side, Stage};

/// A loop ends by itself after this time, which is longer than a measurement may take.
const LIMIT: Duration = Duration::from_secs(150);
/// Time limit for a loop to start.
const START: Duration = Duration::from_secs(10);
/// CPU time that a loop has used when it counts as started.
const STARTED: Duration = Duration::from_millis(20);

/// Running loops. Dropping them ends them; the kernel ends them with the thread that started them.
pub struct Loops {
    _children: Vec<Child>,
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
    Ok(Loops { _children: children })
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
    #[test]
    fn a_loop_on_a_core_that_does_not_exist_is_an_error() {
        assert!(super::spin(1 << 20).unwrap_err().to_string().contains("1048576"));
    }
}
