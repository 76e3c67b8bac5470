#!/usr/bin/env python3
"""Runs rdma-core's Python suite on Weir, and prints what passed, what failed, and why the rest was skipped.

Each module runs in its own process, with Weir's library, on the loopback device. The exit status is 1 if a test fails,
or if a test that must pass (expected.txt) does not pass. With `--strict` it is also 1 if a test is skipped without a
reason in expected.txt.
As root it reserves huge pages during the run, which some tests need.
`--build` runs the suite of another release, from its build directory; expected.txt does not count then.
`--update` adds the tests that pass now to expected.txt, and writes their number into README. `--readme` runs no test:
it compares README's number with expected.txt.
"""

import argparse
import contextlib
import fnmatch
import glob
import gzip
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
EXPECTED = os.path.join(HERE, 'expected.txt')
README = os.path.join(ROOT, 'README.md')
INSTALLED = '/usr/share/doc/rdma-core/tests'
# pyverbs is built for the interpreter of the distribution.
PYTHON = '/usr/bin/python3'
# Tests of vendor-specific features, which Weir does not have.
FOREIGN = re.compile(r'test_(mlx5|efa|cuda)')
VERDICTS = ('passed', 'failed', 'skipped')


def main():
    options = arguments()
    expected = Expected(EXPECTED)
    if options.readme:
        sys.exit('\n'.join(check_readme(expected)) or 0)
    with tempfile.TemporaryDirectory(prefix='weir-conformance-') as folder:
        unpack(suite(folder, options.build), os.path.join(folder, 'tests'))
        modules = options.modules or list_modules(os.path.join(folder, 'tests'))
        results = []
        with huge_pages():
            for module in modules:
                begin = time.monotonic()
                rows = run_module(folder, module, options)
                results += rows
                if not options.json:
                    print_row(module, rows, time.monotonic() - begin)
    complaints = expected.judge(results, whole=not options.modules, strict=options.strict)
    if options.build:
        # Releases rename and change tests.
        complaints = [f'{short(result["test"])} failed' for result in results if result['verdict'] == 'failed']
    elif options.update:
        expected.update(results)
        update_readme(expected)
    elif not options.modules:
        complaints += check_readme(expected)
    if options.json:
        print(json.dumps(summary(results, complaints, expected), indent=1))
    else:
        print_end(results, complaints, expected)
    sys.exit(1 if complaints else 0)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--library', default=os.path.join(ROOT, 'target/weir/lib/weir'),
                        help="folder with Weir's libibverbs.so.1 (default: the one that `make build` builds)")
    parser.add_argument('--device', default='weir_lo')
    parser.add_argument('--gid', default='1', help='GID index (default: 127.0.0.1 of weir_lo)')
    parser.add_argument('--timeout', type=float, default=30, help='time limit of one test, seconds')
    parser.add_argument('--build', metavar='DIR',
                        help='the directory in which another release of rdma-core was built with cmake; --library must '
                             'then be linked for its libibverbs (crates/verbs/link.sh)')
    parser.add_argument('--json', action='store_true', help='print all results as one JSON object')
    parser.add_argument('--strict', action='store_true', help='a skip without a reason in expected.txt is an error')
    parser.add_argument('--update', action='store_true', help='write what passes now into expected.txt and README')
    parser.add_argument('--readme', action='store_true', help="only compare README's number with expected.txt")
    parser.add_argument('modules', nargs='*', metavar='MODULE', help='for example test_mr (default: all)')
    return parser.parse_args()


@contextlib.contextmanager
def huge_pages(wanted=16):
    """Reserves huge pages during the run, as root and if none are reserved. Some tests need them."""
    path = '/proc/sys/vm/nr_hugepages'
    with open(path) as file:
        before = int(file.read())
    if before or os.geteuid():
        yield
        return
    write(path, wanted)
    try:
        yield
    finally:
        write(path, before)


def write(path, value):
    try:
        with open(path, 'w') as file:
            file.write(str(value))
    except OSError as error:
        print(f'{path}: {error.strerror}', file=sys.stderr)


def suite(folder, build):
    """The folder of the suite: that of the build's source, the installed one or, if documentation is not installed, the
    one extracted from the package."""
    if build:
        with open(os.path.join(build, 'CMakeCache.txt')) as cache:
            return re.search(r'^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$', cache.read(), re.MULTILINE)[1] + '/tests'
    if glob.glob(INSTALLED + '/test_*'):
        return INSTALLED
    print('The suite is not installed (no documentation?): extracting it from its package.', file=sys.stderr)
    subprocess.run(['apt-get', 'download', '-q', 'python3-pyverbs'], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    package = glob.glob(folder + '/python3-pyverbs*.deb')[0]
    subprocess.run(['dpkg-deb', '-x', package, folder + '/package'], check=True)
    return folder + '/package' + INSTALLED


def unpack(source, target):
    os.mkdir(target)
    for path in glob.glob(source + '/*.py*'):
        name = os.path.join(target, os.path.basename(path).removesuffix('.gz'))
        opener = gzip.open if path.endswith('.gz') else open
        with opener(path, 'rb') as packed, open(name, 'wb') as plain:
            shutil.copyfileobj(packed, plain)


def list_modules(folder):
    names = (os.path.basename(path).removesuffix('.py') for path in glob.glob(folder + '/test_*.py'))
    return sorted(name for name in names if not FOREIGN.match(name))


def run_module(folder, module, options):
    """Runs all tests of a module. A test that crashes or hangs has failed; the rest run in a new process."""
    results, left = [], []
    while True:
        ran, wanted, ended, died = run_process(folder, module, left, options)
        results += ran
        if ended:
            return results
        seen = {result['test'] for result in results}
        if died:
            results.append(died)
            seen.add(died['test'])
        left = [test for test in wanted if test not in seen]
        if not died or not left:
            return results


def run_process(folder, module, only, options):
    """Returns (results, names of all tests, whether the process finished, the result of the test that crashed it)."""
    log = tempfile.TemporaryFile('w+')
    reader, writer = os.pipe()
    command = [PYTHON, os.path.join(HERE, 'module.py'), str(writer), folder, options.device, options.gid, module, *only]
    environment = {name: value for name, value in os.environ.items() if not name.startswith('WEIR_')}
    environment['LD_LIBRARY_PATH'] = options.library
    environment['LD_PRELOAD'] = os.path.join(options.library, 'libibverbs.so.1')
    environment['WEIR_INTERFACE'] = 'all'
    if options.build:
        environment['LD_LIBRARY_PATH'] += os.pathsep + os.path.join(options.build, 'lib')
        environment['PYTHONPATH'] = os.path.join(options.build, 'python')
    environment['PATH'] = rdma_command(folder, options.device) + os.pathsep + environment['PATH']
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                               pass_fds=[writer], start_new_session=True, cwd=folder)
    os.close(writer)
    results, wanted, current, ended, why = [], [], None, False, None
    for line in lines(reader, options.timeout):
        if line is None:
            why = f'did not end within {options.timeout:g} s'
            break
        report = json.loads(line)
        if 'tests' in report:
            wanted = report['tests']
        elif 'end' in report:
            ended = True
        elif 'verdict' in report:
            results.append(report)
            current = None
        else:
            current = report['test']
    os.close(reader)
    # Kills the process group, because a test may have started children.
    if why:
        os.killpg(process.pid, 9)
    status = process.wait()
    if ended:
        return results, wanted, True, None
    log.seek(0)
    why = why or f'its process ended with status {status}'
    name = current or f'tests.{module}'
    return results, wanted, False, {'test': name, 'verdict': 'failed', 'why': f'{why}\n{log.read()[-4000:]}'}


def rdma_command(folder, device):
    """A directory with a command `rdma` in the place of iproute2's, which asks the kernel for devices."""
    directory = os.path.join(folder, 'bin')
    path = os.path.join(directory, 'rdma')
    if not os.path.exists(path):
        os.makedirs(directory)
        link = [{'ifname': device, 'port': 1, 'netdev': device.removeprefix('weir_')}]
        write(path, f"#!/bin/sh\necho '{json.dumps(link)}'\n")
        os.chmod(path, 0o755)
    return directory


def lines(reader, timeout):
    """Yields lines as they arrive; None if no line arrives within `timeout` seconds."""
    rest = b''
    while True:
        if not select.select([reader], [], [], timeout)[0]:
            yield None
            return
        got = os.read(reader, 65536)
        if not got:
            return
        *whole, rest = (rest + got).split(b'\n')
        yield from whole


def count(results):
    return {verdict: sum(result['verdict'] == verdict for result in results) for verdict in VERDICTS}


def short(test):
    return test.removeprefix('tests.')


def print_row(module, results, seconds):
    counts = count(results)
    words = ', '.join(f'{counts[verdict]:3} {verdict}' for verdict in VERDICTS)
    print(f'{module:24} {words}   {seconds:5.1f} s', flush=True)


def print_end(results, complaints, expected):
    skipped = {}
    for result in results:
        if result['verdict'] == 'skipped':
            skipped.setdefault((expected.reason(short(result['test'])), result['why']), []).append(short(result['test']))
    print('\nSkipped:')
    for (reason, why), tests in sorted(skipped.items(), key=lambda item: item[1]):
        print(f'  "{why}"' + (f': {reason}' if reason else ''))
        for test in tests:
            print(f'    {test}')
    for result in results:
        if result['verdict'] == 'failed':
            print(f'\nFAILED {short(result["test"])}\n{result["why"].rstrip()}')
    if complaints:
        print()
    for text in complaints:
        print(f'error: {text}')
    print(f'\n{total(results)}')


def total(results):
    counts = count(results)
    return ', '.join(f'{counts[verdict]} {verdict}' for verdict in VERDICTS) + f', of {len(results)}'


def summary(results, complaints, expected):
    rows = [{**result, 'test': short(result['test']), 'expected': expected.kind(short(result['test']))}
            for result in results]
    return {**count(results), 'total': len(results), 'errors': complaints, 'tests': rows}


class Expected:
    """expected.txt: `pass TEST` must pass; `skip PATTERN REASON` may be skipped for this reason."""

    def __init__(self, path):
        self.path = path
        self.passes, self.skips, self.head = [], [], []
        with open(path) as file:
            for line in file:
                words = line.split(None, 2)
                if words[:1] == ['pass']:
                    self.passes.append(words[1])
                else:
                    self.head.append(line)
                    if words[:1] == ['skip']:
                        self.skips.append((words[1], words[2].strip()))

    def reason(self, test):
        return next((reason for pattern, reason in self.skips if fnmatch.fnmatchcase(test, pattern)), None)

    def kind(self, test):
        return 'pass' if test in self.passes else 'skip' if self.reason(test) else None

    def judge(self, results, whole, strict):
        found = {short(result['test']): result for result in results}
        complaints = []
        for test in self.passes:
            if test in found and found[test]['verdict'] != 'passed':
                complaints.append(f'{test} must pass; its verdict is {found[test]["verdict"]}')
            elif whole and test not in found:
                complaints.append(f'{test} must pass and is not in the suite')
        for test, result in found.items():
            if test in self.passes:
                continue
            if result['verdict'] == 'failed':
                complaints.append(f'{test} failed')
            elif strict and result['verdict'] == 'skipped' and not self.reason(test):
                complaints.append(f'{test} is skipped, and expected.txt has no reason for it')
        return complaints

    def update(self, results):
        passed = {short(result['test']) for result in results if result['verdict'] == 'passed'}
        # Tests that pass only on some machines are not required on all.
        self.passes = sorted(set(self.passes) | {test for test in passed if not self.conditional(test)})
        with open(self.path, 'w') as file:
            file.write(''.join(self.head).rstrip('\n') + '\n\n' + ''.join(f'pass {test}\n' for test in self.passes))

    def conditional(self, test):
        return (self.reason(test) or '').startswith('machine: ')


def sentence(expected):
    return f'{len(expected.passes)} tests of rdma-core\'s Python suite pass'


README_SENTENCE = re.compile(r"\d+ tests of rdma-core's Python suite pass")


def check_readme(expected):
    with open(README) as file:
        found = README_SENTENCE.search(file.read())
    if not found or found.group() != sentence(expected):
        said = f'"{found.group()}"' if found else 'nothing about the suite'
        return [f'README says {said}, expected.txt "{sentence(expected)}"']
    return []


def update_readme(expected):
    with open(README) as file:
        text = file.read()
    with open(README, 'w') as file:
        file.write(README_SENTENCE.sub(sentence(expected), text))


if __name__ == '__main__':
    main()
