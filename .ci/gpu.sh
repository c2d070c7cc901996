#!/usr/bin/env bash
# gpu.sh [FOLDER]: the first minutes with a GPU that gpupipe has not seen, on Linux with the GPU's driver. In ten minutes it
# lists devices, checks arithmetic and conformance, tunes and times products, trains smollm2-135m in bf16 at growing batch
# sizes, and at the best one with torch.compile, runs 2BW on two logical devices and survives faults. After each section FOLDER/results.md (by
# default gpu-results) says what was found and what to try next; FOLDER/SECTION.txt has all output. A section that fails or
# hangs costs its share of the time only. The exit status is 1 if one failed. FOLDER is new, or has an earlier page, which
# is replaced.
#
# GPUPIPE names the program; without it bin/gpupipe is used, or built. DEVICE chooses a device, BUDGET the seconds.
set -uo pipefail
REPOSITORY=$(realpath "$(dirname "$0")/..")
OUT=$(realpath -m "${1:-$REPOSITORY/gpu-results}")
[ -z "${GPUPIPE:-}" ] || GPUPIPE=$(realpath "$GPUPIPE")
cd "$REPOSITORY"

BUDGET=${BUDGET:-600}
if [ -n "$(ls -A "$OUT" 2>/dev/null)" ] && [ ! -e "$OUT/devices.txt" ]; then
	echo "gpu: $OUT: found files of something else, expected a new folder or one with an earlier page" >&2
	exit 2
fi
mkdir -p "$OUT"
export PATH=$PATH:$PWD/build/toolchain # where make build leaves Go
if [ -z "${GPUPIPE:-}" ]; then
	[ -x bin/gpupipe ] || make build || exit 1
	GPUPIPE=bin/gpupipe
fi
readonly OUT BUDGET GPUPIPE
readonly BEGAN=$SECONDS RUNS=$OUT/runs
rm -rf "$RUNS" "$OUT"/*.txt "$OUT"/*.md
STATUS=0
PAGE=()

# field NAME: the last number of this name in JSON on standard input.
field() { grep -o "\"$1\":[-0-9.e+]*" | tail -1 | cut -d: -f2; }

# publish writes the page.
publish() {
	{
		echo "# gpupipe on $(device_name)"
		echo
		echo "$("$GPUPIPE" --version 2>&1 | head -1), device $DEVICE, $(uname -srm), $(date -u +%F)"
		echo
		echo "| section | result | seconds | found | try next |"
		echo "| --- | --- | --- | --- | --- |"
		printf '%s\n' "${PAGE[@]}"
	} >"$OUT/results.md.new"
	mv "$OUT/results.md.new" "$OUT/results.md"
}

device_name() {
	sed -n "s/.*\"name\":\"${DEVICE:-none}\",\"adapter\":\"\([^\"]*\)\".*/\1/p" "$OUT/devices.txt" 2>/dev/null | head -1 | grep . || echo "an unknown device"
}

# section NAME SHARE ADVICE: runs the function of the name in a process of its own for at most its share of the time, in
# hundredths, and adds a row. The function's last line that begins with FOUND is what was found.
section() {
	local name=$1 share=$2 advice=$3 begin=$SECONDS code result found
	local limit=$((BUDGET * share / 100))
	# timeout makes a process group, so that no child of the section outlives it.
	timeout -s KILL "$limit" bash -c "$(declare -f field "section_$name"); set -o pipefail; section_$name" </dev/null >"$OUT/$name.txt" 2>&1 &
	local pid=$!
	wait "$pid" 2>/dev/null
	code=$?
	kill -KILL -- -"$pid" 2>/dev/null
	found=$(sed -n 's/^FOUND //p' "$OUT/$name.txt" | tail -1)
	case $code in
	0) result=passed advice='' ;;
	3) result="left out" advice='' ;;
	137)
		result="did not finish in $limit s" STATUS=1
		[ $((SECONDS - begin)) -ge "$limit" ] || result="killed, perhaps for its memory"
		;;
	*) result="failed ($code)" STATUS=1 found=${found:-$(grep -v '^$' "$OUT/$name.txt" | tail -1 | cut -c1-300)} ;;
	esac
	PAGE+=("| [$name]($name.txt) | $result | $((SECONDS - begin)) | ${found//|/\\|} | $advice |")
	publish
	echo "gpu: $name: $result${found:+: $found}"
}

section_devices() {
	nvidia-smi 2>/dev/null || rocm-smi 2>/dev/null || true
	ls /dev/dri /dev/nvidia* 2>/dev/null || true
	"$GPUPIPE" devices --json || exit 1
	"$GPUPIPE" devices
	echo "FOUND $("$GPUPIPE" devices --json | grep -o '"kind":"[a-z-]*"' | cut -d'"' -f4 | sort | uniq -c | xargs)"
}

section_selftest() {
	"$GPUPIPE" selftest --device "$DEVICE" --within "${SELFTEST}s" $QUICK || exit 1
	echo "FOUND $(grep -v '^$' "$OUT/selftest.txt" | tail -1)"
}

section_conformance() {
	if ! command -v go >/dev/null || [ ! -f "runtime/${DEVICE%:*}/conformance_test.go" ]; then
		echo "FOUND no Go, or no conformance tests of ${DEVICE%:*}"
		exit 3
	fi
	GPUPIPE_TESTS=core go test -vet=off "./runtime/${DEVICE%:*}" -run 'Refusals|Execution|Timer|Conformance' -v || exit 1
	echo "FOUND $(grep -c -- '--- PASS' "$OUT/conformance.txt") cases"
}

section_products() {
	"$GPUPIPE" bench --device "$DEVICE" $QUICK --filter "$PRODUCTS" || exit 1
	echo "FOUND $(grep -E '^matmul' "$OUT/products.txt" | tail -1 | tr -s ' ')"
}

# Batch sizes double until the memory, or the growth of speed, ends.
section_step() {
	local batch=1 best=0 rate mfu run text
	while :; do
		run=$RUNS/step-$batch
		timeout "$STEP" "$GPUPIPE" train --device "$DEVICE" --json --profile --set "model.preset=$MODEL" --set train.precision=bf16 --set "train.batch_size=$batch" \
			--set train.steps=6 --set train.eval_every=0 $SIZES --set "model.seq_len=$SEQ_LEN" --set "data.train=$OUT/text" --set "run.dir=$run" >"$OUT/step.json" 2>"$OUT/step.err"
		local code=$?
		cat "$OUT/step.err"
		if [ $code -ne 0 ]; then
			echo "batch size $batch: exit status $code$([ $code -ne 124 ] || echo ", after $STEP s")"
			break
		fi
		rate=$(grep '"event":"step"' "$OUT/step.json" | field tokens_per_s)
		mfu=$(field system/mfu <"$run/system.jsonl")
		text="batch size $batch: ${rate%.*} tokens/s, MFU $([ -z "$mfu" ] && echo not known || LC_ALL=C printf %.3f "$mfu")"
		echo "$text"
		[ "$batch" -eq 1 ] || [ "${rate%.*}" -gt "$best" ] || { echo "no faster than before"; break; }
		best=${rate%.*}
		echo "$batch" >"$RUNS/batch"
		echo "FOUND $MODEL in bf16, $text"
		rm -rf "$run/checkpoints"
		[ "$batch" -lt "$LARGEST" ] || break
		batch=$((batch * 2))
	done
	[ "$best" -gt 0 ]
}

# The batch size is the one that was fastest in section_step, or what fits, since each further one would be compiled anew;
# 1 if that section found none.
section_torch() {
	python3 -c 'import torch' 2>/dev/null || { echo "FOUND no PyTorch"; exit 3; }
	MODEL=$MODEL SEQ_LEN=$SEQ_LEN BATCH=$(cat "$RUNS/batch" 2>/dev/null || echo 1) python3 - <<'PYTHON' || exit 1
import os, sys, time
import torch
sys.path.insert(0, "docs/oracle/peers")
from torch_peer import Llama
gpu = "cuda" if torch.cuda.is_available() else "cpu"
T = int(os.environ["SEQ_LEN"])
shapes = {"smollm2-135m": (576, 1536, 30, 9, 3, 64), "tiny": (128, 384, 4, 4, 2, 32)}
d, ff, layers, heads, kv, size = shapes[os.environ["MODEL"]]
m = Llama(dict(hidden_size=d, intermediate_size=ff, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv, head_dim=size,
               rms_norm_eps=1e-5, vocab_size=49152, tie_word_embeddings=True, rope_theta=10000.0), T).to(gpu)
step = torch.compile(m)
optimizer = torch.optim.AdamW(m.parameters(), fused=gpu == "cuda")
batch = int(os.environ["BATCH"])
while True:
    try:
        x = torch.randint(49152, (batch, T + 1), device=gpu)
        times = []
        for _ in range(6):
            begin = time.perf_counter()
            with torch.autocast(gpu, torch.bfloat16):
                loss = step(x[:, :-1], x[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
            times.append(time.perf_counter() - begin)
        break
    except torch.OutOfMemoryError:
        if batch == 1:
            raise
    batch, loss = batch // 2, None  # with the graph of the step that did not fit
    optimizer.zero_grad()
    torch.cuda.empty_cache()
rate = batch * T / min(times)
print(f"FOUND torch {torch.__version__} compiled on {gpu}, bf16, batch size {batch}: {rate:.0f} tokens/s")
PYTHON
}

section_2bw() {
	"$GPUPIPE" train --json --no-tune --set "model.preset=tiny" $SIZES --set train.steps=8 --set train.batch_size=8 --set train.microbatches=4 --set pipeline.stages=2 --set "pipeline.cut=[2]" \
		--set pipeline.schedule=2bw --set "pipeline.devices=[$DEVICE,$DEVICE]" --set "data.train=$OUT/text" --set "run.dir=$RUNS/2bw" || exit 1
	echo "FOUND $(grep '"event":"step"' "$OUT/2bw.txt" | field tokens_per_s | LC_ALL=C xargs -r printf %.0f) tokens/s on two logical devices, loss $(grep '"event":"step"' "$OUT/2bw.txt" | field loss | LC_ALL=C xargs -r printf %.4f)"
}

# A worker is killed in mid-run; the run continues from its checkpoint.
section_faults() {
	"$GPUPIPE" train --json --no-tune --set model.preset=tiny $SIZES --set train.steps=20 --set train.batch_size=4 --set train.save_every=5 --set pipeline.isolate=process \
		--set "pipeline.devices=[$DEVICE]" --set "data.train=$OUT/text" --set "run.dir=$RUNS/faults" >"$OUT/faults.json" &
	local run=$! worker=
	while kill -0 "$run" 2>/dev/null && ! grep -q '"step":[67],' "$OUT/faults.json"; do sleep 0.2; done
	worker=$(ps -o pid= --ppid "$run" | head -1)
	[ -z "$worker" ] || kill -KILL $worker
	wait "$run" || { cat "$OUT/faults.json"; exit 1; }
	cat "$OUT/faults.json"
	[ -n "$worker" ] || { echo "no worker to kill: the run has ended before"; exit 1; }
	echo "FOUND a killed worker cost no step: $(grep -c '"event":"step"' "$OUT/faults.json") step events of 20 steps"
}

DEVICE=${DEVICE:-none}
export OUT RUNS GPUPIPE DEVICE
section devices 5 "a driver for Vulkan: vulkaninfo --summary shows which are found; DEVICE=vulkan:0 names one"
names=$(grep -o '"name":"[a-z0-9:]*","adapter":"[^}]*"kind":"[a-z-]*"' "$OUT/devices.txt" | sed 's/"name":"\([^"]*\)".*"kind":"\([^"]*\)"/\1 \2/')
if [ "$DEVICE" = none ]; then # the first GPU through Vulkan, else any device of Vulkan, else the first one
	DEVICE=$({ grep -E '^vulkan.* (discrete|integrated)' <<<"$names"; grep -E ' (discrete|integrated)' <<<"$names"; grep ^vulkan <<<"$names"; echo "$names"; } | head -1 | cut -d' ' -f1)
	DEVICE=${DEVICE:-vulkan:0}
fi
KIND=$(awk -v d="$DEVICE" '$1 == d { print $2; exit }' <<<"$names")
# Software adapters and CPUs get smaller sections.
case ${KIND:-} in
software | cpu)
	QUICK=--quick MODEL=tiny SEQ_LEN=32 LARGEST=2 PRODUCTS='^matmul 512'
	SIZES="--set model.d_model=64 --set model.n_layers=2 --set model.n_heads=2 --set model.n_kv_heads=2 --set model.d_ff=128 --set model.seq_len=32"
	;;
*) SIZES='' QUICK='' MODEL=smollm2-135m SEQ_LEN=1024 LARGEST=256 PRODUCTS='^matmul' ;;
esac
SELFTEST=$((BUDGET * 12 / 100)) STEP=$((BUDGET * 15 / 100))
export DEVICE SIZES QUICK MODEL SEQ_LEN LARGEST PRODUCTS SELFTEST STEP
for i in $(seq 4000); do echo "In the beginning, line $i: the cat sat on the mat, and a dog ran to the cat."; done >"$OUT/text"
publish
section selftest 15 "gpupipe selftest --device $DEVICE --filter OP, with an op that failed; report it with this folder"
section conformance 10 "go test ./runtime/${DEVICE%:*} -run NAME -v with a case that failed; another backend: DEVICE=webgpu:0"
section products 15 "gpupipe bench --device $DEVICE --filter matmul --static; GPUPIPE_DUMP=folder keeps the kernels"
section step 25 "a smaller model: --set model.preset=tiny; f32: --set train.precision=f32; profile.html in the run folder has the kernels"
section torch 18 "python3 -c 'import torch; print(torch.cuda.is_available())'"
section 2bw 6 "gpupipe verify --device $DEVICE --quick"
section faults 6 "the same with --set pipeline.isolate=none; gpupipe train RUN --resume"
rm -rf "$RUNS" "$OUT/text" "$OUT"/*.json "$OUT"/*.err
echo "gpu: $OUT/results.md, after $((SECONDS - BEGAN)) s"
exit $STATUS
