package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const homeLinks = "uplink: 20Mbit\ndownlink: 100Mbit\nlatency: 20ms\n"

// planHomes plans for a file of machines, as text and as JSON.
func planHomes(t *testing.T, file string, args ...string) (text string, p layout.ReplicaPlan) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "machines.yaml")
	require.NoError(t, os.WriteFile(path, []byte(file), 0o666))
	args = append([]string{"plan", "--members", path}, args...)
	code, text, errs := command(args...)
	require.Equal(t, exitOK, code, errs)
	code, out, errs := command(append(args, "--json")...)
	require.Equal(t, exitOK, code, errs)
	require.NoError(t, json.Unmarshal([]byte(out), &p))
	return text, p
}

// smollm is 135 M parameters at a second a step.
var smollm = []string{"--set", "model.preset=smollm2-135m", "--set", "model.seq_len=256", "--set", "train={batch_size: 4, microbatches: 4}"}

// Machines of a second a step behind home links train at nearly the sum of their speeds.
func TestPlanForHomes(t *testing.T) {
	for n, times := range map[int]float64{4: 3.9, 8: 7.7} {
		file := homeLinks + "machines:\n"
		for i := range n {
			file += fmt.Sprintf("  - {name: home%d, tokens_per_s: 1024}\n", i)
		}
		out, p := planHomes(t, file, smollm...)
		assert.Len(t, p.Replicas, n)
		assert.Equal(t, "int4", p.Wire)
		assert.GreaterOrEqual(t, p.TokensPerSec, times*1024)
		assert.InDelta(t, 1024, p.Alone.TokensPerSec, 1)
		assert.Zero(t, p.Waiting)
		for _, want := range []string{"no link is waited for", "one machine alone would have to be ", "CONNECTION OF", "home0",
			fmt.Sprintf("--set pipeline.replicas=%d --set pipeline.stages=1 --set pipeline.local_steps=%d --set pipeline.outer.late=%d"+
				" --set pipeline.outer.wire=int4 --set train.batch_size=%d", n, p.Period, p.Late, 4*n)} {
			assert.Contains(t, out, want)
		}
		assert.NotContains(t, out, "estimates")
		assert.Contains(t, out, "and these relay it to the others")
		apart, through := planHomes(t, "apart: true\n"+file, smollm...)
		assert.NotContains(t, apart, "relay it")
		assert.Less(t, p.Period, 6*through.Period/10)
		out, p = planHomes(t, file, append(smollm, "--set", "pipeline.replicas=4", "--set", "pipeline.local_steps=20",
			"--set", "pipeline.outer={wire: int8, late: 3}")...)
		assert.Equal(t, 20, p.Period)
		assert.Equal(t, 256, p.Tokens, "the share of the config's replicas")
		assert.Positive(t, p.Waiting)
		assert.Contains(t, out, "replicas wait for exchanges ")
	}
	out, p := planHomes(t, strings.ReplaceAll(homeLinks, "Mbit", "kbit")+"machines: [{name: a, tokens_per_s: 1024}, {name: b, tokens_per_s: 1000}]", smollm...)
	assert.Len(t, p.Replicas, 1)
	assert.Contains(t, out, "one machine alone would be as fast or faster: a, 1,024 tokens/s")
}

// The example's machines of a lab make pipelines or replicas, and cards that would be as fast alone are named.
func TestPlanForTheExample(t *testing.T) {
	tier.Rest(t)
	file, err := os.ReadFile("../../examples/replicas/machines.yaml")
	require.NoError(t, err)
	out, p := planHomes(t, string(file), smollm...)
	assert.Greater(t, len(p.Replicas), 2)
	assert.Contains(t, out, "the coordinator at server")
	assert.Contains(t, out, "times are estimates")
	assert.Contains(t, out, "tokens/s; ")
	assert.LessOrEqual(t, p.Late, p.Period)
}

// Where no machine holds the model, those of a site do together, or all of them over the slow links.
func TestPlanOfALargeModel(t *testing.T) {
	const sites = "sites: [{name: x, link: '0.1ms,10Gbit'}, {name: y, link: '0.1ms,10Gbit'}]\n"
	large := []string{"--set", "model={vocab_size: 256, d_model: 256, n_layers: 8, n_heads: 2, d_ff: 1024, seq_len: 64}",
		"--set", "train={batch_size: 8, microbatches: 8}"}
	machines := func(memory string, sites ...string) string {
		text := "machines:\n"
		for i, s := range sites {
			text += fmt.Sprintf("  - {name: m%d, device: 'null:0', memory: %s%s}\n", i, memory, s)
		}
		return text
	}
	_, p := planHomes(t, homeLinks+sites+machines("80MiB", ", site: x", ", site: x", ", site: y", ", site: y"), large...)
	require.Len(t, p.Replicas, 2)
	assert.Equal(t, []string{"m0", "m1"}, p.Replicas[0].Machines)
	assert.Nil(t, p.Alone)
	out, p := planHomes(t, homeLinks+machines("80MiB", "", "", ""), large...)
	assert.True(t, p.Pooled)
	require.Len(t, p.Replicas, 1)
	assert.Contains(t, out, "every microbatch crosses their links")
	assert.Contains(t, out, "the model fits no machine alone")

	path := filepath.Join(t.TempDir(), "machines.yaml")
	require.NoError(t, os.WriteFile(path, []byte(homeLinks+machines("8MiB", "", "")), 0o666))
	code, _, errs := command(append([]string{"plan", "--members", path}, large...)...)
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "the model fits no machine, nor several together; machine m0: ")
}

func TestPlanRefusesHomes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "machines.yaml")
	for text, want := range map[string]string{
		homeLinks + "link: 1ms,1Gbit\nmachines: [{name: a}, {name: b}]":                                               "link: found with uplink",
		homeLinks + "machines: [{name: a}]":                                                                           "machines: found 1, expected at least 2",
		"uplink: 20Mbit\nmachines: [{name: a}, {name: b}]":                                                            `machines[0].downlink: found bandwidth ""`,
		homeLinks + "machines: [{name: a}, {name: b, uplink: '3'}]":                                                   `machines[1].uplink: found bandwidth "3"`,
		homeLinks + "machines: [{name: a}, {name: b, uplink: 1e-15kbit}]":                                             `machines[1].uplink: found bandwidth "1e-15kbit", expected bits a second in kbit, Mbit or Gbit, from 1kbit`,
		homeLinks + "machines: [{name: a}, {name: b, downlink: 0.9kbit}]":                                             `machines[1].downlink: found bandwidth "0.9kbit"`,
		homeLinks + "sites: [{name: a, link: '1ms,1Gbit'}]\nmachines: [{name: a}, {name: b}]":                         `sites[0].name: found "a", which is the name of a machine, too`,
		homeLinks + "machines: [{name: a}, {name: b, device: none, speed: 2}]":                                        "machines[1]: found device none with speed",
		homeLinks + "machines: [{name: a}, {name: b, device: none, tokens_per_s: 2}]":                                 "machines[1]: found device none with speed, tokens_per_s",
		homeLinks + "machines: [{name: a}, {name: b, device: none, memory: 1GiB}]":                                    "machines[1]: found device none with speed, tokens_per_s or memory",
		homeLinks + "machines: [{name: a}, {name: b, speed: 1e-300}]":                                                 "machines[1].speed: found 1e-300",
		homeLinks + "machines: [{name: a}, {name: b, tokens_per_s: 1e-300}]":                                          "machines[1].tokens_per_s: found 1e-300",
		homeLinks + "machines: [{name: a}, {name: b, latency: '3'}]":                                                  `machines[1].latency: found latency "3"`,
		homeLinks + "machines: [{name: a}, {name: b, site: x}]":                                                       `machines[1].site: found "x"`,
		homeLinks + "machines: [{name: a}, {name: b, gpu: x}]":                                                        `machines[1].gpu: found "x", expected one of rtx-3090`,
		homeLinks + "machines: [{name: a}, {name: b, memory: x}]":                                                     "machines[1].memory",
		homeLinks + "machines: [{name: a}, {name: b, tokens_per_s: -1}]":                                              "machines[1].tokens_per_s: found -1",
		homeLinks + "machines: [{name: a}, {name: b, cards: 2}]":                                                      "cards",
		homeLinks + "machines: [{name: a, device: none}, {name: b, device: none}]":                                    "found device none on all of them",
		homeLinks + "coordinator: x\nmachines: [{name: a}, {name: b}]":                                                `coordinator: found "x"`,
		homeLinks + "sites: [{name: s}]\nmachines: [{name: a}, {name: b}]":                                            `sites[0].link: found ""`,
		homeLinks + "machines: [{name: a}, {name: b, speed: 2, tokens_per_s: 3}]":                                     "found speed and tokens_per_s",
		homeLinks + "sites: [{name: s, link: '1ms,1Gbit'}]\nmachines: [{name: a}, {name: b, site: s, uplink: 1Mbit}]": "found a connection of its own at site s",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		code, _, errs := command(planArgs("--set", "pipeline.devices=[]", "--members", path)...)
		assert.Equal(t, exitMistake, code)
		assert.Contains(t, errs, want, text)
	}
}
