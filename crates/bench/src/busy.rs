//! How much other processes use the cores of the bench.

use std::fs;
use std::time::Duration;

/// If other processes use a larger share of the two cores' time, a note says so. `chrt -r 1 weir bench` keeps ordinary
/// processes off the cores.
const BUSY: f64 = 0.1;

/// Long enough for several ticks of the kernel's accounting (10 ms).
const WINDOW: Duration = Duration::from_millis(200);

/// A note, if other processes use much of the two cores now.
pub fn note(cores: [usize; 2]) -> Option<String> {
    let share = others(cores).filter(|&share| share > BUSY)?;
    Some(format!("other processes used {:.0} % of the two cores", share * 100.0))
}

/// Share of the two cores' time that other processes use now, 0 to 1; `None` if the kernel does not say.
fn others(cores: [usize; 2]) -> Option<f64> {
    let before = used_and_total(cores)?;
    std::thread::sleep(WINDOW);
    let after = used_and_total(cores)?;
    let total = after.1.checked_sub(before.1).filter(|&t| t > 0)?;
    Some(after.0.saturating_sub(before.0) as f64 / total as f64)
}

/// Ticks in which the cores worked or were taken by the host of the virtual machine, and all ticks.
fn used_and_total(cores: [usize; 2]) -> Option<(u64, u64)> {
    parse(&fs::read_to_string("/proc/stat").ok()?, cores)
}

fn parse(stat: &str, cores: [usize; 2]) -> Option<(u64, u64)> {
    let mut sums = (0, 0);
    for core in cores {
        let line = stat.lines().find_map(|l| l.strip_prefix(&format!("cpu{core} ")))?;
        // user nice system idle iowait irq softirq steal; user includes guest time.
        let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|t| t.parse().ok()).collect();
        let total: u64 = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        sums = (sums.0 + total - idle, sums.1 + total);
    }
    Some(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_summed_over_the_two_cores() {
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 0 20 60 5 1 2 2 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\ncpu2 0 0 0 7 0 0 0 0 0 0\n";
        assert_eq!(parse(stat, [0, 2]), Some((35, 107)));
        assert_eq!(parse(stat, [0, 3]), None);
    }
}
