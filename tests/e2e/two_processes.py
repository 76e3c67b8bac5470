"""pyverbs in two processes: they exchange messages and check each of them.

    two_processes.py DEVICE GID PORT rc|uc|ud [SERVER]
"""

import socket
import sys
import time

from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.enums as e

ROUNDS, SIZE, GRH, QKEY = 200, 1000, 40, 0x11111111
TYPES = {'rc': e.IBV_QPT_RC, 'uc': e.IBV_QPT_UC, 'ud': e.IBV_QPT_UD}


def main():
    device, gid_index, port, transport, *server = sys.argv[1:]
    gid_index = int(gid_index)
    side = open_channel(int(port), server)
    context = Context(name=device)
    pd, cq = PD(context), CQ(context, 64)
    mr = MR(pd, 4 * 4096, e.IBV_ACCESS_LOCAL_WRITE)
    init = QPInitAttr(qp_type=TYPES[transport], scq=cq, rcq=cq, sq_sig_all=1,
                      cap=QPCap(max_send_wr=8, max_recv_wr=8))
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
    attr.qkey = QKEY
    qp = QP(pd, init)
    peer, gid = exchange(side, f'{qp.qp_num} {context.query_gid(1, gid_index).gid}').split()
    peer = int(peer)
    route = GlobalRoute(dgid=GID(gid), sgid_index=gid_index, hop_limit=64)
    path = AHAttr(port_num=1, is_global=1, gr=route)
    if transport == 'ud':
        qp.to_rts(attr)
    else:
        attr.dest_qp_num, attr.ah_attr, attr.path_mtu = peer, path, e.IBV_MTU_1024
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        qp.to_rts(attr)
    ah = AH(pd, attr=path) if transport == 'ud' else None
    skip = GRH if transport == 'ud' else 0

    def receive():
        qp.post_recv(RecvWR(num_sge=1, sg=[SGE(mr.buf, SIZE + GRH, mr.lkey)]))

    def send(number):
        mr.write(text(number), SIZE, 4096)
        wr = SendWR(num_sge=1, sg=[SGE(mr.buf + 4096, SIZE, mr.lkey)], opcode=e.IBV_WR_SEND)
        if ah:
            wr.set_wr_ud(ah, peer, QKEY)
        qp.post_send(wr)

    def await_message(number):
        while True:
            wc = next_completion(cq)
            if wc.opcode & e.IBV_WC_RECV:
                break
        assert wc.byte_len == SIZE + skip, wc.byte_len
        assert mr.read(SIZE, skip) == text(number).encode(), f'message {number} has a wrong payload'
        receive()

    receive()
    # Neither process sends before the other one has posted a receive.
    exchange(side, 'ready')
    for number in range(ROUNDS):
        if server:
            send(number)
            await_message(number)
        else:
            await_message(number)
            send(number)
    exchange(side, 'done')
    print(f'{ROUNDS} messages each way')


def open_channel(port, server):
    if server:
        side = socket.create_connection((server[0], port))
    else:
        with socket.create_server(('', port)) as listener:
            side = listener.accept()[0]
    # One file object for both directions would discard its read-ahead data on a write.
    return side.makefile('r'), side.makefile('w')


def exchange(side, line):
    """Sends a line and returns the line of the other process."""
    incoming, outgoing = side
    outgoing.write(line + '\n')
    outgoing.flush()
    answer = incoming.readline().strip()
    assert answer, 'the other process has closed the connection'
    return answer


def text(number):
    return f'{number:08}' * (SIZE // 8)


def next_completion(cq):
    until = time.monotonic() + 10
    while time.monotonic() < until:
        count, completions = cq.poll()
        if count:
            assert completions[0].status == e.IBV_WC_SUCCESS, completions[0]
            return completions[0]
    raise TimeoutError('no completion within 10 s')


main()
