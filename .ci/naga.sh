#!/usr/bin/env bash
# Builds shaders/spirv/naga/naga.wasm, which is committed, from the versions in its Cargo.toml. The compiler is Rust 1.95.0
# with the target wasm32-unknown-unknown: the same compiler makes the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { printf 'naga: %s\n' "$*" >&2; exit 1; }
command -v cargo >/dev/null || die "needs Rust's cargo"
build=$PWD/build/naga
mkdir -p "$build"
cp shaders/spirv/naga/{Cargo.toml,lib.rs} "$build"
cd "$build"
cargo fetch --quiet --target wasm32-unknown-unknown

flags=("--remap-path-prefix=$build=naga") # no path of this machine in the module
for sources in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do
  flags+=("--remap-path-prefix=$sources=crates")
done
RUSTFLAGS="${flags[*]}" cargo build --quiet --release --target wasm32-unknown-unknown
cp target/wasm32-unknown-unknown/release/gpupipe_naga.wasm "$OLDPWD/shaders/spirv/naga/naga.wasm"
cd "$OLDPWD/shaders/spirv/naga"
sha256sum naga.wasm | tee naga.wasm.sha256
