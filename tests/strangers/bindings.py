"""pyverbs from PyPI, built with an rdma-core of its own, newer than the distribution's."""

from bed import HERE, Case, Skip, need, of_program, python

LIMIT = 120
# On a busy machine.
BUILD_LIMIT = 1800


def cases():
    return [Case('pyverbs: SEND, WRITE, READ, pinned and ODP', transfer)]


def transfer(bed):
    if bed.other_transport:
        raise Skip('it has no other transport')
    need('cc', 'pkg-config')
    constraints = {'PIP_CONSTRAINT': str(HERE / 'pyverbs_constraints.txt')}
    interpreter = python('pyverbs==59.0', environment=constraints, limit=BUILD_LIMIT)
    ended = bed.run([interpreter, HERE / 'pyverbs_rc.py'], 'pyverbs', LIMIT)
    return of_program(ended, LIMIT, 1, 'weir_lo: all bytes are right')
