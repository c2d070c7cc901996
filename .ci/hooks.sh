#!/usr/bin/env bash
# Builds the example hooks: each .c and .rs in examples/hooks to the .wasm beside it. What they were built to is kept in the
# repository, so that nothing else needs these compilers. On Debian and Ubuntu: apt-get install clang lld rustc libstd-rust-dev-wasm32
set -euo pipefail
cd "$(dirname "$0")/.."

die() { printf 'hooks: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

readonly DIR=examples/hooks OUT=build/hooks
mkdir -p $OUT

have "${CLANG:=clang}" && have "${WASM_LD:=wasm-ld}" || die "clang and wasm-ld are needed: apt-get install clang lld"
for source in $DIR/*.c; do
  "$CLANG" --target=wasm32 -O2 -mbulk-memory -nostdlib -Wall -Wextra -Werror -Wl,--no-entry -Wl,--stack-first -Wl,--strip-all \
    -Iwasm/sdk/c -o "${source%.c}.wasm" "$source"
done

# A rustc without the target's library, as rustup leaves it, must not hide the distribution's.
rust_works() { [ -d "$("$1" --print target-libdir --target wasm32-unknown-unknown 2>/dev/null)" ]; }
for RUSTC in "${RUSTC:-rustc}" /usr/bin/rustc; do
  rust_works "$RUSTC" && break
done
rust_works "$RUSTC" || die "no rustc with the target wasm32-unknown-unknown: apt-get install rustc libstd-rust-dev-wasm32"
rust() { "$RUSTC" --edition 2021 --target wasm32-unknown-unknown -C opt-level=s -C panic=abort "$@"; }
rust --crate-type rlib --crate-name gpupipe -o $OUT/libgpupipe.rlib wasm/sdk/rust/src/lib.rs
for source in $DIR/*.rs; do
  rust -C lto=fat -C strip=symbols --crate-type cdylib --extern gpupipe=$OUT/libgpupipe.rlib -o "${source%.rs}.wasm" "$source"
done

chmod 644 $DIR/*.wasm
