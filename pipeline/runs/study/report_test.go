package study

import (
	"encoding/csv"
	"math"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// reported runs a grid in a world and returns its report.
func reported(t *testing.T, g *Study, w world) *Report {
	t.Helper()
	outcomes, _, _ := carryOut(t, g, w)
	return newReport(g, outcomes)
}

func TestTheTables(t *testing.T) {
	g := threeModes(t, "tuning: both\n")
	rep := reported(t, g, truth)
	assert.Equal(t, `# What one step of delay costs

Validation loss in nats per token: mean ± standard error over 3 seeds. A gap is the difference to sync, seed by seed.

## Learning rate tuned without delay

| optimizer | lr    | sync            | delay           | gap              | delay + error feedback | gap              |
| --------- | ----- | --------------- | --------------- | ---------------- | ---------------------- | ---------------- |
| adamw     | 0.002 | 2.0200 ± 0.0058 | 2.4400 ± 0.0115 | +0.4200 ± 0.0100 | 2.1700 ± 0.0104        | +0.1500 ± 0.0132 |
| muon      | 0.02  | 2.0200 ± 0.0058 | 2.1413 ± 0.0058 | +0.1213 ± 0.0007 | 2.1233 ± 0.0052        | +0.1033 ± 0.0009 |

## Learning rate tuned in every mode

| optimizer | sync                      | delay                     | gap              | delay + error feedback    | gap              |
| --------- | ------------------------- | ------------------------- | ---------------- | ------------------------- | ---------------- |
| adamw     | 2.0200 ± 0.0058, lr 0.002 | 2.3400 ± 0.0115, lr 0.001 | +0.3200 ± 0.0100 | 2.0700 ± 0.0104, lr 0.001 | +0.0500 ± 0.0132 |
| muon      | 2.0200 ± 0.0058, lr 0.02  | 2.0413 ± 0.0058, lr 0.01  | +0.0213 ± 0.0007 | 2.0233 ± 0.0052, lr 0.01  | +0.0033 ± 0.0009 |

## Findings

- rate tuned without delay: one step of delay costs, in nats per token, adamw +0.4200 ± 0.0100; muon +0.1213 ± 0.0007.
- rate tuned without delay: adamw's gap exceeds muon's by 0.2987 ± 0.0093 (32.0 standard errors).
- rate tuned without delay: error feedback shrinks adamw's gap by 0.2700 ± 0.0087 (31.2 standard errors), 64 % of it.
- rate tuned without delay: error feedback shrinks muon's gap by 0.0180 ± 0.0006 (31.2 standard errors), 15 % of it.
- rate tuned in every mode: one step of delay costs, in nats per token, adamw +0.3200 ± 0.0100; muon +0.0213 ± 0.0007.
- rate tuned in every mode: adamw's gap exceeds muon's by 0.2987 ± 0.0093 (32.0 standard errors).
- rate tuned in every mode: error feedback shrinks adamw's gap by 0.2700 ± 0.0087 (31.2 standard errors), 84 % of it.
- rate tuned in every mode: error feedback shrinks muon's gap by 0.0180 ± 0.0006 (31.2 standard errors), 84 % of it.

## Notes

- muon, sync: the best learning rate, 0.02, is the largest tried; a better one may lie beyond.
- adamw, delay: the best learning rate, 0.001, is the smallest tried; a better one may lie beyond.
- adamw, delay + error feedback: the best learning rate, 0.001, is the smallest tried; a better one may lie beyond.
- muon, delay: the best learning rate, 0.01, is the smallest tried; a better one may lie beyond.
- muon, delay + error feedback: the best learning rate, 0.01, is the smallest tried; a better one may lie beyond.
`, rep.Markdown(g))
	text, err := rep.csv()
	require.NoError(t, err)
	rows, err := csv.NewReader(strings.NewReader(string(text))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 1+2*2*3)
	assert.Equal(t, []string{"tuning", "stages", "optimizer", "mode", "lr", "seeds", "diverged", "val_loss", "val_loss_stderr", "gap",
		"gap_stderr"}, rows[0])
	assert.Equal(t, []string{"synchronous", "1", "adamw", "sync", "0.002", "3", "0"}, rows[1][:7])
	assert.Equal(t, []string{"", ""}, rows[1][9:], "sync has no gap")
	assert.Equal(t, []string{"each", "1", "muon", "delay"}, rows[11][:4])
	assert.True(t, strings.HasPrefix(rows[11][9], "0.02133"), rows[11][9])
}

func TestGapsWithinTheErrorAreMarked(t *testing.T) {
	g := threeModes(t, "modes: [sync, delay, delay+error_feedback, delay+weight_prediction]\n")
	noise := map[uint64]float64{1: -0.1, 2: 0, 3: 0.13}
	rep := reported(t, g, func(r Run) float64 {
		switch {
		case r.Mode == "delay" && r.Optimizer == "muon":
			return 2.1 + noise[r.Seed]
		case r.Mode == "delay":
			return 2.1 + noise[r.Seed]/100
		case r.Mode == "delay+error_feedback" && r.Optimizer == "muon":
			return 2.3
		case r.Mode == "delay+weight_prediction":
			return 2.05 - noise[r.Seed]/100
		}
		return 2
	})
	assert.Equal(t, []string{
		"one step of delay costs, in nats per token, muon +0.1100 ± 0.0666; adamw +0.1001 ± 0.0007.",
		"muon's gap exceeds adamw's by 0.0099 ± 0.0659 (0.2 standard errors: these seeds do not settle it).",
		"error feedback shrinks adamw's gap by 0.1001 ± 0.0007 (150.3 standard errors), 100 % of it.",
		"error feedback widens muon's gap by 0.1900 ± 0.0666 (2.9 standard errors).",
		"weight prediction shrinks adamw's gap by 0.0502 ± 0.0013 (37.7 standard errors), 50 % of it.",
		"weight prediction shrinks muon's gap by 0.0601 ± 0.0672 (0.9 standard errors: these seeds do not settle it).",
	}, rep.Findings)
}

// Fewer stale microbatches are compared with the delay of all, and a correction with the same delay without it.
func TestFindingsOfPartlyStaleModes(t *testing.T) {
	losses := map[string]float64{"sync": 2, "delay": 2.4, "delay-1of2": 2.2, "delay-1of2+error_feedback": 2.1, "delay-1of4+dc_asgd": 2.3}
	g, err := grid(t, smallBase+twoOptimizers+"dir: "+t.TempDir()+"\nset: {train.microbatches: 4, train.batch_size: 4}\nseeds: [1]\n"+
		"modes: [sync, delay, delay-1of2, delay-1of2+error_feedback, delay-1of4+dc_asgd]\n")
	require.NoError(t, err)
	rep := reported(t, g, func(r Run) float64 { return losses[r.Mode] })
	for _, want := range []string{"delay 1/2 shrinks muon's gap by 0.2000",
		"delay 1/2 + error feedback instead of delay 1/2 shrinks muon's gap by 0.1000",
		"delay 1/4 + DC-ASGD shrinks muon's gap by 0.1000"} {
		assert.Contains(t, strings.Join(rep.Findings, "\n"), "\n"+want)
	}
}

// A mode with wire formats has the learning rate of the same mode without, and is compared with that.
func TestFindingsOfWireFormats(t *testing.T) {
	more := "set: {train.microbatches: 2}\nstages: [2]\nseeds: [1, 2]\nmodes: [sync, sync@int8, delay, delay@bf16, delay@int8@exchange-bf16]\n"
	cost := map[string]float64{"sync@int8": 0.002, "delay@bf16": -0.001, "delay@int8@exchange-bf16": 0.003}
	for tuning, runs := range map[string]int{Synchronous: 3 + 2 + 2*(2*5-1), Each: 2*(3+2) + 2*(2*5-2)} {
		g, err := grid(t, smallBase+twoOptimizers+"dir: "+t.TempDir()+"\n"+more+"tuning: "+tuning+"\n")
		require.NoError(t, err)
		loss := func(r Run) float64 {
			exact, _, _ := strings.Cut(r.Mode, "@")
			c := cost[r.Mode] * (1 + 0.1*float64(r.Seed))
			r.Mode = exact
			return truth(r) + c
		}
		outcomes, _, _ := carryOut(t, g, loss)
		assert.Len(t, outcomes, runs, tuning)
		rep := newReport(g, outcomes)
		for _, want := range []string{"sync with int8 raises the loss of adamw by 0.0023 ± 0.0001 (23.0 standard errors).",
			"delay with bf16 lowers the loss of muon by 0.0011 ± 0.0000",
			"delay with int8, exchange in bf16 raises the loss of muon by 0.0034"} {
			assert.Contains(t, strings.Join(rep.Findings, "\n"), want)
		}
		if tuning == Each {
			assert.Equal(t, *rep.find(Each, 2, "adamw", "delay").LR, *rep.find(Each, 2, "adamw", "delay@bf16").LR)
		}
		assert.Contains(t, rep.Markdown(g), "# What one step of delay and wire formats cost\n")
	}
	g, err := grid(t, smallBase+twoOptimizers+"dir: "+t.TempDir()+"\nstages: [2]\nmodes: [sync, sync@int8]\n")
	require.NoError(t, err)
	rep := reported(t, g, func(r Run) float64 { return map[string]float64{"sync": 2, "sync@int8": math.Inf(1)}[r.Mode] })
	assert.Equal(t, []string{"sync with int8: the effect on adamw is unknown, since runs diverged.",
		"sync with int8: the effect on muon is unknown, since runs diverged."}, rep.Findings)
	assert.Contains(t, rep.Markdown(g), "# What wire formats cost\n")
}

func TestOneSeedHasNoError(t *testing.T) {
	g := threeModes(t, "seeds: [1]\nstages: [1, 2]\n")
	rep := reported(t, g, truth)
	assert.Contains(t, rep.Markdown(g), "over one seed.")
	assert.Contains(t, rep.Markdown(g), "## Learning rate tuned without delay, 2 stages")
	assert.Contains(t, rep.Findings, "stages 2: adamw's gap exceeds muon's by 0.3080 (one seed: no standard error).")
}

// Without a finite loss to compare with, there is no gap.
func TestSyncDiverges(t *testing.T) {
	g := threeModes(t, "")
	rep := reported(t, g, func(r Run) float64 {
		if r.Optimizer == "muon" && r.Seed == 3 && r.Mode == SyncMode {
			return math.Inf(1)
		}
		return truth(r)
	})
	c := rep.find(Synchronous, 1, "muon", "delay")
	assert.True(t, math.IsNaN(c.Gap.Mean))
	assert.True(t, metrics.Finite(c.Loss.Mean))
	assert.Contains(t, rep.Markdown(g), "| muon      | 0.02  | 1 of 3 diverged | 2.1413 ± 0.0058 | –  ")
}
