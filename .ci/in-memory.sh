#!/usr/bin/env bash
# Runs a command with its temporary files in memory if there is room. Tests write thousands of small files and wait until
# they are durable. Go's own temporary files are large, and stay on disk. A TMPDIR that is set is kept.
set -euo pipefail
memory=/dev/shm
free=$(df --block-size=1G --output=avail "$memory" 2>/dev/null | tail -n 1) || free=0
if [ -n "${TMPDIR:-}" ] || [ "${free:-0}" -lt 4 ]; then
	exec "$@"
fi

# One folder for each clone: go test keeps results as long as TMPDIR stays the same. The last command removes it.
scratch=$memory/gpupipe-$(id -u)-$(pwd | cksum | cut -d ' ' -f 1)
exec 9>"$scratch.lock"
flock --shared 9
trap 'if flock --exclusive --nonblock 9; then rm -rf "$scratch"; fi' EXIT
mkdir -p "$scratch"
chmod 1777 "$scratch" # as /tmp is
printf '#!/bin/sh\n' >"$scratch/program.$$"
chmod +x "$scratch/program.$$"
if "$scratch/program.$$" 2>/dev/null; then # containers may forbid programs there
	export GOTMPDIR=${GOTMPDIR:-/tmp} TMPDIR=$scratch
fi
rm "$scratch/program.$$"
"$@" 9>&-
