"""Where the programs run: a network and process namespace with loopback, Weir's command, and what was fetched."""

import contextlib
import dataclasses
import functools
import glob
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import typing

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = ROOT / 'target/strangers'
# What a process says of each of its devices at its end with `--log info`.
SENT = re.compile(r' \w+: (\d+) packets with .* \(process (\d+)\)$', re.MULTILINE)
# Nothing remains when the command ends, or when this process ends.
NAMESPACES = ('--net', '--pid', '--fork', '--kill-child', '--mount-proc')
# Before a command: two network namespaces. Their addresses are of no loopback, at which libfabric does not look.
ADDRESS_A, ADDRESS_B = '10.94.1.1', '10.94.1.2'
STAGE = (HERE / 'hosts/stage.sh', ADDRESS_A, ADDRESS_B)
# What the clients of registries say if they reach none: pip, and cargo with curl.
UNREACHABLE = re.compile(
    r'Retrying \(Retry|NewConnectionError|ProxyError|(Connect|Read)Timeout|name resolution|resolve host|'
    r'connect to server|connection (refused|reset|timed out)|(network|host) is unreachable|no route to host|'
    r'timeout was reached|tunnel failed|spurious network error|HTTP error (403|407|5\d\d)|from versions: none',
    re.IGNORECASE)
# What they say if a package of this system is missing.
MISSING = re.compile(r'ensurepip is not available|No module named .?ensurepip|Unable to find libclang', re.IGNORECASE)

# Retries take long where no packet is answered.
PIP = ('--quiet', '--disable-pip-version-check', '--retries', '2', '--timeout', '15')
# Folders that could not be made, and why.
FAILED = {}


class Skip(Exception):
    """A case cannot run here, and why."""


class Unreachable(Skip):
    """A registry of packages, or another source (`required` is false), cannot be reached."""

    def __init__(self, why, required=True):
        super().__init__(why)
        self.required = required


class Failure(Exception):
    """A case cannot run, for a reason that is no property of this machine."""


@dataclasses.dataclass
class Case:
    """A row of the table. `run` takes the bed, and returns what `row` returns."""
    name: str
    run: typing.Callable
    short: bool = False


@dataclasses.dataclass
class Ended:
    """What a command did: its status (`None` if it was ended after its limit), its output, and the number of its
    processes that sent packets over Weir."""
    status: int | None
    output: str
    users: int

    def complaints(self, limit, users):
        """Why a command has not done well."""
        if self.status is None:
            yield f'still running after {limit} s: {tail(self.output)}'
        elif self.status:
            yield f'status {self.status}: {tail(self.output)}'
        if self.users < users:
            yield f'{self.users} processes used Weir, not {users}'


class Bed:
    def __init__(self, weir, other_transport, log):
        command = pathlib.Path(weir or ROOT / 'target/weir/bin/weir').absolute()
        if not command.is_file():
            sys.exit(f'no {command}: run `make build`')
        self.command = str(command)
        self.other_transport = other_transport
        self.log = log and pathlib.Path(log)

    def run(self, words, name, limit, environment=None, stage=(), **more):
        """Runs a command in a namespace of its own, under `weir run` unless another transport is wanted. The words of
        `stage` come first of all: a program that prepares the namespace and starts the rest."""
        with tempfile.TemporaryDirectory(prefix='weir-strangers-') as folder:
            log, out = pathlib.Path(folder, 'log'), pathlib.Path(folder, 'out')
            under = [self.command, 'run', '--log', 'info', '--'] if not self.other_transport else []
            variables = {key: value for key, value in os.environ.items() if not key.startswith('WEIR_')}
            if 'WEIR_LIB_DIR' in os.environ:
                variables['WEIR_LIB_DIR'] = os.environ['WEIR_LIB_DIR']
            variables.update(environment or {}, WEIR_LOG_FILE=str(log))
            with open(out, 'wb') as file:
                child = subprocess.Popen([*alone(), *map(str, stage), *under, *map(str, words)],
                                         stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                         env=variables, **more)
                try:
                    status = child.wait(limit)
                except subprocess.TimeoutExpired:
                    end_namespace(child)
                    status = None
            output = out.read_text(errors='replace')
            sent = SENT.findall(log.read_text(errors='replace')) if log.exists() else []
            self.keep(name, output)
        return Ended(status, output, len({process for packets, process in sent if int(packets)}))

    def keep(self, name, output):
        """Writes the output of a case into the folder of `--log`."""
        if self.log:
            self.log.mkdir(parents=True, exist_ok=True)
            (self.log / re.sub(r'[^A-Za-z0-9]+', '-', name)).write_text(output)


def end_namespace(child):
    """Ends a command in a namespace. The kernel lets `unshare` see the end of the namespace's first process once all
    others have ended: none of them writes any more. If `unshare` itself were killed, they could end later."""
    first = pathlib.Path(f'/proc/{child.pid}/task/{child.pid}/children').read_text().split()
    for process in first or [child.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)
    child.wait()


@functools.cache
def alone():
    """The words that start a command in namespaces of its own, without root too where the system allows it."""
    ways = [('--map-root-user', *NAMESPACES)] + ([NAMESPACES] if os.geteuid() == 0 else [])
    for way in ways:
        words = ('setpriv', '--pdeathsig', 'KILL', 'unshare', *way, 'sh', '-c', 'ip link set lo up && exec "$@"', 'sh')
        with contextlib.suppress(OSError):
            if not subprocess.run([*words, 'true'], stdin=subprocess.DEVNULL, capture_output=True).returncode:
                return words
    raise Skip('needs user namespaces, or root with the right to make namespaces; and setpriv, unshare and ip')


def row(passed, failed=0, skipped=0, complaints=(), known=()):
    return {'passed': passed, 'failed': failed, 'skipped': skipped, 'complaints': list(complaints),
            'known': list(known)}


def of_program(ended, limit, users, *wanted):
    """The row of one program that says `wanted` when it does well."""
    complaints = list(ended.complaints(limit, users))
    complaints += [f'no {words!r} in its output: {tail(ended.output)}' for words in wanted if words not in ended.output]
    return row(passed=not complaints, failed=bool(complaints), complaints=complaints)


def tail(output, lines=8):
    return '\n      '.join(['', *output.strip().splitlines()[-lines:]])


def need(*programs):
    """Skips if a program is missing."""
    for program in programs:
        if not shutil.which(program):
            raise Skip(f'{program} is missing (scripts/need.sh strangers)')


def need_files(*patterns):
    """Skips if a file is missing that a build needs."""
    for pattern in patterns:
        if not glob.glob(pattern):
            raise Skip(f'no {pattern} (scripts/need.sh strangers)')


def python(*packages, environment=None, limit=120):
    """The interpreter of a virtual environment that has these packages (`name==version`) and nothing else. A package
    that has to be built needs a longer `limit`, in seconds."""
    folder = TARGET / ('python-' + '-'.join(package.replace('==', '-') for package in packages))
    with complete(folder) as missing:
        if missing:
            fetch([sys.executable, '-m', 'venv', folder], late=Failure)
            # Some name packages that the parts used here do not need, such as torch.
            fetch([folder / 'bin/pip', 'install', *PIP, '--no-deps', *packages], environment, limit)
    return folder / 'bin/python'


def source(package, interpreter):
    """The unpacked source of a package on PyPI, which the environment's pip downloads."""
    name, version = package.split('==')
    folder = TARGET / f'source-{name}-{version}'
    with complete(folder) as missing:
        if missing:
            fetch([interpreter, '-m', 'pip', 'download', *PIP, '--no-deps', '--no-binary', name, '--dest', folder,
                   package])
            shutil.unpack_archive(folder / f'{name}-{version}.tar.gz', folder)
    return folder / f'{name}-{version}'


@contextlib.contextmanager
def complete(folder):
    """Whether a folder of target/strangers has to be made; it counts as made if the block ends well. What failed once
    is not tried again by this process."""
    if folder in FAILED:
        raise FAILED[folder]
    mark = folder / '.complete'
    missing = not mark.exists()
    if missing:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    try:
        yield missing
    except (Skip, Failure) as error:
        FAILED[folder] = error
        raise
    mark.touch()


def fetch(words, environment=None, limit=120, late=Unreachable):
    """Runs a client of a package registry. Skips the case if it reaches none, or if it needs a package of this system
    that is missing; all else is a failure. `late`: what it is to exceed the limit, in seconds."""
    words = [str(word) for word in words]
    short = ' '.join(words[-3:])
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors='replace', timeout=limit,
                              env={**os.environ, **(environment or {})})
    except subprocess.TimeoutExpired as error:
        raise late(f'`{short}` has not ended within {limit} s') from error
    except OSError as error:
        raise Failure(f'`{short}`: {error}') from error
    if done.returncode == 0:
        return
    for pattern, kind in ((MISSING, Skip), (UNREACHABLE, Unreachable)):
        if found := next((line for line in done.stdout.splitlines() if pattern.search(line)), None):
            raise kind(f'`{short}`: {found.strip()}')
    raise Failure(f'`{short}`: status {done.returncode}: {tail(done.stdout, 20)}')
