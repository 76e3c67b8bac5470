#!/usr/bin/env python3
"""Runs programs of other projects over Weir, as they are published, and prints a table.

Each case installs its programs into target/strangers (pinned versions, from PyPI, crates.io and GitHub), and runs them
in a network namespace of its own, which ends with all its processes. A case passes if the programs say so and if they
sent packets over Weir. A case is skipped, with the reason, if a program of this system is missing, or if no registry
can be reached.

The exit status is 1 if a case fails or if none has run. As root it is 1 also if a case is skipped, as in
scripts/test.py: root can provide what is missing. SKIPS=allowed permits skipped cases. With --short, a registry that
cannot be reached is no error: `make test` needs no network. Nor is it an error that the tarball of fabtests cannot be
reached.
"""

import argparse
import json
import os
import sys
import time

# The modules beside this one leave no files in the tree, nor do the programs that they start.
sys.dont_write_bytecode = True
os.environ['PYTHONDONTWRITEBYTECODE'] = '1'
import bindings
import fabtests
import imb
import mpi4py_suite
import runtimes
import rust
import transfers
from bed import Bed, Failure, Skip, Unreachable

# Modules with `cases()`: a list of Case.
PARTS = (mpi4py_suite, imb, bindings, rust, runtimes, transfers, fabtests)


def main():
    options = arguments()
    fabtests.CHECKOUT = options.fabtests
    cases = [case for part in PARTS for case in part.cases()]
    if options.list:
        print('\n'.join(case.name for case in cases))
        return
    if options.short:
        cases = [case for case in cases if case.short]
    cases = [case for case in cases if not options.only or any(word in case.name for word in options.only)]
    if not cases:
        sys.exit(f'no case has a name with {" or ".join(options.only)}; --list names all')
    bed = Bed(options.weir, options.without_weir, options.log)
    results = []
    for case in cases:
        results.append(run(case, bed, options.json))
    if options.json:
        print(json.dumps(results, indent=1))
    else:
        print_end(results)
    wrong = list(errors(results, options))
    for text in wrong:
        print(f'error: {text}', file=sys.stderr)
    sys.exit(1 if wrong else 0)


def errors(results, options):
    """Why the exit status is 1."""
    skipped = [result for result in results if result['verdict'] == 'skipped']
    failed = sum(result['verdict'] == 'failed' for result in results)
    if failed:
        yield f'{failed} of {len(results)} cases failed'
    # A comparison has few of the cases.
    if os.geteuid() == 0 and os.environ.get('SKIPS') != 'allowed' and not options.without_weir:
        forbidden = [result for result in skipped
                     if not (result['unreachable'] and (options.short or not result['required']))]
        if forbidden:
            yield ('as root no case may be skipped. Provide what is missing, or set SKIPS=allowed if this machine '
                   'forbids it.')
    if len(skipped) == len(results) and not options.short:
        yield 'no case has run'


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--weir', metavar='FILE', help='the command (default: target/weir/bin/weir)')
    parser.add_argument('--only', action='append', default=[], metavar='WORD',
                        help='only cases with WORD in their names; may be repeated')
    parser.add_argument('--short', action='store_true', help='only the cases of `make test`')
    parser.add_argument('--list', action='store_true', help='print the names of the cases, and run none')
    parser.add_argument('--without-weir', metavar='TLS',
                        help="run the cases that can over another transport of UCX ('sm' or 'tcp'), for comparison: "
                             'with all tests that are known not to pass')
    parser.add_argument('--fabtests', metavar='FOLDER',
                        help='a checkout of libfabric, of tag v1.17.0, or its folder fabtests, to build fabtests from '
                             '(default: the tarball of the release)')
    parser.add_argument('--log', metavar='FOLDER', help="keep the programs' output there")
    parser.add_argument('--json', action='store_true', help='print all results as one JSON list')
    return parser.parse_args()


def run(case, bed, quiet):
    """Runs a case; returns its row."""
    begin = time.monotonic()
    row = {'case': case.name, 'passed': 0, 'failed': 0, 'skipped': 0, 'known': [], 'complaints': []}
    try:
        row.update(case.run(bed))
        row['verdict'] = 'failed' if row['complaints'] else 'passed'
    except Skip as why:
        row.update(verdict='skipped', why=str(why), unreachable=isinstance(why, Unreachable),
                   required=getattr(why, 'required', True))
    except (Failure, OSError) as error:
        row.update(verdict='failed', failed=1, complaints=[str(error)])
    row['seconds'] = round(time.monotonic() - begin, 1)
    if not quiet:
        print_row(row)
    return row


def print_row(row):
    counts = f'{row["passed"]:5} passed {row["failed"]:3} failed {row["skipped"]:3} skipped'
    if row['verdict'] == 'skipped':
        counts = f'skipped: {row["why"]}'
    print(f'{row["case"]:54} {counts}  {row["seconds"]:6.1f} s', flush=True)
    for complaint in row['complaints']:
        print(f'    {complaint}', flush=True)


def print_end(results):
    known = sorted({line for row in results for line in row['known']})
    if known:
        print("\nNot run, or run twice (expected.txt, docs/programs.md):")
    for line in known:
        print(f'  {line}')
    of = {verdict: sum(row['verdict'] == verdict for row in results) for verdict in ('passed', 'failed', 'skipped')}
    print(f'\n{of["passed"]} passed, {of["failed"]} failed, {of["skipped"]} skipped')


if __name__ == '__main__':
    main()
