#!/bin/sh
# Links libibverbs.so.1 from the static library that cargo built, with the version nodes of libibverbs.map.
#
#   link.sh PROFILE_DIR OUT_DIR      for example: link.sh target/release out
#
# LDFLAGS has more options for the linker.
#
# OUT_DIR/lib/weir/libibverbs.so.1   needs no other libibverbs. Private symbols that provider libraries need (libmlx5,
#                                    libefa: perftest and UCX are linked to them) are those of private.list, and what
#                                    the distribution's libibverbs has beside them.
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

# Prints the private symbols as "KIND NODE NAME": those of private.list in each node of the map, and those of the
# distribution's library in its node.
private_symbols() {
	nodes=$(sed -n 's/^IBVERBS_PRIVATE_\([0-9]*\) {$/\1/p' "$here/libibverbs.map")
	for node in $nodes; do
		sed -n "s/^\([a-z][a-z]*\)  *\([A-Za-z0-9_]*\)$/\1 $node \2/p" "$here/private.list"
		echo "none $node verbs_register_driver_$node"
	done
	distribution=$(distribution_library || true)
	[ -n "$distribution" ] || return 0
	# Of a release that private.list does not know.
	nm -D --defined-only --with-symbol-versions "$distribution" 2>/dev/null |
		sed -n 's/^.* \([A-Za-z]\) \([A-Za-z0-9_]*\)@@*IBVERBS_PRIVATE_\([0-9]*\)$/\1 \2 \3/p' |
		while read -r type name node; do
			case $type in
			[TW]) kind=errno ;;
			*) kind=data ;;
			esac
			case $name in
			IBVERBS_PRIVATE_* | ibv_query_gid_type | ibv_wr_opcode_str | verbs_register_driver_*) ;;
			*)
				if ! echo "$nodes" | grep -qx "$node" || ! grep -q " $name\$" "$here/private.list"; then
					echo "$kind $node $name"
				fi
				;;
			esac
			echo "$nodes" | grep -qx "$node" || echo "node $node"
		done
}

# Writes private.c and the version script into the scratch folder.
private_symbols | sort -u > "$scratch/private"
cp "$here/libibverbs.map" "$scratch/map"
{
	echo '#include "private.h"'
	while read -r kind node name; do
		case $kind in
		node)
			echo "IBVERBS_PRIVATE_$node { global: ibv_query_gid_type; ibv_wr_opcode_str; };" >> "$scratch/map"
			echo "IN_NODE($node)"
			echo "PRIVATE(none, $node, verbs_register_driver_$node)"
			;;
		data) echo "PRIVATE_DATA($node, $name)" ;;
		*) echo "PRIVATE($kind, $node, $name)" ;;
		esac
	done < "$scratch/private"
} > "$scratch/private.c"

for source in "$here/versions.c" "$here/ends.c" "$scratch/private.c"; do
	"$CC" -c -O2 -fPIC -Wall -I "$here" -o "$scratch/$(basename "$source" .c).o" "$source"
done
# It exports only what the map lists, and private symbols. The library is never unloaded: its thread and its fault
# handlers must not lose their code.
output=$lib/libibverbs.so.1
mkdir -p "$lib"
"$CC" -shared -o "$output.$$" -Wl,-soname,libibverbs.so.1 \
	-Wl,--version-script="$scratch/map" \
	"$scratch/versions.o" "$scratch/ends.o" "$scratch/private.o" \
	-Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
	-Wl,--gc-sections -Wl,-z,relro -Wl,-z,now -Wl,-z,nodelete -Wl,-z,defs -Wl,--as-needed \
	-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc ${LDFLAGS:-}
mv "$output.$$" "$output"
# Of an earlier build.
rm -rf "$lib/plain"
