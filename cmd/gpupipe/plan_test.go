package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/partition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func planArgs(args ...string) []string {
	return append([]string{"plan", "--set", "model={vocab_size: 256, d_model: 32, n_layers: 5, n_heads: 2, d_ff: 64, seq_len: 16}",
		"--set", "train={batch_size: 16, microbatches: 8}", "--set", "pipeline.devices=[null:0, null:1]"}, args...)
}

func TestPlan(t *testing.T) {
	code, out, errs := command(planArgs("--stages", "2", "--memory", "8GiB", "--set", "train.microbatches=2")...)
	require.Equal(t, exitOK, code, errs)
	for _, want := range []string{"7 units: 0 embed, 1 layers.0, …, 6 head", "256 tokens; microbatches: 2 of 8 sequences",
		"null:0, null:1: none (null), 8 GiB", "estimates", "gpipe", "interleaved", "zb-h1", "recommended: 2bw", "the first 1 of 2 microbatches of a batch lack the update", "MICROBATCHES", "recommended: --set train.microbatches=",
		"layers.0 (5 alike)", "embed to layers.", " to head", "--set pipeline.schedule=2bw --set pipeline.stages=2 --set pipeline.cut=["} {
		assert.Contains(t, out, want)
	}
	code, out, errs = command(planArgs("--stages", "2", "--cut", "3", "--json", "--modelled")...)
	require.Equal(t, exitOK, code, errs)
	var p layout.Comparison
	require.NoError(t, json.Unmarshal([]byte(out), &p))
	assert.Equal(t, []int{3}, p.Schedules[0].Plan.Cut)
	assert.NotEmpty(t, p.Recommended)
	assert.Contains(t, p.Schedules[2].Problem, "pipeline.cut: found [3], expected the first unit of each chunk except the first: 3 units")
	assert.Len(t, p.Devices, 2)
}

// A plan names the formats in which tensors travel, and counts their bytes.
func TestPlanOfWireFormats(t *testing.T) {
	sent := map[string]int64{}
	for _, format := range []string{"f32", "bf16", "int8"} {
		args := planArgs("--stages", "2", "--cut", "3", "--set", "pipeline.wire="+format)
		code, out, errs := command(args...)
		require.Equal(t, exitOK, code, errs)
		assert.Equal(t, format != "f32", strings.Contains(out, "between     activations and their gradients in "+format), out)
		assert.Contains(t, out, "SENDS A BATCH")
		code, out, errs = command(append(args, "--json")...)
		require.Equal(t, exitOK, code, errs)
		var p layout.Comparison
		require.NoError(t, json.Unmarshal([]byte(out), &p))
		sent[format] = p.Schedules[0].Plan.Stages[0].Sent
	}
	const elements = 16 * 16 * 32 // of a batch
	assert.Equal(t, map[string]int64{"f32": 4 * elements, "bf16": 2 * elements, "int8": elements + elements/32}, sent)
}

// Over links a depth is chosen, and what each costs is listed.
func TestPlanOverLinks(t *testing.T) {
	args := []string{"--stages", "3", "--set", "train.microbatches=16", "--set", "pipeline.devices=[null:0]"}
	code, out, errs := command(planArgs(append(args, "--network", "1ms,1Gbit")...)...)
	require.Equal(t, exitOK, code, errs)
	for _, want := range []string{"DEPTH  STALE  STALENESS", "chosen: the least within 1 % of the fastest", "--set pipeline.depth=", "null:0 of machine 2"} {
		assert.Contains(t, out, want)
	}
	code, out, errs = command(planArgs(append(args, "--network", "1ms,1Gbit", "--json")...)...)
	require.Equal(t, exitOK, code, errs)
	var p layout.Comparison
	require.NoError(t, json.Unmarshal([]byte(out), &p))
	require.Equal(t, "2bw", p.Recommended)
	best := p.Schedules[slices.IndexFunc(p.Schedules, func(c partition.Candidate) bool { return c.Schedule == p.Recommended })]
	assert.Positive(t, best.Depth)
	assert.Equal(t, best.Depth, best.Plan.Depth)
	for _, d := range p.Depths {
		assert.Equal(t, 2+d.Depth, d.Stale)
		assert.InDelta(t, float64(d.Stale)/16, d.Staleness, 1e-12)
	}
	code, out, errs = command(planArgs(args...)...)
	require.Equal(t, exitOK, code, errs)
	assert.NotContains(t, out, "DEPTH")
	assert.NotContains(t, out, "pipeline.depth")
}

func TestParseLink(t *testing.T) {
	for text, want := range map[string]partition.Link{"10ms,1Gbit": {Latency: 0.01, Bandwidth: 1.25e8}, "0s, 2.5 Gbit": {Bandwidth: 3.125e8},
		"1s,100kbit": {Latency: 1, Bandwidth: 12500}, "50us,200Mbit": {Latency: 50e-6, Bandwidth: 2.5e7}} {
		got, err := parseLink(text)
		require.NoError(t, err, text)
		assert.InDelta(t, want.Latency, got.Latency, 1e-12, text)
		assert.InDelta(t, want.Bandwidth, got.Bandwidth, 1e-6, text)
	}
	none, err := parseLink("")
	require.NoError(t, err)
	assert.Nil(t, none)
}

// The settings printed for a plan make a config whose ranks are those of the plan.
func TestSettingsOfReplicas(t *testing.T) {
	devices := []string{"null:0", "null:1", "null:2", "null:0"}
	args := []string{"--set", "pipeline.replicas=2", "--set", "train.microbatches=4", "--set", "pipeline.devices=[" + strings.Join(devices, ",") + "]"}
	code, out, errs := command(planArgs(append(args, "--stages", "2")...)...)
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "device      null:0 (shared by 2 ranks), null:1, null:2: ")
	_, printed, ok := strings.Cut(out, "to train with this plan:")
	require.True(t, ok, out)
	set := []string{"run.dir=plan", "data.train=[none]", "data.val=[]", "model={vocab_size: 256, d_model: 32, n_layers: 5, n_heads: 2, d_ff: 64, seq_len: 16}",
		"train={batch_size: 16, microbatches: 4}", "pipeline.replicas=2"}
	for _, s := range strings.Split(printed, " --set ")[1:] {
		set = append(set, strings.TrimSpace(s))
	}
	c, err := config.Load("", set)
	require.NoError(t, err, printed)
	assert.Equal(t, devices, c.Pipeline.Devices)

	p := &layout.Comparison{Replicas: 2, Ranks: devices}
	assert.Equal(t, []string{"null:1", "null:0", "null:0", "null:2"}, p.DevicesOf(&partition.Plan{Devices: []int{1, 0}}), "an order of another")
}

func TestPlanOfARun(t *testing.T) {
	dir := t.TempDir()
	c := small(t, dir)
	code, _, errs := command("train", c, "--device", "null", "--set", "train.steps=1")
	require.Equal(t, exitOK, code, errs)
	require.NoError(t, os.Remove(filepath.Join(dir, "text.txt")))
	for _, config := range []string{c, filepath.Join(dir, "run")} {
		code, out, errs := command("plan", config, "--set", "pipeline.devices=[null:0]", "--stages", "2")
		require.Equal(t, exitOK, code, errs)
		assert.Contains(t, out, "null:0 (shared by 2 stages)")
		assert.Contains(t, out, "recommended: 1f1b: no slower than 2bw", "on one device nothing is gained by a delay")
	}
}

func TestPlanMistakes(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"plan"}, "no config: expected"},
		{[]string{"plan", "absent.yaml"}, "absent.yaml"},
		{planArgs("--stages", "8"), "pipeline.stages: found 8"},
		{planArgs("--stages", "2", "--cut", "9"), `pipeline.cut: found "[9]", expected ascending units from 1 to 6`},
		{planArgs("--stages", "2", "--cut", "3,4"), `pipeline.cut: found "[3, 4]", expected 1 units`},
		{planArgs("--stages", "2", "--memory", "lots"), `pipeline.memory: found "lots", expected bytes, as in 24GiB`},
		{planArgs("--stages", "2", "--network", "fast,1Gbit"), `--network: found latency "fast", expected a time from 0s to 1h, as in 10ms,1Gbit`},
		{planArgs("--stages", "2", "--network=-1ms,1Gbit"), `--network: found latency "-1ms"`},
		{planArgs("--stages", "2", "--network", "1ms"), `--network: found bandwidth "", expected bits a second in kbit, Mbit or Gbit`},
		{planArgs("--stages", "2", "--network", "1ms,0Gbit"), `--network: found bandwidth "0Gbit"`},
		{planArgs("--stages", "2", "--network", "1ms,1GB"), `--network: found bandwidth "1GB"`},
		{planArgs("--stages", "2", "--memory", "20kB"), "stage 0 (embed"},
		{planArgs("--stages", "2", "--memory", "20kB"), "20000 available"},
		{planArgs("--set", "pipeline.devices=[abacus]"), "pipeline.devices: device \"abacus\": unknown backend"},
		{planArgs("--set", "model.n_layers=0"), "model.n_layers"},
	} {
		code, _, errs := command(c.args...)
		assert.Equal(t, exitMistake, code, "%v", c.args)
		assert.Contains(t, errs, c.want, "%v", c.args)
	}
}

func TestWithoutACacheAPlanIsMade(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "relative")
	t.Setenv("HOME", "")
	t.Setenv("LocalAppData", "")
	code, _, errs := command(planArgs("--stages", "2")...)
	assert.Equal(t, exitOK, code)
	assert.Contains(t, errs, "measured costs are not kept for later runs")
}

func TestUnitsText(t *testing.T) {
	units := []string{"embed", "a", "b", "head"}
	for want, part := range map[string]partition.Chunk{"embed": {First: 0, Last: 1}, "a to b": {First: 1, Last: 3}, "embed to head": {First: 0, Last: 4}} {
		assert.Equal(t, want, unitsText([]partition.Chunk{part}, units))
	}
	assert.Equal(t, "embed; b to head", unitsText([]partition.Chunk{{First: 0, Last: 1}, {First: 2, Last: 4}}, units))
}
