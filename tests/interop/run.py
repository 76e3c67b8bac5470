#!/usr/bin/env python3
"""Runs programs between Weir and the kernel's Soft-RoCE, in both directions, and on Soft-RoCE alone under `weir
doctor`, and prints what passed. Also on Weir in the guest, beside Soft-RoCE and over a VLAN.

Soft-RoCE runs in a guest: Debian's kernel in qemu, by default without KVM. Root is needed, for namespaces.
A cell that fails only in ways that exceptions.py names counts as excepted. The exit status is 1 if a cell fails, 2 if
the laboratory does not work or no cell has a wanted name.
"""

import argparse
import collections
import json
import os
import re
import shutil
import sys
import tempfile
import time

# The modules beside this one leave no files in the tree.
sys.dont_write_bytecode = True
import cells
import lab as laboratory
import layers
import packets
import trial
import vlan
import within

# So often the guest is started again, if it no longer responds.
RESTARTS = 3


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--short', action='store_true', help='a few cells, in less than a minute')
    parser.add_argument('--only', metavar='REGEX', default='',
                        help='cells with a name that matches, for example "rping.*IPv6"')
    parser.add_argument('--list', action='store_true', help='print the names of the cells')
    parser.add_argument('--json', action='store_true', help='print all results as one JSON object')
    parser.add_argument('--weir', default=os.path.join(laboratory.ROOT, 'target/weir/bin/weir'), help='the command')
    parser.add_argument('--tools', default=os.path.join(laboratory.ROOT, 'target/weir/lib/weir'),
                        help='the folder of weir-verify and libweir-layer.so')
    parser.add_argument('--accelerator', default='tcg', help="qemu's: tcg (the default) or kvm")
    return parser.parse_args()


def main():
    options = arguments()
    plan = [(setting, cell, client) for setting, cell in cells.plan(options.short) for client in ('rxe', 'weir')]
    plan += [(setting, cell, 'rxe') for setting, cell in layers.plan(options.short)]
    plan += [(setting, cell, 'weir') for setting, cell in vlan.plan()]
    plan = [entry for entry in plan if re.search(options.only, name(*entry))]
    if options.list:
        print(*(name(*entry) for entry in plan), sep='\n')
        return 0
    if not plan:
        print(f'no cell has a name that matches {options.only!r}; --list prints the names', file=sys.stderr)
        return 2
    if os.geteuid():
        print('needs root', file=sys.stderr)
        return 2
    try:
        # Before the namespaces, in which there is no network.
        kernel = laboratory.kernel()
    except laboratory.Failure as error:
        print(error, file=sys.stderr)
        return 2
    laboratory.enter()
    # `make test` does not remove what a longer run has left.
    folder = os.path.join(laboratory.TARGET, 'results-short' if options.short else 'results')
    shutil.rmtree(folder, ignore_errors=True)
    results, kinds, broken = [], set(), False
    with tempfile.TemporaryDirectory(prefix='weir-interop-') as temporary:
        # The numbers of these processes mean others outside of their namespace.
        os.environ['WEIR_RUN_DIR'] = temporary
        try:
            run(options, plan, (kernel, folder), results, kinds)
        except laboratory.Failure as error:
            print(error, file=sys.stderr)
            broken = True
    lacking = packets.missing(kinds) if not options.only and not options.short and not broken else []
    if options.json:
        print(json.dumps({'cells': [result.json() for result in results], 'missing': lacking}, indent=1))
    else:
        summary(results, lacking)
    if broken:
        return 2
    return 1 if lacking or any(result.verdict == 'FAILED' for result in results) else 0


def name(setting, cell, client):
    return trial.Result(setting, cell, client, '', 0, []).name()


def run(options, plan, folders, results, kinds):
    """Runs all cells of a plan; starts another guest if one no longer responds."""
    (kernel, folder), left, restarts = folders, list(plan), 0
    tools = tools_of(options.tools, folder)
    archive = laboratory.pack(kernel, [*tools, options.weir, *libraries_of(options.tools)])
    while left:
        running, begin = None, time.monotonic()
        try:
            with laboratory.Lab(kernel, archive, tools, options.accelerator) as lab:
                report(options, f'The guest has started within {time.monotonic() - begin:.1f} s.')
                bench, inner = trial.Bench(lab, options.weir, folder), within.Within(lab, folder)
                tagged = vlan.Vlan(lab, folder)
                while left:
                    begin = time.monotonic()
                    running = left.pop(0)
                    cell = running[1]
                    result = (inner if cell.within else tagged if cell.vlan else bench).run(*running)
                    running = None
                    results.append(result)
                    kinds |= bench.kinds
                    show(options, result)
        except laboratory.Failure as error:
            restarts += 1
            if running:
                result = trial.Result(*running, 'FAILED', time.monotonic() - begin, [str(error)])
                results.append(result)
                show(options, result)
            if restarts > RESTARTS:
                raise
            if not running:
                report(options, f'Another guest is started: {error}')


def tools_of(folder, results):
    """The programs of this project: as they are built, and `unreliable`, which tests alone need."""
    os.makedirs(results, exist_ok=True)
    unreliable = os.path.join(results, 'weir-unreliable')
    source = os.path.join(laboratory.ROOT, 'tests/c/unreliable.c')
    laboratory.run(['cc', '-O2', '-o', unreliable, source, '-libverbs'], 60)
    return [os.path.join(folder, 'weir-verify'), unreliable]


def libraries_of(folder):
    """The library of verbs, and the one that `weir doctor` preloads."""
    paths = [os.path.join(folder, name) for name in ('libibverbs.so.1', 'libweir-layer.so')]
    for path in paths:
        if not os.path.exists(path):
            raise laboratory.Failure(f'{path} does not exist: make lib builds it into target/weir')
    return paths


def report(options, text):
    print(text, file=sys.stderr if options.json else sys.stdout, flush=True)


def show(options, result):
    report(options, f'{result.verdict:8} {result.seconds:5.1f} s  {result.name()}')
    for reason in [*result.reasons[:8], *result.seen]:
        report(options, f'                    {reason}')
    if result.verdict == 'FAILED' and result.log:
        report(options, f'                    more in {result.log}')


def summary(results, lacking):
    counts = collections.defaultdict(collections.Counter)
    for result in results:
        counts[result.setting][result.verdict] += 1
    verdicts = ('passed', 'excepted', 'FAILED')
    print(f'\n{"":24}' + ''.join(f'{verdict:>10}' for verdict in verdicts))
    for setting, count in sorted(counts.items(), key=lambda entry: (entry[0].loss, entry[0].ip, entry[0].mtu)):
        print(f'{str(setting):24}' + ''.join(f'{count[verdict]:>10}' for verdict in verdicts))
    total = collections.Counter(result.verdict for result in results)
    print(f'{"all":24}' + ''.join(f'{total[verdict]:>10}' for verdict in verdicts))
    for text in lacking:
        print(f'error: no packet of this kind: {text}')


if __name__ == '__main__':
    sys.exit(main())
