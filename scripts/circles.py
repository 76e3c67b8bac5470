#!/usr/bin/env python3
"""Checks that the source files of a crate do not use each other in a circle: CONTRIBUTING.md, "Style".

A file uses another file if it names an item of it: by `use`, or by a path that begins with `crate`, `super`, `self`, an
imported name or a module of its own. A name leads to the file that defines it: re-exports are followed. `mod x;` and a
`pub use` of a name that the file does not need itself are no use. Code under `#[cfg(test)]` does not count.

Methods are not seen: a file may call a method that another file implements for a type of a third.
"""

import re
import sys
from pathlib import Path

sys.dont_write_bytecode = True
from clauses import closing, opening, split  # noqa: E402

CRATES = Path(__file__).resolve().parent.parent / "crates"
# Files that may use each other in a circle, each with the reason: ({"crate/src/a.rs", "crate/src/b.rs"}, "reason").
ALLOWED = []

USE = re.compile(r"^[ \t]*(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", re.M)
PATH = re.compile(r"(?<![\w:$])(?:\w+\s*::\s*)+\w+")
ITEM = r"\b(?:fn|struct|enum|trait|type|union|const|static|static mut|mod|macro_rules!)\s+"


def without_tests(text):
    """Code without comments, strings and items under `#[cfg(test)]`; the names of modules that are such items."""
    code, tests = split(text)[0], set()
    while (at := code.find("#[cfg(test)]")) >= 0:
        tests.update(re.findall(r"\A[^;{]*\bmod (\w+)\s*;", code[at:]))
        end = closing(code, body) if (body := opening(code, at)) else code.index(";", at) + 1
        code = code[:at] + code[end:]
    for inline in re.finditer(r"\bmod \w+ \{", code):
        end = closing(code, inline.end() - 1)
        code = code[: inline.end()] + code[inline.end() : end].replace("super::", " self::") + code[end:]
    return code, tests


def leaves(tree):
    """The paths of a `use`, each with the name that it gets."""
    head, brace, rest = re.sub(r"\s+", " ", tree).strip().partition("{")
    if not brace:
        path, _, name = head.partition(" as ")
        path = [part.strip() for part in path.split("::")]
        path = path[:-1] if path[-1] == "self" and len(path) > 1 else path
        return [(path, name.strip() or path[-1])]
    depth, parts = 0, [""]
    for letter in rest.rstrip()[:-1]:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [leaf for part in parts if part.strip() for leaf in leaves(head + part)]


class Module:
    def __init__(self, path, file):
        self.path, self.file = path, file
        self.code, self.tests = without_tests(file.read_text())
        uses = [(bool(use[1]), *leaf) for use in USE.finditer(self.code) for leaf in leaves(use[2])]
        body = USE.sub("", self.code)
        words = set(re.findall(r"(?<![.\w])(?<!\bfn )\w+", body))
        self.names = {name: path for _, path, name in uses if name != "*"}
        self.globs = [path for _, path, name in uses if name == "*"]
        # What it needs: imports, re-exports that it names, and paths, of which the first part may be imported.
        self.needs = [path for public, path, name in uses if not public or name in words]
        for first, *rest in (re.split(r"\s*::\s*", path[0]) for path in PATH.finditer(body)):
            self.needs.append(self.names.get(first, [first]) + rest)


class Crate:
    def __init__(self, source):
        self.modules, tests = {}, set()
        roots = [source / "lib.rs", source / "main.rs"]
        root = next(file for file in roots if file.exists())
        for file in sorted(source.rglob("*.rs")):
            if file.name != "tests.rs" and (file == root or file not in roots):
                path = file.relative_to(source).with_suffix("").parts
                path = path[:-1] if path[-1] == "mod" or file == root else path
                self.modules[path] = Module(path, file)
                tests.update((*path, name) for name in self.modules[path].tests)
        for path in [path for path in self.modules if any(path[: len(test)] == test for test in tests)]:
            del self.modules[path]

    def target(self, module, path, seen=()):
        """The module that defines what `path` names in `module`, and the name; `None` for modules and other crates."""
        at, path = module.path, list(path)
        if path[0] == "crate":
            at, path = (), path[1:]
        while path and path[0] in ("self", "super"):
            at = at[:-1] if path.pop(0) == "super" else at
        if at == module.path and (*at, *path[:1]) not in self.modules:
            return None
        while path and (*at, path[0]) in self.modules:
            at, path = (*at, path[0]), path[1:]
        found = self.modules.get(at)
        if not found or not path or (at, path[0]) in seen:
            return None
        seen = (*seen, (at, path[0]))
        if path[0] in found.names:
            return self.target(found, found.names[path[0]] + path[1:], seen) or (found, path[0])
        others = [self.target(found, [*glob[:-1], *path], seen) for glob in found.globs]
        defining = [other for other in others if other and re.search(ITEM + re.escape(path[0]) + r"\b", other[0].code)]
        return (defining + [(found, path[0])])[0]

    def edges(self):
        """For each pair of files of which the first uses the second, the names."""
        edges = {}
        for module in self.modules.values():
            for target, name in filter(None, (self.target(module, path) for path in module.needs)):
                if target is not module:
                    edges.setdefault((module.file, target.file), set()).add(name)
        return edges


def circles(edges):
    """Sets of files that use each other, directly or through others."""
    reached = {}
    for start in {first for first, _ in edges}:
        found, waiting = set(), [start]
        while waiting:
            at = waiting.pop()
            new = {second for first, second in edges if first == at} - found
            found |= new
            waiting += new
        reached[start] = found
    return {frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in reached if a in reached[a]}


def main():
    files, count = 0, 0
    for folder in sorted(CRATES.iterdir()):
        edges = (crate := Crate(folder / "src")).edges()
        files += len(crate.modules)
        for circle in sorted(circles(edges), key=sorted):
            if {file.relative_to(CRATES).as_posix() for file in circle} in [allowed for allowed, _ in ALLOWED]:
                continue
            count += 1
            print(f"{folder.name}: {len(circle)} files use each other in a circle:")
            for (first, second), names in sorted(edges.items()):
                if {first, second} <= circle:
                    print(f"  {first.relative_to(CRATES)} -> {second.relative_to(CRATES)}: {', '.join(sorted(names))}")
    print(f"{files} files, {count} circles")
    sys.exit(1 if count or not files else 0)


if __name__ == "__main__":
    main()
