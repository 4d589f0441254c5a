#!/usr/bin/env bash
# Installs the Redis tools that the tests start, where they are missing (Debian, Ubuntu),
# and makes sure that the services which come with the packages do not run.
# Does nothing when everything is there.
set -euo pipefail

missing=()
need() { # need PACKAGE COMMAND...: the package is missing when the command fails
	local package=$1
	shift
	"$@" >/dev/null 2>&1 || missing+=("$package")
}
need redis-server hash redis-server
need redis-sentinel hash redis-sentinel
need redis-tools hash redis-cli redis-benchmark
# For the clients that the tests drive; the clients themselves come from their registries.
need python3-pip /usr/bin/python3 -m pip --version # of the system's Python, wherever else one is
need nodejs hash node
need npm hash npm
need default-jdk-headless hash java javac
need maven hash mvn
need bsdutils hash script # a terminal for redis-cli
[ ${#missing[@]} -gt 0 ] || exit 0

give_up() {
	echo "cannot install ${missing[*]}: $1; install them yourself (redis-server and redis-sentinel 7.0 or newer) and try again" >&2
	exit 1
}
command -v apt-get >/dev/null || give_up "there is no apt-get"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null || give_up "it needs root or sudo"
	as_root=(sudo)
fi

echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# The lists are often absent or old on a fresh machine, so one failure is worth an update.
install() { "${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}"; }
install || { "${as_root[@]}" apt-get update -q && install; } || give_up "apt-get failed"

# Only services that came just now: a Redis that somebody runs on purpose stays.
for package in "${missing[@]}"; do
	case $package in redis-server | redis-sentinel) ;; *) continue ;; esac
	if [ -d /run/systemd/system ]; then
		"${as_root[@]}" systemctl disable --now "$package" || true
	elif [ -x "/etc/init.d/$package" ]; then
		"${as_root[@]}" "/etc/init.d/$package" stop || true
		"${as_root[@]}" update-rc.d "$package" disable || true
	fi
done
