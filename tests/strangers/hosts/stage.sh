#!/bin/sh
# stage.sh ADDRESS_A ADDRESS_B COMMAND...: joins this network namespace to a second one, "host B", by a veth pair, and
# runs the command here with the folder of this file first in PATH.
set -eu
export ADDRESS_A="$1" ADDRESS_B="$2"
shift 2
own=$(readlink /proc/self/ns/net)
unshare --net sleep infinity &
export HOST_B=$!
on_b="nsenter --net=/proc/$HOST_B/ns/net"
while [ "$(readlink "/proc/$HOST_B/ns/net")" = "$own" ]; do
    sleep 0.05
done
ip link add hosta mtu 9000 type veth peer name hostb mtu 9000 netns "$HOST_B"
ip address add "$ADDRESS_A/24" dev hosta
ip link set hosta up
$on_b ip link set lo up
$on_b ip address add "$ADDRESS_B/24" dev hostb
$on_b ip link set hostb up
PATH="$(dirname "$(readlink -f "$0")"):$PATH"
exec "$@"
