#!/bin/sh
# Prints a folder with the files of Debian's kernel package, which it downloads by apt if the folder does not exist.
# The package is not installed: its modules are for the guest.
set -eu
cd "$(dirname "$0")/../.."
folder=$PWD/target/interop/kernel
if [ ! -e "$folder/complete" ]; then
	rm -rf "$folder"
	mkdir -p "$folder/package"
	cd "$folder/package"
	newest() { apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }'; }
	package=$(newest)
	# The package lists may be missing, or so old that they name packages that no longer exist.
	[ -n "$package" ] && apt-get -q -o APT::Sandbox::User=root download "$package" >&2 ||
		{ apt-get update -q >&2 && apt-get -q -o APT::Sandbox::User=root download "$(newest)" >&2; }
	dpkg-deb -x linux-image-*.deb "$folder"
	rm -r "$folder/package"
	depmod -b "$folder" "$(ls "$folder/lib/modules")"
	: > "$folder/complete"
fi
echo "$folder"
