#!/usr/bin/env python3
"""Checks docs/messages.md: each line that it names is in the source, and each test that it names exists."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| `([^`]+)` \| .+ \| (\w+): (.+) \|$")


def joined(text):
    """Source text in which string literals that go on in the next line are in one."""
    return re.sub(r"\\\n\s*", "", text)


def main():
    source = "\n".join(joined(path.read_text()) for path in sorted((ROOT / "crates").glob("*/src/**/*.rs")))
    trials = joined("\n".join(path.read_text() for path in sorted((ROOT / "tests/e2e").glob("*.rs"))))
    rows, errors = 0, []
    for number, line in enumerate((ROOT / "docs/messages.md").read_text().splitlines(), 1):
        if not line.startswith("| `"):
            continue
        rows += 1
        row = ROW.match(line)
        if not row:
            errors.append(f"{number}: no row of three columns: {line}")
            continue
        words, where, test = row.groups()
        if words not in source:
            errors.append(f"{number}: no message has `{words}`")
        if where == "e2e":
            # A trial's name may have words that its list fills in.
            pieces = [re.escape(piece) for piece in re.split(r"the (?:server|client)'s", test)]
            found = all(re.search(piece, trials) for piece in pieces)
        else:
            files = (ROOT / "crates" / where).glob("**/*.rs")
            found = any(f"fn {test}(" in path.read_text() for path in files)
        if not found:
            errors.append(f"{number}: there is no test `{test}` of {where}")
    for error in errors:
        print(f"docs/messages.md:{error}")
    print(f"{rows} messages, {len(errors)} errors")
    sys.exit(1 if errors or not rows else 0)


main()
