#!/usr/bin/env bash
# windows-test.sh [CHECK...]: builds gpupipe.exe and runs it under Wine, on Mesa's lavapipe, with a line for each check: ok, or
# FAIL with the file of what it wrote. Without names all checks run; "packages" needs no device. Losses are compared with those
# of this machine's program on the same driver (1e-6), files byte by byte. The exit status is 1 if a check fails.
#
# Wine stands for Windows: this finds what depends on files, names, signals and processes there. Its Direct3D 12 cannot compile
# gpupipe's shaders, so WebGPU uses Vulkan. Needs root or user namespaces, and what .ci/setup.sh windows installs.
set -uo pipefail
cd "$(dirname "$0")/.."
# The full disk is a mount of this script's own.
[ -n "${WINDOWS_TEST_NAMESPACE:-}" ] || {
	user=()
	[ "$(id -u)" = 0 ] || user=(--map-root-user)
	WINDOWS_TEST_NAMESPACE=1 exec unshare "${user[@]}" --mount "$0" "$@"
}

readonly AT=$PWD/build/windows
readonly LOGS=$AT/logs WORK=$AT/work
readonly DRIVE="Z:${WORK//\//\\}" # WORK as Windows sees it
readonly LOSS=1e-6
readonly PACKAGES="internal/atomicfile internal/lock internal/userpath internal/strictyaml internal/kerneldump
	internal/hub internal/hub/client pipeline/metrics pipeline/checkpoint/safetensors pipeline/data/tokenizer"
readonly CHECKS="packages devices nodevice refusals names train kill interrupt close eval generate export linux long globs data hook
	serve watch sweep held pruned exclusive lock disk report"
export WINEPREFIX=$AT/prefix WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml,d3d12="
export LP_NATIVE_VECTOR_WIDTH=${LP_NATIVE_VECTOR_WIDTH-128} GALLIVM_PERF=${GALLIVM_PERF-nopt}

say() { printf '%s\n' "$*" >&2; }
die() { say "windows-test: $*"; exit 2; }

# ---- what checks use

exe() { timeout 300 wine "$AT/gpupipe.exe" "$@"; }
linux() { timeout 300 "$AT/gpupipe" "$@"; }

# has FILE TEXT, hasnot FILE TEXT
has() { grep -qF -- "$2" "$1" || { echo "$1: expected \"$2\", found:"; cat "$1"; return 1; }; }
hasnot() { ! grep -F -- "$2" "$1" || { echo "$1: found \"$2\""; return 1; }; }

# exits CODE COMMAND...: the program's exit code; its output is in the file out
exits() {
	local want=$1 code=0
	shift
	exe "$@" >out 2>&1 || code=$?
	[ $code = "$want" ] || { echo "gpupipe $*: found exit code $code, expected $want:"; cat out; return 1; }
}
refused() { # TEXT COMMAND...
	local text=$1
	shift
	exits 2 "$@" && has out "$text"
}

# field NAME FILE: the numbers of a name in JSON lines
field() { grep -o "\"$1\":[-+0-9.e]*" "$2" | cut -d: -f2; }

# near A B: lists of as many numbers, none of which differs by more than LOSS
near() {
	[ -n "$1" ] && paste <(echo "$1") <(echo "$2") | awk -v most=$LOSS '
		NF != 2 || ($1 - $2) ^ 2 > most ^ 2 { print "found " $1 ", expected " $2; bad = 1 }
		END { exit bad }'
}

# ended HOW TEXT COMMAND...: runs the program in a console, ends it once the file log has TEXT, and prints its exit code. See
# .ci/windows/helper.c. The log has the program's output, and what checks append to it.
ended() {
	local how=$1 text=$2 line="$AT/gpupipe.exe" arg
	shift 2
	for arg; do line+=" \"$arg\""; done
	timeout 300 wine "$AT/helper.exe" end "$how" "$text" log "$line" | tr -d '\r'
}
# begin COMMAND...: runs the program until finish, which sends it Ctrl-C and sets code; until_log TEXT waits for its output.
begin() { rm -f log; (ended interrupt "stop now" "$@" >code) & }
finish() { echo "stop now" >>log; wait; code=$(<code); }
until_log() { for _ in {1..600}; do ! grep -qF -- "$1" log 2>/dev/null || return 0; sleep 0.1; done; has log "$1"; }

# holding HOW FILE: holds a file open until let_go
holding() {
	rm -f held
	mkfifo held.in
	timeout 300 wine "$AT/helper.exe" "$1" "$2" <held.in >held &
	exec {HELD}>held.in
	rm held.in
	for _ in {1..200}; do ! grep -q held held || return 0; sleep 0.1; done
	echo "nothing holds $2"
	return 1
}
let_go() { exec {HELD}>&-; wait; }

# config RUN: RUN.yaml, with Windows' line ends and paths
config() {
	sed "s|RUN|$1|; s/\$/\r/" >"$1.yaml" <<-'END'
		model: {vocab_size: 256, d_model: 32, n_layers: 2, n_heads: 2, d_ff: 48, seq_len: 32}
		data: {train: ['text\*.txt'], val_fraction: 0.1, shuffle: true}
		train: {steps: 12, batch_size: 4, microbatches: 2, eval_every: 6, save_every: 3}
		optimizer: {name: muon, adamw: {lr: 0.01}}
		lr: {warmup: 2}
		run: {dir: 'RUN'}
	END
}
trained() { [ -e run/loss.png ] || { config run && exe train run.yaml --json >run.json; }; }
trained_here() { # the same by this machine's program
	[ -e native/loss.png ] || { config native && sed -i 's|text\\|text/|' native.yaml && linux train native.yaml --json --device webgpu:0 >native.json; }
}

# ---- checks, each in a folder that they share

check_packages() { # the tests of packages whose work is files
	local p bad=0
	for p in $PACKAGES; do
		(cd ../../.. && GOOS=windows CGO_ENABLED=0 go test -ldflags=-w -vet=off -c -o "$AT/test.exe" "./$p") &&
			(cd "../../../$p" && GPUPIPE_TESTS=core timeout 600 wine "$AT/test.exe" -test.short) || { echo "$p failed"; bad=1; }
	done
	return $bad
}
check_devices() {
	exits 0 devices && has out webgpu:0 && has out llvmpipe && hasnot out cpu:0 && hasnot out vulkan:0 && hasnot out gpupipe: &&
		timeout 300 wine cmd /c "set LOCALAPPDATA=&&$AT/gpupipe.exe devices" >out 2>&1 && has out webgpu:0 && hasnot out "compiled code" &&
		exits 0 train --help && has out "webgpu:0, null" && hasnot out cpu:0 && hasnot out vulkan:0
}
check_nodevice() {
	config none
	VK_DRIVER_FILES=/none VK_ICD_FILENAMES=/none refused "no device found: install the GPU's driver" train none.yaml && hasnot out cpu:0 && [ ! -e none ]
}
check_refusals() {
	config none
	refused "native code on CPUs is for Linux" train none.yaml --device cpu:0 &&
		refused "Vulkan is used directly on Linux only" train none.yaml --device vulkan:0 &&
		refused "expected webgpu:N or null" train none.yaml --device metal:0 &&
		refused 'pipeline.isolate: found "process", expected none: devices in processes of their own' train none.yaml --set pipeline.isolate=process &&
		[ ! -e none ]
}
check_names() {
	local name
	config none
	for name in nul runs/CON.d aux:x runs/10:30 runs/a.; do
		refused "expected a name that Windows can give to a file" train none.yaml --device null --set "run.dir=$name" || return 1
	done
	trained && refused "expected a name that Windows can give to a file" export run --out con &&
		refused "expected a name that Windows can give to a file" data text/a.txt --out prn --tokenizer bytes && [ ! -e runs ]
}
check_train() {
	trained && trained_here && near "$(field loss run/metrics.jsonl)" "$(field loss native/metrics.jsonl)" &&
		near "$(field val_loss run/metrics.jsonl)" "$(field val_loss native/metrics.jsonl)" && [ "$(field loss run/metrics.jsonl | wc -l)" = 12 ]
}
check_kill() {
	config killed
	[ "$(ended kill '"step":5' train killed.yaml --json)" = 137 ] && [ -d killed/checkpoints/step-3 ] && [ ! -d killed/checkpoints/step-12 ] &&
		exits 0 train killed --resume && trained && diff <(field loss killed/metrics.jsonl) <(field loss run/metrics.jsonl) &&
		cmp killed/checkpoints/step-12/model.safetensors run/checkpoints/step-12/model.safetensors
}
check_interrupt() {
	config stopped
	[ "$(ended interrupt '"step":50' train stopped.yaml --json --device null --set train.steps=100000)" = 130 ] &&
		has log "press Ctrl-C again" && has log "to continue: gpupipe train stopped --resume" && [ -d stopped/checkpoints/step-"$(field step log | tail -1)" ]
}
check_close() {
	config closed
	[ "$(ended close '"step":50' train closed.yaml --json --device null --set train.steps=100000 --set train.save_every=0)" = 130 ] &&
		[ -d closed/checkpoints/step-"$(field step log | tail -1)" ]
}
check_eval() {
	trained && trained_here && exits 0 eval run --json && linux eval native --json --device webgpu:0 >out.linux && near "$(field loss out)" "$(field loss out.linux)"
}
check_generate() {
	trained && exits 0 generate run --prompt "The " --tokens 24 --temperature 0 && linux generate run --prompt "The " --tokens 24 --temperature 0 \
		--device webgpu:0 >out.linux && cmp out out.linux
}
check_export() {
	trained && exits 0 export run --out hf && linux export run --out hf.linux && diff -r hf hf.linux && exits 0 export run --out m.gguf --format gguf --dtype f16 &&
		linux export run --out linux.gguf --format gguf --dtype f16 && cmp m.gguf linux.gguf && exits 0 eval hf --data 'text\*.txt' --json && exits 0 export run --out hf --force
}
check_linux() { # a run folder of Linux is read and continued
	trained_here && cp -r native moved && exits 0 eval moved --json && linux eval native --json --device webgpu:0 >out.linux &&
		near "$(field loss out)" "$(field loss out.linux)" && exits 0 train moved --resume --set train.steps=14 && [ -d moved/checkpoints/step-14 ]
}
check_long() {
	local part=Пробег-試験-é-0123456789-0123456789-0123456789-0123456789 run
	run=$part/$part/$part/$part/$part
	mkdir -p "$part" && cp text/a.txt "$part/té xt.txt" && config long && exits 0 train long.yaml --device null --set "run.dir=$run" --set "data.train=[$part\\t*.txt]" &&
		[ -d "$run/checkpoints/step-12" ] && exits 0 train "$run" --resume --device null --set train.steps=15 && exits 0 export "$run" --out "$run\\out" && [ -e "$run/out/model.safetensors" ]
}
check_globs() {
	local pattern
	config globs
	mkdir -p text/more && cp text/a.txt text/more/b.txt
	for pattern in 'text/**/*.txt' 'text\**\*.txt' "$DRIVE\\text\\**\\*.txt" "${DRIVE#Z:}\\text\\**\\*.txt" "$DRIVE\\text\\*\\b.txt" "\\\\?\\$DRIVE\\text\\a.txt"; do
		rm -rf globs
		exits 0 train globs.yaml --device null --set train.steps=1 --set "data.train=['$pattern']" || return 1
	done
	rm -r text/more
	exits 0 init made.yaml --data "$DRIVE\\text\\*.txt" --dir made && exits 0 train made.yaml --device null --set train.steps=1
}
check_data() {
	exits 0 data 'text\*.txt' --out shards --tokenizer bytes --val-tokens 1000 && linux data text/a.txt --out shards.linux --tokenizer bytes --val-tokens 1000 &&
		cmp shards/train_000001.bin shards.linux/train_000001.bin && cmp shards/val_000000.bin shards.linux/val_000000.bin &&
		exits 0 data 'text\*.txt' --out shards --tokenizer bytes --val-tokens 1000 &&
		exits 0 tokenizer train --vocab-size 400 --out tok 'text\*.txt' && linux tokenizer train --vocab-size 400 --out tok.linux text/a.txt && diff -r tok tok.linux
}
check_hook() {
	config hooked
	exits 0 train hooked.yaml --device null --set "hooks=[{file: '..\\..\\..\\examples\\hooks\\inverse_sqrt.wasm', hook: learning_rate}]" && exits 0 hook check ../../../examples/hooks/inverse_sqrt.wasm
}
check_serve() {
	local url failed=0 code
	trained && begin serve run --listen 127.0.0.1:0
	until_log http:// && url=$(grep -o 'http://[0-9.:]*' log | head -1) &&
		curl -sf "$url/v1/completions" -H 'Content-Type: application/json' -d '{"model": "run", "prompt": "The ", "max_tokens": 24, "temperature": 0}' >answer || failed=1
	finish
	cat log
	[ $failed = 0 ] && has answer '"finish_reason"' && [ "$code" = 0 ] && exits 0 generate run --prompt "The " --tokens 24 --temperature 0 &&
		has answer "$(sed 's/^The //' out | head -1)"
}
streams() { # URL TEXT: a stream has the text before it ends
	local reader failed=1
	: >stream
	curl -sfN --max-time 300 "$1" >stream &
	reader=$!
	while kill -0 $reader 2>/dev/null; do ! grep -qF -- "$2" stream || { failed=0; break; }; sleep 0.1; done
	if [ $failed = 0 ]; then kill $reader 2>/dev/null || { echo "the stream ended"; failed=1; }; else has stream "$2"; fi
	wait $reader 2>/dev/null
	return $failed
}
check_watch() { # while a run replaces and removes what is shown
	local url failed code
	config watched
	begin watch . --listen 127.0.0.1:0
	until_log http:// && url=$(grep -o 'http://[0-9.:]*' log | head -1) && curl -sf "$url" >page &&
		exits 0 train watched.yaml --device null --set train.keep=1 --set train.save_every=1 --set train.steps=40 && streams "$url/stream" watched
	failed=$?
	finish
	[ $failed = 0 ] && has page "<html" && [ "$(ls watched/checkpoints)" = step-40 ]
}
check_sweep() {
	config base
	printf 'base: base.yaml\r\nset: {train.steps: 6}\r\nsearch: grid\r\nkeys: {optimizer.lr: [0.01, 0.02]}\r\ndir: sweeps\\a\r\n' >sweep.yaml
	exits 0 sweep sweep.yaml && [ "$(ls sweeps/a/runs | wc -l)" = 2 ] && [ -e sweeps/a/best.yaml ] && exits 0 sweep sweep.yaml
}
check_held() { # a log that another program has open is replaced once that closes it; a run never begins on half a log
	config logged
	[ "$(ended kill '"step":50' train logged.yaml --json --device null --set train.steps=60 --set train.save_every=40)" = 137 ] &&
		[ -d logged/checkpoints/step-40 ] && holding hold logged/metrics.jsonl || return 1
	exits 2 train logged --resume --device null && has out metrics.jsonl || { let_go; return 1; }
	exits 0 train logged --resume --device null {HELD}>&- & # else it would keep the file held
	sleep 4 # so that it finds the log in use, and tries again
	let_go
	[ "$(field step logged/metrics.jsonl | tail -1)" = 60 ] && [ "$(wc -l <logged/metrics.jsonl)" = 60 ]
}
check_pruned() { # a checkpoint that another program reads stays, and goes with a later save
	config pruned
	exits 0 train pruned.yaml --device null --set train.steps=3 && holding hold pruned/checkpoints/step-3/model.safetensors || return 1
	exits 0 train pruned --resume --device null --set train.steps=6 --set train.keep=1 && has out "a later save removes it" && ls -A pruned/checkpoints | grep step-3 # Windows keeps its name, Wine does not
	local code=$?
	let_go
	[ $code = 0 ] && exits 0 train pruned --resume --device null --set train.steps=9 --set train.keep=1 && [ "$(ls -A pruned/checkpoints)" = step-9 ]
}
check_exclusive() {
	config none
	holding alone text/a.txt || return 1
	refused a.txt train none.yaml --device null
	local code=$?
	let_go
	return $code
}
check_lock() { # a second process finds the run folder in use
	local failed=0 code
	config locked
	begin train locked.yaml --json --device null --set train.steps=1000000 --set train.save_every=0 --set train.eval_every=0
	until_log '"step":5' && refused "in use by another process" train locked --resume --device null || failed=1
	finish
	[ $failed = 0 ] && [ "$code" = 130 ]
}
check_disk() { # drive F: holds 300 kB
	local full=$AT/full
	config disk
	mkdir -p "$full" && mount -t tmpfs -o size=300k tmpfs "$full" && ln -sfn "$full" "$WINEPREFIX/dosdevices/f:" || return 1
	exits 1 train disk.yaml --device null --set 'run.dir=F:\run' --set train.steps=100 && has out "save checkpoint" && hasnot out "goroutine" &&
		ls -A "$full/run/checkpoints" >left && ! grep -F .tmp left && ! head -c 1M /dev/zero >"$full/other" && exits 1 export run --out 'F:\hf' && [ ! -e "$full/hf" ] &&
		rm "$full/other" && mount -o remount,size=20m "$full" && exits 0 train 'F:\run' --resume --device null --set train.steps=100 && [ -d "$full/run/checkpoints/step-100" ]
	local code=$?
	umount "$full"
	return $code
}
check_report() {
	exits 1 report --budget 20s --device webgpu:0 --models tiny --out report >/dev/null || exits 0 report --budget 20s --device webgpu:0 --models tiny --out report || return 1
	has report.json windows/amd64 && ! grep -iE 'users[\\/]+'"$(id -un)" report.json report.md
}

# ---- building and running

build() {
	local tool
	for tool in wine Xvfb x86_64-w64-mingw32-gcc go curl; do command -v $tool >/dev/null || die "no $tool: .ci/setup.sh windows installs it"; done
	mkdir -p "$LOGS" && rm -rf "$LOGS"/* "$WORK" && mkdir -p "$WORK/text" || exit 2
	head -c 60000 docs/RATIONALE.md >"$WORK/text/a.txt"
	say "building gpupipe.exe"
	x86_64-w64-mingw32-gcc -O1 -Wall -Wno-cast-function-type -municode -o "$AT/helper.exe" .ci/windows/helper.c || die "helper.c"
	if [ "$*" != packages ]; then
		GOOS=windows CGO_ENABLED=1 CC=x86_64-w64-mingw32-gcc go build -buildvcs=false -ldflags "-s -w" -o "$AT/gpupipe.exe" ./cmd/gpupipe || die "gpupipe.exe"
		go build -buildvcs=false -o "$AT/gpupipe" ./cmd/gpupipe || die "gpupipe"
	fi
	rm -f "$AT/display"
	Xvfb -displayfd 8 -screen 0 640x480x24 >"$LOGS/xvfb" 2>&1 8>"$AT/display" &
	XVFB=$!
	for _ in {1..100}; do [ ! -s "$AT/display" ] || break; sleep 0.1; done
	DISPLAY=:$(head -1 "$AT/display")
	export DISPLAY
	trap 'wineserver -k; kill $XVFB' EXIT
	[ -d "$WINEPREFIX/drive_c/windows/system32" ] || wineboot -i >"$LOGS/wineboot" 2>&1
	x86_64-w64-mingw32-gcc -O1 -Wall -Wno-cast-function-type -shared \
		-o "$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll" .ci/windows/wine.c -ladvapi32 || die "wine.c"
	wine notepad >"$LOGS/desktop" 2>&1 & # Vulkan needs a desktop, and Wine has one while a program shows a window
}

# ready waits until the program finds its device: the desktop takes a while on a busy machine.
ready() {
	for _ in {1..30}; do
		exe devices >"$LOGS/ready" 2>&1 && return
		sleep 1
	done
	cat "$LOGS/ready" >&2
	die "Wine has no Vulkan device: make setup installs a driver"
}

build "$@"
[ "$*" = packages ] || ready
cd "$WORK" || exit 2
[ $# -gt 0 ] || read -ra chosen -d '' <<<"$CHECKS"
[ $# = 0 ] || chosen=("$@")
n=0 failed=0
for check in "${chosen[@]}"; do
	declare -F "check_$check" >/dev/null || die "found $check, expected checks of: $(echo $CHECKS)"
	n=$((n + 1)) began=$SECONDS
	if (check_$check) >"$LOGS/$check" 2>&1; then
		echo "ok $n $check ($((SECONDS - began)) s)"
	else
		echo "FAIL $n $check ($((SECONDS - began)) s): $LOGS/$check"
		failed=$((failed + 1))
	fi
done
echo "windows: $n checks, $failed failed"
[ $failed = 0 ]
