#!/usr/bin/env bash
# Drives redis-cli through proxies: redis-cli.sh NAME=single|cluster@HOST:PORT[,HOST:PORT]...
# Prints one line per target, protocol and feature that works; what does not is printed
# with its error. For a cluster redis-cli runs with -c.
set -uo pipefail
export HOME=$(mktemp -d) # no history, no settings of the user's
trap 'rm -rf "$HOME"' EXIT

cli() { timeout 30 redis-cli "${options[@]}" "$@" 2>&1; }

same() { # same GOT WANT
	[ "$1" = "$2" ] || { echo "got '$1', want '$2'"; return 1; }
}

strings() {
	same "$(cli SET "$p:s" 'v w')" OK &&
		same "$(cli GET "$p:s")" 'v w' &&
		same "$(cli --no-raw GET "$p:none")" '(nil)' &&
		same "$(cli MSET "$tag:a" 1 "$tag:b" 2)" OK &&
		same "$(cli MGET "$tag:a" "$tag:b")" $'1\n2' &&
		same "$(cli DEL "$tag:a" "$tag:b")" 2 &&
		same "$(cli -r 3 INCR "$p:n")" $'1\n2\n3'
}

hashes() {
	local key=$tag:cfg:c # CoSky's form: read from the near-cache
	same "$(cli HSET "$key" version 1)" 1 || return
	for version in 2 3; do
		same "$(cli HSET "$key" version $version)" 0 &&
			same "$(cli -r 3 HGETALL "$key" | tr ' ' '\n')" "$(printf "version\n$version\n%.0s" 1 2 3)" || return
	done
	[[ $(cli LPUSH "$key" x) == WRONGTYPE* ]]
}

pipeline() {
	local out
	out=$(for i in {1..1000}; do echo "SET $p:p$i $i"; done | cli --pipe) || return
	[[ $out == *'errors: 0, replies: 1000' ]] || { echo "$out"; return 1; }
	same "$(for i in {1..1000}; do echo "GET $p:p$i"; done | cli)" "$(seq 1000)"
}

transaction() {
	same "$(printf 'MULTI\nSET %s 1\nINCR %s\nGET %s\nEXEC\n' "$tag:t" "$tag:t" "$tag:t" | cli)" \
		$'OK\nQUEUED\nQUEUED\nQUEUED\nOK\n2\n2'
}

watch() {
	local lines
	same "$(cli SET "$tag:w" 1)" OK || return
	coproc session { cli; }
	echo "WATCH $tag:w" >&"${session[1]}"
	read -r -t 30 -u "${session[0]}" lines && same "$lines" OK || return
	same "$(cli SET "$tag:w" 9)" OK || return
	printf 'MULTI\nINCR %s\nEXEC\nGET %s\n' "$tag:w" "$tag:w" >&"${session[1]}"
	lines=
	for _ in {1..4}; do
		read -r -t 30 -u "${session[0]}" line || return
		lines+="$line|"
	done
	eval "exec ${session[1]}>&-"
	wait "$session_PID"
	same "$lines" 'OK|QUEUED||9|'
}

blocking() {
	cli BLPOP "$p:queue" 20 >"$HOME/job" &
	same "$(cli LPUSH "$p:queue" job)" 1 && wait $! && same "$(cat "$HOME/job")" "$p:queue"$'\njob'
}

# await FILE TEXT: until TEXT is in FILE.
await() {
	local i
	for ((i = 0; i < 600; i++)); do
		grep -qF -- "$2" "$1" && return
		sleep 0.05
	done
	echo "no '$2' in '$(cat "$1")'"
	return 1
}

pubsub() {
	local out=$HOME/messages listener result=0
	redis-cli "${options[@]}" PSUBSCRIBE "$p:p*" "$p:c*" >"$out" 2>&1 </dev/null &
	listener=$!
	await "$out" "$p:c*" && cli PUBLISH "$p:pattern" one >/dev/null && cli PUBLISH "$p:channel" two >/dev/null &&
		await "$out" one && await "$out" two || result=1
	kill $listener
	wait $listener 2>/dev/null
	return $result
}

scripts() {
	local add="return redis.call('INCRBY', KEYS[1], ARGV[1])" sha
	sha=$(cli SCRIPT LOAD "$add") &&
		same "$(cli EVALSHA "$sha" 1 "$p:script" 2)" 2 &&
		same "$(cli EVAL "$add" 1 "$p:script" 3)" 5
}

scan() {
	same "$(cli SADD "$p:set" $(seq 1000))" 1000 &&
		same "$(sscan | sort -n)" "$(seq 1000)" || return
	for i in {1..100}; do echo "SET $p:scan:$i x"; done | cli >/dev/null
	same "$(cli --scan --pattern "$p:scan:*" | sort -u)" "$(printf "$p:scan:%d\n" {1..100} | sort)"
}

sscan() {
	local cursor=0 page
	while :; do
		mapfile -t page < <(cli SSCAN "$p:set" "$cursor" COUNT 100)
		printf '%s\n' "${page[@]:1}"
		cursor=${page[0]}
		[ "$cursor" != 0 ] || return 0
	done
}

for target; do
	name=${target%%=*}
	kind=${target#*=}
	kind=${kind%%@*}
	address=${target#*@}
	address=${address%%,*}
	for protocol in 2 3; do
		options=(-h "${address%:*}" -p "${address##*:}" "-$protocol")
		[ "$kind" = single ] || options+=(-c)
		p=cli:$name:$protocol tag={cli:$name:$protocol}
		for feature in strings hashes pipeline transaction watch blocking pubsub scripts scan; do
			if problem=$($feature); then
				echo "$name RESP$protocol $feature"
			else
				problem=${problem//$'\n'/ }
				echo "$name RESP$protocol $feature: ${problem:0:500}"
			fi
		done
	done
done
