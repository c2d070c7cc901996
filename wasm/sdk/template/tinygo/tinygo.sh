#!/bin/sh
# tinygo.sh -o hook.wasm .
#
# Compiles a hook with TinyGo: the one that $TINYGO names, or 0.41.1, which is built from its Go module the first time and kept in
# ~/.cache/gpupipe. That needs Go, and on Debian and Ubuntu: apt-get install g++ llvm-19-dev libclang-19-dev lld-19 binaryen wasi-libc
set -eu

VERSION=v0.41.1
here=$(cd "$(dirname "$0")" && pwd)
home=${XDG_CACHE_HOME:-$HOME/.cache}/gpupipe/tinygo-$VERSION
die() { echo "tinygo.sh: $*" >&2; exit 1; }

[ -e /usr/lib/wasm32-wasi/libc.a ] || die "no /usr/lib/wasm32-wasi/libc.a: apt-get install wasi-libc"
command -v wasm-opt >/dev/null || [ -n "${WASMOPT:-}" ] || die "no wasm-opt: apt-get install binaryen"

if [ -z "${TINYGO:-}" ]; then
  command -v wasm-ld-19 >/dev/null || die "no wasm-ld-19: apt-get install lld-19"
  if [ ! -x "$home/bin/tinygo" ]; then
    [ -d /usr/lib/llvm-19/include/clang-c ] || die "no LLVM 19: apt-get install llvm-19-dev libclang-19-dev"
    echo "tinygo.sh: building TinyGo $VERSION, once; this takes minutes" >&2
    mkdir -p "$home/bin" "$home/src"
    (cd "$home" && GOFLAGS= go mod download "github.com/tinygo-org/tinygo@$VERSION")
    cp -R "$(go env GOMODCACHE)/github.com/tinygo-org/tinygo@$VERSION/." "$home/src"
    chmod -R u+w "$home/src"
    mkdir -p "$home/src/src/net" # a submodule, which Go modules do not hold
    (cd "$home/src" && go build -buildvcs=false -tags llvm19 -o "$home/bin/tinygo.new" .)
    mv "$home/bin/tinygo.new" "$home/bin/tinygo"
  fi
  ln -sf "$(command -v wasm-ld-19)" "$home/bin/wasm-ld"
  TINYGO=$home/bin/tinygo TINYGOROOT=$home/src PATH=$home/bin:$PATH
  export TINYGOROOT PATH
fi
exec "$TINYGO" build -target="$here/tinygo.json" -opt=2 -no-debug "$@"
