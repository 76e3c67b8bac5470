#!/bin/sh
# Installs by apt the missing packages that `make demo`, `make test` and so on need, and prints their use.
# Usage: scripts/need.sh demo|test|interop|conformance|packages|examples|strangers|ci
set -eu

# Package; a program or a pattern of files that shows that it is installed; the users of it (arguments of this script);
# its use.
packages() {
    cat <<'END'
perftest        ib_write_bw                        demo,test,interop  the programs that run over Weir
ibverbs-utils   ibv_rc_pingpong                    test,interop more programs that run over Weir
rdmacm-utils    rping                              test,interop programs that connect by librdmacm
iperf3          iperf3                             demo,test  TCP over the same path, for comparison
iproute2        ip                                 demo,test,interop,strangers  creates and joins network namespaces
libibverbs-dev  /usr/include/infiniband/verbs.h    demo,test,interop,conformance,strangers  headers and library to build weir-verify with
librdmacm-dev   /usr/include/rdma/rdma_cma.h       test       a program of the tests that connects by librdmacm
gcc             cc                                 demo,test,interop,conformance,strangers  links the library, builds weir-verify
libc6-dev       /usr/include/stdlib.h              demo,test,interop,conformance,strangers  headers to build weir-verify with
tshark          tshark                             test       reads Weir's captures, for comparison
chromium        chromium                           test       opens the page of `weir analyze --html`
chromium-driver chromedriver                       test       clicks in it
ucx-utils       ucx_perftest                       test       UCX over Weir, and a baseline in the benches
libucx-dev      /usr/include/ucp/api/ucp.h         test       headers to build a program of the tests that uses UCX
libopenmpi-dev  mpicc.openmpi                      test       MPI programs over Weir
openmpi-bin     mpirun.openmpi                     test,strangers  starts them
libmpich-dev    mpicc.mpich                        test       the other MPI over Weir
libfabric-bin   fi_pingpong                        test       libfabric over Weir, and a baseline in the benches
libfabric-dev   /usr/include/rdma/fabric.h         test,strangers  what the provider weir-odp is compared with; builds fabtests
make            make                               strangers  as libfabric-dev
autoconf        autoreconf                         strangers  builds fabtests from a checkout
automake        automake                           strangers  as autoconf
libtool         libtoolize                         strangers  as autoconf
procps          ps                                 strangers  ends programs of fabtests
libnl-route-3-dev /usr/include/libnl3/netlink/route/rtnl.h  strangers  builds pyverbs
pkg-config      pkg-config                         strangers  as libnl-route-3-dev
python3-dev     /usr/include/python3*/Python.h     strangers  as libnl-route-3-dev
librdmacm-dev   /usr/include/rdma/rdma_cma.h       strangers  builds a Rust crate that connects by librdmacm
mpich           mpirun.mpich                       test,strangers    starts its programs
qperf           qperf                              test       more measurements over Weir
lammps          lmp                                test       a real application of MPI, over the provider weir-odp
netpipe-mpich2  NPmpich2                           test       NetPIPE over Weir
netpipe-openmpi NPopenmpi                          test       as netpipe-mpich2
python3-pyverbs /usr/lib/python3/dist-packages/pyverbs  test,conformance  rdma-core's tests and their dependencies
iptables        iptables-legacy                    test       closes ports in one direction, in namespaces of the tests
util-linux      setpriv                            test,interop,strangers  runs programs as another user
qemu-system-x86 qemu-system-x86_64                 test,interop  a guest with the kernel's Soft-RoCE
ibverbs-providers /etc/libibverbs.d/rxe.driver     test,interop  Soft-RoCE's part in the guest's programs
busybox-static  busybox                            test,interop  the guest's shell
cpio            cpio                               test,interop  packs the guest's files
kmod            modprobe                           test,interop  finds the guest's modules
debootstrap     debootstrap                        packages,ci  makes a minimal Debian to install packages on
buildah         buildah                            ci         builds the image of contrib/Containerfile
python3-yaml    /usr/lib/python3/dist-packages/yaml  ci       reads what contrib has for CI
cmake           cmake                              examples,strangers  builds the libraries of Rust programs
libclang-dev    /usr/lib/llvm-*/lib/libclang.so    examples,strangers  as cmake
python3-venv    /usr/lib/python3*/ensurepip        test,strangers  installs programs from PyPI
groff-base      groff                              test       renders the manual pages
default-jdk-headless javac                        strangers  a program in Java that uses verbs
golang-go       go                                 strangers  a program in Go that uses verbs
libjemalloc2    /usr/lib/*/libjemalloc.so.2  test       an allocator that programs preload
libtcmalloc-minimal4 /usr/lib/*/libtcmalloc_minimal.so.4  test  as libjemalloc2
END
}

there() {
    case $1 in
        # A pattern, because releases have other versions.
        # shellcheck disable=SC2086
        /*) set -- $1 && [ -e "$1" ] ;;
        *) PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null ;;
    esac
}

if ! command -v cargo >/dev/null; then
    echo "cargo is missing: install Rust from https://rustup.rs (Debian's own is too old)" >&2
    exit 1
fi

missing=
while read -r package sign users why; do
    case ,$users, in *,"$1",*) ;; *) continue ;; esac
    if ! there "$sign"; then
        echo "missing: $package ($why)"
        missing="$missing $package"
    fi
done <<END
$(packages)
END
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "apt-get is missing: install the equivalents of$missing with this system's package manager." >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "Not root, so nothing can be installed. As root: apt-get install$missing" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # a list of words
install() { apt-get install -y -q --no-install-recommends $missing; }
# The package lists may be missing, or so old that they name packages that no longer exist.
install || { apt-get update -q && install; }
