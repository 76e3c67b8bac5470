"""The MPI libraries of the cases, how they are started, and how their messages travel."""

import dataclasses
import glob
import pathlib

from bed import Skip, need, python

# MPICH's name for its library, which mpi4py's wheel asks for; Debian gives it another one.
SONAME = 'libmpi.so.12'
LIBMPICH = '/usr/lib/*/libmpich.so.12'
OPEN_LAUNCHER = ('mpirun.openmpi', '--allow-run-as-root', '--oversubscribe')


@dataclasses.dataclass(frozen=True)
class Mpi:
    name: str
    # The name of its binary interface in mpi4py.
    abi: str
    # A program of this system, or of `package`, and its options.
    launcher: tuple
    # The package on PyPI that has the library and the launcher.
    package: str = ''
    # Whether `weir run` makes it use libfabric's provider weir-odp; otherwise UCX with RC, without shared memory.
    fabric: bool = False
    # Variables, as pairs.
    environment: tuple = ()
    # With which transports of UCX, or providers of libfabric, it is compared.
    others: tuple = ('sm', 'tcp')

    def interpreter(self, *packages):
        """The Python interpreter of an environment with these packages and this MPI's."""
        if not self.package:
            need(self.launcher[0])
        return python(*packages, *([self.package] if self.package else []))

    def start(self, interpreter, ranks):
        """The words that start this number of ranks of the program that follows."""
        first = interpreter.parent / self.launcher[0] if self.package else self.launcher[0]
        return [first, *self.launcher[1:], '-np', ranks]

    def variables(self, interpreter, folder, other):
        """The environment of the ranks. `folder` is theirs; `other` is what carries messages instead of Weir."""
        # Open MPI names its files by process IDs, which are the same in each namespace.
        temporary = pathlib.Path(folder, 'tmp')
        temporary.mkdir()
        variables = {'MPI4PY_MPIABI': self.abi, 'TMPDIR': str(temporary),
                     'OMPI_MCA_osc_rdma_backing_directory': str(temporary), **dict(self.environment)}
        if self.fabric:
            variables |= by_provider(other) if other else {}
        else:
            # MPICH 4.0 cannot unpack derived types from fragments that cut a number, over TCP neither: an even length.
            variables |= {'UCX_TLS': f'{other or "rc"},self', 'UCX_RC_VERBS_SEG_SIZE': '8257',
                          'UCX_WARN_UNUSED_ENV_VARS': 'n'}
        if self.package:
            variables['LD_LIBRARY_PATH'] = str(interpreter.parent.parent / 'lib')
        elif self is MPICH:
            variables['LD_LIBRARY_PATH'] = mpich_as_published(pathlib.Path(folder))
        return variables


def by_provider(provider):
    """What `weir run` sets, with another provider."""
    return {'FI_PROVIDER': provider, 'OMPI_MCA_pml': 'cm', 'OMPI_MCA_mtl': 'ofi', 'OMPI_MCA_btl': 'self,ofi',
            'OMPI_MCA_osc': 'rdma,pt2pt', 'OMPI_MCA_opal_common_ofi_provider_include': provider,
            'MPIR_CVAR_CH4_NETMOD': 'ofi', 'MPIR_CVAR_NOLOCAL': '1', 'I_MPI_FABRICS': 'ofi'}


def mpich_as_published(folder):
    """A folder with the distribution's MPICH under the name that MPICH gives it."""
    found = glob.glob(LIBMPICH)
    if not found:
        raise Skip(f'no {LIBMPICH} (scripts/need.sh strangers)')
    (folder / SONAME).symlink_to(found[0])
    return str(folder)


OPEN = Mpi('Open MPI', 'openmpi', (
    *OPEN_LAUNCHER, '--mca', 'btl', 'self', '--mca', 'pml', 'ucx', '--mca', 'osc', 'ucx', '--mca', 'pml_ucx_tls', 'any',
    '--mca', 'pml_ucx_devices', 'any'))
MPICH = Mpi('MPICH', 'mpich', ('mpirun.mpich',))

# Open MPI 4.1 acknowledges no synchronous send that a matched probe finds; mpi4py then receives without one.
NO_MATCHED_PROBE = (('MPI4PY_RC_RECV_MPROBE', 'false'),)
OPEN_FABRIC = Mpi('Open MPI by weir-odp', 'openmpi', OPEN_LAUNCHER, fabric=True, environment=NO_MATCHED_PROBE,
                  others=('sockets',))
# Windows by messages, which Open MPI can do for programs that do not call MPI in several threads at once.
OPEN_WINDOWS = dataclasses.replace(OPEN_FABRIC, name='Open MPI by weir-odp, windows by messages', environment=(
    *NO_MATCHED_PROBE, ('OMPI_MCA_osc_rdma_priority', '0'), ('MPI4PY_RC_THREAD_LEVEL', 'serialized')))
MPICH_FABRIC = Mpi('MPICH 5 by weir-odp', 'mpich', ('mpiexec',), 'mpich==5.0.2', fabric=True, others=('sockets',))
INTEL_FABRIC = Mpi('Intel MPI by weir-odp', 'impi', ('mpiexec',), 'impi-rt==2021.18.1', fabric=True, others=('psm3',))
