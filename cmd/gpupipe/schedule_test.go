package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestScheduleCommand(t *testing.T) {
	code, out, errs := command("schedule", "--name", "2bw", "--stages", "2", "--microbatches", "2", "--draw", "text")
	require.Equal(t, exitOK, code, errs)
	assert.Equal(t, `# name: 2bw
# stages: 2
# chunks: 1
# microbatches: 2
# batches: 3
# delay: 1
# stale: 1
F0.0 F1.0 B0.0 F0.1 B1.0 U0 F1.1 B0.1 F0.2 B1.1 U1 F1.2 B0.2 B1.2 U2
F0.0 B0.0 F1.0 B1.0 F0.1 B0.1 U0 F1.1 B1.1 F0.2 B0.2 U1 F1.2 B1.2 U2
#
# 0  F0.0 F1.0 ·    ·    B0.0───── F0.1 B1.0───── F1.1 B0.1───── F0.2 B1.1───── F1.2 B0.2───── ·    B1.2─────
# 1  ·    F0.0 B0.0───── F1.0 B1.0───── F0.1 B0.1───── F1.1 B1.1───── F0.2 B0.2───── F1.2 B1.2───── ·    ·
#
# STAGE  IN FLIGHT  WEIGHTS  GRADIENTS  BUFFERS  STALENESS  BUSY  WAITING
# 0      2 (2)      2        1          3        0 to 1     18    3
# 1      1 (1)      2        2          3        0 to 1     18    3
#
# valid      yes
# staleness  0.5 of a step in the mean
# makespan   21
# bubble     14.29 %                    (closed form 14.29 %)
# steady     0.00 %                     (closed form 0.00 %)   6 a batch
`, out)

	file := filepath.Join(t.TempDir(), "mine.txt") // what it prints it reads
	require.NoError(t, os.WriteFile(file, []byte(out), 0o666))
	svg := filepath.Join(t.TempDir(), "a.svg")
	code, out, errs = command("schedule", "--file", file, "--batches", "4", "--tied", "--costs", "1,1,0.5;2,1,0.5", "--transfer", "0.25",
		"--draw", svg, "--json")
	require.Equal(t, exitOK, code, errs)
	assert.FileExists(t, svg)
	var got struct {
		Name, Links string
		Batches     int
		Staleness   float64
		Ranks       [][]string
		Report      []struct {
			Buffers   int
			Staleness [2]int
		}
		Simulation struct {
			Makespan float64
			Steady   struct{ Period, Bubble float64 }
			Events   []struct{ Action string }
		}
		Closed any `json:"closed_form"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	assert.Equal(t, "2bw", got.Name)
	assert.Equal(t, "tied", got.Links)
	assert.Equal(t, 4, got.Batches)
	assert.Equal(t, "RG3 N3 U3 SW3", strings.Join(got.Ranks[0][len(got.Ranks[0])-4:], " "))
	assert.Equal(t, 3, got.Report[1].Buffers)
	assert.Equal(t, [2]int{0, 1}, got.Report[1].Staleness)
	assert.InDelta(t, 0.5, got.Staleness, 1e-12)
	assert.Len(t, got.Simulation.Events, 2*4*(2*2+1))
	assert.Greater(t, got.Simulation.Steady.Period, 6.5-1e-9, "what the slower stage has to do")
	assert.Nil(t, got.Closed)
}

// Over slow links a depth keeps the stages busy, and the closed form says so.
func TestScheduleCommandOverLinks(t *testing.T) {
	for depth, want := range map[string]string{"0": "# steady 57.14 % (closed form 56 a batch) 56 a batch",
		"3": "# steady 25.00 % (closed form 32 a batch) 32 a batch"} {
		code, out, errs := command("schedule", "--name", "2bw", "--depth", depth, "--latency", "2", "--transfer", "0.6666666666666666")
		require.Equal(t, exitOK, code, errs)
		var figures []string
		for line := range strings.Lines(out) {
			figures = append(figures, strings.Join(strings.Fields(line), " "))
		}
		assert.Contains(t, figures, want)
		assert.Equal(t, depth == "3", strings.Contains(out, "# depth: 3\n"))
	}
	code, out, errs := command("schedule", "--name", "2bw", "--depth", "2", "--stages", "3", "--split-backward", "--latency", "9", "--json")
	require.Equal(t, exitOK, code, errs)
	var got struct {
		Depth, Stale, Microbatches int
		Ranks                      [][]string
		Period                     float64 `json:"closed_period"`
		Simulation                 struct{ Steady struct{ Period float64 } }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	assert.Equal(t, []int{2, 4, 6}, []int{got.Depth, got.Stale, got.Microbatches})
	assert.Equal(t, "F0.0 F1.0 F2.0 F3.0 F4.0 I0.0 W0.0", strings.Join(got.Ranks[0][:7], " "))
	assert.InDelta(t, got.Period, got.Simulation.Steady.Period, 1e-9)
}

func TestScheduleCommandKnowsAllSchedules(t *testing.T) {
	for name, want := range map[string]string{"gpipe": "27.27 %", "1f1b": "27.27 %", "interleaved": "15.79 %", "zb-h1": "11.11 %",
		"2bw": "0.00 %", "pipedream": "0.00 %", "eval": "0.00 %"} {
		for _, more := range [][]string{nil, {"--communication"}} {
			code, out, errs := command(append([]string{"schedule", "--name", name}, more...)...)
			require.Equal(t, exitOK, code, errs)
			figures := strings.Fields(out[strings.Index(out, "# steady"):])
			assert.Equal(t, want, strings.Join(figures[2:4], " "), name)
			assert.Equal(t, []string{"(closed", "form", strings.Fields(want)[0], "%)"}, figures[4:8], name)
		}
	}
	code, out, _ := command("schedule", "--help")
	assert.Equal(t, exitOK, code)
	for _, want := range []string{"Examples:", "interleaved", "(arXiv 2006.09503)", "--costs=F,B,U", "RF SF RB SB"} {
		assert.Contains(t, out, want)
	}
}

func TestScheduleMistakes(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		return path
	}
	good, bad, late := file("good.txt", "F0 B0 U0\n"), file("bad.txt", "F0 B0\nU0 X1\n"), file("late.txt", "B0 F0 U0\n")
	withLinks := file("links.txt", "# links: none\nF0 B0 N0 U0\n")
	before, err := os.ReadDir(dir)
	require.NoError(t, err)
	for want, args := range map[string][]string{
		"no schedule: expected --name gpipe|1f1b|":                      {},
		`--name: found "3bw", expected one of`:                          {"--name", "3bw"},
		"--name and --file can't be used together":                      {"--name", "2bw", "--file", good},
		"microbatches: found 3 on 4 stages, expected at least one":      {"--name", "2bw", "--microbatches", "3"},
		"--stale: found \"some\", expected auto, all":                   {"--name", "2bw", "--stale", "some"},
		"stages: found -1":                                              {"--name", "gpipe", "--stages=-1"},
		"batches: found -2, expected at least 1":                        {"--name", "gpipe", "--batches=-2"},
		"are too many to list":                                          {"--name", "gpipe", "--batches=999999999"},
		"expected none with --file":                                     {"--file", good, "--stages", "1"},
		"none.txt: no such file":                                        {"--file", filepath.Join(dir, "none.txt")},
		`bad.txt:2: stage 1: action 2: action "X1"`:                     {"--file", bad},
		"schedule late: stage 0: action 1, B0.0, stands before F0.0":    {"--file", late},
		"late.txt: schedule late: stage 0: action 1, B0.0":              {"--file", late, "--batches", "2"},
		"found communication in a schedule to repeat":                   {"--file", withLinks, "--batches", "2"},
		"costs: found 2 numbers in \"1,2\", expected F,B,U or F,I,W,U":  {"--name", "gpipe", "--costs", "1,2"},
		"costs: found \"x\" in \"1,x,2\"":                               {"--name", "gpipe", "--costs", "1,x,2"},
		"--costs: found 3 stages, expected 1 for all of them, or 4":     {"--name", "gpipe", "--costs", "1,2,3;1,2,3;1,2,3"},
		"transfer: found 1e+308, expected a number from 0 to 1e12":      {"--name", "1f1b", "--transfer=1e308"},
		"--latency: found -1, expected a number from 0 to 1e12":         {"--name", "gpipe", "--latency=-1"},
		"expected at least 6: one per stage and 2 more in flight":       {"--name", "2bw", "--depth", "2", "--microbatches", "5"},
		"schedule gpipe: depth: found 1, expected 0: only 1f1b and 2bw": {"--name", "gpipe", "--depth", "1"},
		"transfer: found -1":                                            {"--name", "gpipe", "--transfer=-1"},
		"draw: found text with --json":                                  {"--name", "gpipe", "--draw", "text", "--json"},
		`found extension ".pdf", expected .svg or .png`:                 {"--name", "gpipe", "--draw", filepath.Join(dir, "a.pdf")},
		"which would make copies differ":                                {"--name", "pipedream", "--tied"},
		"draw: the picture would be":                                    {"--name", "gpipe", "--draw", "text", "--costs", "1,9999,0"},
		"interleaved: microbatches: found 3 on 2 stages, expected a multiple of the": {"--name", "interleaved", "--stages", "2",
			"--microbatches", "3"},
	} {
		code, out, errs := command(append([]string{"schedule"}, args...)...)
		assert.Equal(t, exitMistake, code, args)
		assert.Contains(t, errs, want, args)
		assert.Empty(t, out, args)
	}
	after, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Equal(t, before, after)
}
