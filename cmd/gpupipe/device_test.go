package main

import (
	"encoding/json"
	"testing"

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
	code, out, errs := command("selftest", "--quick", "--json", "--filter", "s")
	require.Equal(t, exitOK, code, out+errs)
	var report selftestReport
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	assert.True(t, report.OK)
	assert.Equal(t, "loops", report.Lines[0].Op)
	assert.Equal(t, 2, report.Lines[0].Cases)
}
