#!/usr/bin/env bash
# Runs the archive that gpu-bundle.sh made in a folder with a shell, glibc and lavapipe alone, as root of its own, without a network
# and without a Vulkan loader: once with that machine's glibc and once with the archive's. Root, or user namespaces.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly NAME=gpupipe-linux-x86_64
readonly ROOT=$PWD/build/bare
die() { printf 'gpu-bundle-test: %s\n' "$*" >&2; exit 1; }
manifest=$(ls /usr/share/vulkan/icd.d/lvp_icd*.json 2>/dev/null | head -n 1) || true
[ -n "$manifest" ] || die "this machine has no lavapipe: make setup"

rm -rf "$ROOT"
mkdir -p "$ROOT"/{bin,dev,proc,tmp,etc,usr/share/vulkan/icd.d,lib64}
copy() { # FILE...: with the libraries that it needs, where they are
  local file library
  for file in "$@"; do
    for library in "$file" $(ldd "$file" | grep -oE '/[^ ]+'); do
      [ -e "$ROOT$library" ] || { mkdir -p "$ROOT${library%/*}"; cp -L "$library" "$ROOT$library"; }
    done
  done
}
copy /bin/sh
driver=$(sed -nE 's/.*"library_path": *"([^"]+)".*/\1/p' "$manifest")
case $driver in /*) ;; *) driver=$({ ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | awk -v name="$driver" '$1 == name && !found++ { print $NF }') ;; esac
copy "$driver"
cp "$manifest" "$ROOT/usr/share/vulkan/icd.d"
[ -z "$(find "$ROOT" -name 'libvulkan.so*')" ] || die "the driver brought a Vulkan loader along"
tar -C "$ROOT" -xzf "build/$NAME.tar.gz"

user=()
[ "$(id -u)" = 0 ] || user=(--map-root-user)
PATH=$PATH:/usr/sbin:/sbin
chroot=$(command -v chroot)
bare() { # COMMAND...: in the folder, with nothing of this machine's environment
  unshare "${user[@]}" --mount --pid --net --ipc --fork /bin/sh -c '
    root=$1; shift
    mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" &&
    exec env -i "$@"' sh "$ROOT" GALLIVM_PERF=nopt LP_NATIVE_VECTOR_WIDTH=128 "${settings[@]}" "$chroot" "$ROOT" "$@"
}
check() { # FILE TEXT
  grep -qF -- "$2" "$1" || { cat "$1" >&2; die "$1 has no \"$2\""; }
}

settings=(GPUPIPE_LIBC=bundled)
bare "/$NAME/gpupipe" devices >build/bare.devices || die "the archive's glibc: gpupipe devices failed"
check build/bare.devices "vulkan:0"
check build/bare.devices "webgpu:0"
bare "/$NAME/report.sh" --device vulkan:0 --budget "${BUDGET:-2m}" --out /tmp/bundled || true # what it has time for depends on this machine
check "$ROOT/tmp/bundled.json" '"done": true'
check "$ROOT/tmp/bundled.md" "| devices | passed |"

settings=(GPUPIPE_LIBC=)
bare "/$NAME/gpupipe" --version >build/bare.version
[ -z "$(git describe --always 2>/dev/null)" ] || ! grep -F "unknown revision" build/bare.version >&2 || die "the program does not know its revision"
bare "/$NAME/report.sh" --device vulkan:0 --budget "${BUDGET:-10m}" >build/bare.out || { cat build/bare.out "$ROOT/gpupipe-report.md" >&2; die "the report failed"; }
check build/bare.out "Please send back the two files"
check "$ROOT/gpupipe-report.md" "Everything that ran passed"
check "$ROOT/gpupipe-report.md" "| profiled step of tiny, default kernels | passed |"
[ "$(hostname | wc -c)" -le 4 ] || ! grep -qF "$(hostname)" "$ROOT/gpupipe-report.md" "$ROOT/gpupipe-report.json" || die "the report names this machine"
rm -rf "$ROOT"
echo "gpu-bundle-test: passed"
