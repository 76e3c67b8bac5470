"""What is tried: programs, and the settings in which they run."""

import dataclasses
import itertools

# The MTU of the link that gives Soft-RoCE a path MTU.
LINKS = {512: 1000, 1024: 1500, 2048: 2200, 4096: 4500}
# IPv6 needs at least 1280.
LINK_OF_512_WITH_IPV6 = 1500
LOSS = 3
PORT = 18515
# The guest emulates its processor: everything takes ten times as long there.
LIMIT, LIMIT_WITH_LOSS = 100, 150

DATA = 'sizes,inline,sge lists,random,unsignalled,fence,atomics,crowd,changing,null region,device memory,changed region'
FAULTS = ('windows 1', 'windows 2', 'remote faults', 'too long', 'retry')


@dataclasses.dataclass(frozen=True)
class Cell:
    """A server and a client of the same program. Words of the command line: {dev}, {gid}, {mtu}, {address} (the
    server's), {port}."""
    name: str
    line: str
    # What only the client has.
    client: str = '{host}'
    server: str = ''
    lossy: bool = True
    # Connected by rdma_cm: path MTU and address are the interface's.
    cm: bool = False
    # Text that the client prints.
    says: str = ''
    # Both programs run on Soft-RoCE, in the guest.
    within: bool = False
    # The guest's program runs on Weir, beside Soft-RoCE, which has UDP port 4791 there.
    beside: bool = False
    # Both programs run on Weir in the guest, joined by a VLAN.
    vlan: bool = False


@dataclasses.dataclass(frozen=True)
class Setting:
    mtu: int
    ip: int
    loss: int

    def link(self):
        return LINK_OF_512_WITH_IPV6 if self.mtu == 512 and self.ip == 6 else LINKS[self.mtu]

    def __str__(self):
        return f'MTU {self.mtu} IPv{self.ip}' + (f' {self.loss} % loss' if self.loss else '')


def verify(name, cases, options='', **more):
    return Cell(f'verify {name}', f"weir-verify -d {{dev}} -g {{gid}} -p {{port}} -u {{mtu}} -k '{cases}' {options}",
                **more)


def pingpong(name, options, **more):
    # The side that has its last message ends. If its ACK was lost, no program answers the other's retransmission.
    return Cell(name, f'{name.split()[0]} -c -d {{dev}} -g {{gid}} -p {{port}} {options}', lossy=False, **more)


def perftest(name, options, **more):
    program = name.split()[0]
    says = 't_typical' if program.endswith('lat') else 'BW average'
    return Cell(name, f'{program} -F -d {{dev}} -x {{gid}} -p {{port}} {options}', says=says, **more)


def by_cm(name, server, client, says, **more):
    return Cell(name, name.split()[0], server=server, client=client, cm=True, says=says, **more)


# Weir's devices have the guest's default GID index.
WEIR_IN_GUEST = "weir-verify -d {dev} -p {port} -k 'sizes,atomics,RNR' -m 8192 -n 20 -t 20"
BESIDE = Cell('verify beside Soft-RoCE', WEIR_IN_GUEST, beside=True)
VLAN = Cell('verify over a VLAN', WEIR_IN_GUEST, client='{address}', vlan=True)

# In every setting.
CORE = [
    verify('data', DATA, '-n 100 -m {most} -t 20 {lossy}'),
    verify('RNR', 'RNR', '-t 5 {lossy}'),
    verify('events', 'events', '-t 5 {lossy}', lossy=False),
    Cell('unreliable uc', 'weir-unreliable uc {dev} {gid} {mtu} {port}', says=''),
    Cell('unreliable ud', 'weir-unreliable ud {dev} {gid} {mtu} {port}', says=''),
    pingpong('ibv_rc_pingpong', '-m {mtu} -n 200 -s 4096'),
    pingpong('ibv_uc_pingpong', '-m {mtu} -n 200 -s 4096'),
    pingpong('ibv_ud_pingpong', '-n 200 -s {datagram}'),
    pingpong('ibv_srq_pingpong', '-m {mtu} -n 200 -q 4'),
    perftest('ib_write_bw 64K', '-m {mtu} -s 65536 -n {count}'),
    # perftest takes the other side's limit of outstanding READs for its own; Soft-RoCE has 128.
    perftest('ib_read_bw 64K', '-m {mtu} -o 16 -s 65536 -n {count}'),
    perftest('ib_send_bw 64K', '-m {mtu} -s 65536 -n {count}'),
    by_cm('rping', '-s -a {address} -p {port} -v -V -C 20', '-c -a {address} -p {port} -v -V -C 20',
          'ping data: rdma-ping-19: '),
    by_cm('ucmatose', '-b {address} -p {port} -c 5 -C 10', '-s {address} -p {port} -c 5 -C 10', 'return status 0'),
    by_cm('udaddy', '-b {address} -c 2 -C 8', '-s {address} -c 2 -C 8', 'return status 0',
          lossy=False),
]


def more():
    for size, count in ((2, 200), (1048576, 20)):
        for program in ('ib_write_bw', 'ib_read_bw', 'ib_send_bw'):
            reads = '-o 16 ' if 'read' in program else ''
            yield perftest(f'{program} {size}', f'-m {{mtu}} {reads}-s {size} -n {count}')
    for size, count in ((2, 200), (4096, 100), (1048576, 5)):
        for program in ('ib_write_lat', 'ib_read_lat', 'ib_send_lat'):
            reads = '-o 16 ' if 'read' in program else ''
            yield perftest(f'{program} {size}', f'-m {{mtu}} {reads}-s {size} -n {count}')
    for program in ('ib_write_bw', 'ib_read_bw', 'ib_send_bw'):
        reads = '-o 16 ' if 'read' in program else ''
        yield perftest(f'{program} -b', f'-m {{mtu}} {reads}-b -s 65536 -n 50')
    yield perftest('ib_write_bw -q 8', '-m {mtu} -q 8 -s 65536 -n 20')
    yield perftest('ib_write_bw -a', '-m {mtu} -a -n 5')
    yield perftest('ib_send_bw -e', '-m {mtu} -e -s 65536 -n 50')
    yield perftest('ib_send_bw -r 1', '-m {mtu} -r 1 -s 4096 -n 100')
    yield perftest('ib_send_bw -c UC', '-m {mtu} -c UC -s 4096 -n 20 -t 1')
    for size in (2, 65536):
        yield perftest(f'ib_write_bw -c UC {size}', f'-m {{mtu}} -c UC -s {size} -n 20 -t 1')
    yield perftest('ib_send_bw -c UD', '-c UD -s {mtu} -n 20 -t 1')
    yield perftest('ib_send_lat -c UD', '-c UD -s 64 -n 100')
    for operation in ('FETCH_AND_ADD', 'CMP_AND_SWAP'):
        yield perftest(f'ib_atomic_bw {operation}', f'-m {{mtu}} -o 16 -A {operation} -n 200')
        yield perftest(f'ib_atomic_lat {operation}', f'-m {{mtu}} -o 16 -A {operation} -n 100')
    # Soft-RoCE sends no asynchronous events, so that the time of -t passes for each.
    yield from (verify(case, case, '-t 3') for case in FAULTS)
    yield verify('data of 1 MiB', DATA, '-n 60 -m 1048576 -t 30')
    yield pingpong('ibv_rc_pingpong 1M', '-m {mtu} -n 10 -s 1048576')
    yield pingpong('ibv_rc_pingpong -e', '-m {mtu} -n 200 -s 4096 -e')


# With the path MTUs 1024 and 4096 of IPv4 without loss.
MORE = list(more())
# For less than a minute, with the guest's start.
SHORT = [verify('short', 'sizes,atomics,RNR', '-m 8192 -t 10 {lossy}'),
         *(cell for cell in CORE
           if cell.name in ('unreliable uc', 'unreliable ud', 'ibv_rc_pingpong', 'rping', 'ucmatose'))]


def plan(short):
    """All pairs of a setting and a cell, those with the same link side by side."""
    plain = Setting(1024, 4, 0)
    if short:
        chosen = [(plain, cell) for cell in [*SHORT, BESIDE]]
        return chosen + [(Setting(1024, 6, 0), SHORT[0]), (Setting(1024, 4, LOSS), SHORT[0])]
    chosen = [(plain, BESIDE)]
    for mtu, ip, loss in itertools.product(LINKS, (4, 6), (0, LOSS)):
        setting = Setting(mtu, ip, loss)
        cells = CORE + (MORE if mtu in (1024, 4096) and ip == 4 and not loss else [])
        for cell in cells:
            if loss and not cell.lossy or cell.cm and setting.link() != LINKS[mtu]:
                continue
            chosen.append((setting, cell))
    return sorted(chosen, key=lambda pair: (list(LINKS.values()).index(pair[0].link()), pair[0].loss))
