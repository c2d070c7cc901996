#!/usr/bin/env bash
# setup.sh [build | test | all | cross | windows]: installs what this machine lacks. Run again, it changes nothing.
#   build  what building and the demo need: a C compiler, which also makes the kernels where there is no GPU, Go, text to
#          train on, and the Vulkan loader where there is a GPU with its driver
#   test   the default, what make test needs: also a Vulkan driver (Mesa's lavapipe without a GPU) and spirv-val
#   all    what make test-all needs: also Vulkan's validation layer and Chromium
#   cross  what tests of a CPU's kernels and of hooks need: clang, its linker for WebAssembly, a cross compiler for ARM and
#          an emulator; where there is Node.js, the compiler of AssemblyScript in npm's cache; where there is pip, Zig, which
#          links programs for macOS
#   windows  what make windows-test needs beside test: Wine, an X server without a screen, and MinGW's C compiler
# Debian 12 and later, Ubuntu 24.04 and later (22.04 to build, and to test with a GPU's own driver); as root or through sudo.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly FOR=${1:-test}

readonly MESA=25       # lavapipe before 25 leaves long loops early and computes wrong numbers
readonly GO_FETCHES=21 # from 1.21 on, Go fetches the toolchain that go.mod names
readonly TEXT=build/demo/text.txt
mkdir -p build/demo build/toolchain

case $FOR in build | test | all | cross | windows) ;; *) echo "setup.sh: found $FOR, expected build, test, all, cross or windows" >&2; exit 1 ;; esac
say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then env "$@"
  elif have sudo; then sudo env "$@"
  else die "needs root to run: $* (run .ci/setup.sh as root, or install sudo)"; fi
}

# ---- apt, asked only when something is missing

apt_updated=false
apt_update() {
  have apt-get || die "no apt-get here. Please install: $1. Then run this again."
  $apt_updated || { say "reading the package lists"; as_root apt-get update -qq >&2; }
  apt_updated=true
}

# apt_install WHY PACKAGE-OR-OPTION...
apt_install() {
  apt_update "$1"
  say "installing $1"
  as_root DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o DPkg::Lock::Timeout=300 "${@:2}" >build/apt.log 2>&1 || { tail -n 20 build/apt.log >&2; die "apt-get could not install $1"; }
}

candidate() { apt-cache policy "$1" | awk '$1 == "Candidate:" && $2 != "(none)" {print $2}'; }
at_least() { [ -n "$1" ] && dpkg --compare-versions "$1" ge "$2"; }
offered() {
  local v
  for v in $(apt-cache madison "$1" | awk '{print $3}'); do
    at_least "$v" "$2" && return
  done
  return 1
}
os_release() { (. /etc/os-release && eval "printf %s \"\${$1:-}\""); }

# Debian's backports, from the mirror and under the key by which this machine has the release itself. Their Release
# file asks for priority 100: nothing comes from them unless asked for.
add_backports() {
  local codename uri entry file
  codename=$(os_release VERSION_CODENAME)
  [ "$(os_release ID)" = debian ] && [ -n "$codename" ] || return 0
  [ -z "$(apt-get indextargets "Codename: $codename-backports")" ] || return 0
  IFS='|' read -r uri entry < <(apt-get indextargets --format '$(REPO_URI)|$(SOURCESENTRY)' \
    'Origin: Debian' 'Label: Debian' "Codename: $codename") || die "apt has no source for Debian $codename"
  file=/etc/apt/sources.list.d/gpupipe-backports.${entry##*.}
  file=${file%:*}
  say "adding $codename-backports in $file"
  backports_entry "${entry%:*}" "${uri%/}" "$codename-backports" | as_root tee "$file" >/dev/null
  apt_updated=false
  apt_update "$codename-backports"
}

# backports_entry FILE URI SUITE: FILE's entry for URI, its suites replaced.
backports_entry() {
  if [ "${1##*.}" = sources ]; then
    awk -v RS= -v uri="$2" -v suite="$3" '
      $0 !~ "(^|\n)Suites:[^\n]*-security" && index($0 "\n", uri) {
        gsub(/(^|\n)#[^\n]*/, ""); sub(/^\n/, ""); sub(/Suites:[^\n]*/, "Suites: " suite); print; exit }' "$1"
  else
    awk -v uri="$2" -v suite="$3" '
      $1 == "deb" { at = ($2 ~ /^\[/) ? 0 : 2
        for (i = 2; !at && i < NF; i++) if ($i ~ /\]$/) at = i + 1
        u = $at; sub(/\/$/, "", u)
        if (u == uri) { $(at + 1) = suite; print; exit } }' "$1"
  fi
}

# ---- C

# shellcheck disable=SC2086 # CC may hold options
c_works() { echo '#include <stdlib.h>' | ${CC:-gcc} -E - >/dev/null 2>&1; }

ensure_tools() {
  local missing=()
  c_works || missing+=(gcc libc6-dev)
  have make || missing+=(make)
  [ -s "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" ] || [ -d /etc/pki/tls/certs ] ||
    missing+=(ca-certificates)
  [ ${#missing[@]} = 0 ] || apt_install "${missing[*]}" "${missing[@]}"
  c_works || die "no working C compiler: ${CC:-gcc} cannot preprocess a file that includes stdlib.h"
}

# ---- Go

go_minor() { [ -x "$1" ] && GOTOOLCHAIN=local "$1" env GOVERSION | sed -nE 's/^go1\.([0-9]+).*/\1/p'; }

find_go() {
  local g minor
  for g in build/toolchain/go "$(command -v go || true)" /usr/local/go/bin/go; do
    minor=$(go_minor "$g" || true)
    [ "${minor:-0}" -ge $GO_FETCHES ] && { readlink -f "$g"; return; }
  done
  return 1
}

# The Makefile puts build/toolchain first on its path.
ensure_go() {
  local go package
  if ! go=$(find_go); then
    apt_update "Go $(sed -n 's/^go //p' go.mod)"
    package=$(newest_go_package)
    [ -n "$package" ] || { add_backports; package=$(newest_go_package); }
    [ -n "$package" ] || die "apt offers no Go 1.$GO_FETCHES or newer: install Go from https://go.dev/dl and run this again"
    apt_install "$package" "$package"
    go=/usr/lib/${package%-go}
    go=${go/golang/go}/bin/go
  fi
  [ "$(readlink build/toolchain/go)" = "$go" ] || ln -sfn "$go" build/toolchain/go
  GOTOOLCHAIN=auto "$go" version >/dev/null ||
    die "$go is older than go.mod's $(sed -n 's/^go //p' go.mod) and could not fetch that: install it from https://go.dev/dl"
}

newest_go_package() {
  local minor
  for minor in $(apt-cache pkgnames golang-1. | sed -nE 's/^golang-1\.([0-9]+)-go$/\1/p' | sort -rn); do
    [ "$minor" -ge $GO_FETCHES ] || break
    [ -z "$(candidate "golang-1.$minor-go")" ] || { echo "golang-1.$minor-go"; break; }
  done
}

# ---- Vulkan

# A GPU counts when both are there: its driver's manifest, and a device node of its vendor.
hardware_driver() {
  local node vendor
  { [ -e /dev/nvidia0 ] && manifest nvidia; } || { [ -e /dev/dxg ] && manifest dzn; } && return
  for node in /sys/class/drm/renderD*/device/vendor; do
    [ -r "$node" ] && [ -e "/dev/dri/$(basename "${node%/device/vendor}")" ] || continue
    vendor=$(<"$node")
    case $vendor in
      0x8086) manifest intel && return ;;
      0x1002) { manifest radeon || manifest amd; } && return ;;
      0x10de) { manifest nvidia || manifest nouveau; } && return ;;
    esac
  done
  return 1
}

manifest() { compgen -G "/usr/share/vulkan/icd.d/*$1*.json" >/dev/null || compgen -G "/etc/vulkan/icd.d/*$1*.json" >/dev/null; }

lavapipe_works() {
  manifest lvp_icd && at_least "$(dpkg-query -W -f '${Version}' mesa-vulkan-drivers 2>/dev/null)" $MESA
}

loader_works() { { ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | grep 'libvulkan\.so\.1' >/dev/null; }

# spirv-val checks, in the tests, what Vulkan's shaders are translated to.
ensure_validator() {
  have spirv-val && return
  have apt-get || die "the tests need spirv-val: install SPIRV-Tools"
  apt_install spirv-tools spirv-tools
}

# Khronos' validation layer watches, in a test, what Vulkan is called with.
ensure_layer() {
  compgen -G "/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json" >/dev/null ||
    compgen -G "/etc/vulkan/explicit_layer.d/VkLayer_khronos_validation.json" >/dev/null ||
    [ -n "${VK_LAYER_PATH:-}${VK_ADD_LAYER_PATH:-}" ] && return
  have apt-get || die "the tests need the Vulkan validation layer VK_LAYER_KHRONOS_validation: install it"
  apt_install vulkan-validationlayers vulkan-validationlayers
}

# A GPU's driver is used through the loader; without a GPU nothing here needs Vulkan.
ensure_loader() {
  if hardware_driver && ! loader_works; then apt_install libvulkan1 libvulkan1; fi
}

# The tests run a CPU's kernels as clang compiles them, with gcc's sanitizers, and for ARM under an emulator.
ensure_cross() {
  local missing=()
  have clang || missing+=(clang)
  have wasm-ld || missing+=(lld)
  have gcc || missing+=(gcc libc6-dev)
  have aarch64-linux-gnu-gcc && [ -e /usr/aarch64-linux-gnu/lib/libc.so.6 ] || missing+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
  have qemu-aarch64-static || missing+=(qemu-user-static)
  [ ${#missing[@]} = 0 ] && return
  have apt-get || die "the tests need ${missing[*]}: install them"
  apt_install "${missing[*]}" "${missing[@]}"
}

# The program for Windows runs under Wine, where Vulkan needs a screen.
ensure_wine() {
  local missing=()
  have wine && have wineserver || missing+=(wine wine64)
  have Xvfb || missing+=(xvfb)
  have x86_64-w64-mingw32-gcc || missing+=(gcc-mingw-w64-x86-64)
  have curl || missing+=(curl)
  [ ${#missing[@]} = 0 ] && return
  have apt-get || die "make windows-test needs ${missing[*]}: install them"
  apt_install "${missing[*]}" "${missing[@]}"
}

# The templates of hooks are tested in each language whose toolchain is here. This says which are omitted.
ensure_hooks() {
  local target=wasm32-unknown-unknown at=build/hooks/npm compiler
  have cargo && [ -d "$(rustc --print target-libdir --target $target 2>/dev/null)" ] ||
    say "tests of hooks in Rust are omitted: no cargo with the target $target"
  have wasm-opt && have wasm-ld-19 || say "tests of hooks in TinyGo are omitted: no wasm-opt or no wasm-ld-19"
  if have node && have npm; then
    compiler=$(sed -nE 's/.*"assemblyscript": "([^"]+)".*/assemblyscript@\1/p' wasm/sdk/template/assemblyscript/package.json)
    [ -e $at/$compiler ] && return
    mkdir -p $at
    say "fetching $compiler"
    npm install --prefix $at --no-save --no-audit --no-fund --ignore-scripts "$compiler" >$at.log 2>&1 && touch "$at/$compiler" && return
  fi
  say "tests of hooks in AssemblyScript are omitted: no Node.js, no npm, or npm could not fetch the compiler ($at.log)"
}

# The link of programs for macOS is tested where Zig is here.
ensure_zig() {
  .ci/zig/setup.sh || say "tests of programs for macOS are omitted: no pip, or it could not fetch ziglang"
}

ensure_vulkan() {
  loader_works || apt_install libvulkan1 libvulkan1
  if hardware_driver || [ -n "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ]; then return; fi
  have dpkg-query || die "no Vulkan driver found: install your GPU's, or Mesa's lavapipe $MESA or newer"
  [ ! -e /dev/nvidia0 ] ||
    say "there is an NVIDIA GPU, but not the Vulkan part of its driver (nvidia_icd.json): lavapipe will do its work"
  lavapipe_works || install_lavapipe
}

install_lavapipe() {
  local suite=()
  apt_update "mesa-vulkan-drivers $MESA or newer"
  if ! at_least "$(candidate mesa-vulkan-drivers)" $MESA; then
    add_backports
    suite=(-t "$(os_release VERSION_CODENAME)-backports")
    offered mesa-vulkan-drivers $MESA ||
      die "$(os_release PRETTY_NAME) offers Mesa $(candidate mesa-vulkan-drivers) at best, and software GPUs of Mesa before $MESA" \
        "compute wrong numbers. Either install your GPU's own driver, or a newer Mesa, or use Debian 12, Ubuntu 24.04 or later."
  fi
  apt_install "Mesa's lavapipe, a GPU in software" ${suite[@]+"${suite[@]}"} mesa-vulkan-drivers
  lavapipe_works || die "mesa-vulkan-drivers is installed, but its lvp_icd manifest is missing or older than $MESA"
}

# ---- Chromium, for the tests of what runs in pages

# The names that internal/testing/chromium looks for. Ubuntu's chromium-browser only asks to install a snap: it does not
# count until that is there.
find_browser() {
  local b
  for b in ${CHROMIUM:+"$CHROMIUM"} chromium google-chrome google-chrome-stable chromium-browser chrome \
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" /Applications/Chromium.app/Contents/MacOS/Chromium; do
    have "$b" && "$b" --version 2>/dev/null | grep -qE '^(Chromium|Google Chrome)' && return
  done
  return 1
}

# Without one all but the tests in pages works, so that is said here and fails there.
ensure_browser() {
  find_browser && return
  if have apt-get; then
    apt_update chromium
    if [ "$(os_release ID)" = ubuntu ]; then # its package wants snapd, which containers lack
      ! have snap || as_root snap install chromium >build/snap.log 2>&1 || say "snap could not install chromium: build/snap.log"
    elif [ -n "$(candidate chromium)" ]; then
      apt_install "Chromium" chromium
    fi
  fi
  find_browser || say "no Chromium: make test-all will fail in the tests that need one. Please install chromium or Google Chrome," \
    "or name one in CHROMIUM, or leave those tests out with CHROMIUM=none"
}

# ---- text for the demo: the King James Bible, or Go's own sources where that is not to be had

ensure_text() {
  [ -s $TEXT ] && return
  if ! have bible && have apt-get; then
    (apt_update bible-kjv && apt_install "the King James Bible" bible-kjv bible-kjv-text) ||
      say "the demo will train on Go's sources instead"
  fi
  if have bible; then # without the verse numbers
    bible -f gen1:1-rev22:21 </dev/null | sed -E 's/^[^ ]+ //' >$TEXT.part
  else
    find "$("$(find_go)" env GOROOT)/src/" -name '*.go' | LC_ALL=C sort | awk 'NR <= 800' | xargs cat >$TEXT.part
  fi
  [ "$(wc -c <$TEXT.part)" -ge 1000000 ] || die "the demo's text has only $(wc -c <$TEXT.part) bytes: $TEXT.part"
  mv $TEXT.part $TEXT
}

# begin_build fetches modules and compiles most of Go's own library, while apt fetches and installs. The build itself
# does what this could not, and reports errors.
begin_build() {
  local go
  go=$(find_go)
  GOTOOLCHAIN=auto "$go" build net/http >/dev/null 2>&1 &
  GOTOOLCHAIN=auto "$go" list -deps ./cmd/gpupipe >/dev/null 2>&1 || true
  wait
}

[ "$FOR" != windows ] || { ensure_wine; exit; }
[ "$FOR" != cross ] || { ensure_cross; ensure_hooks; ensure_zig; exit; }

case $(uname -s) in
  Linux)
    ensure_tools
    ensure_go
    [ -s $TEXT ] || begin_build &
    ensure_loader
    if [ "$FOR" != build ]; then
      ensure_vulkan
      ensure_validator
    fi
    if [ "$FOR" = all ]; then
      ensure_layer
      [ "${CHROMIUM:-}" = none ] || ensure_browser
    fi
    ;;
  *) # Metal and DX12 come with the system.
    c_works || CC=cc c_works || CC=clang c_works ||
      die "no C compiler: macOS: xcode-select --install; Windows: MSYS2's mingw-w64-x86_64-gcc"
    [ "$FOR" != all ] || [ "${CHROMIUM:-}" = none ] || ensure_browser
    have go && find_go >/dev/null || die "no Go 1.$GO_FETCHES or newer on the path: install it from https://go.dev/dl"
    ;;
esac
ensure_text
wait
