#!/usr/bin/env python3
"""Checks the tables of "Where the rules live" in ARCHITECTURE.md against the code.

The right cell of a row names paths relative to crates/, each followed by names: `transport/src/state.rs` (`check`). A
path must exist. A name must have its definition in the file, or in a file of the folder, that the cell names last
before it: a function, type, trait, constant, static or module. For `Type::name` the file must also contain the type's
name, because its `impl` is there.
"""

import re
import sys
from pathlib import Path

sys.dont_write_bytecode = True
from clauses import split  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
SECTION = "## Where the rules live"
DEFINITION = r"\b(?:fn|struct|enum|trait|type|const|static|mod) {}\b"


def rows(text):
    """Line number and cells of each row of the section's tables, without heads and separators."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            inside = line == SECTION
        if inside and line.startswith("|") and not re.match(r"\| (?:question|---) \|", line):
            yield number, [cell.strip() for cell in line.strip("|").split(" | ")]


def code(path):
    """The code of a file, or of all files of a folder, without comments and strings."""
    files = sorted(path.rglob("*.rs")) if path.is_dir() else [path]
    return "\n".join(split(file.read_text())[0] for file in files)


def errors_of(cell):
    """What is wrong in a cell, and the number of names in it."""
    errors, names, path, text = [], 0, None, ""
    for span in re.findall(r"`([^`]+)`", cell):
        if "/" in span:
            path, text = span, ""
            if (ROOT / "crates" / span).exists():
                text = code(ROOT / "crates" / span)
            else:
                errors.append(f"crates/{span} does not exist")
            continue
        names += 1
        *types, name = span.split("::")
        if path is None:
            errors.append(f"`{span}` has no path before it")
        elif not re.search(DEFINITION.format(re.escape(name)), text):
            errors.append(f"{path} does not define `{name}`")
        elif not all(re.search(rf"\b{re.escape(part)}\b", text) for part in types):
            errors.append(f"{path} does not contain `{'::'.join(types)}`")
    if path is None:
        errors.append("the row names no file")
    return errors, names


def main():
    wrong, checked, names = [], 0, 0
    for number, cells in rows((ROOT / "ARCHITECTURE.md").read_text()):
        found, count = errors_of(cells[-1]) if len(cells) == 2 else (["the row does not have two cells"], 0)
        wrong += [f"ARCHITECTURE.md:{number}: {error}" for error in found]
        checked, names = checked + 1, names + count
    print("\n".join(wrong + [f"{checked} rows, {names} names, {len(wrong)} errors"]))
    sys.exit(bool(wrong) or not checked)


if __name__ == "__main__":
    main()
