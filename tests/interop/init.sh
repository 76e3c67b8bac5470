#!/bin/sh
# The guest's first process: loads the modules, adds Soft-RoCE to the interface, and then runs the commands that come
# over a port of the virtual console, one in a line. After a command's output comes "@@ended STATUS".
export PATH=/usr/bin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do
	insmod "/modules/$module" || echo "$module: failed"
done < /modules/order
/usr/bin/ip link set lo up
/usr/bin/ip link set eth0 up
rdma link add rxe0 type rxe netdev eth0
ulimit -l unlimited
cat /proc/uptime

port=$(echo /dev/vport*p1)
# It can be opened only once.
exec 3<> "$port" <&3 >&3 2>&1
echo "@@ended 0"
while :; do
	# Nothing can be read until qemu has connected the port.
	while read -r line; do
		sh -c "$line" < /dev/null
		echo "@@ended $?"
	done
	sleep 0.1
done

