#!/usr/bin/env python3
"""Checks docs/messages.md: each line that it names is in the source, each test that it names exists, and it names all lines."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| `([^`]+)` \| .+ \| (?:(\w+): (.+)|none) \|$")
# Crates with lines that tell a user what to do.
CRATES = ("device", "verbs", "rdmacm")
CALL = re.compile(r"\b(?:warn!|error!|refuse|refused|refused_trial|refused_post)\(")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
# Values, and words in parentheses.
ASIDE = re.compile(r"\{[^}]*\}|\([^)]*\)")


def joined(text):
    """Source text in which string literals that go on in the next line are in one."""
    return re.sub(r"\\\n\s*", "", text)


def call_text(source, start):
    """The text from a parenthesis up to the one that closes it."""
    depth, in_literal, at = 0, False, start
    while at < len(source):
        char = source[at]
        if in_literal:
            at += char == "\\"
            in_literal = char != '"'
        elif char == '"':
            in_literal = True
        elif char in "()":
            depth += 1 if char == "(" else -1
            if depth == 0:
                break
        at += 1
    return source[start:at]


def logged(path):
    """The texts that the calls of a file log, with the lines of the calls, if they have words of their own."""
    source = joined(path.read_text().split("#[cfg(test)]\nmod ")[0])
    source = re.sub(r"^\s*//.*$", "", source, flags=re.M)
    for call in CALL.finditer(source):
        if source[: call.start()].endswith("fn "):
            continue
        for text in LITERAL.findall(call_text(source, call.end() - 1)):
            # The reason that ends it has a row.
            if not text.endswith("{why}") and len(re.findall(r"[a-z]{2,}", ASIDE.sub("", text))) > 1:
                yield source.count("\n", 0, call.start()) + 1, text


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
                    errors.append(f" lacks {path.relative_to(ROOT)}, call {number}: {text}")
    for error in errors:
        print(f"docs/messages.md:{error}")
    print(f"{len(rows)} messages, {len(errors)} errors")
    sys.exit(1 if errors or not rows else 0)


main()
