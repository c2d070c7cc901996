package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The schedule of replicas shows their exchanges, validates them, and says whether a connection is waited for.
func TestScheduleOfReplicas(t *testing.T) {
	args := []string{"schedule", "--name", "1f1b", "--stages", "1", "--microbatches", "2", "--batches", "1", "--replicas", "2",
		"--local-steps", "8", "--message", "20"}
	code, out, errs := command(append(args, "--draw", "text")...)
	require.Equal(t, exitOK, code, errs)
	for _, want := range []string{"# step       1   2   3", "# replica 2  ·   S0  S1   L0 S2", "#   link     0%  0%  56%", "every 8 steps, 2 late",
		"the connections are never waited for", "41.67 % busy"} {
		assert.Contains(t, out, want)
	}
	code, out, errs = command(append(args, "--late", "1", "--draw", filepath.Join(t.TempDir(), "a.svg"))...)
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "of the time; with --late 2 they would not")
	code, out, errs = command(append(args, "--json", "--message", "100")...)
	require.Equal(t, exitOK, code, errs)
	var got struct {
		Exchanges struct {
			Late   int
			Result struct {
				Step     float64
				Lateness int
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	assert.Greater(t, got.Exchanges.Result.Lateness, 8, "the connection is too slow")
	assert.Equal(t, 8, got.Exchanges.Late)
	assert.Greater(t, got.Exchanges.Result.Step, 6.)
	for want, more := range map[string][]string{
		"--replicas: found 100, expected 2 to 64":         {"--replicas", "100"},
		"--local-steps: found 0, expected 1":              {"--local-steps", "0"},
		"--fragments: found 0, expected 1":                {"--fragments", "0"},
		"--message: found -1":                             {"--message=-1"},
		"exchanges: late: found 9, expected 0 to 8":       {"--late", "9"},
		"steps that take no time, expected --costs great": {"--costs", "0,0,0"},
	} {
		code, _, errs := command(append(args, more...)...)
		assert.Equal(t, exitMistake, code)
		assert.Contains(t, errs, want)
	}
}
