#!/bin/sh
# Sets up Weir on a machine of a CI service, so that every program there uses it: on Debian or Ubuntu, as root or with
# sudo. It builds Weir from the sources that this script is part of, or installs a package that `make deb` has made.
#
#   setup.sh [--preload] [PACKAGE.deb]
set -eu

preload=
if [ "${1:-}" = --preload ]; then
	preload=--preload
	shift
fi
package=${1:-}
source=$(cd "$(dirname "$0")/../.." && pwd)

root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
install() {
	root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@"
}

root apt-get -q update
if [ -n "$package" ]; then
	install "$(cd "$(dirname "$package")" && pwd)/$(basename "$package")"
else
	install gcc libc6-dev libibverbs-dev make
	if ! command -v cargo >/dev/null; then
		install ca-certificates curl
		curl -fsS https://sh.rustup.rs | sh -s -- -y -q --profile minimal
		PATH=$HOME/.cargo/bin:$PATH
	fi
	make -C "$source" build
	# Nothing is left to build; without cargo in root's PATH it could not be built either.
	root make -C "$source" install-built
fi
# shellcheck disable=SC2086 # no word if it is empty
root weir install --system $preload
# weir_lo is a device only if loopback is up, which it is not in a new network namespace.
weir devices
