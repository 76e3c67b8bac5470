#!/usr/bin/env python3
"""Runs the tests of the workspace, those that need something as well where it is there, and says what took longest.

Usage: scripts/test.py [ARGUMENTS OF cargo test]      without any, all of the workspace

A test that needs more than cargo says so: #[ignore = "needs root"], for example. Cargo leaves those out; this script
runs each whose needs are met here, and lists the rest as skipped, with the reason. As root nothing may be skipped: root
can have all of it, on a machine of which no part is forbidden. SKIPS=allowed says that this is none.

Cargo calls this script for each test program, as its runner; the results wait in a folder until the end.

E2E_MATRIX=whole runs all of perftest's options in all places; see tests/e2e/matrix.rs.
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

# Where runners leave their results; its being set makes this process one of them.
FOLDER = 'TEST_RESULTS'
SLOWEST = 10
# What libtest prints, and libtest-mimic, which pads names and may put its reason first.
LINE = re.compile(r'test (?:\[(?P<kind>[^\]]*)\] )?(?P<name>.+?) +\.\.\. '
                  r'(?P<outcome>ok|FAILED|ignored)(?:, (?P<reason>.*?))?(?: <(?P<seconds>[0-9.]+)s>)?$')
RUNNING = re.compile(r'running (\d+) tests?$')
# A reason of what is no test of its own.
PART = 'another test starts it'
SYS_USERFAULTFD = 323
HUGE_PAGES = '/proc/sys/vm/nr_hugepages'


def is_root():
    return os.geteuid() == 0


def has_userfaultfd():
    """Whether the kernel gives one that hears of its own faults too."""
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
}


def can_run(reason):
    """Whether all that a reason names is here. A reason that names no needs is no reason to run a test."""
    if not (reason or '').startswith('needs '):
        return False
    needs = [need.strip() for need in reason.removeprefix('needs ').split(',')]
    unknown = [need for need in needs if need not in NEEDS]
    if unknown:
        sys.exit(f'scripts/test.py does not know how to look for {", ".join(unknown)}')
    return all(NEEDS[need]() for need in needs)


class Program:
    """One test program, run once or twice."""

    def __init__(self, command):
        self.command = command
        self.name = re.sub(r'-[0-9a-f]{16}$', '', pathlib.Path(command[0]).name)
        self.tests = {}
        self.status = 0
        # libtest tells times where unstable options are allowed; it runs tests side by side, so that only it can tell.
        self.timed = '--report-time' in subprocess.run([command[0], '--help'], capture_output=True, text=True).stdout

    def run(self, arguments):
        """Passes on what it prints, and takes notes."""
        if self.timed:
            arguments = [*arguments, '-Z', 'unstable-options', '--report-time']
        environment = {**os.environ, 'RUSTC_BOOTSTRAP': '1'} if self.timed else None
        child = subprocess.Popen(self.command + arguments, stdout=subprocess.PIPE, env=environment, text=True,
                                 errors='replace')
        last, announced, told = time.monotonic(), 0, 0
        for line in child.stdout:
            print(line, end='', flush=True)
            now = time.monotonic()
            if found := RUNNING.match(line):
                announced += int(found[1])
            if found := LINE.match(line.rstrip('\n')):
                told += 1
                # One after another where the program itself does not measure.
                seconds = float(found['seconds'] or now - last)
                reason = found['reason'] or found['kind']
                self.tests[found['name']] = {'outcome': found['outcome'], 'reason': reason, 'seconds': seconds}
                last = now
        status = child.wait()
        if status == 0 and told < announced:
            # A test that ends the process takes those after it along.
            self.tests['(the whole program)'] = {'outcome': 'FAILED', 'reason': f'{told} of {announced} tests told how '
                                                 'they ended', 'seconds': 0}
            status = 1
        self.status = self.status or status
        if status and not any(test['outcome'] == 'FAILED' for test in self.tests.values()):
            self.tests['(the whole program)'] = {'outcome': 'FAILED', 'reason': f'status {status}', 'seconds': 0}

    def wanted(self):
        return [name for name, test in self.tests.items() if test['outcome'] == 'ignored' and can_run(test['reason'])]


def run_one(command):
    """As cargo's runner."""
    program = Program(command)
    plain = '--ignored' in command or '--include-ignored' in command or '--list' in command
    program.run([])
    # The end-to-end tests look for what they need by themselves.
    names = program.wanted() if program.timed and not plain else []
    if names:
        print(f'\nWhat {program.name} ignored and can run here:', flush=True)
        program.run(['--ignored', '--exact', *names])
    with open(os.path.join(os.environ[FOLDER], f'{time.time_ns()}.json'), 'w') as file:
        json.dump({'program': program.name, 'tests': program.tests}, file)
    return program.status


def results(folder):
    for path in sorted(pathlib.Path(folder).glob('*.json')):
        result = json.loads(path.read_text())
        for name, test in result['tests'].items():
            # Those that other tests start are none.
            if test['outcome'] != 'ignored' or test['reason'] != PART:
                yield {'name': f'{result["program"]} {name}', **test}


def summary(tests):
    """Prints the slowest, what was skipped and why, what failed, and the counts; whether all is well."""
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
        print('\nerror: root skips nothing. Provide what is missing, or say SKIPS=allowed where this machine forbids it.')
    print(f'\n{len(of["ok"])} passed, {len(of["FAILED"])} failed, {len(of["ignored"])} skipped', flush=True)
    return not of['FAILED'] and not forbidden


class HugePages:
    """A few huge pages while it lasts, where root may set them aside."""

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
