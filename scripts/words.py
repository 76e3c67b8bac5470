#!/usr/bin/env python3
"""Checks that no text of the project personifies threads, peers and packets: CONTRIBUTING.md, "Language".

Every text file is checked, code included, because names follow the same rule. CONTRIBUTING.md lists the words.
"""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORDS = re.compile(
    r"\b(who|whom|whoever|whose|he|him|his|somebody|nobody|anybody|everybody|someone|anyone|everyone"
    r"|believes?|believed)\b",
    re.IGNORECASE,
)
SUFFIXES = {".rs", ".c", ".h", ".py", ".sh", ".md", ".toml", ".map", ".js", ".css", ""}
# What builds and tools leave behind.
SKIPPED_FOLDERS = {"target", ".git", "__pycache__", "corpus", "artifacts", "coverage"}
# The list of the words, twice, and the licences.
EXEMPT = {"CONTRIBUTING.md", "scripts/words.py", "LICENSE-APACHE", "LICENSE-MIT"}


def main():
    checked, found = 0, 0
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        for path in (Path(folder) / name for name in sorted(names)):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix not in SUFFIXES or name in EXEMPT:
                continue
            checked += 1
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                match = WORDS.search(line)
                if match:
                    found += 1
                    print(f"{name}:{number}: name the subject instead of `{match.group()}`: {line.strip()}")
    print(f"{checked} files, {found} lines with words that CONTRIBUTING.md excludes")
    sys.exit(1 if found or not checked else 0)


if __name__ == "__main__":
    main()
