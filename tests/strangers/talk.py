"""What the two programs of a transfer have in common: a line to each other, and the bytes."""

import socket
import sys

SIZE = 8 << 20


class Line:
    """A socket with a descriptor that the runner passes; standard output is the library's for its log."""

    def __init__(self, descriptor):
        self.file = socket.socket(fileno=descriptor).makefile('rw')

    def say(self, *words):
        print(*words, file=self.file, flush=True)

    def heard(self):
        words = self.file.readline().split()
        if not words:
            sys.exit('the other program has ended')
        return words


def pattern(seed):
    """SIZE bytes, with a period that is no power of two."""
    period = bytes((index * seed + index // 251) % 256 for index in range(64 * 251))
    return (period * (SIZE // len(period) + 1))[:SIZE]


def role_and_line():
    return sys.argv[1], Line(int(sys.argv[2]))
