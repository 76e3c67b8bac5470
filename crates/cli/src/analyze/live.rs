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
        let key = |entry: &FindingEntry| {
            let (from, to) = (&entry.requester, &entry.responder);
            (entry.kind, from.address.clone(), from.qp, to.address.clone(), to.qp)
        };
        document.findings.iter().filter(|entry| self.is_new(key(entry), &waited)).collect()
    }

    /// `waited`: findings that waited for this look.
    fn is_new(&mut self, key: Key, waited: &HashSet<Key>) -> bool {
        let silence = matches!(key.0, "peer-stopped" | "retry-exhausted");
        if silence && !waited.contains(&key) && !self.shown.contains(&key) {
            self.waiting.insert(key);
            return false;
        }
        self.shown.insert(key)
    }

    fn any_waits(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: &'static str, qp: u32) -> Key {
        (kind, "10.0.0.1".to_owned(), Some(qp), "10.0.0.2".to_owned(), Some(7))
    }

    /// The next look: which of the findings are new?
    fn look(news: &mut News, keys: &[Key]) -> Vec<bool> {
        let waited = std::mem::take(&mut news.waiting);
        keys.iter().map(|key| news.is_new(key.clone(), &waited)).collect()
    }

    #[test]
    fn each_finding_is_news_once_and_silence_only_when_it_lasts() {
        let mut news = News::default();
        let [timeout, other, silence] = [key("timeout", 1), key("timeout", 2), key("peer-stopped", 1)];
        assert_eq!(look(&mut news, &[timeout.clone(), silence.clone()]), [true, false]);
        assert!(news.any_waits());
        // The peer has answered meanwhile, and is silent again later.
        assert_eq!(look(&mut news, &[timeout.clone(), other]), [false, true]);
        assert!(!news.any_waits());
        assert_eq!(look(&mut news, std::slice::from_ref(&silence)), [false]);
        assert_eq!(look(&mut news, std::slice::from_ref(&silence)), [true]);
        assert_eq!(look(&mut news, &[silence]), [false]);
        assert!(!news.any_waits());
    }
}
