#!/usr/bin/env bash
# Compares the micro-benchmarks of this tree with those of another commit: bench/compare.sh [COMMIT]. Default is
# the last commit when the tree has changes, else the one before. Both sides are built first, then run in turns, so
# that a slow minute of the machine slows both. COUNT, BENCHTIME, PACKAGES and BENCH change what is run.
set -euo pipefail
cd "$(dirname "$0")/.."

BENCHSTAT=golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
count=${COUNT:-8}
benchtime=${BENCHTIME:-50ms}
# Framing, slots, routing, cache hits, and the whole way of a command through the proxy.
packages=${PACKAGES:-./proxy/resp ./cluster/slot ./router/command ./router ./nearcache/coskey ./nearcache ./proxy}
bench=${BENCH:-^Benchmark(Parser|Len|ReplyScanner|Of|Lookup|Resolve|Keys|Split|Classify|GroupOf|Hit|HitPerCore|Recall|Write|Trip)$}

commit=${1:-}
if [ -z "$commit" ]; then
	commit=HEAD~1
	git diff --quiet HEAD -- || commit=HEAD
fi
git rev-parse --quiet --verify "$commit^{commit}" >/dev/null || {
	echo "cannot compare: there is no commit $commit here (a shallow clone has one commit only: git fetch --unshallow)" >&2
	exit 1
}

work=$(mktemp -d)
trap 'git worktree remove --force "$work/tree" 2>/dev/null || true; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/tree" "$commit"

# build SIDE TREE: the test program of each package that TREE has.
build() {
	mkdir "$work/$1"
	for package in $packages; do
		[ -d "$2/$package" ] || continue
		(cd "$2" && go test -c -o "$work/$1/${package//\//_}" "$package")
	done
}
build old "$work/tree"
build new .

# run SIDE TREE PACKAGE: appends to SIDE.txt. A side that lacks the package has no lines.
run() {
	local program="$work/$1/${3//\//_}"
	[ -x "$program" ] || return 0
	(cd "$2/$3" && "$program" -test.run '^$' -test.bench "$bench" -test.benchtime "$benchtime") >>"$work/$1.txt"
}
for round in $(seq "$count"); do
	echo "round $round of $count" >&2
	for package in $packages; do
		run old "$work/tree" "$package"
		run new "$PWD" "$package"
	done
done

(cd "$work" && go run "$BENCHSTAT" "$(git -C tree rev-parse --short HEAD)=old.txt" this=new.txt)
