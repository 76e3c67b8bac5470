"""What is tried with Weir's layer between a program and rdma-core's libibverbs: both programs run on Soft-RoCE."""

import dataclasses

import cells

DOCTOR = 'weir doctor --json --output {report} --'
GUARD = 'weir run --system --guard auto --'
# Enough for some timeouts in each cell; and so few that no request is lost as often as it may be repeated.
LOSS = 5


@dataclasses.dataclass(frozen=True)
class Work:
    """What a program does: send requests, each with a completion, and receives that complete."""
    requests: int = 0
    receives: int = 0


@dataclasses.dataclass(frozen=True)
class Layered(cells.Cell):
    """A server and a client, both under `layer`."""
    within: bool = True
    layer: str = DOCTOR
    server_work: Work = Work()
    client_work: Work = Work()
    # If all requests are the same.
    operation: str = ''
    # The programs sleep until an event.
    sleeps: bool = False


def programs(lossy):
    """The cells of a layer: with all packets, or on a link that loses some."""
    count = 200 if lossy else 100
    both = Work(count)
    latency = [
        perftest('ib_write_lat', 'WRITE', count, both, both),
        perftest('ib_read_lat', 'READ', count, Work(), both),
    ]
    if lossy:
        yield from latency
        yield perftest('ib_send_lat', 'SEND', count, Work(count, count), Work(count, count))
        return
    # Both programs share one emulated processor: each message waits for the other's time slice, unless they sleep.
    for options in ('', '-e'):
        work = Work(count, count)
        line = f'ibv_rc_pingpong -c -d {{dev}} -g {{gid}} -p {{port}} -n {count} -s 4096 {options}'
        yield Layered(f'ibv_rc_pingpong {options}'.strip(), line, says=f'{count} iters in', operation='SEND',
                      server_work=work, client_work=work, sleeps='-e' in options)
    yield from latency
    yield perftest('ib_send_bw', 'SEND', count, Work(0, count), both, '-Q 1 -s 4096')
    # In each of 20 rounds the client sends twice; the server sends twice, READs and WRITEs.
    yield Layered('rping', 'rping', server='-s -a {address} -p {port} -V -C 20',
                  client='-c -a {address} -p {port} -v -V -C 20', cm=True, sleeps=True,
                  says='ping data: rdma-ping-19: ', server_work=Work(80, 40), client_work=Work(40, 40))


def perftest(program, operation, count, server_work, client_work, options=''):
    says = 't_typical' if program.endswith('lat') else 'BW average'
    line = f'{program} -F -d {{dev}} -x {{gid}} -p {{port}} -n {count} {options}'
    return Layered(program, line, says=says, operation=operation, server_work=server_work, client_work=client_work)


def plan(short):
    """All pairs of a setting and a cell. The short plan has the first cell under `weir doctor`."""
    chosen = []
    for layer, name in ((DOCTOR, 'doctor'), (GUARD, 'guard')):
        for loss in (0, LOSS):
            named = (dataclasses.replace(cell, name=f'{name} {cell.name}', layer=layer) for cell in programs(loss > 0))
            chosen += [(cells.Setting(1024, 4, loss), cell) for cell in named]
    return chosen[:1] if short else chosen
