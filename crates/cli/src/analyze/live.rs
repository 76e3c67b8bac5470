//! `weir analyze --live`: what goes wrong in running processes, while they run.

mod sources;

use crate::signals;
use anyhow::Result;
use sources::{Sources, pause};
use std::collections::HashSet;
use std::io::{self, Write};
use std::time::{Duration, Instant};
use weir_analyze::Analysis;
use weir_analyze::report::{Document, FindingEntry, Style, headline, text};

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

/// Watches, prints new findings, and prints the report at the end. Returns whether anything was found.
pub fn run(watch: &Watch, mut analysis: Analysis) -> Result<bool> {
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
    let document = Document::new(&analysis.finish(), sources.names());
    let whole = if watch.json { document.json() + "\n" } else { text(&document, watch.style) };
    write(&whole)?;
    Ok(!document.findings.is_empty())
}

fn show(document: &Document, entry: &FindingEntry, watch: &Watch) -> Result<()> {
    write(&match watch.json {
        true => format!("{{\"finding\":{}}}\n", serde_json::to_string(entry)?),
        false => headline(document, entry, watch.style) + "\n",
    })
}

fn write(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
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
