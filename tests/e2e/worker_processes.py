"""Workers of multiprocessing that use RDMA: each opens the device and transfers data, and so does their parent meanwhile.

    worker_processes.py DEVICE GID

Prints "ok" if every byte was right, in workers of every start method.
"""

import multiprocessing
import sys

from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR
import pyverbs.enums as e

SIZE, ROUNDS, WORKERS = 65536, 20, 4


class Rig:
    """A QP that is connected to itself."""

    def __init__(self, device, gid_index):
        self.context = Context(name=device)
        self.pd, self.cq = PD(self.context), CQ(self.context, 16)
        self.mr = MR(self.pd, 2 * SIZE, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        cap = QPCap(max_send_wr=8, max_recv_wr=8)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, sq_sig_all=1, cap=cap))
        gid = self.context.query_gid(1, gid_index)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        attr.dest_qp_num, attr.path_mtu = self.qp.qp_num, e.IBV_MTU_1024
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=gid, sgid_index=gid_index, hop_limit=64))
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        self.qp.to_rts(attr)

    def transfer(self, number):
        """One WRITE from the first half of the memory to the second."""
        text = ''.join(chr(ord('a') + (number + i) % 26) for i in range(26)) * (SIZE // 26)
        self.mr.write(text, len(text))
        wr = SendWR(num_sge=1, sg=[SGE(self.mr.buf, SIZE, self.mr.lkey)], opcode=e.IBV_WR_RDMA_WRITE)
        wr.set_wr_rdma(self.mr.rkey, self.mr.buf + SIZE)
        self.qp.post_send(wr)
        while True:
            count, completions = self.cq.poll()
            if count:
                break
        assert completions[0].status == e.IBV_WC_SUCCESS, completions[0].status
        assert self.mr.read(len(text), SIZE) == text.encode(), f'worker {number}: wrong bytes'


def work(job):
    device, gid_index, number = job
    rig = Rig(device, gid_index)
    for round in range(ROUNDS):
        rig.transfer(number + round)
    return number


def main():
    device, gid_index = sys.argv[1], int(sys.argv[2])
    rig = Rig(device, gid_index)
    rig.transfer(1)
    for method in multiprocessing.get_all_start_methods():
        with multiprocessing.get_context(method).Pool(WORKERS) as pool:
            jobs = [(device, gid_index, number) for number in range(2 * WORKERS)]
            results = pool.map_async(work, jobs, chunksize=1)
            while not results.ready():
                rig.transfer(2)
            assert results.get() == list(range(2 * WORKERS)), results.get()
        rig.transfer(3)
    print('ok')


if __name__ == '__main__':
    main()
