#!/usr/bin/env bash
# Packs gpupipe and all that it needs into build/gpupipe-linux-x86_64.tar.gz, for a machine with a GPU's driver and nothing else:
# the program, the Vulkan loader, and glibc for machines whose own is older than the program needs.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly NAME=gpupipe-linux-x86_64 MOST=$((60 << 20))
readonly DIR=build/$NAME
die() { printf 'gpu-bundle: %s\n' "$*" >&2; exit 1; }
[ "$(uname -sm)" = "Linux x86_64" ] || die "this machine is $(uname -sm): expected Linux x86_64"

rm -rf "$DIR"
mkdir -p "$DIR"/lib/{vulkan,glibc}
# libgcc is linked statically: a bare machine may lack it.
revision=$(git describe --tags --always --dirty --abbrev=12 2>/dev/null || true) # as the Makefile's build
go build -trimpath -buildvcs=false -ldflags="-s -w -extldflags=-static-libgcc -X github.com/gpupipe/gpupipe/internal/version.revision=$revision" -o "$DIR/lib/gpupipe" ./cmd/gpupipe
cp .ci/gpu-bundle/{gpupipe,report.sh,README.txt} "$DIR"
chmod +x "$DIR"/{gpupipe,report.sh}

find_library() {
  local path
  path=$({ ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | awk -v name="$1" '$1 == name && /x86-64/ { print $NF; exit }')
  [ -n "$path" ] || die "this machine has no $1"
  readlink -f "$path"
}
cp "$(find_library libvulkan.so.1)" "$DIR/lib/vulkan/libvulkan.so.1"
for library in ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libresolv.so.2 libutil.so.1; do
  cp "$(find_library $library)" "$DIR/lib/glibc/$library"
done

cp LICENSE NOTICE "$DIR"
go run ./internal/licenses/texts ./cmd/gpupipe >"$DIR/THIRD-PARTY-LICENSES"
cat shaders/spirv/naga/LICENSES >>"$DIR/THIRD-PARTY-LICENSES"
for package in libvulkan1 libc6; do
  if [ -s "/usr/share/doc/$package/copyright" ]; then
    printf '==== %s, unchanged from %s: its source is the package of that name there\n\n' "$package" "$(sed -n 's/^PRETTY_NAME=//p' /etc/os-release)"
    cat "/usr/share/doc/$package/copyright"
  fi
done >>"$DIR/THIRD-PARTY-LICENSES"

tar -C build --owner=0 --group=0 -czf "build/$NAME.tar.gz" "$NAME"
size=$(stat -c %s "build/$NAME.tar.gz")
[ "$size" -lt $MOST ] || die "build/$NAME.tar.gz has $size bytes, expected fewer than $MOST"
echo "build/$NAME.tar.gz: $((size >> 20)) MiB. On the machine with the GPU: tar xzf $NAME.tar.gz && $NAME/report.sh"
