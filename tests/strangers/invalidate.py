#!/usr/bin/env python3
"""invalidate.py PROGRAM ARGUMENT...: runs a Python program, while a thread of it asks the kernel for pages back.

MADV_PAGEOUT changes no contents, and without swap takes no anonymous page. Weir ends its access to the pages at the
call, as an adapter does when the kernel takes them: the next packet for them is a network page fault.
"""

import ctypes
import os
import random
import runpy
import sys
import threading
import time

PAGE = os.sysconf('SC_PAGESIZE')
MADV_PAGEOUT = 21
PAUSE = 0.001
# How long a list of the memory is used: programs map and unmap.
LIST = 0.2
LONGEST = 256 * PAGE


def writable():
    """The ranges of private memory that the program can write to."""
    ranges = []
    with open('/proc/self/maps') as maps:
        for line in maps:
            words = line.split()
            if words[1] == 'rw-p' and (len(words) == 5 or words[5] == '[heap]'):
                ranges.append([int(bound, 16) for bound in words[0].split('-')])
    return ranges


def invalidate():
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    dice = random.Random(os.getpid())
    listed, ranges = -LIST, []
    while True:
        if time.monotonic() > listed + LIST:
            listed, ranges = time.monotonic(), writable()
        start, end = dice.choice(ranges)
        first = dice.randrange(start, end, PAGE)
        # Memory that is gone meanwhile is an error of no consequence.
        madvise(first, min(end - first, dice.randrange(PAGE, LONGEST, PAGE)), MADV_PAGEOUT)
        time.sleep(PAUSE)


if __name__ == '__main__':
    threading.Thread(target=invalidate, daemon=True).start()
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name='__main__')
