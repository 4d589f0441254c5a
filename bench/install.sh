#!/usr/bin/env bash
# Installs Redis' tools and nutcracker (twemproxy), where they are missing and can be installed (Debian,
# Ubuntu), and makes sure that the services which come with the packages do not run. The benchmark
# does without nutcracker, and says itself what else it lacks.
set -euo pipefail

missing=()
for pair in redis-server:redis-server redis-tools:redis-benchmark nutcracker:nutcracker; do
	PATH=$PATH:/usr/sbin hash "${pair#*:}" 2>/dev/null || missing+=("${pair%:*}")
done
[ ${#missing[@]} -gt 0 ] || exit 0

go_on() {
	echo "${missing[*]} not installed: $1" >&2
	exit 0
}
command -v apt-get >/dev/null || go_on "there is no apt-get"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null || go_on "it needs root or sudo"
	as_root=(sudo -n)
fi

export DEBIAN_FRONTEND=noninteractive
install() { "${as_root[@]}" apt-get install -y -q --no-install-recommends "$@"; }
install "${missing[@]}" || {
	"${as_root[@]}" apt-get update -q || true
	# One by one: not every distribution has nutcracker.
	for package in "${missing[@]}"; do
		install "$package" || echo "$package not installed: apt-get failed" >&2
	done
}

# Only services that came just now: what somebody runs on purpose stays.
for service in "${missing[@]}"; do
	[ "$service" != redis-tools ] || continue
	if [ -d /run/systemd/system ]; then
		"${as_root[@]}" systemctl disable --now "$service" || true
	elif [ -x "/etc/init.d/$service" ]; then
		"${as_root[@]}" "/etc/init.d/$service" stop || true
		"${as_root[@]}" update-rc.d "$service" disable || true
	fi
done
