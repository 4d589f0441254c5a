#!/usr/bin/env bash
# Fuzzes every target of every package: test/fuzz.sh [COUNTx|TIME]. A count ends exactly there, while
# go test sometimes takes the end of a time for a failure ("context deadline exceeded").
# What a target finds is written to testdata/fuzz beside it and from then on is part of go test.
set -euo pipefail
cd "$(dirname "$0")/.."

fuzztime=${1:-200000x}

# One line per target: package, function. `go test -list` would compile every package.
targets=$(grep -rlE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*\(' . | while read -r file; do
	sed -nE "s|^func (Fuzz[A-Za-z0-9_]*)\(.*|$(dirname "$file") \1|p" "$file"
done | sort)

while read -r package target; do
	echo "--- $package $target"
	go test -run '^$' -fuzz "^$target\$" -fuzztime "$fuzztime" "$package" </dev/null
done <<<"$targets"
