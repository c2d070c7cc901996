#!/usr/bin/env bash
# Runs a command with its temporary files in memory if there is room. Tests write thousands of small files and wait until
# they are durable. Go's own temporary files are large, and stay on disk. A TMPDIR that is set is kept.
set -euo pipefail
memory=/dev/shm
room() { # in memory, and in its file system, GB
	awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo
	df --block-size=1G --output=avail "$memory" | tail -n 1
}
least=$(room 2>/dev/null | sort -n | head -n 1) || least=0
if [ -n "${TMPDIR:-}" ] || [ "${least:-0}" -lt 4 ] || ! command -v flock >/dev/null; then
	exec "$@"
fi

# One folder for each clone: go test keeps results as long as TMPDIR stays the same. The last command removes it. Tests
# look for what is left in memory under the program's name, which this is not.
scratch=$memory/tests-$(id -u)-$(pwd | cksum | cut -d ' ' -f 1)
if ! mkdir -p "$scratch" || [ ! -O "$scratch" ]; then
	exec "$@"
fi
exec 9>"$scratch.lock"
flock -s 9
trap 'if flock -x -n 9; then rm -rf "$scratch" || true; fi' EXIT
mkdir -p "$scratch"
chmod 1777 "$scratch" # as /tmp is
printf '#!/bin/sh\n' >"$scratch/program.$$"
chmod +x "$scratch/program.$$"
if "$scratch/program.$$" 2>/dev/null; then # containers may forbid programs there
	export GOTMPDIR=${GOTMPDIR:-/tmp} TMPDIR=$scratch
fi
rm "$scratch/program.$$"
"$@" 9>&-
