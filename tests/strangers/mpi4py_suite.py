"""mpi4py's own tests, over Open MPI and MPICH, both over UCX with RC and without shared memory, and over Open MPI by
libfabric's provider weir-odp.

The tests run in groups, so that a rank that waits for ever costs only its group. expected.txt names the tests that do
not pass without Weir either.
"""

import dataclasses
import functools
import glob
import pathlib
import re
import tempfile

from bed import HERE, Case, Ended, Skip, need, python, row, source, tail

VERSION = '4.1.2'
NUMPY = 'numpy==2.2.6'
# Parts of names of modules; the last group has all other modules.
GROUPS = {
    'point to point': ('test_p2p', 'test_msg', 'test_pack', 'test_request'),
    'one-sided': ('test_rma', 'test_win'),
    'collectives': ('test_cco',),
    'new processes': ('test_spawn', 'test_dynproc'),
    'utilities': ('test_util',),
    'all others': (),
}
# What `make test` runs: with the arrays of Python alone, a fifth of the variants.
SHORT = 'in short'
SHORT_OPTIONS = ('--no-numpy', '-i', 'test_p2p', '-i', 'test_rma')
# Beside other programs, ranks that poll are slow.
LIMIT = 600
KNOWN_LIMIT = 60
FAILED = re.compile(r'^(?:FAIL|ERROR): (.*)$', re.MULTILINE)
# The last lines of a rank: "Ran 25 tests in 1.2s", and "OK (skipped=2)" or "FAILED (failures=1, errors=1)".
RAN = re.compile(r'^Ran (\d+) tests? in .*$', re.MULTILINE)
COUNT = re.compile(r'(failures|errors|skipped|unexpected successes)=(\d+)')
# A few tests that pass over every transport: if they do not, a comparison says nothing.
CONTROL = ('-k', '*TestP2PBufWorld.testSendrecv*', '-i', 'test_p2p_buf')
LIBMPICH = '/usr/lib/*/libmpich.so.12'


@dataclasses.dataclass
class Mpi:
    name: str
    # The name of its binary interface in mpi4py.
    abi: str
    launcher: tuple


OPEN = Mpi('Open MPI', 'openmpi', (
    'mpirun.openmpi', '--allow-run-as-root', '--oversubscribe', '--mca', 'btl', 'self', '--mca', 'pml', 'ucx', '--mca',
    'osc', 'ucx', '--mca', 'pml_ucx_tls', 'any', '--mca', 'pml_ucx_devices', 'any'))
# `weir run` makes it use libfabric's provider weir-odp.
BY_FABRIC = Mpi('Open MPI by weir-odp', 'openmpi', ('mpirun.openmpi', '--allow-run-as-root', '--oversubscribe'))
MPICH = Mpi('MPICH', 'mpich', ('mpirun.mpich',))


def cases():
    # mpi4py itself skips all tests of new processes over MPICH.
    runs = [(mpi, 2, group) for mpi in (OPEN, BY_FABRIC, MPICH) for group in GROUPS
            if (mpi, group) != (MPICH, 'new processes')]
    cases = [Case(name(*run), functools.partial(run_group, run=run)) for run in runs]
    run = OPEN, 2, SHORT
    return [Case(name(*run), functools.partial(run_group, run=run), short=True), *cases]


def name(mpi, ranks, group):
    return f'mpi4py, {mpi.name}, {ranks} ranks: {group}'


def run_group(bed, run):
    mpi, ranks, group = run
    known = [entry for entry in read_expected() if entry.mpi in (mpi.name, 'both') and entry.group == group]
    if bed.other_transport:
        return compare(bed, run, known)
    selection = [word for entry in known for word in ('-x', entry.pattern)]
    outcome = run_tests(bed, run, [*selection, *modules(group)], LIMIT)
    complaints = outcome.complaints(LIMIT, ranks)
    return row(outcome.passed, outcome.failed, outcome.skipped, complaints,
               [f'{entry.mpi}: {entry.pattern}: {entry.why}' for entry in known])


def compare(bed, run, known):
    """Runs the tests that are known not to pass without Weir, one pattern after another."""
    if not known:
        raise Skip('expected.txt names no test of it')
    if wrong := run_tests(bed, run, CONTROL, KNOWN_LIMIT).complaints(KNOWN_LIMIT, 0):
        return row(0, 1, complaints=['not even the simplest tests pass:', *wrong])
    complaints = []
    for entry in known:
        outcome = run_tests(bed, run, ['-k', entry.pattern, *modules(entry.group)], KNOWN_LIMIT)
        if outcome.is_empty():
            complaints.append(f'{entry.pattern} matches no test')
        elif not outcome.complaints(KNOWN_LIMIT, 0):
            complaints.append(f'{entry.pattern} passes over {bed.other_transport}')
    return row(0, len(known) - len(complaints), complaints=complaints)


def modules(group):
    """Options that select the modules of a group."""
    if group == SHORT:
        return SHORT_OPTIONS
    if GROUPS[group]:
        return [word for part in GROUPS[group] for word in ('-i', part)]
    return [word for parts in GROUPS.values() for part in parts for word in ('-e', part)]


@dataclasses.dataclass
class Outcome:
    """What the ranks said: the counts of the rank with the most failures."""
    ended: Ended
    ranks: list
    passed: int = 0
    skipped: int = 0
    failed: int = 0

    def __post_init__(self):
        for said in self.ranks:
            if ran := RAN.search(said):
                counts = {word: int(number) for word, number in COUNT.findall(said[ran.end():])}
                skipped = counts.pop('skipped', 0)
                if sum(counts.values()) >= self.failed:
                    self.failed, self.skipped = sum(counts.values()), skipped
                    self.passed = int(ran[1]) - self.skipped - self.failed

    def is_empty(self):
        found = [RAN.search(said) for said in self.ranks]
        return all(ran and ran[1] == '0' for ran in found)

    def complaints(self, limit, users):
        complaints = [f'rank {rank} has not ended: {tail(said, 2)}' for rank, said in enumerate(self.ranks)
                      if not RAN.search(said)]
        complaints += sorted({found for said in self.ranks for found in FAILED.findall(said)})
        if not self.passed:
            complaints.append('no test passed')
        return complaints + list(self.ended.complaints(limit, users))


def run_tests(bed, run, arguments, limit):
    """Runs main.py of mpi4py's tests with these arguments, the output of each rank in a file."""
    mpi, ranks, group = run
    need(mpi.launcher[0])
    interpreter = python(f'mpi4py=={VERSION}', NUMPY)
    main = source(f'mpi4py=={VERSION}', interpreter) / 'test/main.py'
    transport = bed.other_transport or 'rc'
    # MPICH 4.0 cannot unpack derived types from fragments that cut a number, over TCP neither: an even length.
    environment = {'MPI4PY_MPIABI': mpi.abi, 'UCX_TLS': f'{transport},self', 'UCX_RC_VERBS_SEG_SIZE': '8257',
                   'UCX_WARN_UNUSED_ENV_VARS': 'n'}
    with tempfile.TemporaryDirectory(prefix='weir-mpi4py-') as folder:
        # Open MPI names its files by process IDs, which are the same in each namespace.
        environment['TMPDIR'] = str(pathlib.Path(folder, 'tmp'))
        pathlib.Path(folder, 'tmp').mkdir()
        if mpi is MPICH:
            environment['LD_LIBRARY_PATH'] = mpich_as_published(pathlib.Path(folder))
        script = f'exec "$@" > {folder}/${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} 2>&1'
        words = [*mpi.launcher, '-np', ranks, 'sh', '-c', script, 'sh', interpreter, main, '-v', *arguments]
        ended = bed.run(words, name(*run), limit, environment, cwd=main.parent)
        files = [pathlib.Path(folder, str(rank)) for rank in range(ranks)]
        said = [file.read_text(errors='replace') if file.exists() else ended.output for file in files]
    bed.keep(name(*run) + ' by rank', '\n'.join(said))
    return Outcome(ended, said)


def mpich_as_published(folder):
    """A folder with the distribution's MPICH under the name that MPICH gives it, which mpi4py's wheel asks for."""
    found = glob.glob(LIBMPICH)
    if not found:
        raise Skip(f'no {LIBMPICH} (scripts/need.sh strangers)')
    (folder / 'libmpi.so.12').symlink_to(found[0])
    return str(folder)


@dataclasses.dataclass
class Known:
    """A line of expected.txt."""
    mpi: str
    group: str
    pattern: str
    why: str


def read_expected():
    lines = (HERE / 'expected.txt').read_text().splitlines()
    return [Known(*(word.strip() for word in line.split(' | '))) for line in lines if line and line[0] != '#']
