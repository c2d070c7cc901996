#!/usr/bin/env bash
# Tests every package whose tests need neither a device nor a browser: those that import no backend that computes and
# start no Chromium; without equaltest, which trains for as long as a third of the others take. They run the core of
# their cases: internal/testing/tier. Arguments are passed on to go test. On Linux a tiny model trains on the CPU, too.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=$(go list -test -f '{{if .ForTest}}{{.ForTest}} {{join .Deps " "}}{{end}}' ./... |
  awk '{ device[$1] += / github.com\/gpupipe\/gpupipe\/(runtime\/(webgpu|vulkan|cpu)|internal\/chromium)( |$)/ }
    END { for (package in device) if (!device[package] && package !~ /\/equaltest$/) print package }' | sort)
# shellcheck disable=SC2086 # one word a package
GPUPIPE_TESTS=core go test -vet=off -timeout 1h "$@" $packages

# Smoke training on the CPU: pipelines compute the bits of one device.
[ "$(uname -s)" != Linux ] ||
  go test -vet=off -timeout 10m -run '^TestSynchronousPipelinesEqualOneDevice$' ./pipeline/train/cputest
