package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/runtime/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBench(t *testing.T) {
	code, out, errs := command("bench", "--device", "null", "--quick", "--json", "--filter", "512×512|rmsnorm")
	require.Equal(t, exitOK, code, errs)
	var report struct {
		Results []struct {
			Name  string
			Ratio float64 `json:"ratio_to_gonum"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	require.Len(t, report.Results, 4)
	assert.Positive(t, report.Results[0].Ratio)
	code, _, errs = command("bench", "--filter", "(")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "filter")
}

// Devices take turns, and come side by side.
func TestBenchOfSeveralDevices(t *testing.T) {
	args := []string{"bench", "--device", "null", "--device", "null:0", "--quick", "--filter", "^dispatch$|rmsnorm"}
	code, out, errs := command(append(args, "--json")...)
	require.Equal(t, exitOK, code, errs)
	var report benchReports
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	require.Len(t, report.Devices, 2)
	require.Len(t, report.Comparison, 3)
	assert.Len(t, report.Comparison[0].Ratios, 2)
	code, out, errs = command(args...)
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "to null:0")
	code, _, errs = command("bench", "--device", "null", "--device", "cuda:0")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, `device "cuda:0": unknown backend`)
}

func TestBenchProfile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "profiles")
	code, _, errs := command("bench", "--device", "null", "--quick", "--filter", "step tiny adamw", "--profile", dir)
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, errs, filepath.Join(dir, "profile.html"))
	text, err := os.ReadFile(filepath.Join(dir, "profile.json"))
	require.NoError(t, err)
	var p profile.Profile
	require.NoError(t, json.Unmarshal(text, &p))
	require.Len(t, p.Ranks, 1)
	assert.Equal(t, "step tiny adamw", p.Ranks[0].Name)
}

// A folder that cannot be written to is found out before anything is measured; what was measured is not lost with the
// profile.
func TestBenchProfileThatCannotBeWritten(t *testing.T) {
	args := []string{"bench", "--device", "null", "--quick", "--filter", "step tiny adamw", "--profile"}
	code, out, errs := command(append(args, "/proc")...) // not root either
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "profile: ")
	assert.NotContains(t, errs, "profile.json")
	assert.Empty(t, out)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "profile.json"), 0o777))
	code, out, errs = command(append(args, dir)...)
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "profile.json")
	assert.Contains(t, out, "step tiny adamw")
}

// A device that computes nothing does not pass.
func TestSelftestFails(t *testing.T) {
	code, out, errs := command("selftest", "--device", "null", "--quick", "--filter", "exp")
	assert.Equal(t, exitFailure, code)
	assert.Contains(t, out, "WRONG")
	assert.Contains(t, out, "of 1 are wrong")
	assert.Contains(t, errs, "wrong results")
	code, _, _ = command("selftest", "--device", "null", "--filter", "no such op")
	assert.Equal(t, exitMistake, code)
}

func TestSelftest(t *testing.T) {
	code, out, errs := command("selftest", "--quick", "--json", "--filter", "loops")
	require.Equal(t, exitOK, code, out+errs)
	var report selftestReport
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	assert.True(t, report.OK)
	assert.Equal(t, "loops", report.Lines[0].Op)
	assert.Equal(t, 2, report.Lines[0].Cases)
}
