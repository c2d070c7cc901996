#!/usr/bin/env bash
# wheel-test.sh [PYTHON...]: installs the wheel of this machine into a clean environment of each Python (python3), runs the
# package's tests there, measures its import, and uninstalls it.
set -euo pipefail
cd "$(dirname "$0")/.."

case $(uname -sm) in
"Linux x86_64") wheels=(build/wheel/*manylinux*x86_64.whl) ;;
"Linux aarch64") wheels=(build/wheel/*manylinux*aarch64.whl) ;;
Darwin*) wheels=(build/wheel/*macosx*.whl) ;;
*) wheels=(build/wheel/*win_amd64.whl) ;;
esac
[ -f "${wheels[0]}" ] || { echo "wheel-test: no wheel for this machine: expected make wheel first" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset GPUPIPE PYTHONPATH
for python in "${@:-python3}"; do
	rm -rf "$folder/venv"
	"$python" -m venv "$folder/venv"
	in=$folder/venv/bin
	"$in/pip" install --quiet --disable-pip-version-check --no-index "${wheels[0]}"
	"$in/gpupipe" --version >/dev/null
	(cd "$folder" && "$in/python" -m unittest discover -s "$OLDPWD/cmd/python/tests")
	ms=$(cd "$folder" && "$in/python" -c '
import os, subprocess, sys
def best(code):  # of the CPU: other programs may be busy
    times = []
    for _ in range(7):
        before = os.times()
        subprocess.run([sys.executable, "-c", code], check=True)
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(times)
print(round(1000 * (best("import gpupipe") - best("pass"))))')
	[ "$ms" -le 50 ] || { echo "wheel-test: the import takes $ms ms, expected at most 50" >&2; exit 1; }
	"$in/pip" uninstall --quiet --disable-pip-version-check --yes gpupipe
	left=$(find "$folder/venv" -iname '*gpupipe*')
	[ -z "$left" ] || { echo "wheel-test: uninstalling left $left" >&2; exit 1; }
	echo "wheel-test: $("$in/python" --version): tested; the import takes $ms ms of the CPU"
done
