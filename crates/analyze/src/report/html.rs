//! The report as one HTML page: style, scripts and data are inside it, and it loads nothing.
//!
//! The data is one block of JSON ([`data`]). The scripts draw from it what is on the screen: a report with 10 000
//! connections has as few elements as one with ten. Ladders are drawn there too: as SVG made here, those of thousands
//! of findings would be most of the page, and would not fit both a telephone and paper.

mod data;

use super::document::Document;
use base64::prelude::{BASE64_STANDARD, Engine};
use sha2::{Digest, Sha256};

const PAGE: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/page.css");
/// In the order of their use: each uses only those before it.
const SCRIPTS: [&str; 7] = [
    include_str!("html/dom.js"),
    include_str!("html/ladder.js"),
    include_str!("html/findings.js"),
    include_str!("html/timeline.js"),
    include_str!("html/connections.js"),
    include_str!("html/connection.js"),
    include_str!("html/page.js"),
];

/// The page of a document.
pub fn html(document: &Document) -> String {
    let (style, script) = (format!("\n{STYLE}"), format!("\n'use strict';\n{}", SCRIPTS.join("\n")));
    let data = inert(&data::json(document));
    let mut page = String::with_capacity(PAGE.len() + style.len() + script.len() + data.len() + 256);
    let mut rest = PAGE;
    // In one pass: a value that contains the name of a place is not replaced again.
    while let Some((before, after)) = rest.split_once("{{") {
        let (place, after) = after.split_once("}}").expect("each place of the page is closed");
        page += before;
        match place {
            "style" => page += &style,
            "script" => page += &script,
            "data" => page += &data,
            "style-hash" => page += &hash(&style),
            "script-hash" => page += &hash(&script),
            other => unreachable!("the page has no place {other}"),
        }
        rest = after;
    }
    page + rest
}

/// JSON that cannot end the `script` element around it, nor begin a comment in it: names of files and addresses can
/// contain anything.
fn inert(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// The source of an inline block in a Content-Security-Policy. No other script may run, whatever the data contains.
fn hash(block: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(block)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Analysis, Options};

    fn page(file: &str) -> String {
        html(&Document::new(&Analysis::new(Options::default()).finish(), &[file.to_owned()]))
    }

    #[test]
    fn a_file_name_cannot_leave_the_data() {
        let (page, plain) = (page("</script><script>alert(1)</script><!--{{script}}.pcap"), page("plain.pcap"));
        for text in ["<script", "</script", "<!--"] {
            assert_eq!(page.matches(text).count(), plain.matches(text).count(), "{text}");
        }
        let data = page.split_once("type=\"application/json\">").unwrap().1.split_once("</script>").unwrap().0;
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["files"][0], "</script><script>alert(1)</script><!--{{script}}.pcap");
    }

    #[test]
    fn the_policy_allows_the_blocks_of_the_page_and_nothing_else() {
        let page = page("a.pcap");
        for block in ["style", "script"] {
            let text = page.split_once(&format!("<{block}>")).unwrap().1.split_once(&format!("</{block}>")).unwrap().0;
            assert!(page.contains(&format!("{block}-src {}", hash(text))), "{block}");
        }
        assert!(page.contains("default-src 'none'") && !page.contains("unsafe-inline"));
        for loads in [" src=", "href=\"http", "@import", "url("] {
            assert!(!page.contains(loads), "{loads}");
        }
    }
}
