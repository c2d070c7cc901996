package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var fenced = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")

// blocks returns the code blocks of the README in some language, in order.
func blocks(t *testing.T, language string) (all []string) {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
		if m[1] == language {
			all = append(all, m[2])
		}
	}
	require.NotEmpty(t, all)
	return all
}

// smaller stands for bin/gpupipe, and make for make. They run the README's commands with smaller models, fewer steps
// and fewer cases, which come after the README's own flags, and change nothing else.
const smaller = `#!/bin/bash
set -euo pipefail
sizes=(--set model.d_model=32 --set model.n_layers=2 --set model.n_heads=2 --set model.n_kv_heads=2 --set model.d_ff=64 --set model.seq_len=32)
case "$1" in
train)
  steps=4
  [[ "$*" == *--resume* ]] && steps=6
  [[ "$*" == *init.from* || "$*" == *--resume* ]] && sizes=()
  set -- "$@" "${sizes[@]}" --no-tune --set train.steps=$steps --set train.batch_size=8 --set train.eval_batches=1 ;;
plan) # for cards that are not there it times nothing
  [[ "$*" == *--gpu* ]] || set -- "$@" "${sizes[@]}" --no-tune --set train.batch_size=8 ;;
watch) # until it has printed the page's address
  GPUPIPE_TEST_COMMAND=1 "$GPUPIPE" "$@" --listen 0 >watch.out & page=$!
  until grep -q http watch.out; do kill -0 $page; sleep 0.1; done
  kill $page
  wait $page
  exit ;;
generate) set -- "$@" -n 5 ;;
serve) # until it listens
  export GPUPIPE_TEST_COMMAND=1
  "$GPUPIPE" "$@" --listen 127.0.0.1:0 --json >serve.out & serve=$!
  until grep -q 'http://127' serve.out; do kill -0 $serve; sleep 0.1; done
  kill $serve
  wait $serve
  exit ;;
selftest) set -- "$@" --quick --filter silu ;;
bench) set -- "$@" --quick --static --device null ;;
verify) set -- "$@" --quick --batches 6 --filter resumed ;;
host) # with the member that the README's next command starts on another computer
  set -- "$@" "${sizes[@]}" --listen 127.0.0.1:0 --device cpu:0/1 --set train.steps=4 --set train.batch_size=8 --set train.eval_batches=1
  export GPUPIPE_TEST_COMMAND=1
  "$GPUPIPE" "$@" >host.out & host=$!
  until token=$(grep -o 'gp1[^ ]*' host.out); do kill -0 $host; sleep 0.1; done
  "$GPUPIPE" join "$token" --device cpu:0/1
  wait $host
  exit ;;
join) exit ;;
lr-range) set -- "$@" "${sizes[@]}" --steps 12 --set train.batch_size=8 ;; # as train, whose kernels it has
sweep) set -- "$@" --device null ;;
study) set -- "$@" "${sizes[@]}" --device null --set train.steps=2 --set train.eval_every=2 --set train.batch_size=2 ;;
esac
GPUPIPE_TEST_COMMAND=1 exec "$GPUPIPE" "$@"
`

// make only checks that there is a rule for the target.
const dryMake = "#!/bin/bash\nexec /usr/bin/env PATH=\"$REAL_PATH\" make --no-print-directory -C \"$REPOSITORY\" -n \"$@\" >/dev/null\n"

// python3 makes a virtual environment whose pip installs nothing: .ci/wheel-test.sh installs wheels.
const emptyPython = `#!/bin/bash
set -euo pipefail
[ "$1 $2" = "-m venv" ]
mkdir -p "$3/bin"
ln -s /bin/true "$3/bin/pip"
`

// The commands of the README run in their order, in a folder that has what a fresh clone has after set-up.
func TestReadmeRunsInOrder(t *testing.T) {
	tier.Rest(t)
	self, err := os.Executable()
	require.NoError(t, err)
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	onHub(t, "HuggingFaceTB/SmolLM2-135M", "roneneldan/TinyStories")
	clone := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(clone, name)), 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(clone, name), []byte(text), mode))
	}
	require.NoError(t, os.CopyFS(filepath.Join(clone, "examples"), os.DirFS(filepath.Join(root, "examples"))))
	write("build/demo/text.txt", strings.Repeat("In the beginning the cat sat on the mat, and a dog ran to the cat.\n", 400), 0o666)
	write("bin/gpupipe", smaller, 0o777)
	write("stubs/make", dryMake, 0o777)
	write("stubs/python3", emptyPython, 0o777)
	for i, block := range blocks(t, "sh") {
		t.Run(fmt.Sprint("block ", i+1), func(t *testing.T) {
			cmd := exec.Command("bash", "-euxo", "pipefail", "-c", block)
			cmd.Dir = clone
			cmd.Env = append(os.Environ(), "GPUPIPE="+self, "REPOSITORY="+root, "REAL_PATH="+os.Getenv("PATH"),
				"PATH="+filepath.Join(clone, "stubs")+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
	for _, made := range []string{"my.yaml", "runs/my/checkpoints/step-6", "my-hf/model.safetensors", "runs/tuned", "runs/stories", "gpupipe.schema.json",
		"shards/train_000001.bin",
		"runs/profiled/profile.html", "teacher.safetensors", "runs/2bw/trace.json", "runs/two/checkpoints/step-4",
		"studies/one-step-delay/table.md", "sweeps/learning-rates/best.yaml", "runs/range/result.json", "runs/focal"} {
		_, err := os.Stat(filepath.Join(clone, made))
		assert.NoError(t, err)
	}
}

// The YAML of the README is of configs: a whole one, and sections to add to it.
func TestReadmeYAMLIsAConfig(t *testing.T) {
	all := blocks(t, "yaml")
	c, err := config.Parse("README.md", []byte(all[0]), nil)
	require.NoError(t, err)
	assert.Equal(t, "runs/my", c.Run.Dir)
	for _, text := range all[1:] {
		_, err := config.Parse("README.md", []byte(text), []string{"model.preset=tiny", "data.train=a.txt", "run.dir=r"})
		assert.NoError(t, err, text)
	}
}

// The files that the README names exist.
func TestReadmeLinks(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(string(text), -1) {
		_, err := os.Stat(filepath.Join("../..", m[1]))
		assert.NoError(t, err)
	}
}
