#!/usr/bin/env bash
# Builds the page of examples/browser into a folder, build/browser unless another is named: static files, to be served by anything.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly OUT=${1:-build/browser}
mkdir -p "$OUT"
GOOS=js GOARCH=wasm go build -trimpath -ldflags="-s -w" -o "$OUT/trainer.wasm" ./examples/browser
cp examples/browser/index.html examples/browser/app.js "$(go env GOROOT)/lib/wasm/wasm_exec.js" "$OUT/"
cat docs/RATIONALE.md docs/HOOKS.md >"$OUT/sample.txt"
