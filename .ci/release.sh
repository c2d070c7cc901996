#!/usr/bin/env bash
# release.sh [TARGET...]: builds release archives in build/release, of this revision, a Homebrew formula of those for
# macOS and Linux, and winget's manifests of that for Windows. Targets: linux-amd64, linux-arm64, windows-amd64, darwin-amd64, darwin-arm64; by default those for which
# this machine has a C compiler. .ci/setup.sh cross installs the one for linux-arm64, Debian's gcc-mingw-w64-x86-64 is the one
# for windows-amd64. For macOS it is clang there, and elsewhere Zig, which .ci/zig/setup.sh fetches.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly GORELEASER=github.com/goreleaser/goreleaser/v2@v2.14.3

have() { command -v "$1" >/dev/null 2>&1; }
found=()
[ "$(uname -sm)" != "Linux x86_64" ] || found+=(linux-amd64)
! have aarch64-linux-gnu-gcc || found+=(linux-arm64)
! have x86_64-w64-mingw32-gcc || found+=(windows-amd64)
if [ "$(uname -s)" = Darwin ]; then
	DARWIN_CC=clang
	found+=(darwin-amd64 darwin-arm64)
else
	DARWIN_CC=$PWD/.ci/zig/cc
	case ${*:-darwin} in *darwin*) ! .ci/zig/setup.sh || found+=(darwin-amd64 darwin-arm64) ;; esac
fi
TARGETS=${*:-${found[*]}}
REVISION=$(git describe --tags --always --dirty --abbrev=12)
export TARGETS REVISION DARWIN_CC
echo "release: $REVISION for $TARGETS" >&2

# Archives have the same completions and manual page for all targets, so this machine's program writes them.
mkdir -p build/archive/completion
go build -buildvcs=false -ldflags "-X github.com/gpupipe/gpupipe/internal/version.revision=$REVISION" -o build/archive/gpupipe ./cmd/gpupipe
for shell in bash zsh fish; do build/archive/gpupipe completion $shell >build/archive/completion/gpupipe.$shell; done
build/archive/gpupipe man >build/archive/gpupipe.1

go run "$GORELEASER" release --config .ci/goreleaser.yaml --snapshot --clean

case $TARGETS in *darwin*) go run ./internal/testing/machocheck build/release/darwin-*/gpupipe ;; esac
.ci/formula.sh "$REVISION" >build/release/gpupipe.rb
.ci/winget.sh "$REVISION"
