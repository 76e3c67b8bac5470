#!/bin/sh
# Builds the examples, and runs each as a server with each as a client: examples.sh WEIR
set -eu

if [ -z "${EXAMPLES_ALONE:-}" ]; then
	EXAMPLES_ALONE=yes exec unshare --net --map-root-user "$0" "$@"
fi
weir=$1
cd "$(dirname "$0")/../examples"
ip link set lo up
c=$PWD/c/message rust=$PWD/../target/examples/debug/message
for server in "$c" "$rust"; do
	for client in "$c" "$rust"; do
		timeout 60 "$weir" run -- "$server" & pid=$!
		# Port 18700 is 490C in hexadecimal.
		until grep -qs ':490C .* 0A ' /proc/net/tcp; do
			kill -0 $pid && sleep 0.05 || exit 1
		done
		timeout 60 "$weir" run --faults loss=0.05,seed=1 -- "$client" 127.0.0.1
		wait $pid
	done
done
echo "the examples work, each with each"
