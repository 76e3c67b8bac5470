"""Runs tests of one module of rdma-core's Python suite, and reports on a descriptor in lines of JSON.

    module.py DESCRIPTOR SUITE DEVICE GID MODULE [TEST...]

First the names of all tests; then each test when it begins (so that one who dies or hangs is known by name) and when
it has ended, with its verdict; then the end.
"""

import json
import os
import sys
import unittest


class Reporter(unittest.TestResult):
    """Reports each test when it begins and when it has ended."""

    def __init__(self, pipe):
        super().__init__()
        self.pipe = pipe
        self.verdict = None

    def startTest(self, test):
        super().startTest(test)
        self.verdict = ('passed', '')
        self.report(test=test.id())

    def stopTest(self, test):
        super().stopTest(test)
        verdict, why = self.verdict
        self.report(test=test.id(), verdict=verdict, why=why)

    def addSkip(self, test, reason):
        # What failed before a skip in tearDown has failed.
        if self.verdict[0] != 'failed':
            self.verdict = ('skipped', reason)

    def addFailure(self, test, err):
        self.verdict = ('failed', self._exc_info_to_string(err, test))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addFailure(test, err)

    def report(self, **words):
        self.pipe.write(json.dumps(words) + '\n')


def main():
    descriptor, folder, device, gid, module = sys.argv[1:6]
    wanted = set(sys.argv[6:])
    # The suite reads its own options.
    sys.argv[1:] = ['--dev', device, '--gid', gid]
    sys.path[:0] = [folder, os.path.join(folder, 'tests')]
    from args_parser import parser
    parser.parse_args()
    pipe = os.fdopen(int(descriptor), 'w', buffering=1)
    reporter = Reporter(pipe)
    found = flat(unittest.defaultTestLoader.loadTestsFromName('tests.' + module))
    tests = [test for test in found if not wanted or test.id() in wanted]
    reporter.report(tests=[test.id() for test in tests])
    for test in tests:
        test.run(reporter)
    reporter.report(end=True)


def flat(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flat(item)
        else:
            yield item


main()
