#!/usr/bin/env bash
# Puts the jars that pom.xml names, with what they need, into DIR: fetch.sh DIR
# Fails unless they are exactly those of jars.sha256 (made by: cd DIR && sha256sum *.jar).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mvn --quiet --batch-mode --file "$here/pom.xml" \
	org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
	-DincludeScope=runtime -DoutputDirectory="$1"
cd "$1"
sha256sum --quiet --strict --check "$here/jars.sha256"
[ "$(ls | wc -l)" = "$(wc -l <"$here/jars.sha256")" ] || {
	echo "there are jars that jars.sha256 does not list:" *.jar >&2
	exit 1
}
