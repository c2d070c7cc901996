package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a run takes of the host's memory on a CPU grows with the batch as planned.
func TestMemoryTakenAsPlanned(t *testing.T) {
	tier.Rest(t)
	t.Setenv("GOGC", "20") // garbage of the host is not planned
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "text.txt"), []byte(strings.Repeat("the cat sat on the mat. ", 2000)), 0o666))
	planned, taken := [2]int64{}, [2]int64{}
	for i, sequences := range []int{4, 64} {
		planned[i], taken[i] = memoryOf(t, dir, sequences)
	}
	growth := planned[1] - planned[0]
	require.Greater(t, growth, int64(200<<20))
	assert.InEpsilon(t, growth, taken[1]-taken[0], 0.1)
}

// memoryOf trains for a moment and returns the bytes that were planned on the device, and the most that the process
// had.
func memoryOf(t *testing.T, dir string, sequences int) (planned, taken int64) {
	cmd, lines := start(t, "train", "--device", "cpu:0", "--no-tune", "--json", "--set", "data.train=["+filepath.Join(dir, "text.txt")+"]",
		"--set", fmt.Sprintf("run.dir=%s/run-%d", dir, sequences), "--set",
		"model={vocab_size: 4096, d_model: 64, n_layers: 2, n_heads: 2, d_ff: 192, seq_len: 128}",
		"--set", fmt.Sprintf("train={steps: 1000000, batch_size: %d, eval_every: 0, save_every: 0}", sequences), "--set",
		"data.val_fraction=0")
	defer func() {
		assert.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // killed
	}()
	require.True(t, lines.Scan())
	var first struct{ Start train.Start }
	require.NoError(t, json.Unmarshal(lines.Bytes(), &first))
	require.Len(t, first.Start.Ranks, 1)
	until(t, lines, `"step":2,`)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	require.NoError(t, err)
	most := regexp.MustCompile(`VmHWM:\s*(\d+) kB`).FindSubmatch(status)
	require.NotNil(t, most)
	kilobytes, err := strconv.ParseInt(string(most[1]), 10, 64)
	require.NoError(t, err)
	return first.Start.Ranks[0].Allocated, kilobytes << 10
}
