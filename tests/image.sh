#!/bin/sh
# Builds the image of contrib/Containerfile with buildah, without a daemon and without a registry: in place of the images
# that it starts from, a minimal Debian 12, and the same with this machine's Rust. Runs ib_write_bw in it. Root and the
# network are needed; it takes minutes, because it builds Weir.
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
buildah() { command buildah --storage-driver vfs --root "$work/root" --runroot "$work/run" "$@"; }
trap 'command buildah --storage-driver vfs --root "$work/root" --runroot "$work/run" rm --all >/dev/null 2>&1 || true
	rm -rf "$work"' EXIT
cargo=${CARGO_HOME:-$HOME/.cargo} rustup=${RUSTUP_HOME:-$HOME/.rustup}

debian=$(buildah from scratch)
buildah add -q "$debian" "$("$source/scripts/bookworm.sh")" / >/dev/null
buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --cmd /bin/sh "$debian"
buildah commit -q "$debian" docker.io/library/debian:bookworm-slim >/dev/null
buildah run --isolation chroot "$debian" -- sh -c 'apt-get -q -o APT::Sandbox::User=root update >/dev/null &&
	DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends gcc libc6-dev make >/dev/null'
buildah config --env PATH=/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
	--env CARGO_HOME=/cargo --env RUSTUP_HOME=/rustup --env CARGO_NET_OFFLINE=true "$debian"
buildah commit -q "$debian" docker.io/library/rust:1-bookworm >/dev/null

(cd "$source" && cargo fetch -q)
# The files as git has them, without what was built.
mkdir "$work/source"
(cd "$source" && git ls-files -z | tar --null -T - -c) | tar -C "$work/source" -x
buildah build -q --isolation chroot --pull-never -v "$cargo:/cargo:O" -v "$rustup:/rustup:ro" -t weir \
	-f "$work/source/contrib/Containerfile" "$work/source"
image=$(buildah from --pull-never localhost/weir)
unshare --net sh -c 'ip link set lo up; exec "$@"' sh \
	buildah --storage-driver vfs --root "$work/root" --runroot "$work/run" run --isolation chroot "$image" -- sh -c '
	id -u; ibv_devices
	timeout 60 ib_write_bw & server=$!
	until grep -qs ":4853 .* 0A " /proc/net/tcp /proc/net/tcp6; do kill -0 $server && sleep 0.05 || exit 1; done
	timeout 60 ib_write_bw 127.0.0.1 && wait $server'
echo "the image works"
