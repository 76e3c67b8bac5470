#!/bin/sh
# What contrib has for CI, run as the services run it, on minimal Debian systems; then the image. Root and the network
# are needed.
#
#   ci.sh DEB
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)

if [ -z "${MACHINE:-}" ]; then
	system=$("$source/scripts/bookworm.sh")
	for service in github gitlab; do
		"$source/scripts/machine.sh" -n -b "$(cd "$(dirname "$1")" && pwd):/mnt/dist" -b "$source:/mnt/weir" \
			"$system" "$0" "/mnt/dist/$(basename "$1")" $service
	done
	[ -n "${WITHOUT_IMAGE:-}" ] || exec "$source/tests/image.sh"
	exit
fi
package=$1

on() { chroot "$MACHINE" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"; }
# The job's own step, on loopback: no word of it is about Weir. The server's port, 18515, is 4853 in hexadecimal.
job() {
	on apt-get -q install -y --no-install-recommends perftest >/dev/null 2>&1
	unshare --net sh -c 'ip link set lo up; exec chroot "$@"' sh "$MACHINE" /bin/sh -c '
		timeout 60 ib_write_bw -n 500 & server=$!
		until grep -qs ":4853 .* 0A " /proc/net/tcp /proc/net/tcp6; do kill -0 $server && sleep 0.05 || exit 1; done
		timeout 60 ib_write_bw -n 500 127.0.0.1 && wait $server' >/dev/null
}
# Prints a value of a YAML file: FILE, and a Python expression of what it holds.
yaml() { python3 -c 'import sys, yaml; print(eval(sys.argv[2], {"y": yaml.safe_load(open(sys.argv[1]))}))' "$@"; }

# A machine of GitHub has sudo; this one is root. Its apt drops privileges, which the machine's network may not permit.
echo 'APT::Sandbox::User "root";' > "$MACHINE/etc/apt/apt.conf.d/50root"
case $2 in
github)
	file=$source/contrib/github-action/action.yml
	[ "$(yaml "$file" 'y["runs"]["using"], len(y["runs"]["steps"]), y["runs"]["steps"][0]["shell"]')" = \
		"('composite', 1, 'bash')" ]
	# The service replaces these expressions.
	[ "$(yaml "$file" 'y["runs"]["steps"][0]["env"]["SETUP"]')" = '${{ github.action_path }}/../ci/setup.sh' ]
	[ "$(yaml "$file" 'sorted(y["inputs"])')" = "['package', 'preload']" ]
	yaml "$file" 'y["runs"]["steps"][0]["run"]' > "$MACHINE/tmp/step"
	on SETUP=/mnt/weir/contrib/github-action/../ci/setup.sh PACKAGE="$package" \
		PRELOAD="$(yaml "$file" 'y["inputs"]["preload"]["default"]')" bash -eo pipefail /tmp/step >"$MACHINE/tmp/out" 2>&1 ||
		{ cat "$MACHINE/tmp/out"; exit 1; }
	on ls /sys/class/infiniband >/dev/null || { echo "no preload" >&2; exit 1; }
	;;
gitlab)
	file=$source/contrib/gitlab-ci.yml
	# The image rust:1-bookworm has git.
	on apt-get -q update >/dev/null
	on apt-get -q install -y --no-install-recommends git >/dev/null 2>&1
	mkdir "$MACHINE/srv/weir"
	(cd "$source" && git ls-files -z | tar --null -T - -c) | tar -C "$MACHINE/srv/weir" -x --no-same-owner
	on sh -c 'cd /srv/weir && git init -q && git add . && git -c user.name=x -c user.email=x@invalid commit -qm x'
	yaml "$file" '"\n".join(y[".weir"]["before_script"])' > "$MACHINE/tmp/step"
	on bash -eo pipefail /tmp/step >/dev/null 2>&1 && { echo "no error without WEIR_REPOSITORY" >&2; exit 1; }
	on WEIR_REPOSITORY=file:///srv/weir WEIR_PACKAGE="$package" bash -eo pipefail /tmp/step >"$MACHINE/tmp/out" 2>&1 ||
		{ cat "$MACHINE/tmp/out"; exit 1; }
	;;
esac
job
echo "$2: the job's programs use Weir"
