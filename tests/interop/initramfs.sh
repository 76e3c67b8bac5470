#!/bin/sh
# Packs the guest's file system: busybox, the kernel's modules for Soft-RoCE, and programs of this machine with their
# libraries.
#
#   initramfs.sh KERNEL ARCHIVE PROGRAM...      KERNEL: the folder of kernel.sh
#
# A PROGRAM that ends in .so or .so.1 is a library of Weir: it goes where the command `weir` looks for it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kernel=$1 archive=$2
shift 2
version=$(ls "$kernel/lib/modules")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

cd "$root"
mkdir -p bin usr/bin etc/libibverbs.d proc sys dev tmp modules
cp "$(command -v busybox)" bin/busybox
for applet in $(bin/busybox --list); do
	# The guest has those of iproute2. The shell prefers its own applet to a name without a path.
	case $applet in busybox | ip | tc) ;; *) ln -s busybox "bin/$applet" ;; esac
done

# In the order in which they must be loaded. Those after ib_umad are for links that lose
# packets, and for a VLAN.
for module in virtio_pci virtio_net virtio_console crc32_generic ib_uverbs rdma_rxe rdma_ucm ib_umad \
	sch_prio sch_netem cls_u32 veth 8021q; do
	modprobe -d "$kernel" -S "$version" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r file; do
	cp "$file" modules/
	basename "$file" >> modules/order
done

# A program's libraries are at the same places as on this machine. The provider is loaded by name.
provider=$(ls /usr/lib/*/libibverbs/librxe-rdmav*.so)
echo "driver rxe" > etc/libibverbs.d/rxe.driver
for program; do
	case $program in *.so | *.so.1) to=usr/lib/weir ;; *) to=usr/bin ;; esac
	mkdir -p "$to"
	cp -L "$(command -v "$program")" "$to/"
done
# The guest is unpacked into memory: no debug information.
strip --strip-debug usr/bin/* usr/lib/weir/*
mkdir -p ".$(dirname "$provider")"
cp "$provider" ".$provider"
# libgcc_s is loaded when a thread is cancelled.
{
	ldd bin/busybox usr/bin/* usr/lib/weir/* "$provider" 2>/dev/null | sed -nE 's/^[[:space:]]+(.* => )?(\/[^ ]+).*/\2/p'
	ls /lib/*-linux-gnu/libgcc_s.so.1
} | sort -u | while read -r library; do
	[ -e ".$library" ] && continue
	mkdir -p ".$(dirname "$library")"
	cp -L "$library" ".$library"
done

echo root:x:0:0::/:/bin/sh > etc/passwd
echo 127.0.0.1 localhost > etc/hosts
install -m 755 "$here/init.sh" init
find . | cpio -o -H newc --quiet | gzip -1 > "$archive.new"
mv "$archive.new" "$archive"
