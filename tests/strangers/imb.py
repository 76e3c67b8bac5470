"""The Intel MPI Benchmarks, which Intel MPI's package on PyPI has, by libfabric's provider weir-odp.

They end if every message arrives, but compare no bytes: that is an option of their build.
"""

import functools
import re
import tempfile

from bed import Case, Skip, row
from mpis import INTEL_FABRIC

# The number of benchmarks that each runs if it is asked for none, on 2 and on 4 ranks. Two of IMB-RMA are for two ranks.
PROGRAMS = {'IMB-MPI1': (19, 19), 'IMB-NBC': (13, 13), 'IMB-RMA': (17, 15), 'IMB-P2P': (6, 6)}
RANKS = (2, 4)
# Ten messages of each size, up to 256 KiB.
FEW = ('-iter', 10, '-msglog', '3:18')
BEGUN = re.compile(r'^# Benchmarking:? +(\S+)', re.MULTILINE)
LIMIT = 300


def cases():
    return [Case(f'{program}, {INTEL_FABRIC.name}, {ranks} ranks',
                 functools.partial(run_program, program=program, ranks=ranks))
            for program in PROGRAMS for ranks in RANKS]


def run_program(bed, program, ranks):
    if bed.other_transport:
        raise Skip('a comparison needs only what expected.txt names')
    interpreter = INTEL_FABRIC.interpreter()
    with tempfile.TemporaryDirectory(prefix='weir-imb-') as folder:
        environment = INTEL_FABRIC.variables(interpreter, folder, None)
        # Without `-npmin`, IMB measures two ranks first, and then more.
        all_ranks = () if program == 'IMB-P2P' else ('-time', 1, '-npmin', ranks)
        words = [*INTEL_FABRIC.start(interpreter, ranks), interpreter.parent / program, *FEW, *all_ranks]
        ended = bed.run(words, f'{program} {ranks}', LIMIT, environment)
    benchmarks = len(set(BEGUN.findall(ended.output)))
    complaints = list(ended.complaints(LIMIT, ranks))
    expected = PROGRAMS[program][RANKS.index(ranks)]
    if benchmarks < expected:
        complaints.append(f'{benchmarks} benchmarks, not {expected}')
    return row(benchmarks, bool(complaints), complaints=complaints)
