"""One trial: a server and a client of a cell, of which one runs on Weir and one in the guest (`within`: both there)."""

import dataclasses
import glob
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time

import cells
import exceptions
import lab as laboratory
import packets

# Service IDs of rdma_cm's port spaces.
TCP_SPACE, UDP_SPACE = 0x0106, 0x0111
# udaddy has no option for its port.
UDADDY_PORT = 7174
LISTEN_WITHIN = 15
SAID = re.compile(rf' {laboratory.DEVICE["weir"]}: (\d+) packets with \d+ bytes sent, (\d+) with')
CHECK_FAILED = re.compile(r'^(?:client|server) FAILED: .*|^(?:verify|threads)\b.*: .*', re.MULTILINE)
# weir-verify says this if the other has ended, and this at its end.
FOLLOWS = 'the other side has closed the connection'
# At its end, one thread of rping closes what another reads from, and this thread ends the program if it is too late. So
# a cell with such an end is tried again.
CLOSED = 'rdma_get_cm_event: Bad file descriptor'
TRIES = 3
COUNTED = re.compile(r'^\d+ passed, [1-9]\d* failed$', re.MULTILINE)


@dataclasses.dataclass
class Program:
    """How a program ended."""
    status: int
    output: str
    errors: str = ''


@dataclasses.dataclass
class Result:
    setting: cells.Setting
    cell: cells.Cell
    client: str
    verdict: str
    seconds: float
    reasons: list
    log: str | None = None
    # What was measured, as lines.
    seen: list = dataclasses.field(default_factory=list)

    def name(self):
        if self.cell.vlan:
            return self.cell.name
        server = 'weir' if self.client == 'rxe' and not self.cell.within else 'rxe'
        return f'{self.cell.name}, {self.client} to {server}, {self.setting}'

    def json(self):
        return {'cell': self.cell.name, 'client': self.client, **dataclasses.asdict(self.setting),
                'verdict': self.verdict, 'seconds': round(self.seconds, 1), 'reasons': self.reasons,
                'seen': self.seen}


class Bench:
    """Runs trials in a laboratory."""

    def __init__(self, lab, weir, folder):
        self.lab, self.weir, self.folder = lab, weir, folder
        # What all captures held.
        self.kinds = set()
        self.loss = None
        os.makedirs(folder, exist_ok=True)

    def run(self, setting, cell, client):
        """Runs a cell, with the client on `client`: 'weir' or 'rxe'."""
        self.lab.set_mtu(setting.link())
        if self.loss != setting.loss:
            self.lab.lose(setting.loss)
            self.loss = setting.loss
        begin = time.monotonic()
        server = 'rxe' if client == 'weir' else 'weir'
        self.limit = cells.LIMIT_WITH_LOSS if setting.loss else cells.LIMIT
        lines = {side: self.line(setting, cell, side, server) for side in (server, client)}
        for _ in range(TRIES):
            if client == 'weir':
                weir, rxe = self.client_on_weir(cell, lines)
            else:
                weir, rxe = self.client_on_rxe(cell, lines)
            programs = {'weir': weir, 'rxe': rxe}
            failures = self.failures(cell, client, programs)
            ends = [closed_by_chance(cell, program) for program in programs.values() if program.status]
            if not failures or not ends or not all(ends):
                break
        known = exceptions.reasons(cell.name, client, failures) if failures else None
        verdict = 'passed' if not failures else 'excepted' if known else 'FAILED'
        result = Result(setting, cell, client, verdict, time.monotonic() - begin, known or failures)
        base = os.path.join(self.folder, re.sub(r'\W+', '-', result.name()))
        self.take_captures(base if failures else None)
        if failures:
            result.log = f'{base}.txt'
            with open(result.log, 'w') as file:
                for side, program in programs.items():
                    file.write(f'{lines[side]}\n{side}: status {program.status}\n{program.output}{program.errors}\n')
        return result

    def line(self, setting, cell, side, server):
        """The command line of one side."""
        addresses = {'weir': laboratory.WEIR, 'rxe': laboratory.GUEST}[server]
        # Soft-RoCE never sends a fenced READ or atomic again: docs/interop.md.
        fences = '-f' if server == 'weir' else ''
        lossy = f'-l {fences}' if setting.loss else ''
        gid = str(self.weir_gid(setting.ip)) if side == 'weir' else str(self.lab.gids[setting.ip])
        on_weir = side == 'rxe' and cell.beside
        device = laboratory.GUEST_DEVICE if on_weir else laboratory.DEVICE[side]
        words = {'dev': device, 'gid': gid, 'mtu': setting.mtu, 'port': cells.PORT,
                 'datagram': min(setting.mtu, 1024), 'lossy': lossy, 'count': 10 if setting.loss else 100,
                 'most': 16384 if setting.loss else 65536,
                 # The programs' own TCP connection uses IPv4.
                 'host': addresses[4], 'address': addresses[setting.ip]}
        line = f'{cell.line} {cell.server if side == server else cell.client}'
        return ('weir run --log warn -- ' if on_weir else '') + line.format(**words)

    def weir_gid(self, ip):
        """The index of this side's address; `weir devices` says it."""
        address = laboratory.WEIR[ip]
        for device in json.loads(laboratory.run([self.weir, 'devices', '--json'], 20)):
            for gid in device['gids']:
                if device['name'] == laboratory.DEVICE['weir'] and gid['address'] == address:
                    return gid['index']
        raise laboratory.Failure(f'{laboratory.DEVICE["weir"]} has no GID {address}')

    def start_on_weir(self, line):
        command = ['timeout', '-k', '2', str(self.limit), self.weir, 'run', '--log', 'info', '--capture',
                   os.path.join(self.folder, 'weir-%p.pcapng')]
        if self.loss:
            command += ['--faults', f'loss={self.loss / 100}']
        words = shlex.split(line)
        words[0] = next((path for path in self.lab.tools if os.path.basename(path) == words[0]), words[0])
        return subprocess.Popen([*command, '--', *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, errors='replace', start_new_session=True)

    def finish(self, process):
        """How a program on Weir ended."""
        try:
            output, errors = process.communicate(timeout=self.limit + 5)
        except subprocess.TimeoutExpired:
            kill(process)
            output, errors = process.communicate()
        return Program(process.returncode, output, errors)

    def client_on_weir(self, cell, lines):
        server = GuestServer(self.lab, cell, lines['rxe'], self.limit)
        weir = self.finish(self.start_on_weir(lines['weir']))
        return weir, server.finish(weir.status == 0)

    def client_on_rxe(self, cell, lines):
        server = self.start_on_weir(lines['weir'])
        try:
            end = time.monotonic() + LISTEN_WITHIN
            while not listens_here(cell) and server.poll() is None and time.monotonic() < end:
                time.sleep(0.02)
            status, output = self.lab.run(f'timeout -k 2 {self.limit} {lines["rxe"]} 2>&1', self.limit + 30)
            if status:
                try:
                    server.wait(5)
                except subprocess.TimeoutExpired:
                    server.terminate()
            return self.finish(server), Program(status, output)
        finally:
            # It is still there if the guest no longer responds, and the next cell needs its port.
            if server.returncode is None:
                kill(server)
                server.communicate()

    def failures(self, cell, client, programs):
        """What is wrong, as lines; empty if all is right."""
        found = []
        for side, program in programs.items():
            text = program.output + program.errors
            lines = [line for line in CHECK_FAILED.findall(text) if FOLLOWS not in line]
            found += lines
            # Both sides of weir-verify know of the failures of both.
            explained = (program.status == 1 and COUNTED.search(text)
                         or program.status == 2 and (lines or FOLLOWS in text))
            if program.status and not explained:
                last = [line.strip() for line in text.splitlines() if line.strip() and ' weir_' not in line][-2:]
                found.append(f'{side}: status {program.status}: {" | ".join(last)}')
        if not found and any(program.status for program in programs.values()):
            found.append('; '.join(f'{side}: status {program.status}' for side, program in programs.items()))
        if not found and cell.says not in programs[client].output:
            found.append(f'{client} does not say "{cell.says}"')
        if not any(int(sent) + int(received) for sent, received in SAID.findall(programs['weir'].errors)):
            found.append('nothing went over Weir')
        return found

    def take_captures(self, base):
        """Notes what the captures hold; keeps them under names that begin with `base`, if they explain a failure."""
        own = {packed(address) for address in laboratory.WEIR.values()}
        for number, path in enumerate(glob.glob(os.path.join(self.folder, 'weir-*.pcapng'))):
            self.kinds |= packets.kinds(path, own)
            if base:
                os.replace(path, f'{base}-{number}.pcapng')
            else:
                os.unlink(path)


class GuestServer:
    """A server in the guest, which waits for its client when this is made."""

    def __init__(self, lab, cell, line, limit):
        self.lab, self.line, self.limit = lab, line, limit
        lab.must(f'rm -f /server.status; (timeout -k 2 {limit} {line} > /server.log 2>&1; echo $? > /server.status) &')
        if cell.cm:
            listens = 'rdma resource show cm_id | grep -q LISTEN'
        else:
            listens = f'grep -qE ":{cells.PORT:04X} [0-9A-F]+:0000 0A" /proc/net/tcp /proc/net/tcp6'
        lab.run(f'for i in $(seq 100); do {listens} && break; test -e /server.status && break; sleep 0.1; done')

    def finish(self, client_succeeded):
        """How it ended."""
        # A server that waits for a client that has failed is ended.
        patience = self.limit * 10 if client_succeeded else 50
        self.lab.run(f'for i in $(seq {patience}); do test -e /server.status && break; sleep 0.1; done; '
                     f'test -e /server.status || killall {shlex.split(self.line)[0]}; '
                     'for i in $(seq 30); do test -e /server.status && break; sleep 0.1; done', self.limit + 30)
        status, output = self.lab.run('cat /server.log; cat /server.status')
        return Program(int(output.split()[-1]) if status == 0 else -1, output)


def closed_by_chance(cell, program):
    """Whether a program has ended with a status only because of `CLOSED`."""
    return cell.cm and CLOSED in program.output + program.errors


def kill(process):
    """Ends `timeout` with the program that it runs."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def packed(address):
    return socket.inet_aton(address) if '.' in address else socket.inet_pton(socket.AF_INET6, address)


def listens_here(cell):
    """Whether a server of this namespace waits for its client."""
    if cell.cm:
        space, port = (UDP_SPACE, UDADDY_PORT) if cell.name == 'udaddy' else (TCP_SPACE, cells.PORT)
        with open('/proc/net/unix') as file:
            return any(line.rstrip('\n').endswith(f'@weir/service/{space << 16 | port:x}')
                       and line.split()[3] == '00010000' for line in file)
    for path in ('/proc/net/tcp', '/proc/net/tcp6'):
        with open(path) as file:
            for line in file:
                words = line.split()
                if words[1].endswith(f':{cells.PORT:04X}') and words[3] == '0A':
                    return True
    return False
