package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/cmd/gpupipe/internal/report"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The null device computes nothing: its selftest fails, its training steps are profiled all the same, and the exit code
// says so.
func TestReport(t *testing.T) {
	tier.Rest(t)
	t.Setenv("GPUPIPE_TEST_COMMAND", "1")
	out := filepath.Join(t.TempDir(), "report")
	a := &app{ctx: t.Context(), stdout: io.Discard, stderr: io.Discard}
	require.Equal(t, exitFailure, a.run([]string{"report", "--device", "null", "--budget", "10m", "--out", out}))
	text, err := os.ReadFile(out + ".json")
	require.NoError(t, err)
	var r report.Report
	require.NoError(t, json.Unmarshal(text, &r))
	assert.True(t, r.Done)
	require.Len(t, r.Subjects, 2)
	status := map[string]report.Status{}
	for _, s := range r.Subjects[1].Sections {
		status[s.Name] = s.Status
	}
	assert.Equal(t, map[string]report.Status{"selftest": report.Failed, "verify": report.Failed,
		"profiled step of tiny, default kernels":         report.Passed,
		"profiled step of smollm2-135m, default kernels": report.Skipped, "bench": report.Passed}, status)
	markdown, err := os.ReadFile(out + ".md")
	require.NoError(t, err)
	assert.Contains(t, string(markdown), "- **null: selftest: failed**")
	assert.Contains(t, string(markdown), "distinct kernels that take the most time")
}

func TestReportRefuses(t *testing.T) {
	a := &app{ctx: t.Context(), stdout: io.Discard, stderr: io.Discard}
	assert.Equal(t, exitMistake, a.run([]string{"report", "--budget", "1s"}))
	assert.Equal(t, exitMistake, a.run([]string{"report", "--device", "cuda:0"}))
	assert.Equal(t, exitMistake, a.run([]string{"report", "--models", "gpt-5"}))
	assert.Equal(t, exitMistake, a.run([]string{"report", "--seq-len", "-1"}))
}

// A GPU trains both presets, the larger one with default and with timed kernels. A CPU trains the larger one with
// default kernels, a software adapter only if it is named.
func TestReportSections(t *testing.T) {
	sections := func(c reportCommand, kind device.Kind) (run []string) {
		for _, task := range c.tasks(deviceLine{Info: device.Info{Name: "vulkan:0", Kind: kind}}, t.TempDir()) {
			if task.Skip == "" {
				run = append(run, task.Name)
			}
			if task.Args[0] == "train" {
				_, err := config.Load("", setFlags(task.Args))
				assert.NoError(t, err, task.Name)
				assert.Equal(t, strings.Contains(task.Name, largeModel), task.Disk > 1_600_000_000, task.Name)
			}
		}
		return run
	}
	const small, large, static = "profiled step of tiny", "profiled step of smollm2-135m", ", default kernels"
	assert.Equal(t, []string{"selftest", "verify", small, large + static, "bench", large}, sections(reportCommand{}, device.Discrete))
	assert.Equal(t, []string{"selftest", "verify", small, large + static, "bench"}, sections(reportCommand{}, device.CPU))
	assert.Equal(t, []string{"selftest", "verify", small + static, "bench"}, sections(reportCommand{}, device.Software))
	assert.Equal(t, []string{"selftest", "verify", large + static, "bench"},
		sections(reportCommand{Models: []string{largeModel}, SeqLen: 32}, device.Software))
}

// setFlags are the values of --set among arguments.
func setFlags(args []string) (set []string) {
	for i, a := range args {
		if a == "--set" {
			set = append(set, args[i+1])
		}
	}
	return set
}

func TestReportOrder(t *testing.T) {
	line := func(name string, kind device.Kind) deviceLine {
		return deviceLine{Info: device.Info{Name: name, Kind: kind}}
	}
	found := []deviceLine{line("webgpu:0", device.Software), line("vulkan:0", device.Discrete), line("vulkan:1", device.Integrated)}
	var names []string
	for _, d := range (&reportCommand{}).order(found) {
		names = append(names, d.Name)
	}
	assert.Equal(t, []string{"vulkan:0", "vulkan:1", "webgpu:0"}, names)
	assert.Equal(t, 2*gpuWeight+1, weightsFrom((&reportCommand{}).order(found), "vulkan:0"))
	assert.Equal(t, 1, weightsFrom((&reportCommand{}).order(found), "webgpu:0"))
	chosen := (&reportCommand{Device: []string{"vulkan:9"}}).order(found)
	require.Len(t, chosen, 1)
	assert.Equal(t, "not listed", chosen[0].Adapter)
}
