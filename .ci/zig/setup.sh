#!/usr/bin/env bash
# setup.sh: installs Zig, a C compiler for other systems' programs, in build/zig, as PyPI's ziglang. Run again, it changes
# nothing. It fails where there is no pip, or where pip cannot fetch it.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly ZIGLANG=0.17.0
[ ! -e "build/zig/$ZIGLANG" ] || exit 0
echo "setup: fetching ziglang $ZIGLANG" >&2
rm -rf build/zig
mkdir -p build/zig
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target build/zig "ziglang==$ZIGLANG"
touch "build/zig/$ZIGLANG"
