#!/bin/sh
# Prints a folder with the files of a minimal Debian 12, which it makes by debootstrap (network, root, a minute) if it
# does not exist.
set -eu
cd "$(dirname "$0")/.."
system=$PWD/target/bookworm
if [ ! -e "$system/complete" ]; then
	rm -rf "$system"
	mkdir -p "$system"
	debootstrap --variant=minbase bookworm "$system/root" >&2
	# The machines that are made of it have the network of this one.
	cp /etc/resolv.conf "$system/root/etc/resolv.conf"
	chroot "$system/root" apt-get -q clean
	: > "$system/complete"
fi
echo "$system/root"
