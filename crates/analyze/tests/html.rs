//! The page of `weir analyze --html`, in a browser: it is clicked, sorted, filtered and zoomed.

mod browser;

use browser::{Browser, DOWN, ENTER};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use weir_analyze::report::{Capture, Connection, Document, FindingEntry, Half, Interval, Peer, html};
use weir_analyze::{Analysis, Options};

/// Time of the first frame, ns since 1970: beyond the integers that a JavaScript number holds.
const START: u64 = 1_790_000_000_000_000_001;

/// A report that is written to a folder of its own.
struct Page {
    _folder: TempDir,
    file: PathBuf,
}

impl Page {
    fn new(document: &Document) -> Page {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("report.html");
        fs::write(&file, html(document)).unwrap();
        Page { _folder: folder, file }
    }
}

/// The report on a capture of the repository.
fn captured(name: &str) -> Document {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/captures").join(name);
    let (mut reader, mut analysis) = (weir_capture::open(&path).unwrap(), Analysis::new(Options::default()));
    while let Some(frame) = reader.next_frame().unwrap() {
        analysis.frame(0, &frame);
    }
    Document::new(&analysis.finish(), &[name.to_owned()])
}

/// A report on this many connections; each tenth has a timeout, and one of both directions has no latency.
fn many(connections: usize) -> Document {
    let peer =
        |host: usize, qp: usize| Peer { address: format!("10.{}.{}.1", host / 200, host % 200), qp: Some(qp as u32) };
    let half = |id: usize, requester: usize| Half {
        requester,
        packets: 400,
        messages: (id * 7919 % 10_007) as u64,
        requests: 200,
        repeats: id.is_multiple_of(10).into(),
        repeat_share: if id.is_multiple_of(10) { 0.005 } else { 0.0 },
        bytes: 1 << 20,
        duration_ns: 1_000_000_000,
        bytes_per_second: 1e6,
        acks: 200,
        rnr_naks: 0,
        sequence_naks: 0,
        congestion_marks: 0,
        bad_icrcs: 0,
        most_outstanding: 16,
        latency_p50_ns: (!id.is_multiple_of(3)).then_some(id as u64 * 1000),
        latency_p90_ns: None,
        latency_p99_ns: None,
        latency_max_ns: None,
        timeline_start: START + 1_000_000,
        timeline_interval_ns: 10_000_000,
        timeline: (0..100u32).map(|n| interval(n, id as u32)).collect(),
    };
    let connection = |id: usize| Connection {
        id,
        ends: [peer(id, 2 * id), peer(id + 1, 2 * id + 1)],
        pairing: "psn",
        halves: vec![half(id, 0)],
    };
    let connections: Vec<Connection> = (1..=connections).map(connection).collect();
    let findings = connections.iter().filter(|connection| connection.id.is_multiple_of(10)).map(timeout).collect();
    let capture = Capture {
        frames: 4_000_000,
        packets: 4_000_000,
        reliable: 4_000_000,
        unreliable: 0,
        cnps: 0,
        unparsed: 0,
        copies: 0,
        link_datagrams: 0,
        missed: 0,
        bytes: 1 << 32,
        start: START,
        duration_ns: 1_001_000_000,
    };
    Document { schema: 1, files: vec!["many.pcapng".to_owned()], capture, findings, connections }
}

fn interval(number: u32, seed: u32) -> Interval {
    let busy = (number * 7 + seed) % 13;
    Interval { bytes: u64::from(busy) * 4096, packets: busy, repeats: u32::from(busy == 12), outstanding: busy }
}

fn timeout(connection: &Connection) -> FindingEntry {
    FindingEntry {
        kind: "timeout",
        title: "ACK timeouts",
        connection: connection.id,
        connections: vec![connection.id],
        requester: connection.ends[0].clone(),
        responder: connection.ends[1].clone(),
        frames: vec![10, 11, 12, 20],
        frame_files: vec![0; 4],
        from: START + 300_000_000,
        to: START + 500_000_000,
        count: 1,
        cost_ns: 200_000_000,
        cost_packets: 1,
        cost_bytes: 4096,
        confidence: 0.95,
        text: "1 ACK timer ran out.".to_owned(),
        advice: vec![],
        ladder: vec![],
    }
}

fn no_console_lines(browser: &Browser) {
    assert_eq!(browser.console(), Vec::<String>::new());
}

/// The cells of the rendered lines in a column, from 1.
fn column(browser: &Browser, number: usize) -> Vec<String> {
    let cells = browser.run(&format!(
        "return [...document.querySelectorAll('#rows tr[data-at] td:nth-child({number})')].map((cell) => cell.textContent)"
    ));
    serde_json::from_value(cells).unwrap()
}

fn sorting(browser: &Browser, column: &str) -> String {
    browser.text(&format!("document.querySelector('th[data-column={column}]').ariaSort"))
}

#[test]
#[ignore = "needs chromium"]
fn ten_thousand_connections_open_sort_filter_and_scroll() {
    let page = Page::new(&many(10_000));
    let browser = Browser::start(1300, 900);
    browser.open(&page.file, "");
    let loaded = browser.run("return performance.getEntriesByType('navigation')[0].loadEventEnd");
    let bytes = fs::metadata(&page.file).unwrap().len();
    println!("10 000 connections: a page of {bytes} bytes opened in {loaded} ms");
    assert_eq!(browser.text("byId('shown').textContent.replace(/\\s/g, ' ')"), "10 000 lines");
    let elements = browser.run("return document.querySelectorAll('*').length").as_u64().unwrap();
    assert!(elements < 3000, "{elements} elements: the page renders what is not on the screen");

    // The gravest findings come first at first; the first click on a column of numbers sorts it downwards.
    assert_eq!(sorting(&browser, "findings"), "descending");
    assert_eq!(column(&browser, 1)[..2], ["10", "20"]);
    browser.click("th[data-column=messages] button");
    assert_eq!((sorting(&browser, "messages"), sorting(&browser, "findings")), ("descending".into(), "none".into()));
    let number = |text: &String| text.chars().filter(char::is_ascii_digit).collect::<String>().parse::<u64>().unwrap();
    let messages: Vec<u64> = column(&browser, 4).iter().map(number).collect();
    assert!(messages[0] == 10_006 && messages.is_sorted_by(|a, b| a >= b), "{messages:?}");
    browser.click("th[data-column=messages] button");
    assert_eq!(sorting(&browser, "messages"), "ascending");
    assert!(column(&browser, 4).iter().map(number).is_sorted());

    // Addresses sort by their numbers. Connections without a latency stay at the end in both directions.
    browser.click("th[data-column=from] button");
    assert_eq!(column(&browser, 2)[..3], ["10.0.1.1 QP 2", "10.0.2.1 QP 4", "10.0.3.1 QP 6"]);
    browser.click("th[data-column=p50] button");
    assert_eq!(column(&browser, 1)[..2], ["10000", "9998"]);
    browser.click("th[data-column=p50] button");
    assert_eq!(column(&browser, 1)[..3], ["1", "2", "4"]);
    browser.run("byId('scroll').scrollTop = 1e9");
    browser.wait("document.querySelector('#rows tr[data-at=\"9999\"]')");
    assert_eq!(column(&browser, 7).last().unwrap(), "–");

    // A number is a whole number, other words may be parts.
    let filtered = |text: &str| {
        browser.fill("#filter", text);
        (browser.text("table.order.length"), column(&browser, 1))
    };
    assert_eq!(filtered("10.0.17.1 qp 34"), ("1".into(), vec!["17".into()]));
    assert_eq!(filtered("#17"), ("1".into(), vec!["17".into()]));
    assert_eq!(filtered("0x22").1, filtered("34").1);
    assert_eq!(filtered("timeout").0, "1000");
    let (count, lines) = filtered("no such thing");
    assert_eq!((count, lines.len()), ("0".into(), 0));
    assert!(browser.text("byId('rows').innerText").contains("No connection fits the filter"));
    no_console_lines(&browser);
}

#[test]
#[ignore = "needs chromium"]
fn findings_lead_to_their_connections_and_back() {
    let document = captured("weir-damming-client.pcapng");
    let page = Page::new(&document);
    let browser = Browser::start(1300, 900);
    browser.open(&page.file, "");

    // The first finding is open, with its packets drawn.
    let damming = &document.findings[0];
    assert_eq!(damming.kind, "damming");
    let finding = |part: &str| format!("document.querySelector('#finding-1 {part}')");
    assert_eq!(browser.text(&format!("{}.textContent", finding(".text"))), damming.text);
    let count = |selector: &str| browser.run(&format!("return document.querySelectorAll('{selector}').length"));
    assert_eq!(count("#finding-1 svg.ladder .step"), json!(damming.ladder.len()));
    assert_eq!(count("#finding-1 .step.unanswered"), json!(1));
    assert_eq!(count("#finding-1 .ladder .break"), json!(1));
    assert_eq!(count("#finding-1 .advice tbody tr"), json!(damming.advice.len()));
    let frames: Vec<String> = damming.frames.iter().map(u64::to_string).collect();
    let filter = format!("frame.number in {{{}}}", frames.join(", "));
    assert_eq!(browser.text(&format!("{}.textContent", finding(".frames code"))), filter);
    browser.click("#finding-1 .frames button");
    browser.wait("document.querySelector('#finding-1 .frames button').textContent === 'Copied'");

    // To the connection, and back to the other finding.
    browser.click("#finding-1 dd a");
    browser.wait("document.activeElement.id === 'connection-title'");
    assert_eq!(browser.text("location.hash"), "#connection-1");
    assert_eq!(count("#rows tr.opened"), json!(1));
    browser.click("#connection .links a[href=\"#finding-2\"]");
    browser.wait("document.activeElement === document.querySelector('#finding-2 summary')");
    assert_eq!(browser.run("return byId('finding-2').open"), json!(true));

    // A chip leaves the findings of its kind; a link to another finding shows it all the same.
    browser.click(".chip[data-kind=damming]");
    assert_eq!((count(".finding"), count("#finding-1")), (json!(1), json!(1)));
    browser.click("#connection .links a[href=\"#finding-2\"]");
    browser.wait("byId('finding-2') && byId('finding-2').open");

    // By keyboard: the filter, a line of the table, the view of its connection.
    browser.click("#connection .tools button");
    browser.fill("#filter", "damming");
    browser.keys("#rows button", ENTER);
    browser.wait("byId('connection-title')");
    // An address of a place opens it at once.
    browser.open(Path::new("/dev/null"), "");
    browser.open(&page.file, "#finding-2");
    browser.wait("byId('finding-2').open && !byId('finding-1').open");
    no_console_lines(&browser);
}

#[test]
#[ignore = "needs chromium"]
fn a_line_far_down_is_reached_by_keyboard_and_a_finding_beyond_the_first_ones_by_its_link() {
    let page = Page::new(&many(1000));
    let browser = Browser::start(1300, 900);
    browser.open(&page.file, "");
    browser.click("th[data-column=connection] button");
    browser.run("document.querySelector('#rows button').focus()");
    for _ in 0..40 {
        browser.keys("#rows tr:focus-within button", DOWN);
    }
    assert_eq!(browser.text("document.activeElement.textContent"), "41");
    browser.keys("#rows tr:focus-within button", ENTER);
    browser.wait("byId('connection-title').textContent === 'Connection 41'");

    assert_eq!(browser.text("document.querySelectorAll('.finding').length"), "20");
    browser.click("#more");
    assert_eq!(browser.text("document.querySelectorAll('.finding').length"), "40");
    browser.run("location.hash = 'connection-900'");
    browser.wait("byId('connection-title').textContent === 'Connection 900'");
    browser.click("#connection .links a");
    browser.wait("byId('finding-90') && byId('finding-90').open");
    assert_eq!(
        browser.text("document.querySelector('#finding-90 .frames code').textContent"),
        "frame.number in {10..12, 20}"
    );
    // All findings of one connection, and of all again.
    browser.click("#connection .links button");
    assert_eq!(browser.text("document.querySelectorAll('.finding').length"), "1");
    browser.click("#chosen button");
    assert_eq!(browser.text("document.querySelectorAll('.finding').length"), "20");
    no_console_lines(&browser);
}

#[test]
#[ignore = "needs chromium"]
fn timelines_zoom_by_mouse_wheel_keys_and_buttons() {
    let page = Page::new(&many(10));
    let browser = Browser::start(1300, 1000);
    browser.open(&page.file, "#connection-10");
    let svg = "svg.timeline";
    browser.wait("document.querySelector('svg.timeline').dataset.to");
    let view = || -> [f64; 2] {
        let value = browser.run("const d = document.querySelector('svg.timeline').dataset; return [+d.from, +d.to]");
        serde_json::from_value(value).unwrap()
    };
    let length = || view()[1] - view()[0];
    let whole = view();
    assert_eq!(whole, [1e6, 1.001e9]);
    assert_eq!(browser.text("document.querySelectorAll('svg.timeline .line').length"), "3");
    assert_eq!(browser.text("document.querySelector('svg.timeline a').getAttribute('href')"), "#finding-1");
    assert_eq!(browser.text("document.querySelector('.status').textContent"), "All 1.00 s");

    // Until it is clicked, the wheel scrolls the page.
    browser.wheel(svg, -200);
    assert_eq!(view(), whole);
    browser.drag(svg, -100, 100);
    let dragged = view();
    assert!(length() < 0.5e9 && dragged[0] > whole[0] && dragged[1] < whole[1], "{dragged:?}");
    browser.wheel(svg, -200);
    browser.wait(&format!("document.querySelector('svg.timeline').dataset.from > {}", dragged[0]));
    assert!(length() < dragged[1] - dragged[0]);
    browser.click(".timelines .tools button:nth-child(3)");
    assert_eq!(view(), whole);

    browser.keys(svg, "++");
    assert!((length() - 1e9 / 2.25).abs() < 1.0, "{}", length());
    let before = view();
    browser.keys(svg, "\u{e014}");
    assert!(view()[0] > before[0] && (view()[1] - view()[0] - length()).abs() < 1.0);
    browser.keys(svg, "0");
    assert_eq!(view(), whole);
    // Not closer than a few intervals, and not beyond the ends.
    browser.keys(svg, &"+".repeat(30));
    assert!((length() - 4e7).abs() < 1.0, "{}", length());
    browser.keys(svg, &"\u{e012}".repeat(200));
    assert_eq!(view()[0], whole[0]);
    browser.click(".timelines .tools button:nth-child(2)");
    assert!((length() - 6e7).abs() < 1.0, "{}", length());
    no_console_lines(&browser);
}

#[test]
#[ignore = "needs chromium"]
fn names_with_markup_stay_text_and_other_scripts_do_not_run() {
    let markup = "</script><script>window.broken=1</script><img src=x onerror=window.broken=2>\"'&amp;";
    let mut document = captured("weir-damming-client.pcapng");
    document.files = vec![format!("{markup}.pcap")];
    document.connections[0].ends[0].address = markup.to_owned();
    document.findings[0].requester.address = markup.to_owned();
    document.findings[0].text = markup.to_owned();
    document.findings[0].ladder[0].note = markup.to_owned();
    let page = Page::new(&document);
    let browser = Browser::start(1300, 900);
    browser.open(&page.file, "#connection-1");
    browser.wait("byId('connection-title')");
    browser.click("#finding-1 summary");
    browser.click("#finding-1 .packets summary");
    browser.wait("document.querySelector('#finding-1 .packets table')");
    assert_eq!(browser.text("byId('files').textContent"), format!("{markup}.pcap"));
    assert_eq!(browser.text("document.querySelector('#finding-1 .text').textContent"), markup);
    assert!(browser.text("byId('rows').textContent").contains(markup));
    assert_eq!(browser.text("document.images.length"), "0");
    assert_eq!(browser.text("window.broken"), "undefined");
    no_console_lines(&browser);

    // Whatever else gets into the page: the policy stops scripts, styles and requests.
    browser.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.broken=3\"><p style=\"color:red\">');
         const script = document.createElement('script');
         script.textContent = 'window.broken = 4';
         document.body.append(script);",
    );
    browser.run("window.refused = null; fetch('data:,x').then(() => { refused = false }, () => { refused = true })");
    browser.wait("window.refused === true");
    assert_eq!(browser.text("window.broken"), "undefined");
    assert!(browser.console().iter().any(|line| line.contains("Content Security Policy")));
}

#[test]
#[ignore = "needs chromium"]
fn a_report_without_findings_and_connections_says_so() {
    let page = Page::new(&many(0));
    let browser = Browser::start(1300, 900);
    browser.open(&page.file, "#finding-1");
    assert_eq!(browser.text("byId('findings-lead').textContent"), "Nothing found.");
    assert!(browser.text("byId('rows').innerText").contains("No reliable connection was captured"));
    assert_eq!(browser.text("document.querySelectorAll('.finding, .chip').length"), "0");
    no_console_lines(&browser);
}

/// The least contrast of visible text and its background (WCAG 2), and the text.
const LEAST_CONTRAST: &str = "
    const luminance = (colour) => {
        const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255)
            .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (!/rgba\\(.*, 0\\)/.test(colour)) return colour;
        }
        return 'rgb(255, 255, 255)';
    };
    let least = [21, ''];
    const texts = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const node = texts.currentNode.parentElement;
        if (!texts.currentNode.textContent.trim() || !node.checkVisibility() || node.tagName === 'title') continue;
        const style = getComputedStyle(node);
        const colour = node instanceof SVGElement ? style.fill : style.color;
        const [high, low] = [luminance(colour), luminance(ground(node))].sort((a, b) => b - a);
        const ratio = (high + 0.05) / (low + 0.05);
        if (ratio < least[0]) least = [ratio, texts.currentNode.textContent];
    }
    return least;";

#[test]
#[ignore = "needs chromium"]
fn narrow_screens_the_dark_and_paper_show_the_report_too() {
    let document = captured("weir-damming-client.pcapng");
    let page = Page::new(&document);
    let browser = Browser::start(1300, 900);
    let size = |width: u32| json!({"width": width, "height": 740, "deviceScaleFactor": 1, "mobile": width < 500});
    browser.command("Emulation.setDeviceMetricsOverride", size(360));
    browser.open(&page.file, "");
    browser.run("location.hash = 'connection-1'");
    browser.wait("document.querySelector('svg.timeline').dataset.to");
    browser.wait("Number(document.querySelector('svg.ladder').getAttribute('width')) <= 360");
    assert_eq!(browser.run("return document.documentElement.scrollWidth"), json!(360));
    browser.command("Emulation.setDeviceMetricsOverride", size(1300));
    browser.wait("Number(document.querySelector('svg.ladder').getAttribute('width')) > 400");

    for scheme in ["light", "dark"] {
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        browser.command("Emulation.setEmulatedMedia", media);
        let ground = browser.text("getComputedStyle(document.body).backgroundColor");
        assert_eq!(ground == "rgb(255, 255, 255)", scheme == "light", "{ground}");
        let least = browser.run(LEAST_CONTRAST);
        assert!(least[0].as_f64().unwrap() >= 4.5, "{scheme}: {least}");
    }

    // On paper all findings are open, controls are left out, and the colours are those of light ground.
    browser.command(
        "Emulation.setEmulatedMedia",
        json!({
            "media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}],
        }),
    );
    browser.run("window.dispatchEvent(new Event('beforeprint'))");
    let drawn = "[...document.querySelectorAll('svg.ladder')].every((svg) => svg.checkVisibility())";
    assert_eq!(browser.text("document.querySelectorAll('.finding[open] svg.ladder').length"), "2");
    assert_eq!(browser.text(drawn), "true");
    let controls = "[...document.querySelectorAll('.controls')].filter((part) => part.checkVisibility()).length";
    assert_eq!(browser.text(controls), "0");
    assert_eq!(browser.text("getComputedStyle(document.body).backgroundColor"), "rgb(255, 255, 255)");
    browser.run("window.dispatchEvent(new Event('afterprint'))");
    browser.command("Emulation.setEmulatedMedia", json!({"media": ""}));
    assert_eq!(browser.text("document.querySelectorAll('.finding[open]').length"), "1");
    assert!(!matches!(browser.text(controls).as_str(), "0"));
    let Value::String(pdf) = browser.command("Page.printToPDF", json!({}))["data"].take() else { panic!("no PDF") };
    assert!(pdf.len() > 10_000, "{} letters of base64", pdf.len());
    no_console_lines(&browser);
}
