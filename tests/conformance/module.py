"""Runs the tests of one module of rdma-core's Python suite, and writes reports to a descriptor as lines of JSON.

    module.py DESCRIPTOR SUITE DEVICE GID MODULE [TEST...]

The first report has the names of all tests. Each test has a report when it begins, which names a test that crashes or
hangs, and a report with its verdict when it ends. The last report marks the end.
"""

import json
import os
import sys
import unittest


class Reporter(unittest.TestResult):
    """Writes a report when a test begins and when it ends."""

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
        # A failed test stays failed if tearDown then skips.
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
    # The suite parses its options from sys.argv.
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
