package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
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
	for _, want := range []string{"12 units: embed, layers.0.self_attn, …, head", "256 tokens; microbatches: 2 of 8 sequences",
		"null:0, null:1: none (null), 8 GiB", "estimates", "gpipe", "interleaved", "zb-h1", "recommended: 2bw",
		"the first 1 of 2 microbatches of a batch lack the update", "MICROBATCHES", "recommended: --set train.microbatches=",
		"layers.0.self_attn (5 alike)", "layers.0.mlp (5 alike)", "embed to layers.", " to head", "--set pipeline.schedule=2bw --set pipeline.stages=2 --set pipeline.cut=["} {
		assert.Contains(t, out, want)
	}
	code, out, errs = command(planArgs("--stages", "2", "--cut", "3", "--json", "--modelled")...)
	require.Equal(t, exitOK, code, errs)
	var p layout.Comparison
	require.NoError(t, json.Unmarshal([]byte(out), &p))
	assert.Equal(t, []string{"layers.2"}, p.Schedules[0].Plan.CutNames)
	assert.Equal(t, "embed to layers.1", p.Schedules[0].Plan.Stages[0].Units)
	assert.NotEmpty(t, p.Recommended)
	assert.Contains(t, p.Schedules[2].Problem, `pipeline.cut: found ["layers.2"], expected the first unit of each chunk except the first: 3 units`)
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
	tier.Rest(t)
	args := []string{"--stages", "3", "--set", "train.microbatches=16", "--set", "pipeline.devices=[null:0]"}
	code, out, errs := command(planArgs(append(args, "--network", "1ms,1Gbit")...)...)
	require.Equal(t, exitOK, code, errs)
	for _, want := range []string{"DEPTH  STALE  STALENESS", "chosen: the least within 1 % of the fastest", "--set pipeline.depth=",
		"null:0 of machine 2"} {
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
	for text, want := range map[string]partition.Link{"10ms,1Gbit": {Latency: 0.01, Bandwidth: 1.25e8},
		"0s, 2.5 Gbit": {Bandwidth: 3.125e8},
		"1s,100kbit":   {Latency: 1, Bandwidth: 12500}, "50us,200Mbit": {Latency: 50e-6, Bandwidth: 2.5e7}} {
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
	args := []string{"--set", "pipeline.replicas=2", "--set", "train.microbatches=4", "--set", "pipeline.devices=[" +
		strings.Join(devices, ",") + "]"}
	code, out, errs := command(planArgs(append(args, "--stages", "2")...)...)
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "device      null:0 (shared by 2 ranks), null:1, null:2: ")
	_, printed, ok := strings.Cut(out, "to train with this plan:")
	require.True(t, ok, out)
	set := []string{"run.dir=plan", "data.train=[none]", "data.val=[]",
		"model={vocab_size: 256, d_model: 32, n_layers: 5, n_heads: 2, d_ff: 64, seq_len: 16}",
		"train={batch_size: 16, microbatches: 4}", "pipeline.replicas=2"}
	for _, s := range strings.Split(printed, " --set ")[1:] {
		set = append(set, strings.TrimSpace(s))
	}
	c, err := config.Load("", set)
	require.NoError(t, err, printed)
	assert.Equal(t, devices, c.Pipeline.Devices)

	p := &layout.Comparison{Batch: layout.Batch{Replicas: 2}, Ranks: devices}
	assert.Equal(t, []string{"null:1", "null:0", "null:0", "null:2"}, p.DevicesOf(&partition.Plan{Devices: []int{1, 0}}),
		"an order of another")
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
		{planArgs("--stages", "13"), "pipeline.stages: found 13"},
		{planArgs("--stages", "2", "--cut", "9"), `pipeline.cut: found "[9]", expected ascending numbers from 1 to 6`},
		{planArgs("--stages", "2", "--cut", "3,4"), `pipeline.cut: found "[3, 4]", expected 1 places`},
		{planArgs("--stages", "2", "--memory", "lots"), `pipeline.memory: found "lots", expected bytes, as in 24GiB`},
		{planArgs("--stages", "2", "--network", "fast,1Gbit"),
			`--network: found latency "fast", expected a time from 0s to 1h, as in 10ms,1Gbit`},
		{planArgs("--stages", "2", "--network=-1ms,1Gbit"), `--network: found latency "-1ms"`},
		{planArgs("--stages", "2", "--network", "1ms"), `--network: found bandwidth "", expected bits a second in kbit, Mbit or Gbit`},
		{planArgs("--stages", "2", "--network", "1ms,0Gbit"), `--network: found bandwidth "0Gbit"`},
		{planArgs("--stages", "2", "--network", "1ms,1GB"), `--network: found bandwidth "1GB"`},
		{planArgs("--stages", "2", "--memory", "20kB"), " to head) does not fit"},
		{planArgs("--stages", "2", "--memory", "20kB"), "19.53 KiB available"},
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

// Over the machines of a file the plan has their speeds and links, and says that one alone would be faster.
func TestPlanForMachines(t *testing.T) {
	tier.Rest(t)
	path := filepath.Join(t.TempDir(), "machines.yaml")
	write := func(text string) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	}
	const two = "machines: [{name: slow, device: 'null:0'}, {name: fast, device: 'null:0', speed: 100, memory: 8GiB}]\n"
	plan := func(args ...string) (layout.Comparison, string) {
		t.Helper()
		args = append([]string{"plan", "--members", path, "--set",
			"model={vocab_size: 256, d_model: 256, n_layers: 5, n_heads: 2, d_ff: 512, seq_len: 256}",
			"--set", "train={batch_size: 16, microbatches: 16}"}, args...)
		code, out, errs := command(args...)
		require.Equal(t, exitOK, code, errs)
		code, text, errs := command(append(args, "--json")...)
		require.Equal(t, exitOK, code, errs)
		var p layout.Comparison
		require.NoError(t, json.Unmarshal([]byte(text), &p))
		return p, out
	}
	write(two + "link: 10ms,1Gbit\n")
	far, out := plan()
	assert.Contains(t, out, "one machine alone would be faster: fast, ")
	assert.Contains(t, out, "--set pipeline.stages=2")
	assert.NotContains(t, out, "--set pipeline.devices")
	require.Len(t, far.Alone, 2)
	assert.Equal(t, []string{"slow", "fast"}, far.Ranks)
	assert.InDelta(t, 100, far.Alone[1].TokensPerSec/far.Alone[0].TokensPerSec, 1)

	write(strings.ReplaceAll(two, "speed: 100", "speed: 1") + "link: 1us,100Gbit\n")
	near, out := plan()
	assert.NotContains(t, out, "one machine alone would be faster")
	assert.InDelta(t, near.Alone[0].TokensPerSec, near.Alone[1].TokensPerSec, 1e-6)

	write(strings.ReplaceAll(two, "speed: 100", "speed: 1") + "link: 1us,100Gbit\nlinks: [{between: [fast, slow], link: '10ms,1Gbit'}]\n")
	other, _ := plan()
	assert.Less(t, other.Schedules[other.RecommendedIndex].Plan.TokensPerSec, near.Schedules[near.RecommendedIndex].Plan.TokensPerSec)
}

// A plan over the machines of a run has what its coordinator has measured.
func TestPlanForMembers(t *testing.T) {
	run := t.TempDir()
	args := planArgs("--set", "pipeline.devices=[]", "--members", run, "--json")
	code, out, errs := command(planArgs("--stages", "2", "--json")...)
	require.Equal(t, exitOK, code, errs)
	var before layout.Comparison
	require.NoError(t, json.Unmarshal([]byte(out), &before))

	m := partition.Measured{Network: partition.Uniform(2, partition.Link{Latency: 1e-3, Bandwidth: 1e8})}
	for _, name := range before.Units {
		m.Units = append(m.Units, partition.Unit{Name: name})
	}
	for _, name := range []string{"a/cpu:0", "b/cpu:0"} {
		m.Devices = append(m.Devices, partition.Device{Name: name})
		m.Times = append(m.Times, slices.Repeat([]partition.Time{{Forward: 1, Backward: 2, InputGrad: 1, WeightGrad: 1}}, len(m.Units)))
	}
	keep := func() {
		text, err := json.Marshal(m)
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Join(run, "cluster"), 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(run, machinesFile), text, 0o666))
	}
	code, _, errs = command(args...)
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "expected the folder of a run of gpupipe host that has measured its members")

	keep()
	code, _, errs = command(args...)
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "found measurements of another model, with 12 units and 0 bytes of weights, expected 12 units and ")

	m.Times = m.Times[:1]
	keep()
	code, _, errs = command(args...)
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "found 2 devices, 12 units and times of 1 devices")
}

func TestPlanRefusesMachines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "machines.yaml")
	for text, want := range map[string]string{
		"machines: [{name: a}]\nlink: 1ms,1Gbit\n":                                                         "machines: found 1, expected at least 2",
		"machines: [{name: a}, {name: a}]\nlink: 1ms,1Gbit\n":                                              `machines[1].name: found "a"`,
		"machines: [{name: a}, {name: b, speed: -1}]\nlink: 1ms,1Gbit\n":                                   "machines[1].speed: found -1",
		"machines: [{name: a}, {name: b}]\n":                                                               "link: found nothing",
		"machines: [{name: a}, {name: b}]\nlink: 1ms\n":                                                    "link: found bandwidth",
		"machines: [{name: a}, {name: b}]\nlink: 1ms,1Gbit\nlinks: [{between: [a, c], link: '1ms,1Gbit'}]": "links[0].between: found a, c, expected two of a, b",
		"machines: [{name: a}, {name: b}]\nlink: 1ms,1Gbit\nlinks: [{between: [a, b], link: x}]":           `links[0].link: found "x"`,
		"machines: [{nam: a}]": "nam",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		code, _, errs := command(planArgs("--set", "pipeline.devices=[]", "--members", path)...)
		assert.Equal(t, exitMistake, code)
		assert.Contains(t, errs, want, text)
	}
}

// A plan for cards that are not present has their names, their memory and times of their data sheets.
func TestPlanForCards(t *testing.T) {
	tier.Rest(t)
	step := map[string]float64{}
	for _, g := range measure.GPUs() {
		code, out, errs := command(planArgs("--gpu", g.Name, "--stages", "3", "--json")...)
		require.Equal(t, exitOK, code, errs)
		var p layout.Comparison
		require.NoError(t, json.Unmarshal([]byte(out), &p))
		assert.Len(t, p.Devices, 3)
		assert.True(t, p.Modelled)
		for _, s := range p.Schedules[0].Plan.Stages {
			assert.Equal(t, g.Memory, s.Available)
		}
		step[g.Name] = p.Schedules[0].Plan.StepSeconds
	}
	assert.Less(t, step["h200"], step["h100"])
	assert.Less(t, step["rtx-4090"], step["rtx-3090"])
	code, out, errs := command(planArgs("--gpu", "h100", "--stages", "2")...)
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "h100:0, h100:1: none (null), 79.65 GiB")

	for want, args := range map[string][]string{
		`--gpu: found "voodoo2", expected one of rtx-3090, rtx-4090, rx-7900-xtx, a100-80gb, h100, h200`: {"--gpu", "voodoo2"},
		"--gpu: found with --members": {"--gpu", "h100", "--members", "machines.yaml"},
	} {
		code, _, errs := command(planArgs(args...)...)
		assert.NotEqual(t, exitOK, code)
		assert.Contains(t, errs, want)
	}
	_, help, _ := command("plan", "--help")
	for _, name := range measure.GPUNames() {
		assert.Contains(t, help, name)
	}
}
