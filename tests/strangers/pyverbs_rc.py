"""Sends, writes and reads between two RC QPs of one process through pyverbs, with memory pinned and ODP; compares all
bytes."""

import sys

from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.libibverbs_enums import (
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QPT_RC,
    IBV_WC_SUCCESS, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND)
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

SIZE = 1 << 20
HALF = SIZE // 2
GID = 1
ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE


class End:
    """A QP with its CQ and memory."""

    def __init__(self, context, pd, access, seed):
        self.bytes = bytes((index * seed + index // 251) % 256 for index in range(SIZE))
        self.memory = MR(pd, SIZE, access)
        self.memory.write(self.bytes, SIZE)
        self.cq = CQ(context, 16)
        self.qp = QP(pd, QPInitAttr(qp_type=IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap(max_send_wr=4)))

    def connect(self, context, peer):
        route = GlobalRoute(dgid=context.query_gid(1, GID), sgid_index=GID)
        attr = QPAttr()
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attr.dest_qp_num = peer.qp.qp_num
        attr.qp_access_flags = ACCESS
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        self.qp.to_rts(attr)

    def part(self, offset):
        return SGE(self.memory.buf + offset, HALF, self.memory.lkey)

    def post(self, opcode, offset, peer, peer_offset):
        request = SendWR(opcode=opcode, num_sge=1, sg=[self.part(offset)])
        if opcode != IBV_WR_SEND:
            request.set_wr_rdma(peer.memory.rkey, peer.memory.buf + peer_offset)
        self.qp.post_send(request)

    def wait(self):
        while True:
            count, completions = self.cq.poll()
            if count:
                break
        if completions[0].status != IBV_WC_SUCCESS:
            sys.exit(f'status {completions[0].status}')

    def check(self, offset, wanted, what):
        if self.memory.read(HALF, offset) != wanted:
            sys.exit(f'{what}: wrong bytes')


def main():
    name = get_device_list()[0].name.decode()
    with Context(name=name) as context, PD(context) as pd:
        for kind, access in (('pinned', ACCESS), ('ODP', ACCESS | IBV_ACCESS_ON_DEMAND)):
            transfer(context, End(context, pd, access, 3), End(context, pd, access, 5), kind)
    print(f'{name}: all bytes are right')


def transfer(context, near, far, kind):
    near.connect(context, far)
    far.connect(context, near)
    near.post(IBV_WR_RDMA_WRITE, 0, far, HALF)
    near.wait()
    far.check(HALF, near.bytes[:HALF], f'WRITE, {kind}')
    near.post(IBV_WR_RDMA_READ, HALF, far, 0)
    near.wait()
    near.check(HALF, far.bytes[:HALF], f'READ, {kind}')
    far.qp.post_recv(RecvWR(num_sge=1, sg=[far.part(0)]))
    near.post(IBV_WR_SEND, 0, far, 0)
    near.wait()
    far.wait()
    far.check(0, near.bytes[:HALF], f'SEND, {kind}')


main()
