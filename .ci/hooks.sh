#!/usr/bin/env bash
# Builds the example hooks in examples/hooks, and those of a test, to the .wasm beside each. What they were built to is kept in the repository, so that
# nothing else needs these compilers; the same compilers make the same bytes. It builds what it has compilers for, says what was
# left out, and then fails. On Debian and Ubuntu:
#   C               apt-get install clang lld
#   Rust            apt-get install rustc libstd-rust-dev-wasm32 lld
#   AssemblyScript  apt-get install nodejs npm     (npm installs the compiler: see wasm/sdk/template/assemblyscript/package.json)
#   TinyGo          apt-get install g++ llvm-19-dev libclang-19-dev lld-19 binaryen wasi-libc     (wasm/sdk/template/tinygo/tinygo.sh does the rest)
#   Go              what builds gpupipe
set -euo pipefail
cd "$(dirname "$0")/.."
shopt -s nullglob

readonly DIR=examples/hooks LANGUAGES=examples/hooks/languages EVERY=wasm/sdk/testdata/every OUT=$PWD/build/hooks
mkdir -p "$OUT"
missing=()

have() { command -v "$1" >/dev/null 2>&1; }
leave_out() { missing+=("$1"); printf 'hooks: %s\n' "$1" >&2; }

# target SOURCE LANGUAGE: beside the source; those of the test of all hooks are called by their languages.
target() { if [ "${1%/*}" = $EVERY ]; then echo "$EVERY/$2.wasm"; else echo "${1%.*}.wasm"; fi; }

# Compiled and linked apart: clang would have a wasm-opt in the PATH rewrite what it links.
c() {
  have "${CLANG:=clang}" && have "${WASM_LD:=wasm-ld}" || { leave_out "C is left out: apt-get install clang lld"; return; }
  for source in $DIR/*.c $LANGUAGES/c/*.c $EVERY/*.c; do
    "$CLANG" --target=wasm32 -O2 -mbulk-memory -Wall -Wextra -Werror -Iwasm/sdk/c -c -o "$OUT/hook.o" "$source"
    "$WASM_LD" --no-entry --stack-first --strip-all -o "$(target "$source" c)" "$OUT/hook.o"
  done
}

# A rustc without the target's library, as rustup leaves it, must not hide the distribution's.
rust_works() { [ -d "$("$1" --print target-libdir --target wasm32-unknown-unknown 2>/dev/null)" ]; }
rust() {
  for RUSTC in "${RUSTC:-rustc}" /usr/bin/rustc; do
    rust_works "$RUSTC" && break
  done
  rust_works "$RUSTC" || { leave_out "Rust is left out: no rustc with the target wasm32-unknown-unknown: apt-get install rustc libstd-rust-dev-wasm32 lld"; return; }
  local flags=(--edition 2021 --target wasm32-unknown-unknown -C opt-level=s -C panic=abort)
  "$RUSTC" "${flags[@]}" --crate-type rlib --crate-name gpupipe -o "$OUT/libgpupipe.rlib" wasm/sdk/rust/src/lib.rs
  for source in $DIR/*.rs $LANGUAGES/rust/*.rs $EVERY/*.rs; do
    "$RUSTC" "${flags[@]}" -C lto=fat -C strip=symbols --crate-type cdylib --extern gpupipe="$OUT/libgpupipe.rlib" -o "$(target "$source" rust)" "$source"
  done
}

# In a folder such as gpupipe hook new makes.
assemblyscript() {
  have node && have npm || { leave_out "AssemblyScript is left out: apt-get install nodejs npm"; return; }
  local at=$OUT/assemblyscript
  mkdir -p "$at/gpupipe"
  cp wasm/sdk/assemblyscript/* "$at/gpupipe"
  cp wasm/sdk/template/assemblyscript/{Makefile,package.json} "$at"
  make -s -C "$at" node_modules >"$OUT/npm.log" 2>&1 || { cat "$OUT/npm.log" >&2; leave_out "AssemblyScript is left out: npm install failed"; return; }
  for source in $DIR/*.ts $LANGUAGES/assemblyscript/*.ts $EVERY/*.ts; do
    cp "$source" "$at"
    (cd "$at" && node gpupipe/build.mjs "${source##*/}" hook.wasm)
    cp "$at/hook.wasm" "$(target "$source" assemblyscript)"
  done
}

# TinyGo and Go compile the same sources.
tinygo() {
  for source in $LANGUAGES/go/*/ $EVERY/go/; do
    local to=$LANGUAGES/tinygo/$(basename "$source").wasm
    [ "$source" != $EVERY/go/ ] || to=$EVERY/tinygo.wasm
    sh wasm/sdk/template/tinygo/tinygo.sh -o "$to" "./$source" ||
      { leave_out "TinyGo is left out: apt-get install g++ llvm-19-dev libclang-19-dev lld-19 binaryen wasi-libc"; return; }
  done
}

go_itself() {
  have go || { leave_out "Go is left out: make setup"; return; }
  for source in $LANGUAGES/go/*/; do
    GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -trimpath -buildvcs=false -ldflags='-s -w -buildid=' -o "${source%/}.wasm" "./$source"
  done
}

c
rust
assemblyscript
tinygo
go_itself
chmod 644 $DIR/*.wasm $LANGUAGES/*/*.wasm $EVERY/*.wasm
[ ${#missing[@]} = 0 ]
