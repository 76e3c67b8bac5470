//! `weir analyze --live`: what goes wrong in running processes, while they run.

mod sources;

use crate::signals;
use anyhow::Result;
use sources::{Sources, pause};
use std::collections::HashSet;
use std::io::{self, Write};
use std::time::{Duration, Instant};
use weir_analyze::Analysis;
use weir_analyze::report::{Document, FindingEntry, Style, headline};

/// What to watch, and how to show it.
pub struct Watch {
    /// The only process to watch; it is watched until it ends.
    pub pid: Option<u32>,
    /// Ends after this time.
    pub limit: Option<Duration>,
    pub json: bool,
    pub style: Style,
}

/// The interval of looks for new findings.
const LOOK: Duration = Duration::from_secs(1);

/// Watches and prints new findings. Returns the report.
pub fn run(watch: &Watch, mut analysis: Analysis) -> Result<Document> {
    signals::note_end_requests();
    let mut sources = Sources::new(watch.pid)?;
    if watch.pid.is_none() {
        eprintln!("weir: watching all processes that use Weir; Ctrl-C ends this");
    }
    let began = Instant::now();
    let (mut looked, mut packets) = (began, 0);
    let mut news = News::default();
    let ends = |sources: &Sources| {
        signals::end_requested() || sources.are_over() || watch.limit.is_some_and(|limit| began.elapsed() >= limit)
    };
    while !ends(&sources) {
        let came = sources.poll(&mut analysis);
        packets += came;
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            if std::mem::take(&mut packets) > 0 || news.any_waits() {
                let document = Document::new(&analysis.report(), sources.names());
                for entry in news.of(&document) {
                    show(&document, entry, watch)?;
                }
            }
        }
        std::thread::sleep(pause(came));
    }
    sources.finish(&mut analysis);
    Ok(Document::new(&analysis.finish(), sources.names()))
}

fn show(document: &Document, entry: &FindingEntry, watch: &Watch) -> Result<()> {
    let mut out = io::stdout().lock();
    match watch.json {
        true => writeln!(out, "{{\"finding\":{}}}", serde_json::to_string(entry)?)?,
        false => writeln!(out, "{}", headline(document, entry, watch.style))?,
    }
    Ok(out.flush()?)
}

/// Which findings are new.
#[derive(Default)]
struct News {
    shown: HashSet<Key>,
    /// Findings that must stay until the next look.
    waiting: HashSet<Key>,
}

/// A kind, and the connection.
type Key = (&'static str, String, Option<u32>, String, Option<u32>);

impl News {
    /// The findings that were not shown before. That a peer is silent counts when it has been silent for a second: its
    /// response may come at any moment.
    fn of<'a>(&mut self, document: &'a Document) -> Vec<&'a FindingEntry> {
        let waited = std::mem::take(&mut self.waiting);
        let mut new = Vec::new();
        for entry in &document.findings {
            let (from, to) = (&entry.requester, &entry.responder);
            let key = (entry.kind, from.address.clone(), from.qp, to.address.clone(), to.qp);
            if self.shown.contains(&key) {
                continue;
            }
            let silence = matches!(entry.kind, "peer-stopped" | "retry-exhausted");
            if silence && !waited.contains(&key) {
                self.waiting.insert(key);
                continue;
            }
            self.shown.insert(key);
            new.push(entry);
        }
        new
    }

    fn any_waits(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_analyze::{Observed, Options};
    use weir_capture::packet::Address;
    use weir_wire::{Aeth, Bth, Headers, Opcode, Operation, Psn, Service};

    /// A WRITE of QP 1 to QP 2 with this PSN, or its ACK.
    fn observe(analysis: &mut Analysis, milliseconds: u64, is_ack: bool, psn: u32) {
        let operation = if is_ack { Operation::Acknowledge } else { Operation::WriteOnly };
        let mut headers =
            Headers::new(Bth::new(Opcode::new(Service::Rc, operation), if is_ack { 1 } else { 2 }, Psn::new(psn)));
        headers.put(Aeth::new(31, 0));
        let [from, to] = if is_ack { [2, 1] } else { [1, 2] }.map(|last| Address::Ipv4([10, 0, 0, last].into()));
        let (time, from_qp) = (milliseconds * 1_000_000, if is_ack { 2 } else { 1 });
        let packet = Observed { time, number: time, sent: !is_ack, from, to, from_qp, headers: &headers, payload: 8 };
        analysis.observed(0, &packet);
    }

    fn kinds(news: &mut News, analysis: &mut Analysis) -> Vec<&'static str> {
        let document = Document::new(&analysis.report(), &["a".to_owned()]);
        news.of(&document).iter().map(|entry| entry.kind).collect()
    }

    #[test]
    fn each_finding_is_news_once_and_silence_only_when_it_lasts() {
        let (mut analysis, mut news) = (Analysis::new(Options::default()), News::default());
        observe(&mut analysis, 1000, false, 5);
        observe(&mut analysis, 1001, true, 5);
        assert!(kinds(&mut news, &mut analysis).is_empty() && !news.any_waits());
        observe(&mut analysis, 2000, false, 6);
        observe(&mut analysis, 2500, false, 6);
        assert!(!kinds(&mut news, &mut analysis).contains(&"peer-stopped"));
        assert!(news.any_waits());
        assert_eq!(kinds(&mut news, &mut analysis), ["peer-stopped"]);
        assert!(kinds(&mut news, &mut analysis).is_empty() && !news.any_waits());
        // The peer answers after all.
        observe(&mut analysis, 2600, true, 6);
        assert_eq!(kinds(&mut news, &mut analysis), ["timeout"]);
        assert!(kinds(&mut news, &mut analysis).is_empty());
    }
}
