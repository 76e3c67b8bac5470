"""mpi4py's own tests, over Open MPI and MPICH, both over UCX with RC and without shared memory, and over Open MPI,
MPICH and Intel MPI by libfabric's provider weir-odp.

The tests run in groups, so that a rank that waits for ever costs only its group. expected.txt names the tests that do
not pass without Weir either.
"""

import dataclasses
import functools
import pathlib
import re
import tempfile

from bed import HERE, STAGE, Case, Ended, Skip, row, source, tail
from mpis import INTEL_FABRIC, MPICH, MPICH_FABRIC, OPEN, OPEN_FABRIC, OPEN_WINDOWS, Mpi

VERSION = '4.1.2'
NUMPY = 'numpy==2.2.6'
# Parts of names of modules; the last group has all other modules.
ONE_SIDED = 'one-sided'
NEW_PROCESSES = 'new processes'
GROUPS = {
    'point to point': ('test_p2p', 'test_msg', 'test_pack', 'test_request'),
    ONE_SIDED: ('test_rma', 'test_win'),
    'collectives': ('test_cco',),
    NEW_PROCESSES: ('test_spawn', 'test_dynproc'),
    'utilities': ('test_util',),
    'all others': (),
}
# What `make test` runs: with the arrays of Python alone, a fifth of the variants.
SHORT = 'in short'
MESSAGES = ('point to point', ONE_SIDED, 'collectives')
# Not run over weir-odp: tests that send nothing and take long, and one that asks once whether a message that has been
# received has been sent. MPI does not promise that, and weir-odp says so when the adapter has the acknowledgement.
NOT_OVER_FABRIC = ('*TestDatatypePickle*', '*TestUtilDTLib*', '*pkl5.TestMPI*.testISendAndRecv')
# The same where acknowledgements take longer, because packets or pages are missing.
NOT_IF_SLOW = ('*.testMany*',)
DEFAULT_SCHEME = 'odp-optimal'
SCHEMES = ('pin-down', 'odp-native', 'odp-enhanced', DEFAULT_SCHEME)
LOSS = 'loss=0.01,seed=5'
INVALIDATE = HERE / 'invalidate.py'
SHORT_OPTIONS = ('--no-numpy', '-i', 'test_p2p', '-i', 'test_rma')
# With loss: each lost packet costs an ACK timeout.
FEW = 'a few of each'
FEW_OPTIONS = ('--no-numpy', '-i', 'test_p2p_buf', '-i', 'test_rma', '-i', 'test_cco_buf')
# Beside other programs, ranks that poll are slow.
LIMIT = 600
KNOWN_LIMIT = 60
FAILED = re.compile(r'^(?:FAIL|ERROR): (.*)$', re.MULTILINE)
# The last lines of a rank: "Ran 25 tests in 1.2s", and "OK (skipped=2)" or "FAILED (failures=1, errors=1)".
RAN = re.compile(r'^Ran (\d+) tests? in .*$', re.MULTILINE)
COUNT = re.compile(r'(failures|errors|skipped|unexpected successes)=(\d+)')
# A few tests that pass over every transport: if they do not, a comparison says nothing.
CONTROL = ('-k', '*TestP2PBufWorld.testSendrecv*', '-i', 'test_p2p_buf')
# In expected.txt: these, both over UCX.
BOTH = {'both': [OPEN.name, MPICH.name]}


@dataclasses.dataclass(frozen=True)
class Run:
    """The tests of a group on some ranks. The rest is for MPI over weir-odp: how it registers memory, which packets are
    lost, and whether pages are taken from the ranks while they run."""
    mpi: Mpi
    ranks: int
    group: str
    scheme: str = ''
    faults: str = ''
    invalidations: bool = False

    def name(self):
        how = [self.scheme, self.faults and 'with loss', self.invalidations and 'with invalidations']
        return f'mpi4py, {", ".join([self.mpi.name, *filter(None, how)])}, {self.ranks} ranks: {self.group}'

    def variables(self):
        given = {'WEIR_ODP_SCHEME': self.scheme, 'WEIR_FAULTS': self.faults}
        return {name: value for name, value in given.items() if value}


def cases():
    # mpi4py itself skips all tests of new processes over MPICH.
    runs = [Run(OPEN, 2, SHORT)]
    runs += [Run(mpi, 2, group) for mpi in (OPEN, MPICH) for group in GROUPS if (mpi, group) != (MPICH, NEW_PROCESSES)]
    runs += runs_over_fabric()
    return [Case(run.name(), functools.partial(run_group, run=run), short=run.group == SHORT) for run in runs]


def runs_over_fabric():
    """All groups with the default scheme, and the groups that send most with each scheme: also while pages are taken
    from the ranks, and with loss."""
    for mpi in (OPEN_FABRIC, MPICH_FABRIC, INTEL_FABRIC):
        yield from (Run(mpi, 2, group) for group in GROUPS if mpi is OPEN_FABRIC or group != NEW_PROCESSES)
        yield from (Run(mpi, 4, group) for group in (MESSAGES if mpi is OPEN_FABRIC else MESSAGES[-1:]))
    yield from (Run(OPEN_WINDOWS, ranks, ONE_SIDED) for ranks in (2, 4))
    for scheme in SCHEMES:
        for group in MESSAGES:
            if scheme != DEFAULT_SCHEME:
                yield Run(OPEN_FABRIC, 2, group, scheme)
            yield Run(OPEN_FABRIC, 2, group, scheme, invalidations=True)
        yield Run(OPEN_FABRIC, 2, FEW, scheme, faults=LOSS)


def run_group(bed, run):
    known = [entry for entry in read_expected() if run.mpi.name in BOTH.get(entry.mpi, [entry.mpi])
             and (entry.group == run.group or run.group == FEW)]
    if bed.other_transport:
        return compare(bed, run, known)
    patterns = [entry.pattern for entry in known]
    if run.mpi.fabric:
        patterns += NOT_OVER_FABRIC + (NOT_IF_SLOW if run.faults or run.invalidations else ())
    selection = [word for pattern in patterns for word in ('-x', pattern)]
    outcome = run_tests(bed, run, [*selection, *modules(run.group)], LIMIT)
    complaints = outcome.complaints(LIMIT, run.ranks)
    return row(outcome.passed, outcome.failed, outcome.skipped, complaints,
               [f'{entry.mpi}: {entry.pattern}: {entry.why}' for entry in known])


def compare(bed, run, known):
    """Runs the tests that are known not to pass without Weir, one pattern after another."""
    if not known:
        raise Skip('expected.txt names no test of it')
    if bed.other_transport not in run.mpi.others:
        raise Skip(f'is compared with {" and ".join(run.mpi.others)}')
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
    if group in (SHORT, FEW):
        return SHORT_OPTIONS if group == SHORT else FEW_OPTIONS
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
    interpreter = run.mpi.interpreter(f'mpi4py=={VERSION}', NUMPY)
    main = source(f'mpi4py=={VERSION}', interpreter) / 'test/main.py'
    program = [INVALIDATE, main] if run.invalidations else [main]
    with tempfile.TemporaryDirectory(prefix='weir-mpi4py-') as folder:
        environment = run.mpi.variables(interpreter, folder, bed.other_transport) | run.variables()
        script = f'exec "$@" > {folder}/${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} 2>&1'
        words = [*run.mpi.start(interpreter, run.ranks), 'sh', '-c', script, 'sh', interpreter, *program, '-v',
                 *arguments]
        # libfabric's own providers look at no loopback.
        stage = STAGE if bed.other_transport and run.mpi.fabric else ()
        ended = bed.run(words, run.name(), limit, environment, stage, cwd=main.parent)
        files = [pathlib.Path(folder, str(rank)) for rank in range(run.ranks)]
        said = [file.read_text(errors='replace') if file.exists() else ended.output for file in files]
    bed.keep(run.name() + ' by rank', '\n'.join(said))
    return Outcome(ended, said)


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
