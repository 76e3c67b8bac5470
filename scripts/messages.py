#!/usr/bin/env python3
"""Checks docs/messages.md: each line that it names is in the source, each test that it names exists, and it has the texts of the log."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| `([^`]+)` \| .+ \| (?:(\w+): (.+)|none) \|$")
# Crates with lines that tell a user what to do.
CRATES = ("device", "verbs", "rdmacm")
CALL = re.compile(r"\b(?:warn!|error!|refuse|refused|refused_trial|refused_post|log|log_of)\(|\blet why =(?=\s)")
# Files that are about what the log says: each text in them counts.
WHOLE = ("device/src/engine/qp_error_log.rs", "device/src/memory/refusal.rs", "device/src/memory/window_refusal.rs",
         "device/src/shared/send_errors.rs", "device/src/os/watch.rs", "rdmacm/src/manager/failures.rs",
         "rdmacm/src/manager/arrivals.rs", "verbs/src/refused_post.rs")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
# Values, and words in parentheses.
ASIDE = re.compile(r"\{[^}]*\}|\([^)]*\)")


def joined(text):
    """Source text in which string literals that go on in the next line are in one."""
    return re.sub(r"\\\n\s*", "", text)


def until_closed(source, start):
    """The text from a parenthesis up to the one that closes it, or from an expression up to its semicolon."""
    depth, in_literal, at = 0, False, start
    while at < len(source):
        char = source[at]
        if in_literal:
            at += char == "\\"
            in_literal = char != '"'
        elif char == '"':
            in_literal = True
        elif char in "({[":
            depth += 1
        elif char in ")}]":
            depth -= 1
            if depth <= 0 and source[start] == "(":
                break
        elif char == ";" and depth <= 0:
            break
        at += 1
    return source[start:at]


def logged(path):
    """The texts that a file logs, if they have words of their own, with the first line that begins so."""
    text = re.split(r"#\[cfg\(test\)\]\nmod \w+ \{", path.read_text())[0]
    source = re.sub(r"(?m)^[ \t]*//.*$", "", joined(text))
    least = 2
    if str(path).endswith(WHOLE):
        # Parts of texts have fewer words.
        parts, least = [(0, source)], 4
    else:
        calls = [call for call in CALL.finditer(source) if not source.endswith("fn ", 0, call.start())]
        starts = [call.end() - call[0].endswith("(") for call in calls]
        parts = [(start, until_closed(source, start)) for start in starts]
    for start, part in parts:
        for literal in LITERAL.finditer(part):
            # The reason that ends it has a row.
            if not literal[1].endswith("{why}") and len(re.findall(r"\b[a-z]{2,}\b", ASIDE.sub("", literal[1]))) >= least:
                lines = enumerate(text.splitlines(), 1)
                yield next((line for line, words in lines if literal[1][:12] in words), 0), literal[1]


def main():
    source = "\n".join(joined(path.read_text()) for path in sorted((ROOT / "crates").glob("*/src/**/*.rs")))
    trials = joined("\n".join(path.read_text() for path in sorted((ROOT / "tests/e2e").glob("*.rs"))))
    rows, errors = [], []
    for number, line in enumerate((ROOT / "docs/messages.md").read_text().splitlines(), 1):
        if not line.startswith("| `"):
            continue
        row = ROW.match(line)
        if not row:
            errors.append(f"{number}: no row of three columns: {line}")
            continue
        words, where, test = row.groups()
        rows.append(words)
        if words not in source:
            errors.append(f"{number}: no message has `{words}`")
        if where is None:
            continue
        if where == "e2e":
            # A trial's name may have words that its list fills in.
            pieces = [re.escape(piece) for piece in re.split(r"the (?:server|client)'s", test)]
            found = all(re.search(piece, trials) for piece in pieces)
        else:
            files = (ROOT / "crates" / where).glob("**/*.rs")
            found = any(f"fn {test}(" in path.read_text() for path in files)
        if not found:
            errors.append(f"{number}: there is no test `{test}` of {where}")
    for crate in CRATES:
        for path in sorted((ROOT / "crates" / crate / "src").glob("**/*.rs")):
            if path.name.startswith("test") or "testing" in path.parts:
                continue
            for number, text in logged(path):
                if not any(words in text for words in rows):
                    errors.append(f" no row has {path.relative_to(ROOT)}:{number}: {text}")
    for error in errors:
        print(f"docs/messages.md:{error}")
    print(f"{len(rows)} messages, {len(errors)} errors")
    sys.exit(1 if errors or not rows else 0)


main()
