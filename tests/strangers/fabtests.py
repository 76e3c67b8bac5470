"""fabtests, libfabric's own tests, run by their own script over the provider verbs and what libfabric builds on it.

No registry of packages has them. They are built from a checkout (`--fabtests`), or from the tarball of the release that
fits the distribution's libfabric.
"""

import functools
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import urllib.request

from bed import HERE, TARGET, Case, Failure, Skip, Unreachable, complete, need, row, tail

VERSION = '1.17.0'
URL = f'https://github.com/ofiwg/libfabric/releases/download/v{VERSION}/fabtests-{VERSION}.tar.bz2'
HEADER = '/usr/include/rdma/fabric.h'
# Provider, and its configuration of `ubertest`, which tries combinations of attributes and calls.
PROVIDERS = {
    'verbs': 'verbs/quick.test',
    'verbs;ofi_rxm': 'ofi_rxm/verbs.test',
    'verbs;ofi_rxd': 'ofi_rxd/verbs.test',
}
# libfabric does not look at the interface `lo`, so that both programs of one host use the address of host A.
ADDRESS_A, ADDRESS_B = '10.94.1.1', '10.94.1.2'
HOSTS = {'one host': ADDRESS_A, 'two hosts': ADDRESS_B}
LIMIT = 900
# A test takes some seconds; on a busy machine more. ubertest is one test.
TEST_LIMIT = 90
# A result of the script, with the output of a test that failed.
RESULT = re.compile(r'^- name: +(.*)\n +timestamp: .*\n +result: (\w+)((?:.*\n(?!- name:|# ))*)', re.MULTILINE)
# When a peer disconnects, libfabric's ofi_rxm destroys its own QP, and with it completions that it has not polled yet,
# and reports those sends as flushed. Any test can end so if its program had to wait for the processor.
RACE = re.compile(r'cq_readerr 125 .*Work Request Flushed Error')
RACES = 2
DOWNLOAD_LIMIT = 30
BUILD_LIMIT = 900
# A folder of the option `--fabtests`, instead of the tarball.
CHECKOUT = None


def cases():
    cases = []
    for provider in PROVIDERS:
        cases.append(case(provider, 'unit', 'one host'))
        cases += [case(provider, 'functional,short', hosts) for hosts in HOSTS]
        cases.append(case(provider, 'complex', 'two hosts'))
    return cases


def case(provider, sets, hosts):
    name = f'fabtests, {provider}, {hosts}: {sets.replace("complex", "ubertest").replace(",", ", ")}'
    return Case(name, functools.partial(run_sets, name=name, provider=provider, sets=sets, client=HOSTS[hosts]))


def run_sets(bed, name, provider, sets, client):
    if bed.other_transport:
        raise Skip('a comparison needs only what expected.txt names')
    need('ip', 'nsenter', 'setpriv', 'ps')
    folder = built()
    script = next(folder.glob('source/**/scripts/runfabtests.sh'), None)
    if not script:
        raise Failure(f'no scripts/runfabtests.sh in {folder / "source"}')
    configurations = script.parent.parent / 'test_configs'
    words = ['bash', script, '-v', '-T', TEST_LIMIT, '-p', folder / 'installed/bin', '-t', sets, '-u',
             quick(configurations / PROVIDERS[provider], folder), provider, ADDRESS_A, client]
    # The script looks for test_configs, which says what a provider does not offer, in its working directory.
    ended = bed.run(words, name, LIMIT, stage=(HERE / 'hosts/stage.sh', ADDRESS_A, ADDRESS_B),
                    cwd=configurations.parent)
    return judge(ended, sets, provider)


def quick(configuration, folder):
    """A copy of a configuration of `ubertest` that sends each size a few times, not for seconds."""
    entries = []
    for entry in configuration.read_text().split('\n},'):
        if 'prov_name' in entry and 'FT_FLAG_QUICKTEST' not in entry:
            entry += '\n\ttest_flags: FT_FLAG_QUICKTEST'
        entries.append(entry)
    copy = folder / configuration.parent.name
    copy.write_text('\n},'.join(entries))
    return copy


def judge(ended, sets, provider):
    """The row of what the script printed. Both programs of each test must have used Weir; those of `unit` send
    nothing."""
    passed, failed, skipped, races = [], [], [], []
    for name, result, output in RESULT.findall(ended.output):
        if result == 'Pass':
            passed.append(name)
        elif result in ('Notrun', 'Excluded'):
            skipped.append(name)
        elif 'ofi_rxm' in provider and RACE.search(output) and len(races) < RACES:
            races.append(f'{name}: libfabric discards completions when the peer disconnects (docs/programs.md)')
        else:
            failed.append(f'{name}: {result}{tail(output)}')
    complaints = failed if passed else [*failed, 'no test passed']
    if not failed and not races:
        complaints += ended.complaints(LIMIT, 0 if sets == 'unit' else 2 * len(passed))
    return row(len(passed), len(failed), len(skipped) + len(races), complaints, races)


def built():
    """The folder with `source`, and what is built of it in `installed`."""
    need('cc', 'make')
    if not pathlib.Path(HEADER).exists():
        raise Skip(f'no {HEADER} (scripts/need.sh strangers)')
    of = re.sub(r'\W+', '-', str(pathlib.Path(CHECKOUT).resolve())) if CHECKOUT else f'-{VERSION}'
    folder = TARGET / f'fabtests{of}'
    with complete(folder) as missing:
        if missing:
            if CHECKOUT:
                copy(pathlib.Path(CHECKOUT), folder / 'source')
            else:
                download(folder / 'source')
            build(next(folder.glob('source/**/configure.ac')).parent, folder)
    return folder


def copy(source, folder):
    """Copies fabtests out of a checkout of libfabric, or its folder; makes `configure` if it has none."""
    found = [path for path in (source / 'fabtests', source) if (path / 'scripts/runfabtests.sh').is_file()]
    if not found:
        raise Failure(f'{source} has no fabtests')
    shutil.copytree(found[0], folder, symlinks=True)
    if not (folder / 'configure').exists():
        need('autoreconf', 'libtoolize')
        done(['autoreconf', '-if'], folder)


def download(folder):
    folder.mkdir()
    try:
        with urllib.request.urlopen(URL, timeout=DOWNLOAD_LIMIT) as answer:
            with tarfile.open(fileobj=answer, mode='r|bz2') as tar:
                tar.extractall(folder, filter='data')
    except OSError as error:
        # A registry may be reached where this is not.
        raise Unreachable(f'{URL} cannot be reached ({error}); make test-strangers FABTESTS=CHECKOUT',
                          required=False) from error


def build(source, folder):
    (folder / 'build').mkdir()
    done([source / 'configure', '--prefix', folder / 'installed'], folder / 'build')
    done(['make', f'-j{os.cpu_count()}', 'install'], folder / 'build')


def done(words, folder):
    """Runs a step of the build."""
    short = ' '.join(map(str, words))
    try:
        ended = subprocess.run(words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors='replace', timeout=BUILD_LIMIT)
    except subprocess.TimeoutExpired as error:
        raise Failure(f'`{short}` has not ended within {BUILD_LIMIT} s') from error
    if ended.returncode:
        raise Failure(f'`{short}`: status {ended.returncode}: {tail(ended.stdout, 20)}')
