package optim

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scaler is a LossScale in plain Go.
type scaler struct {
	initial float64
	every   int
	delay   int
	of      []float64 // S by batch
	applied int
}

// decide sets the S of the batch after those whose S is known, given whether a batch overflowed at its own.
func (s *scaler) decide(batch int, overflow bool) {
	for len(s.of) <= batch+s.delay {
		s.of = append(s.of, s.initial)
	}
	next := s.of[len(s.of)-1]
	s.applied++
	switch {
	case overflow:
		next, s.applied = min(next, s.of[batch]/2), 0
	case s.applied == s.every:
		next, s.applied = min(2*next, MaxLossScale), 0
	}
	s.of = append(s.of, next)
}

// Scaled gradients train to the same bits as those of the loss itself. Batches that overflow change nothing but S. S
// depends only on batches that are old enough.
func TestLossScale(t *testing.T) {
	overflows := map[int]bool{4: true, 5: true, 9: true, 13: true, 14: true, 15: true, 16: true}
	const batches = 19
	eachMachine(t, func(t *testing.T, _ float64, on maker) {
		for delay := range 2 {
			params := testParams()
			plain := testConfigs()["adamw"]
			plain.Losses, plain.Delay = []string{"loss"}, delay
			scaled := plain
			scaled.LossScale = &LossScale{Initial: 64, GrowthEvery: 3}
			o, m := start(t, scaled, params, on)
			o0, m0 := start(t, plain, params, on)
			initial := make([]float64, 0, 5)
			for _, x := range o.Scaling().Initial() {
				initial = append(initial, float64(x))
			}
			m.set(ScaleVariable, initial)
			want := &scaler{initial: 64, every: 3, delay: delay}
			steps := 0
			for batch := range batches {
				want.decide(batch, overflows[batch])
				for name, g := range randomTensors(params, batch) {
					scaledG := make([]float64, len(g))
					for i := range g {
						scaledG[i] = g[i] * want.of[batch]
					}
					if overflows[batch] && name == "layers.2.up" {
						scaledG[1] = math.Inf(-1)
					}
					m.set("grad/"+name, scaledG)
					m0.set("grad/"+name, g)
				}
				before := bits(m, o)
				m.set("loss", []float64{2})
				m0.set("loss", []float64{2})
				_, ok := run(m, o, steps)
				require.Equal(t, !overflows[batch], ok, "batch %d", batch)
				assert.Equal(t, want.of[batch], m.output(ScaleOutput), "batch %d", batch)
				rotate(m, params, delay)
				if overflows[batch] {
					after := bits(m, o)
					for _, p := range params {
						assert.Equal(t, before[p.Name], after[p.Name])
						assert.Equal(t, before["optim/exp_avg/"+p.Name], after["optim/exp_avg/"+p.Name])
					}
					continue
				}
				_, ok = run(m0, o0, steps)
				require.True(t, ok)
				rotate(m0, params, delay)
				steps++
				for name, x := range bits(m0, o0) {
					require.Equal(t, x, patterns(m.get(name)), "batch %d: %s", batch, name)
				}
			}
			assert.Contains(t, want.of, 16.0, "several overflows in a row")
			assert.Contains(t, want.of, 128.0, "growth")
		}
	})
}

// rotate makes the results of an update with a delay the weights that the next one reads.
func rotate(m machine, params []Param, delay int) {
	if delay == 0 {
		return
	}
	for _, p := range params {
		m.set(p.Name, m.get(p.Gradient))
	}
	if m.has(NextScaleVariable) {
		m.set(ScaleVariable, m.get(NextScaleVariable))
	}
}

// A loss scale of 1 cannot be halved, and no scale helps a loss that is not finite: both are refused as without a
// scale.
func TestLossScaleEndsAtOne(t *testing.T) {
	eachMachine(t, func(t *testing.T, _ float64, on maker) {
		for _, skip := range []bool{false, true} {
			cfg, params := testConfigs()["sgd"], testParams()
			cfg.Losses, cfg.SkipNonfinite = []string{"loss"}, skip
			cfg.LossScale = &LossScale{Initial: 2, GrowthEvery: 3}
			o, m := start(t, cfg, params, on)
			batch := func(g, loss float64) float64 {
				for name, x := range randomTensors(params, 0) {
					m.set("grad/"+name, x)
				}
				m.set("grad/scale", []float64{g})
				m.set("loss", []float64{loss})
				run(m, o, 0)
				return m.output(StatusOutput)
			}
			m.set(ScaleVariable, []float64{2, 0.5, 0})
			require.EqualValues(t, Applied, batch(1, 1))
			require.EqualValues(t, Overflowed, batch(math.NaN(), 1))
			require.Equal(t, []float64{1, 1, 0}, m.get(ScaleVariable))
			require.EqualValues(t, Applied, batch(1, 1))
			before := bits(m, o)
			require.EqualValues(t, Refused, batch(math.Inf(1), 1))
			require.Equal(t, before, bits(m, o))
			if !skip {
				require.EqualValues(t, Refused, batch(1, 1), "halted")
				continue
			}
			m.set(ScaleVariable, []float64{2, 0.5, 2})
			require.EqualValues(t, Refused, batch(math.NaN(), math.NaN()))
			require.Equal(t, []float64{2, 0.5, 2}, m.get(ScaleVariable))
			require.EqualValues(t, Applied, batch(1, 1))
			require.Equal(t, []float64{4, 0.25, 0}, m.get(ScaleVariable))
			m.set(ScaleVariable, []float64{MaxLossScale, 1. / MaxLossScale, 2})
			require.EqualValues(t, Applied, batch(1, 1))
			require.Equal(t, []float64{MaxLossScale, 1. / MaxLossScale, 0}, m.get(ScaleVariable))
		}
	})
}

func TestLossScaleRefusals(t *testing.T) {
	for _, l := range []LossScale{{0.5, 1}, {3, 1}, {0, 1}, {math.NaN(), 1}, {math.Inf(1), 1}, {1 << 25, 1}, {8, 0}, {8, 1<<24 + 1}} {
		cfg := testConfigs()["sgd"]
		cfg.LossScale = &l
		_, err := New(cfg, testParams())
		assert.Error(t, err, l)
	}
}
