"""Transfer engines of inference systems, from PyPI: two programs write and read 8 MiB and compare all bytes."""

from bed import HERE, Case, Skip, of_program, python

LIMIT = 180
NUMPY = 'numpy==2.2.6'
# The other wheels need CUDA.
MOONCAKE = 'mooncake-transfer-engine-non-cuda==0.3.13.post1'
ON_WEIR_ONLY = 'mooncake_transfer.py'


def cases():
    return [
        Case('NIXL (UCX)', lambda bed: transfer(bed, 'nixl_transfer.py', 'nixl-cu12==1.5.1', NUMPY)),
        Case('Mooncake', lambda bed: transfer(bed, ON_WEIR_ONLY, MOONCAKE)),
    ]


def transfer(bed, script, *packages):
    if bed.other_transport and script == ON_WEIR_ONLY:
        raise Skip('it does not use UCX')
    interpreter = python(*packages)
    environment = {'UCX_TLS': f'{bed.other_transport or "rc"},self'}
    ended = bed.run([interpreter, HERE / 'both.py', interpreter, HERE / script], script, LIMIT, environment)
    # The two programs; the first of both is the one that starts them.
    return of_program(ended, LIMIT, 0 if bed.other_transport else 2, 'both have compared all bytes')
