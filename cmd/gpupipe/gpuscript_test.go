package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stubGPU stands for the program in .ci/gpu.sh. It answers as on a machine with a GPU. BROKEN names a section that
// fails, and HANGS one that does not end.
const stubGPU = `#!/bin/bash
step() { echo '{"event":"step","step":{"step":'$1',"loss":2.5,"tokens_per_s":'$2'}}'; }
run=$(grep -o 'run.dir=[^ ]*' <<<"$*" | cut -d= -f2)
case "$*" in
--version) echo gpupipe v1; exit ;;
devices*) section=devices ;;
selftest*) section=selftest ;;
bench*) section=products ;;
*schedule=2bw*) section=2bw ;;
*isolate=process*) section=faults ;;
train*) section=step ;;
esac
[ "$section" != "$HANGS" ] || sleep 1000
[ "$section" != "$BROKEN" ] || { echo "$section: broken" >&2; exit 1; }
case $section in
devices) echo '[{"name":"cpu:0","adapter":"CPU","kind":"cpu"},{"name":"vulkan:0","adapter":"A Card","kind":"discrete"}]' ;;
selftest) echo "2 cases are right" ;;
products) echo "matmul 512×512×512 1 ms" ;;
2bw) step 8 900.5 ;;
step)
  [[ "$*" == *"batch_size=4"* ]] && { echo "no memory" >&2; exit 2; }
  mkdir -p "$run"
  echo '{"step":5,"system/mfu":0.25}' >"$run/system.jsonl"
  [[ "$*" == *"batch_size=2"* ]] && step 6 1900.5 || step 6 1000.5 ;;
faults)
  bash -c 'exec sleep 1000' & worker=$!
  step 6 1
  wait $worker
  step 20 1 ;;
esac
`

// The script for a new GPU comes to its end, whichever section fails, and its page says which.
func TestScriptForANewGPU(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the script is for Linux")
	}
	tier.Rest(t)
	script, err := filepath.Abs("../../.ci/gpu.sh")
	require.NoError(t, err)
	dir := t.TempDir()
	for name, text := range map[string]string{"gpupipe": stubGPU, "go": "#!/bin/bash\n[ \"$BROKEN\" != conformance ] && echo '--- PASS'\n",
		"python3": "#!/bin/bash\n[ \"$BROKEN\" != torch ] || [ \"$1\" = -c ] || exit 1\ncat >/dev/null\necho FOUND torch: 5 tokens/s\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o777))
	}
	sections := []string{"", "devices", "selftest", "conformance", "products", "step", "torch", "2bw", "faults"}
	for _, broken := range sections {
		out := filepath.Join(dir, "out-"+broken)
		cmd := exec.Command("bash", script, out)
		cmd.Env = append(os.Environ(), "GPUPIPE="+filepath.Join(dir, "gpupipe"), "BROKEN="+broken, "DEVICE=none", "BUDGET=6000",
			"PATH="+dir+":"+os.Getenv("PATH"))
		log, err := cmd.CombinedOutput()
		assert.Equal(t, broken != "", err != nil, "%s: %s", broken, log)
		page, err := os.ReadFile(filepath.Join(out, "results.md"))
		require.NoError(t, err, "%s", log)
		for _, name := range sections[1:] {
			want := `passed \| \d+ \| .* \|  \|`
			if name == broken {
				want = `failed \(1\) \| \d+ \| .* \| .+ \|`
			}
			assert.Regexp(t, regexp.MustCompile(`(?m)^\| \[`+name+`\]\(`+name+`\.txt\) \| `+want+`$`), string(page))
		}
		if broken == "" {
			assert.True(t, strings.HasPrefix(string(page), "# gpupipe on A Card\n"), string(page))
			assert.Contains(t, string(page), "smollm2-135m in bf16, batch size 2: 1900 tokens/s, MFU 0.25")
			assert.Contains(t, string(page), "a killed worker cost no step")
		}
	}
	out := filepath.Join(dir, "hangs")
	cmd := exec.Command("bash", script, out)
	cmd.Env = append(os.Environ(), "GPUPIPE="+filepath.Join(dir, "gpupipe"), "HANGS=selftest", "DEVICE=none", "BUDGET=20",
		"PATH="+dir+":"+os.Getenv("PATH"))
	require.Error(t, cmd.Run())
	page, err := os.ReadFile(filepath.Join(out, "results.md"))
	require.NoError(t, err)
	assert.Contains(t, string(page), "| [selftest](selftest.txt) | did not finish in 3 s |")
	assert.Contains(t, string(page), "| [faults](faults.txt) |")

	notes := filepath.Join(t.TempDir(), "notes.md")
	require.NoError(t, os.WriteFile(notes, nil, 0o666))
	cmd = exec.Command("bash", script, ".")
	cmd.Dir, cmd.Env = filepath.Dir(notes), append(os.Environ(), "GPUPIPE="+filepath.Join(dir, "gpupipe"))
	log, err := cmd.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(log), filepath.Dir(notes)+": found files of something else, expected a new folder")
	assert.FileExists(t, notes)
}
