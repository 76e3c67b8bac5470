#!/bin/sh
# The packages of `make deb` and `make dist` on minimal Debian systems. Root and the network are needed.
#
#   packages.sh DEB TARBALL
set -eu

if [ -z "${MACHINE:-}" ]; then
	here=$(cd "$(dirname "$0")/.." && pwd)
	system=$("$here/scripts/bookworm.sh")
	for kind in deb tarball; do
		"$here/scripts/machine.sh" -n -b "$(cd "$(dirname "$1")" && pwd):/mnt/dist" "$system" "$0" $kind \
			"/mnt/dist/$(basename "$1")" "/mnt/dist/$(basename "$2")"
	done
	exit
fi

# On the machine, with its network, and with loopback alone.
on() { chroot "$MACHINE" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp "$@"; }
alone() { unshare -n sh -c 'ip link set lo up && exec chroot "$@"' sh "$MACHINE" env -i HOME=/tmp \
	PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
fail() { echo "$*" >&2; exit 1; }
install() {
	on env DEBIAN_FRONTEND=noninteractive apt-get -q -o APT::Sandbox::User=root install -y --no-install-recommends "$@" \
		>"$MACHINE/tmp/apt" 2>&1 || fail "$(cat "$MACHINE/tmp/apt")"
}
# PREFIX: a command before each program of the transfer. The server listens on port 18515, 4853 in hexadecimal.
transfer() {
	alone sh -c "timeout 60 $1 ib_write_bw -n 500 & server=\$!
		until grep -qs ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do kill -0 \$server && sleep 0.05 || exit 1; done
		timeout 60 $1 ib_write_bw -n 500 127.0.0.1 && wait \$server" >"$MACHINE/tmp/out" 2>&1 ||
		fail "$1 ib_write_bw: $(cat "$MACHINE/tmp/out")"
}
ours() { (cd "$MACHINE" && find . -xdev \( -path ./tmp -o -path ./mnt -o -path ./dev/shm \) -prune -o -iname '*weir*' -print); }

on apt-get -q -o APT::Sandbox::User=root update >/dev/null
case $1 in
deb)
	install "$2" perftest ibverbs-utils
	on weir version
	alone weir run -- ibv_devices | grep weir_lo
	transfer "weir run --"
	for page in weir weir-run weir-lab-run; do
		[ -s "$MACHINE/usr/share/man/man1/$page.1.gz" ] || fail "no page $page"
	done
	on sh -c 'ldd /usr/lib/weir/weir-*' | grep 'not found' && fail "a program of the package does not start"
	on weir install --system --preload
	transfer ""
	install --reinstall "$2"
	grep -q 'install --system again' "$MACHINE/tmp/apt" || fail "the update does not name weir install"
	on apt-get -q -o APT::Sandbox::User=root purge -y weir >"$MACHINE/tmp/apt" 2>&1 || fail "$(cat "$MACHINE/tmp/apt")"
	alone ibv_devices 2>/dev/null | grep weir_ && fail "there are devices after the package is removed"
	left=$(ours) || true
	[ -z "$left" ] || fail "left: $left"
	;;
tarball)
	mkdir "$MACHINE/srv/elsewhere"
	tar -C "$MACHINE/srv/elsewhere" -xzf "$MACHINE$3"
	weir=$(cd "$MACHINE" && echo srv/elsewhere/*/bin/weir)
	on "/$weir" version
	# Without the distribution's libibverbs, too.
	alone "/$weir" run -- true
	install perftest ibverbs-utils
	alone "/$weir" env | grep -q 'LD_LIBRARY_PATH=/srv/elsewhere/.*/lib/weir$' || fail "another folder"
	transfer "/$weir run --"
	# Any user, by a link, from another folder.
	ln -s "/$weir" "$MACHINE/usr/bin/weir"
	transfer "setpriv --reuid=65534 --regid=65534 --clear-groups weir run --"
	;;
esac
echo "$1: works on a minimal Debian 12"
