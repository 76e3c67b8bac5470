#!/usr/bin/env python3
"""Checks that every rule of the protocol names the clause of the IBTA specification that it follows.

A rule is a function of the requester, the responder, the completer or the queue pair (FILES, tests excepted) that
decides an outcome which the peer or the application can see. OUTCOMES says by which code that is recognised: a status
other than success, a NAK or an RNR NAK, an error that ends the QP, a request that finds no receive, a packet that is
dropped, an ACK or NAK that is owed, a timeout or an RNR wait, an end-to-end credit, a retry counter, a request that
has to wait for earlier ones, a responder resource that is free again, or a change of the expected PSN, of the MSN or
of the requester's positions. A rule needs a clause in its doc comment, in its attributes' comments or in a comment of
its body. What stands at the head of a file does not count.

A clause has one form: `(IBTA 9.7.5.2.8)`, `(IBTA C9-88)`, `(IBTA annex A19)`, several separated by commas, tables and
error classes after their section: `(IBTA 9.9.3.1, class E)`. The script fails if a comment of the crate names IBTA and
a number in another form.

OUTCOMES goes by the names of types and fields. If one of them is renamed, the script fails because its definition is
gone, or because no rule matches it; so a rename cannot take a rule out of the check.
"""

import re
import sys
from pathlib import Path

CRATE = Path(__file__).resolve().parent.parent / "crates/transport/src"
FILES = ["completer.rs", "qp/*.rs", "requester/*.rs", "responder/*.rs"]

# What an outcome is, the definition that its name has in the crate, and the code that decides it.
OUTCOMES = [
    ("a status other than success", r"enum Status\b", r"\bStatus::(?!Success\b)\w+"),
    ("a NAK code", r"NakCode\b", r"\bNakCode::\w+"),
    ("a syndrome", r"Syndrome\b", r"\bSyndrome::(?!from_byte\b|to_byte\b)\w+"),
    ("an error of the responder", r"struct Fatal\b", r"(?<![>] )\bFatal(::(?!event\b)\w+\(| \{)(?=.)"),
    ("an error of the requester", r"struct Failure\b", r"(?<![>] )\bFailure(::\w+\(| \{)(?=.)"),
    ("a message without a receive", r"NotReady\b", r"\bVerdict::NotReady\b"),
    ("the expected PSN", r"\bexpected: PsnPosition\b", r"\bself\.expected = "),
    ("the MSN", r"\bmsn: u32\b", r"\bself\.msn = "),
    ("the oldest unacknowledged position", r"\buna: Position\b", r"\bself\.una( = |\.advance\(|\.\w+ = )"),
    ("the next position to send", r"\bnext: Position\b", r"\bself\.next( = self\.una|\.skip_to\()"),
    ("a PSN out of order", r"enum Sequence\b", r"\bSequence::(Duplicate|Gap)\b"),
    ("which NAKs follow", r"\border: Order\b", r"\bself\.order = "),
    ("an ACK or NAK that is owed", r"\bowed: Owed\b", r"\bself\.owed(\.(?!deadline|is_|outgoing|mark_sent)\w+\(| = )"),
    ("a missing response", r"enum Reach\b", r"\b(Reach::ResponseMissing|CompleterState::MissingResponse)\b"),
    ("the ACK timeout", r"\back_deadline: Option<Instant>", r"\bself\.ack_deadline = (?!None)"),
    ("an RNR wait", r"\brnr_deadline: Option<Instant>", r"\bself\.rnr_deadline = (?!None)"),
    ("a retry counter", r"struct Retries\b", r"\bself\.retries(\.\w+)? = "),
    ("an end-to-end credit", r"struct Credits\b", r"\bself\.credits\.\w+|\bcredit_obstacle\("),
    ("whether a packet needs a receive", r"\bfn takes_receive\b", r"\bSendOp::WriteImm \{ \.\. \} => self\b"),
    ("a request that waits for others", r"\bWaitFence\b", r"\(RequesterState::Wait(Fence|Reads|Credit)\)"),
    ("a resource that is free again", r"\bresponse_sent: bool\b", r"\.response_sent\b"),
    ("a dropped packet", r"enum Handled\b", r"\breturn (Ok\()?Handled::Done\b"),
]

ITEM = r"(?:annex A\d+(?:\.\d+)*|[Co]\d+-\d+(?:\.\d+)*|\d+(?:\.\d+)+|table \d+|class [A-J])"
CLAUSE = re.compile(rf"\(IBTA (?!table|class){ITEM}(?:[,;] {ITEM})*\)")
NAMED = re.compile(r"IBTA (?:annex A?|table |[Co]?)\d")


def split(text):
    """Code and comments of a file, each with everything else blanked, so that positions stay the same."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|r#*".*?"#*|"(?:\\.|[^"\\])*"|\'(?:\\.[^\']*|[^\'\\])\'', re.S)
    code, comments = list(text), [c if c == "\n" else " " for c in text]
    for found in token.finditer(text):
        comment = found.group().startswith("/")
        for at in range(*found.span()):
            if text[at] != "\n":
                code[at] = " "
                if comment:
                    comments[at] = text[at]
    return "".join(code), "".join(comments)


def opening(code, at):
    """The position of the brace that opens the body of the function with its signature at `at`; None without a body."""
    depth = 0
    for at in range(at, len(code)):
        depth += (code[at] in "([") - (code[at] in ")]")
        if depth == 0 and code[at] in "{;":
            return at if code[at] == "{" else None
    return None


def closing(code, at):
    """The position after the brace that closes the one at `at`."""
    depth = 0
    for end in range(at, len(code)):
        depth += (code[end] == "{") - (code[end] == "}")
        if depth == 0:
            return end + 1
    raise SystemExit("clauses.py: a brace is not closed")


def functions(text):
    """Name, line, code and comments of each function outside tests; its comments include those right before it."""
    code, comments = split(text)
    tests = code.find("#[cfg(test)]")
    for found in re.finditer(r"\bfn (\w+)", code[: tests if tests >= 0 else len(code)]):
        body = opening(code, found.end())
        if body is None:
            continue
        end = closing(code, body)
        begin = text.rfind("\n", 0, found.start()) + 1
        while begin > 0:
            before = text.rfind("\n", 0, begin - 1) + 1
            if not text[before:begin].lstrip().startswith(("//", "#[")):
                break
            begin = before
        line = text.count("\n", 0, found.start()) + 1
        yield found.group(1), line, code[body:end], comments[begin:end]


def joined(comments):
    """Comments as running text."""
    return re.sub(r"\s+", " ", re.sub(r"//[/!]?", " ", comments))


def main():
    wrong, rules, clauses = [], 0, 0
    known = "\n".join(split(path.read_text())[0] for path in CRATE.rglob("*.rs"))
    matched = set()
    for what, definition, _ in OUTCOMES:
        if not re.search(definition, known):
            wrong.append(f"clauses.py: nothing in the crate defines {what} any more ({definition}): adapt OUTCOMES")
    for path in sorted(path for pattern in FILES for path in CRATE.glob(pattern)):
        for name, line, code, comments in functions(path.read_text()):
            outcomes = [what for what, _, decides in OUTCOMES if re.search(decides, code)]
            if not outcomes:
                continue
            matched.update(outcomes)
            rules += 1
            named = CLAUSE.findall(joined(comments))
            clauses += len(named)
            if not named:
                file = path.relative_to(CRATE.parent.parent.parent)
                wrong.append(f"{file}:{line}: `{name}` decides {', '.join(outcomes)}, and names no IBTA clause")
    for what, _, decides in OUTCOMES:
        if what not in matched:
            wrong.append(f"clauses.py: no function decides {what} ({decides}): adapt OUTCOMES")
    for path in sorted(CRATE.rglob("*.rs")):
        text = joined(split(path.read_text())[1])
        for found in NAMED.finditer(CLAUSE.sub(" ", text)):
            around = CLAUSE.sub(" ", text)[found.start() : found.start() + 60]
            wrong.append(f"{path.relative_to(CRATE.parent.parent.parent)}: not in the form of a clause: {around!r}")
    print("\n".join(wrong + [f"{rules} rules, {clauses} clauses, {len(wrong)} errors"]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
