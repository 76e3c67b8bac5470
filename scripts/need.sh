#!/bin/sh
# Installs what `make demo` or `make test` needs and is missing, through apt; says what and why.
# Usage: scripts/need.sh demo|test|conformance
set -eu

# Package, what shows that it is there (a program, or a file), for which of us, why.
packages() {
    cat <<'END'
perftest        ib_write_bw                        demo,test  the programs that run over Weir
ibverbs-utils   ibv_rc_pingpong                    test       more programs that run over Weir
iperf3          iperf3                             demo,test  TCP over the same path, to compare with
iproute2        ip                                 demo,test  makes network namespaces and joins them
libibverbs-dev  /usr/include/infiniband/verbs.h    demo,test,conformance  headers and library to build weir-verify with
gcc             cc                                 demo,test,conformance  links the library, builds weir-verify
libc6-dev       /usr/include/stdlib.h              demo,test,conformance  headers to build weir-verify with
tshark          tshark                             test       reads Weir's captures, to compare
ucx-utils       ucx_perftest                       test       a peer in the benches
python3-pyverbs /usr/lib/python3/dist-packages/pyverbs  test,conformance  rdma-core's own tests, and what they need
iptables        iptables-legacy                    test       closes ports one way, between namespaces of its own
util-linux      setpriv                            test       runs programs as another user
END
}

there() {
    case $1 in
        /*) [ -e "$1" ] ;;
        *) PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null ;;
    esac
}

if ! command -v cargo >/dev/null; then
    echo "cargo is missing: install Rust from https://rustup.rs (Debian's own is too old)" >&2
    exit 1
fi

missing=
while read -r package sign who why; do
    case ,$who, in *,"$1",*) ;; *) continue ;; esac
    if ! there "$sign"; then
        echo "missing: $package ($why)"
        missing="$missing $package"
    fi
done <<END
$(packages)
END
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "No apt here: install the counterparts of$missing by this system's means." >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "Not root, so nothing can be installed. As root: apt-get install$missing" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # a list of words
install() { apt-get install -y -q --no-install-recommends $missing; }
# The package lists may be absent, or so old that they name files that are gone.
install || { apt-get update -q && install; }
