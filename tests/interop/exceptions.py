"""What Soft-RoCE itself does wrong. docs/interop.md says how each was found."""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Known:
    """A failure: patterns of the cell's name and of the whole line, and which side was the client."""
    cell: str
    client: str
    line: str
    reason: str


NO_EVENT = 'Soft-RoCE raises no asynchronous event for a request that it refuses'
KNOWN = [
    Known('verify (windows .|remote faults)', 'weir',
          'server FAILED: .*: no event, should be ".* work queue error"', NO_EVENT),
    Known('verify windows 1', 'weir', 'verify: a byte before a window: no completion within .*',
          'Soft-RoCE acknowledges a WRITE that begins one byte before a window of type 1'),
    Known('verify windows 2', 'weir', 'server FAILED: a message with invalidate has the flags 5',
          "Soft-RoCE's completions have the kernel's flag for an invalidation, which is another bit than libibverbs'"),
    Known('verify remote faults', 'rxe',
          '(verify|server FAILED): an unaligned atomic: (ibv_post_send: Inv|no event, ).*',
          'Soft-RoCE refuses an unaligned atomic when it is posted, before it is sent'),
    Known('verify too long', 'weir', 'client FAILED: a SEND that is too long: WR 1, remote operation error; .*',
          'Soft-RoCE answers a SEND that is too long with an operational NAK, not with an invalid request NAK'),
    Known('verify too long', 'weir', 'server FAILED: a receive that is too short: WR 5, local QP operation error, .*',
          'Soft-RoCE completes a receive that is too short with a QP operation error, not with a length error'),
]


def reasons(cell, client, failures):
    """The reasons of all failures of a cell; None if a failure has no reason."""
    found = []
    for failure in failures:
        reason = next((known.reason for known in KNOWN
                       if re.fullmatch(known.cell, cell) and client == known.client
                       and re.fullmatch(known.line, failure)), None)
        if reason is None:
            return None
        found.append(reason)
    return sorted(set(found)) or None
