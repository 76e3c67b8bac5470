"""pyverbs from PyPI, built with an rdma-core of its own, newer than the distribution's."""

import pathlib
import sysconfig

from bed import HERE, Case, Skip, need, need_files, of_program, python

LIMIT = 120
# On a busy machine.
BUILD_LIMIT = 1800
NETLINK = '/usr/include/libnl3/netlink/route/rtnl.h'


def cases():
    return [Case('pyverbs: SEND, WRITE, READ, pinned and ODP', transfer)]


def transfer(bed):
    if bed.other_transport:
        raise Skip('it has no other transport')
    need('cc', 'pkg-config')
    need_files(str(pathlib.Path(sysconfig.get_path('include'), 'Python.h')), NETLINK)
    # The second name is for builds alone; newer releases of pip do not look at the first one there.
    file = str(HERE / 'pyverbs_constraints.txt')
    constraints = {'PIP_CONSTRAINT': file, 'PIP_BUILD_CONSTRAINT': file}
    interpreter = python('pyverbs==59.0', environment=constraints, limit=BUILD_LIMIT)
    ended = bed.run([interpreter, HERE / 'pyverbs_rc.py'], 'pyverbs', LIMIT)
    return of_program(ended, LIMIT, 1, 'weir_lo: all bytes are right')
