"""fabtests, libfabric's own tests, run by their own script over the provider verbs and what libfabric builds on it, and
over Weir's provider weir-odp.

No registry of packages has them. They are built from a checkout (`--fabtests`), or from the tarball of the release that
fits the distribution's libfabric.
"""

import contextlib
import dataclasses
import functools
import http.client
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request

from bed import (ADDRESS_A, ADDRESS_B, HERE, STAGE, TARGET, Case, Failure, Skip, Unreachable, complete, need,
                 need_files, row, tail)

VERSION = '1.17.0'
URL = f'https://github.com/ofiwg/libfabric/releases/download/v{VERSION}/fabtests-{VERSION}.tar.bz2'
HEADER = '/usr/include/rdma/fabric.h'
# Provider, and its configuration of `ubertest`, which tries combinations of attributes and calls.
PROVIDERS = {
    'verbs': 'verbs/quick.test',
    'verbs;ofi_rxm': 'ofi_rxm/verbs.test',
    'verbs;ofi_rxd': 'ofi_rxd/verbs.test',
    # fabtests does not know it: with the combinations of another provider of reliable datagrams.
    'weir-odp': 'ofi_rxm/verbs.test',
}
OWN_EXCLUSIONS = HERE / 'weir-odp.exclude'
# On one host, both programs use the address of host A.
HOSTS = {'one host': ADDRESS_A, 'two hosts': ADDRESS_B}
LIMIT = 900
# A test takes some seconds; on a busy machine more. ubertest is one test.
TEST_LIMIT = 90
# A result of the script, with the output of a test that failed.
RESULT = re.compile(r'^- name: +(.*)\n +timestamp: .*\n +result: (\w+)((?:(?!- name:|# ).*\n)*)', re.MULTILINE)
# When a peer disconnects, libfabric's ofi_rxm destroys its own QP, and with it completions that it has not polled yet,
# and reports those sends as flushed. Any test can end so if its program had to wait for the processor: it runs again, and
# has to pass then, or after another such end. More of them in a case are no accident.
RACE = re.compile(r'cq_readerr 125 .*Work Request Flushed Error')
RACES = 8
TRIES = 2
# What the script appends to the words of a test.
PROVIDER = re.compile(r' -p "[^"]*"$')
# ubertest passes if none of its combinations reports an error; here all have to succeed.
ALL_OF_THEM = re.compile(r' \[([1-9]\d*)/\1\]$', re.MULTILINE)
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
    begin = ['bash', script, '-v', '-T', TEST_LIMIT, '-p', folder / 'installed/bin', '-t', sets, '-u',
             quick(configurations / PROVIDERS[provider], folder, provider)]

    def run(name, *options):
        # The script looks for test_configs, which says what a provider does not offer, in its working directory, and
        # leaves files there if it is ended.
        with tempfile.TemporaryDirectory(prefix='weir-fabtests-') as work:
            configure(pathlib.Path(work, 'test_configs'), configurations)
            return bed.run([*begin, *options, provider, ADDRESS_A, client], name, LIMIT, {'TMPDIR': work},
                           stage=STAGE, cwd=work)

    first = judge(run(name), sets, provider)
    races = first.races
    for left in reversed(range(TRIES)):
        if not races:
            break
        others = [f'^{PROVIDER.sub("", test)}$' for test in first.names if test not in races]
        again = judge(run(f'{name}, again, {left} left', '-e', ','.join(others)), sets, provider if left else None)
        ran = set(again.names) - set(again.skipped)
        first.passed += again.passed
        first.failed += again.failed + [f'{test}: did not run again' for test in races if test not in ran]
        first.complaints += again.complaints
        races = again.races
    return first.row()


def configure(folder, configurations):
    """A folder with fabtests' configurations of providers, and that of weir-odp."""
    own = folder / 'weir-odp'
    own.mkdir(parents=True)
    (own / OWN_EXCLUSIONS.name).symlink_to(OWN_EXCLUSIONS)
    for configuration in configurations.iterdir():
        (folder / configuration.name).symlink_to(configuration)


def quick(configuration, folder, provider):
    """A copy of a configuration of `ubertest` for a provider that sends each size a few times, not for seconds."""
    entries = []
    for entry in configuration.read_text().split('\n},'):
        if 'prov_name' in entry and 'FT_FLAG_QUICKTEST' not in entry:
            entry += '\n\ttest_flags: FT_FLAG_QUICKTEST'
        entry = re.sub('prov_name: *[^,]*', f'prov_name: {provider}', entry)
        # Progress without calls of the program is nothing that weir-odp offers.
        entries.append(entry.replace(', FI_PROGRESS_AUTO', '') if provider == 'weir-odp' else entry)
    copy = folder / re.sub('[^a-z]', '-', provider)
    copy.write_text('\n},'.join(entries))
    return copy


@dataclasses.dataclass
class Judged:
    """What a run of the script printed: the names of its tests by their end, what is to be said of those that failed
    (`failed`), and complaints about the whole. Those in `races` have to run again."""
    passed: list
    failed: list
    skipped: list
    races: list
    names: list
    complaints: list

    def row(self):
        known = [f'{test}: libfabric discarded completions when the peer disconnected; passed when run again'
                 for test in self.races]
        complaints = self.failed + self.complaints
        return row(len(self.passed), len(self.failed), len(self.skipped), complaints, [] if complaints else known)


def judge(ended, sets, provider):
    """Both programs of each test must have used Weir; those of `unit` send nothing. Without a provider, no test may run
    again."""
    judged = Judged([], [], [], [], [], [])
    status = 0
    for name, result, output in RESULT.findall(ended.output):
        judged.names.append(name)
        status += result == 'Fail'
        if result == 'Pass' and (sets != 'complex' or ALL_OF_THEM.match(output)):
            judged.passed.append(name)
        elif result == 'Excluded':
            judged.skipped.append(name)
        elif 'ofi_rxm' in (provider or '') and RACE.search(output) and len(judged.races) < RACES:
            judged.races.append(name)
        else:
            judged.failed.append(f'{name}: {result}{tail(output)}')
    if not judged.passed and not judged.races:
        judged.complaints.append('no test passed')
    # The script's status is the number of tests that failed.
    if ended.status == status:
        ended = dataclasses.replace(ended, status=0)
    judged.complaints += ended.complaints(LIMIT, 0 if sets == 'unit' else 2 * len(judged.passed))
    return judged


def built():
    """The folder with `source`, and what is built of it in `installed`."""
    need('cc', 'make')
    need_files(HEADER)
    checkout = CHECKOUT and fabtests_of(pathlib.Path(CHECKOUT).resolve())
    folder = TARGET / (f'fabtests{re.sub("[^A-Za-z0-9]+", "-", f"{checkout} {state(checkout)}")}' if checkout
                       else f'fabtests-{VERSION}')
    with complete(folder) as missing:
        if missing:
            if checkout:
                copy(checkout, folder / 'source')
            else:
                download(folder / 'source')
            build(next(folder.glob('source/**/configure.ac')).parent, folder)
    return folder


def fabtests_of(checkout):
    """The folder of fabtests: of a checkout of libfabric, or itself."""
    for folder in (checkout / 'fabtests', checkout):
        if (folder / 'scripts/runfabtests.sh').is_file():
            return folder
    raise Failure(f'{checkout} has no fabtests')


def state(source):
    """The commit of a checkout, or the version of a folder without git."""
    with contextlib.suppress(OSError):
        git = subprocess.run(['git', '-C', source, 'rev-parse', 'HEAD'], stdin=subprocess.DEVNULL, capture_output=True,
                             text=True)
        if git.returncode == 0:
            return git.stdout.strip()
    found = re.search(r'AC_INIT\(\[fabtests\], *\[([^]]*)\]', (source / 'configure.ac').read_text())
    return found[1] if found else 'unknown'


def copy(source, folder):
    """Copies fabtests; makes `configure` if it has none."""
    shutil.copytree(source, folder, symlinks=True)
    if not (folder / 'configure').exists():
        need('autoreconf', 'libtoolize')
        done(['autoreconf', '-if'], folder)


def download(folder):
    folder.mkdir()
    try:
        with urllib.request.urlopen(URL, timeout=DOWNLOAD_LIMIT) as answer:
            with tarfile.open(fileobj=answer, mode='r|bz2') as tar:
                # Python 3.11.2 of Debian 12 has no filters.
                tar.extractall(folder, **({'filter': 'data'} if hasattr(tarfile, 'data_filter') else {}))
    except (OSError, EOFError, tarfile.ReadError, http.client.HTTPException) as error:
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
