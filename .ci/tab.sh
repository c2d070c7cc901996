#!/usr/bin/env bash
# Builds the page of gpupipe host --browser into the folder that the program embeds, or into another one: the program of
# the page, Go's support for it and, into another folder, the page's own files. gRPC's tracing would add a third to the
# program: it imports html/template, for which the linker keeps every exported method.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly PAGE=pipeline/cluster/tab/page
readonly OUT=${1:-$PAGE}
readonly REVISION=${REVISION:-}
mkdir -p "$OUT" build
program=$(mktemp build/tab.XXXXXX)
trap 'rm -f "$program"' EXIT
GOOS=js GOARCH=wasm go build -tags=grpcnotrace -buildvcs=false -trimpath -ldflags="-s -w -X github.com/gpupipe/gpupipe/internal/version.revision=$REVISION" -o "$program" ./cmd/tab
gzip -9 -n -c "$program" >"$OUT/program.wasm.gz"
cp "$(go env GOROOT)/lib/wasm/wasm_exec.js" "$OUT/"
chmod u+w "$OUT/wasm_exec.js"
[ "$OUT" = "$PAGE" ] || cp "$PAGE"/*.html "$PAGE"/*.css "$PAGE"/page.js "$PAGE"/worker.js "$OUT/"
