#!/usr/bin/env bash
# wheel.sh [TARGET...]: builds wheels with the program inside in build/wheel, of this revision. Targets: linux-amd64,
# linux-arm64, windows-amd64, darwin-arm64; by default those for which this machine has a C compiler; that for macOS is Zig
# on other systems, which .ci/zig/setup.sh fetches, and so is that for linux-arm64 where there is no aarch64-linux-gnu-gcc.
# Wheels for Linux run where glibc is 2.34 or later, those for macOS from macOS 12 on.
set -euo pipefail
cd "$(dirname "$0")/.."

have() { command -v "$1" >/dev/null 2>&1; }
readonly ZIG=$PWD/.ci/zig/cc
# usable COMPILER: reports whether it is here. Zig is fetched.
usable() { if [ "$1" = "$ZIG" ]; then .ci/zig/setup.sh; else have "$1"; fi; }
ARM_CC=aarch64-linux-gnu-gcc DARWIN_CC=$ZIG
have $ARM_CC || ARM_CC=$ZIG
[ "$(uname -s)" != Darwin ] || DARWIN_CC=cc
if [ $# = 0 ]; then
	[ "$(uname -sm)" != "Linux x86_64" ] || set -- "$@" linux-amd64
	! usable $ARM_CC || set -- "$@" linux-arm64
	! have x86_64-w64-mingw32-gcc || set -- "$@" windows-amd64
	[ "$(uname -sm)" = "Darwin x86_64" ] || ! usable $DARWIN_CC || set -- "$@" darwin-arm64
	[ $# -gt 0 ] || { echo "wheel: no C compiler for any target here: name targets to see what they expect" >&2; exit 1; }
fi
REVISION=$(git describe --tags --always --dirty --abbrev=12 2>/dev/null || true)
# A tag v1.2.3 is the version; other commits are of the version to come.
VERSION=$(git describe --tags --exact-match 2>/dev/null | sed -n 's/^v\([0-9.]*\)$/\1/p' || true)
VERSION=${VERSION:-0.1.dev$(git rev-list --count HEAD 2>/dev/null || echo 0)}

# glibc FILE: the newest version of glibc that a program asks for.
glibc() { grep -ao 'GLIBC_2\.[0-9]*' "$1" | sort -uV | tail -1 | cut -d. -f2; }

rm -rf build/wheel
mkdir -p build/wheel/programs
for target; do
	program=build/wheel/programs/gpupipe-$target
	case $target in
	linux-amd64) platform=manylinux_2_34_x86_64 cc=gcc ;;
	linux-arm64) platform=manylinux_2_34_aarch64 cc=$ARM_CC ;;
	windows-amd64) platform=win_amd64 cc=x86_64-w64-mingw32-gcc ;;
	darwin-arm64) platform=macosx_12_0_arm64 cc=$DARWIN_CC ;;
	*) echo "wheel: found the target $target, expected linux-amd64, linux-arm64, windows-amd64 or darwin-arm64" >&2; exit 2 ;;
	esac
	usable "$cc" || { echo "wheel: no C compiler for $target: expected $cc" >&2; exit 1; }
	echo "wheel: $VERSION for $target" >&2
	CGO_ENABLED=1 CC=$cc GOOS=${target%-*} GOARCH=${target#*-} go build -trimpath -buildvcs=false \
		-ldflags "-s -w -X github.com/gpupipe/gpupipe/internal/version.revision=$REVISION" -o "$program" ./cmd/gpupipe
	if [[ $target == linux-* ]] && [ "$(glibc "$program")" -gt 34 ]; then
		echo "wheel: the program for $target asks for glibc 2.$(glibc "$program"), and the wheel promises 2.34" >&2
		exit 1
	fi
	[[ $target != darwin-* ]] || go run ./internal/testing/machocheck "$program" >&2
	python3 cmd/python/wheel.py --program "$program" --platform "$platform" --version "$VERSION" --out build/wheel
done
rm -r build/wheel/programs
