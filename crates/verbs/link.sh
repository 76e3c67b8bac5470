#!/bin/sh
# Links libibverbs.so.1 from the static library that cargo built, with the version nodes of libibverbs.map.
#
#   link.sh PROFILE_DIR OUT_DIR [LIBRARY]      for example: link.sh target/release out
#
# LIBRARY is the libibverbs.so.1 that provider libraries need, by default the distribution's.
#
# OUT_DIR/lib/weir/libibverbs.so.1        needs the distribution's library too, for the private symbols that provider
#                                         libraries need (libmlx5, libefa: perftest and UCX are linked to them)
# OUT_DIR/lib/weir/plain/libibverbs.so.1  needs no other libibverbs; the only one where the distribution has none
set -eu

if [ $# -ne 2 ] && [ $# -ne 3 ]; then
	echo "usage: $0 PROFILE_DIR OUT_DIR [LIBRARY]" >&2
	exit 2
fi
archive=$1/libweir_verbs.a
lib=$2/lib/weir
here=$(cd "$(dirname "$0")" && pwd)
: "${CC:=cc}"

if [ ! -f "$archive" ]; then
	echo "$0: no $archive: build it with 'cargo build -p weir-verbs' first" >&2
	exit 1
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Prints the path of the distribution's library as the loader will find it, for the machine that $CC compiles for.
distribution_library() {
	found=$($CC -print-file-name=libibverbs.so.1)
	case $found in
	/*) ;;
	*)
		case $($CC -dumpmachine) in
		x86_64-*) tag=x86-64 ;;
		aarch64-*) tag=AArch64 ;;
		*) tag=libc6 ;;
		esac
		found=$(PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null |
			sed -n "s/^[[:space:]]*libibverbs\.so\.1 (.*$tag.*) => //p" | head -n 1)
		;;
	esac
	# Only the name with its major version, which survives updates; no ".." in the directory.
	[ -n "$found" ] && [ -e "$found" ] && echo "$(cd "$(dirname "$found")" && pwd -P)/libibverbs.so.1"
}

# link OUTPUT [LIBRARY]: links one variant. It exports only what the map lists. The library is never unloaded: its
# thread and its fault handlers must not lose their code.
link() {
	output=$1
	shift
	mkdir -p "$(dirname "$output")"
	"$CC" -shared -o "$output.$$" -Wl,-soname,libibverbs.so.1 \
		-Wl,--version-script="$here/libibverbs.map" \
		"$scratch/versions.o" "$scratch/ends.o" \
		-Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
		-Wl,--gc-sections -Wl,-z,relro -Wl,-z,now -Wl,-z,nodelete -Wl,-z,defs \
		-Wl,--no-as-needed "$@" -Wl,--as-needed \
		-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
	mv "$output.$$" "$output"
}

for source in versions ends; do
	"$CC" -c -O2 -fPIC -Wall -o "$scratch/$source.o" "$here/$source.c"
done
link "$lib/plain/libibverbs.so.1"

distribution=${3:-$(distribution_library || true)}
if [ -n "$distribution" ]; then
	# A library with an absolute path as its soname: what links against it then needs exactly that path.
	echo > "$scratch/empty.c"
	"$CC" -shared -nostdlib -Wl,-soname,"$distribution" -o "$scratch/distribution.so" "$scratch/empty.c"
	link "$lib/libibverbs.so.1" "$scratch/distribution.so"
else
	echo "$0: the distribution has no libibverbs: programs that need its providers will not start" >&2
	link "$lib/libibverbs.so.1"
fi
