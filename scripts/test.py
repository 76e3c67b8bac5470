#!/usr/bin/env python3
"""Runs the tests of the workspace, including those with special needs that this machine meets; prints the slowest.

Usage: scripts/test.py [ARGUMENTS OF cargo test]      without arguments: --workspace

A test that needs more than cargo says so, for example #[ignore = "needs root"]. Cargo leaves such tests out. This
script runs those that have all that they need, and lists the others as skipped with the reason. As root a skipped test
is an error, because root can provide all needs on a machine without restrictions. SKIPS=allowed permits skipped tests.

Cargo calls this script as the runner of each test program; a folder holds the results until the end.

E2E_MATRIX=whole runs all of perftest's options in every network setup; see tests/e2e/matrix.rs.
"""

import ctypes
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

# The variable with the folder of results; if it is set, this process is a runner.
FOLDER = 'TEST_RESULTS'
SLOWEST = 10
# The output lines of libtest and of libtest-mimic, which pads names and may put the reason first.
LINE = re.compile(r'test (?:\[(?P<kind>[^\]]*)\] )?(?P<name>.+?) +\.\.\. '
                  r'(?P<outcome>ok|FAILED|ignored)(?:, (?P<reason>.*?))?(?: <(?P<seconds>[0-9.]+)s>)?$')
RUNNING = re.compile(r'running (\d+) tests?$')
# The reason of ignored functions that are no tests by themselves.
PART = 'another test starts it'
SYS_USERFAULTFD = 323
HUGE_PAGES = '/proc/sys/vm/nr_hugepages'


def is_root():
    return os.geteuid() == 0


def has_userfaultfd():
    """Whether the kernel allows a userfaultfd that handles faults of kernel mode too."""
    fd = ctypes.CDLL(None).syscall(SYS_USERFAULTFD, os.O_CLOEXEC)
    if fd < 0:
        return False
    os.close(fd)
    return True


def free_huge_pages():
    with open('/proc/meminfo') as file:
        found = re.search(r'^HugePages_Free:\s+(\d+)', file.read(), re.MULTILINE)
    return int(found.group(1)) if found else 0


NEEDS = {
    'root': is_root,
    'userfaultfd': has_userfaultfd,
    'huge pages': lambda: free_huge_pages() > 0,
    'tshark': lambda: shutil.which('tshark') is not None,
    'libfabric-dev': lambda: os.path.exists('/usr/include/rdma/fabric.h'),
    'chromium': lambda: all(shutil.which(program) for program in ('chromium', 'chromedriver', 'setpriv')),
}


def can_run(reason):
    """Whether this machine has all needs that a reason names; false for a reason that names no needs."""
    if not (reason or '').startswith('needs '):
        return False
    needs = [need.strip() for need in reason.removeprefix('needs ').split(',')]
    unknown = [need for need in needs if need not in NEEDS]
    if unknown:
        sys.exit(f'scripts/test.py cannot check for {", ".join(unknown)}: add it to NEEDS')
    return all(NEEDS[need]() for need in needs)


class Program:
    """A test program, which is run once or twice."""

    def __init__(self, command):
        self.command = command
        self.name = re.sub(r'-[0-9a-f]{16}$', '', pathlib.Path(command[0]).name)
        self.tests = {}
        self.status = 0
        # libtest prints times if unstable options are allowed. It runs tests in parallel, so only it can measure them.
        self.timed = '--report-time' in subprocess.run([command[0], '--help'], capture_output=True, text=True).stdout

    def run(self, arguments):
        """Runs the program, prints its output, and records the results of its tests."""
        if self.timed:
            arguments = [*arguments, '-Z', 'unstable-options', '--report-time']
        environment = {**os.environ, 'RUSTC_BOOTSTRAP': '1'} if self.timed else None
        child = subprocess.Popen(self.command + arguments, stdout=subprocess.PIPE, env=environment, text=True,
                                 errors='replace')
        last, announced, reported, broken = time.monotonic(), 0, 0, ''
        for line in child.stdout:
            print(line, end='', flush=True)
            now = time.monotonic()
            if found := RUNNING.match(line):
                announced += int(found[1])
            if found := LINE.match(line.rstrip('\n')):
                reported += 1
                # A program that does not print times runs its tests one after another.
                seconds = float(found['seconds'] or now - last)
                reason = found['reason'] or found['kind']
                self.tests[found['name']] = {'outcome': found['outcome'], 'reason': reason, 'seconds': seconds}
                last = now
            elif line.startswith('test ') and ' ... ' in line:
                # Other output follows the name, or the process ended in this test.
                broken = f', but this is no result: {line.rstrip()}'
        status = child.wait()
        if status == 0 and reported < announced:
            # A test has ended the process, so the tests after it did not run.
            self.tests['(the whole program)'] = {'outcome': 'FAILED', 'reason': f'{reported} of {announced} tests '
                                                 f'reported a result{broken}', 'seconds': 0}
            status = 1
        self.status = self.status or status
        if status and not any(test['outcome'] == 'FAILED' for test in self.tests.values()):
            self.tests['(the whole program)'] = {'outcome': 'FAILED', 'reason': f'status {status}', 'seconds': 0}

    def wanted(self):
        return [name for name, test in self.tests.items() if test['outcome'] == 'ignored' and can_run(test['reason'])]


def run_one(command):
    """Runs a test program as cargo's runner."""
    program = Program(command)
    plain = '--ignored' in command or '--include-ignored' in command or '--list' in command
    program.run([])
    # The end-to-end tests check their needs themselves.
    names = program.wanted() if program.timed and not plain else []
    if names:
        print(f'\nIgnored tests of {program.name} that can run here:', flush=True)
        program.run(['--ignored', '--exact', *names])
    with open(os.path.join(os.environ[FOLDER], f'{time.time_ns()}.json'), 'w') as file:
        json.dump({'program': program.name, 'tests': program.tests}, file)
    return program.status


def results(folder):
    for path in sorted(pathlib.Path(folder).glob('*.json')):
        result = json.loads(path.read_text())
        for name, test in result['tests'].items():
            # Functions that other tests start are no tests.
            if test['outcome'] != 'ignored' or test['reason'] != PART:
                yield {'name': f'{result["program"]} {name}', **test}


def summary(tests):
    """Prints the slowest tests, skipped tests with reasons, failed tests, and counts; returns whether all passed."""
    print(f'\nThe {SLOWEST} slowest tests:')
    for test in sorted(tests, key=lambda test: -test['seconds'])[:SLOWEST]:
        print(f'  {test["seconds"]:7.2f} s  {test["name"]}')
    of = {outcome: [test for test in tests if test['outcome'] == outcome] for outcome in ('ok', 'FAILED', 'ignored')}
    if of['ignored']:
        print('\nSkipped:')
    for test in of['ignored']:
        print(f'  {test["name"]}: {test["reason"] or "no reason is given"}')
    if of['FAILED']:
        print('\nFailed:')
    for test in of['FAILED']:
        print(f'  {test["name"]}' + (f': {test["reason"]}' if test['reason'] else ''))
    forbidden = of['ignored'] and is_root() and os.environ.get('SKIPS') != 'allowed'
    if forbidden:
        print('\nerror: as root no test may be skipped. Provide what is missing, or set SKIPS=allowed if this machine '
              'forbids it.')
    print(f'\n{len(of["ok"])} passed, {len(of["FAILED"])} failed, {len(of["ignored"])} skipped', flush=True)
    return not of['FAILED'] and not forbidden


class HugePages:
    """Reserves a few huge pages during a `with` block, if this process is root."""

    def __enter__(self):
        self.before = None
        if is_root() and os.path.exists(HUGE_PAGES) and free_huge_pages() == 0:
            with open(HUGE_PAGES) as file:
                self.before = file.read()
            self.set(str(int(self.before) + 4))

    def __exit__(self, *_):
        if self.before is not None:
            self.set(self.before)

    def set(self, count):
        try:
            with open(HUGE_PAGES, 'w') as file:
                file.write(count)
        except OSError:
            pass  # then the tests are skipped


def main():
    if FOLDER in os.environ:
        sys.exit(run_one(sys.argv[1:]))
    with tempfile.TemporaryDirectory() as folder, HugePages():
        target = subprocess.run(['rustc', '-vV'], capture_output=True, text=True, check=True).stdout
        host = re.search(r'^host: (.*)$', target, re.MULTILINE).group(1)
        runner = f'CARGO_TARGET_{host.upper().replace("-", "_")}_RUNNER'
        environment = {**os.environ, runner: os.path.abspath(__file__), FOLDER: folder}
        command = ['cargo', 'test', '--no-fail-fast', *(sys.argv[1:] or ['--workspace'])]
        status = subprocess.run(command, env=environment).returncode
        tests = list(results(folder))
    well = summary(tests)
    sys.exit(status or (0 if well and tests else 1))


if __name__ == '__main__':
    main()
