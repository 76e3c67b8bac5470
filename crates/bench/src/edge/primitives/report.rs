//! What was measured, as tables.

use super::calls::Calls;
use super::memory::Memory;
use super::pages::Pages;
use serde::Serialize;
use std::fmt::Write;

#[derive(Debug, Serialize)]
pub struct Report {
    pub memory: Memory,
    pub calls: Calls,
    pub pages: Vec<Pages>,
}

impl Report {
    /// As text.
    pub fn text(&self) -> String {
        let mut text = String::from("memory, GB/s       1 thread  2 threads\n");
        let Memory { copies, reads, writes, remote, not_remote } = &self.memory;
        for pair in copies.chunks(2) {
            let [one, two] = pair else { continue };
            let _ = writeln!(text, "copy {:13} {:8.1}  {:9.1}", size(one.bytes), one.gigabytes, two.gigabytes);
        }
        for (name, rates) in [("read", reads), ("write", writes)] {
            let [one, two] = rates.as_slice() else { continue };
            let _ = writeln!(text, "{name:18} {:8.1}  {:9.1}", one.gigabytes, two.gigabytes);
        }
        match (remote, not_remote) {
            (Some(remote), _) => {
                let _ = writeln!(text, "another NUMA node: read {:.1}, write {:.1}", remote.read, remote.write);
            }
            (None, Some(why)) => {
                let _ = writeln!(text, "another NUMA node: skipped, {why}");
            }
            (None, None) => {}
        }
        let Calls { system_call, ioctl, buffer, write_header, read_header } = &self.calls;
        let _ = write!(
            text,
            "\ncalls, µs\nsystem call        {system_call:8.3}\nioctl              {ioctl:8.3}\nbuffer             \
             {buffer:8.3}\nwrite header       {write_header:8.3}\nread header        {read_header:8.3}\n\n\
             pages, µs             pin     unpin     remap\n"
        );
        for Pages { pages, pin, unpin, remap } in &self.pages {
            let time = |us: &Option<f64>| us.map_or("–".to_owned(), |us| format!("{us:.2}"));
            let _ = writeln!(text, "{pages:15}{:>10}{:>10}{remap:10.2}", time(pin), time(unpin));
        }
        text
    }
}

fn size(bytes: usize) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

#[cfg(test)]
mod tests {
    use super::super::memory::{Copied, Rate};
    use super::*;

    #[test]
    fn tables_have_all_rows() {
        let rates = || [1, 2].map(|threads| Rate { threads, gigabytes: 7.0 * threads as f64 }).into();
        let copies = [1, 2].map(|threads| Copied { bytes: 4 << 20, threads, gigabytes: 3.0 }).into();
        let not_remote = Some("one node".to_owned());
        let memory = Memory { copies, reads: rates(), writes: rates(), remote: None, not_remote };
        let calls = Calls { system_call: 0.1, ioctl: 0.2, buffer: 0.3, write_header: 0.04, read_header: 0.05 };
        let pages = vec![Pages { pages: 512, pin: None, unpin: None, remap: 12.5 }];
        let text = Report { memory, calls, pages }.text();
        for part in ["copy 4 MiB", "14.0", "skipped, one node", "0.300", "512", "12.50", "–"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
