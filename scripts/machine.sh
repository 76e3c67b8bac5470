#!/bin/sh
# Runs a command as root on a machine to spoil: a system's files, with all changes in memory, its own /dev, and no
# network but loopback. Nothing of it remains.
#
#   machine.sh [-b FOLDER:PLACE]... [-n] SYSTEM COMMAND [ARGS]...
#
# SYSTEM is the folder with the system's files, / for this machine's. -b shows a folder read-only below the machine's
# PLACE. -n leaves the network as it is. The command finds the machine's folder in $MACHINE, what the machine has
# changed in $CHANGES, and runs programs of the machine by `chroot "$MACHINE" …`.
set -eu

if [ "${MACHINE_STEP:-}" = "" ]; then
	network=--net
	for word; do
		case $word in -n) network= ;; /*) break ;; esac
	done
	MACHINE_STEP=inside exec unshare --mount --propagation private $network "$0" "$@"
fi
unset MACHINE_STEP

top=/run/weir-machine
mkdir -p $top
mount -t tmpfs -o mode=755 machine $top
mkdir $top/changes $top/work $top/machine
export MACHINE=$top/machine CHANGES=$top/changes

binds=
while :; do
	case $1 in
	-b) binds="$binds $2"; shift 2 ;;
	-n) shift ;;
	*) break ;;
	esac
done
mount -t overlay -o "lowerdir=$1,upperdir=$top/changes,workdir=$top/work" machine $MACHINE
shift

for folder in proc sys dev tmp run; do
	[ -d $MACHINE/$folder ] || mkdir $MACHINE/$folder
done
mount -t proc proc $MACHINE/proc
mount -t sysfs -o ro sys $MACHINE/sys
for folder in dev tmp run; do
	mount -t tmpfs -o mode=755 $folder $MACHINE/$folder
done
chmod 1777 $MACHINE/tmp
for file in null zero full random urandom tty; do
	: > $MACHINE/dev/$file
	mount --bind /dev/$file $MACHINE/dev/$file
done
mkdir -m 1777 $MACHINE/dev/shm
ln -s /proc/self/fd $MACHINE/dev/fd
for bind in $binds; do
	mkdir -p "$MACHINE${bind#*:}"
	mount --bind "${bind%%:*}" "$MACHINE${bind#*:}"
	mount -o remount,bind,ro "$MACHINE${bind#*:}"
done
ip link set lo up 2>/dev/null || true
exec "$@"
