#!/bin/sh
# `weir install --system` on a machine to spoil (scripts/machine.sh), with Weir below /mnt/weir.
set -eu

on() { chroot "$MACHINE" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
weir() { on /mnt/weir/bin/weir "$@"; }
fail() { echo "$*" >&2; exit 1; }

# The server listens on port 18515, which is 4853 in hexadecimal.
transfer() {
	on sh -c 'timeout 60 ib_write_bw -n 500 & server=$!
		until grep -qs ":4853 .* 0A " /proc/net/tcp /proc/net/tcp6; do kill -0 $server && sleep 0.05 || exit 1; done
		timeout 60 ib_write_bw -n 500 127.0.0.1 && wait $server' >"$MACHINE/tmp/transfer" 2>&1 ||
		fail "ib_write_bw $1: $(cat "$MACHINE/tmp/transfer")"
}
finds() { on ibv_devices | grep -q weir_; }
# UCX loads libibverbs by a plugin.
ucx_finds() { on timeout 60 ucx_info -d | grep -q 'Device: weir_'; }
# What is in the machine, its caches of the loader apart, which are written anew: names, kinds, owners, modes, contents.
tree() {
	(cd "$MACHINE" && find etc usr/local dev var -xdev \( -path dev/shm -o -path var/cache/ldconfig \
		-o -name ld.so.cache \) -prune -o -printf '%p %y %U:%G %m %l\n' | sort
	find etc usr/local -xdev -type f ! -name ld.so.cache -exec cksum {} + | sort
	chroot . /sbin/ldconfig -p)
}

# Packages of headers add links to libraries and leave the loader's cache as it was.
chroot "$MACHINE" /sbin/ldconfig
tree > "$MACHINE/tmp/before"
finds && fail "there are devices before the installation"

weir install --system
finds || fail "ibv_devices finds no device"
transfer "with --system"
ucx_finds || fail "UCX finds no device"
again=$(weir install --system)
echo "$again" | grep -Eq '^(created|updated|removed|left)' && fail "the second installation changes something: $again"

# A program with DT_RPATH keeps its library, unless Weir is preloaded.
weir install --system --preload
on ls /sys/class/infiniband | grep -q weir_ || fail "a program without libibverbs does not see /sys/class/infiniband"
on ls /dev/infiniband/uverbs0 >/dev/null || fail "no /dev/infiniband/uverbs0"
transfer "with --preload"
ucx_finds || fail "UCX finds no device with --preload"
# `weir run` loads its own library, although another copy is preloaded.
on /mnt/weir/bin/weir run -- ibv_devices | grep -q weir_ || fail "weir run beside --preload"
weir install --system | grep -q '^removed .*ld.so.preload' || fail "the line in ld.so.preload is still there"
[ ! -e "$MACHINE/etc/ld.so.preload" ] || fail "ld.so.preload is still there"

weir install --system --preload
weir install --uninstall
finds && fail "there are devices after the removal"
tree > "$MACHINE/tmp/after"
diff "$MACHINE/tmp/before" "$MACHINE/tmp/after" || fail "the removal leaves a trace"
weir install --uninstall | grep -q 'not installed' || fail "the second removal"
