//! `weir analyze`: what captures tell.

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir_analyze::report::{Document, Style, html, text};
use weir_analyze::{Analysis, Options};
use weir_capture::{CaptureError, Reader};

/// Arguments of `weir analyze`.
#[derive(Args, Debug)]
#[command(after_help = STATUS)]
pub struct AnalyzeArgs {
    /// Captures: pcap or pcapng, compressed with gzip or zstd or not; `-` is standard input. Several files are parts of
    /// one capture, or captures of both sides
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    /// Also write the report as a page for a browser: one file, with drawings of the packets
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,

    /// The adapter of the hosts, if it is known: a name that `weir profiles` lists, or a file. Its timeouts are compared
    /// with those in the capture
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,

    /// Connections that the table shows
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    connections: usize,
}

const STATUS: &str = "Exit status: 0 if nothing was found, 1 if something was found, 2 after an error.";

/// Exit status after an error.
const ERROR: u8 = 2;

/// Analyzes the captures and prints the report.
pub fn run(args: &AnalyzeArgs) -> ExitCode {
    match analyzed(args) {
        Ok(found) => ExitCode::from(u8::from(found)),
        Err(error) => {
            eprintln!("weir: {error:#}");
            ExitCode::from(ERROR)
        }
    }
}

/// Whether anything was found.
fn analyzed(args: &AnalyzeArgs) -> Result<bool> {
    let profile = args.profile.as_deref().map(weir_profiles::load).transpose()?;
    let mut analysis = Analysis::new(Options { profile });
    for number in in_order(&args.files)? {
        read(&mut analysis, number as u16, &args.files[number])?;
    }
    let report = analysis.finish();
    let names: Vec<String> = args.files.iter().map(|path| path.display().to_string()).collect();
    let document = Document::new(&report, &names);
    if args.json {
        println!("{}", document.json());
    } else {
        let style = Style { colours: io::stdout().is_terminal(), connections: args.connections };
        print!("{}", text(&document, style));
    }
    if let Some(path) = &args.html {
        write_page(path, &document, &args.files)?;
    }
    Ok(!document.findings.is_empty())
}

/// Writes the page, and says where it is: on standard error, because standard output may be JSON.
fn write_page(path: &Path, document: &Document, captures: &[PathBuf]) -> Result<()> {
    // A capture that is named in the place of the page would be gone.
    let same = |capture: &PathBuf| matches!((capture.canonicalize(), path.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if captures.iter().any(same) {
        bail!("{}: --html names a capture; name another file", path.display());
    }
    fs::write(path, html(document)).with_context(|| {
        format!("cannot write the report to {}: name a file in a folder that can be written", path.display())
    })?;
    eprintln!("weir: the report is in {}: open it in a browser", path.display());
    Ok(())
}

/// Indices of the files, each opened, in the order of their first frames: parts of a capture may be named in any order.
fn in_order(files: &[PathBuf]) -> Result<Vec<usize>> {
    let mut order: Vec<(u64, usize)> = Vec::new();
    for (number, path) in files.iter().enumerate() {
        let first = if files.len() == 1 || path.as_os_str() == "-" {
            0
        } else {
            let mut reader = opened(path)?;
            reader.next_frame().ok().flatten().map_or(0, |frame| frame.timestamp)
        };
        order.push((first, number));
    }
    order.sort();
    Ok(order.into_iter().map(|(_, number)| number).collect())
}

fn opened(path: &Path) -> Result<Reader> {
    weir_capture::open(path).with_context(|| path.display().to_string())
}

/// Frames between two looks at the progress.
const FRAMES: u64 = 1 << 16;

fn read(analysis: &mut Analysis, number: u16, path: &Path) -> Result<()> {
    let mut reader = opened(path)?;
    let bar = progress(path);
    loop {
        match reader.next_frame() {
            Ok(Some(frame)) => {
                analysis.frame(number, &frame);
                if frame.number % FRAMES == 0 {
                    bar.set_position(reader.position());
                }
            }
            Ok(None) => break,
            // What comes before the cut is as good as ever.
            Err(error @ CaptureError::Truncated { .. }) => {
                bar.suspend(|| eprintln!("weir: {}: {error}; what comes before is analyzed", path.display()));
                break;
            }
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// On a terminal, how much of the file has been read.
fn progress(path: &Path) -> ProgressBar {
    let length = path.metadata().map_or(0, |metadata| metadata.len());
    if !io::stderr().is_terminal() || length == 0 {
        return ProgressBar::hidden();
    }
    let style = "{msg} {bar:30} {bytes}/{total_bytes} {eta}";
    let bar = ProgressBar::new(length).with_style(ProgressStyle::with_template(style).expect("the template is valid"));
    let name = path.file_name().map_or_else(|| "-".into(), |name| name.to_string_lossy().into_owned());
    bar.with_message(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Document {
        Document::new(&Analysis::new(Options::default()).finish(), &["a.pcap".to_owned()])
    }

    #[test]
    fn the_page_is_written_and_replaces_an_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.html");
        fs::write(&path, "older".repeat(100_000)).unwrap();
        write_page(&path, &document(), &[]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), html(&document()));
    }

    #[test]
    fn a_page_that_cannot_be_written_is_an_error_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("no/such/folder/out.html");
        let error = format!("{:#}", write_page(&path, &document(), &[]).unwrap_err());
        assert!(error.contains("no/such/folder/out.html") && error.contains("No such file"), "{error}");
    }

    #[test]
    fn a_page_does_not_replace_a_capture() {
        let folder = tempfile::tempdir().unwrap();
        let capture = folder.path().join("a.pcap");
        fs::write(&capture, "packets").unwrap();
        let same = folder.path().join(".").join("a.pcap");
        let error = write_page(&same, &document(), std::slice::from_ref(&capture)).unwrap_err().to_string();
        assert!(error.contains("names a capture"), "{error}");
        assert_eq!(fs::read_to_string(&capture).unwrap(), "packets");
    }

    #[test]
    fn an_earlier_part_is_read_first_and_keeps_its_number_of_the_command_line() {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<PathBuf> = ["b.pcap", "a.pcap"].map(|name| folder.path().join(name)).into();
        let header = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0];
        let frame = |seconds: u8| [[seconds, 0, 0, 0], [0; 4], [1, 0, 0, 0], [1, 0, 0, 0]].concat();
        for (file, seconds) in files.iter().zip([9, 3]) {
            fs::write(file, [&header[..], &frame(seconds), &[0]].concat()).unwrap();
        }
        assert_eq!(in_order(&files).unwrap(), [1, 0]);
    }
}
