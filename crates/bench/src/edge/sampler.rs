//! What comes to a node over time.

use super::job::Sample;
use anyhow::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_edge::Node;
use weir_stage::counters::received_by_links;

/// Time between two samples. A sample takes some 20 µs.
const INTERVAL: Duration = Duration::from_millis(2);

/// A thread that notes what has come.
pub struct Sampler {
    thread: JoinHandle<Result<Vec<Sample>>>,
    over: Arc<AtomicBool>,
}

impl Sampler {
    pub fn start(node: Node) -> Sampler {
        let over = Arc::new(AtomicBool::new(false));
        let flag = over.clone();
        let thread = std::thread::spawn(move || {
            let mut samples = vec![sample(&node)?];
            while !flag.load(Ordering::Relaxed) {
                std::thread::sleep(INTERVAL);
                samples.push(sample(&node)?);
            }
            Ok(samples)
        });
        Sampler { thread, over }
    }

    /// Ends it.
    pub fn end(self) -> Result<Vec<Sample>> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn sample(node: &Node) -> Result<Sample> {
    let bytes = node.counters()?.bytes_received;
    let link_bytes = received_by_links(&std::fs::read_to_string("/proc/thread-self/net/dev")?)?;
    let at = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    Ok(Sample { at, bytes, link_bytes })
}
