package outer_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/optim/outer"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/floats"
)

// runner runs a program.
type runner func(g *graph.Graph, in map[string][]float64) map[string][]float64

// host is the reference evaluator in float64.
func host(t *testing.T) runner {
	return func(g *graph.Graph, in map[string][]float64) map[string][]float64 {
		inputs := map[string]*graph.Tensor{}
		for _, v := range g.Sources("input") {
			name := v.Node.Op.(graph.Source).Label()
			inputs[name] = &graph.Tensor{Type: v.Type, Data: in[name]}
		}
		out, err := eval.Run(g, inputs, nil)
		require.NoError(t, err)
		all := map[string][]float64{}
		for name, x := range out {
			all[name] = x.Data
		}
		return all
	}
}

// on runs programs on a device.
func on(t *testing.T, dev device.Device) runner {
	return func(g *graph.Graph, in map[string][]float64) map[string][]float64 {
		p, err := exec.NewPlan(dev, map[string]*graph.Graph{"p": g}, exec.Options{})
		require.NoError(t, err)
		s, err := p.Load()
		require.NoError(t, err)
		defer func() { assert.NoError(t, s.Close()) }()
		for _, v := range g.Sources("input") {
			name := v.Node.Op.(graph.Source).Label()
			require.NoError(t, s.SetInput("p", name, exec.Encode(v.DType, in[name])))
		}
		require.NoError(t, s.Run("p"))
		all := map[string][]float64{}
		for _, o := range g.Outputs {
			pending, err := s.Output("p", o.Name)
			require.NoError(t, err)
			data, err := pending.Wait()
			require.NoError(t, err)
			all[o.Name] = exec.Decode(o.Value.DType, data)
		}
		return all
	}
}

// runners are the reference, the CPU's native code, and kernels for software adapters.
func runners(t *testing.T) map[string]runner {
	return map[string]runner{"float64": host(t), "native": on(t, testdevice.Device(t)), "adapter": on(t, testdevice.Translated(t))}
}

func program(t *testing.T) func(*graph.Graph, error) *graph.Graph {
	return func(g *graph.Graph, err error) *graph.Graph {
		require.NoError(t, err)
		return g
	}
}

func config(format string) outer.Config {
	return outer.Config{LR: 0.7, Momentum: 0.6, Format: format, Correction: "plain", Seed: 3}
}

const blocks = 3

// matrix has values of several magnitudes. Its second block is zero.
func matrix(seed uint64, scale float64) []float64 {
	rng := rand.New(rand.NewPCG(seed, 1))
	x := make([]float64, blocks*outer.BlockSize)
	for i := range x {
		x[i] = float64(float32(scale * rng.NormFloat64() * float64(1+i/outer.BlockSize)))
		if i/outer.BlockSize == 1 {
			x[i] = 0
		}
	}
	return x
}

func asFloats[T uint32 | float32](x []T) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = float64(x[i])
	}
	return y
}

var bitsOf = map[string]int{"int8": 8, "int4": 4, "int2": 2}

// decoded is what a message says, read bit by bit.
func decoded(format string, message map[string][]float64) []float64 {
	bits := bitsOf[format]
	zero := math.Exp2(float64(bits - 1))
	if bits == 0 {
		return message["values"]
	}
	var x []float64
	for i := range blocks * outer.BlockSize {
		word, at := uint32(message["codes"][i*bits/32]), i*bits%32
		code := word >> at & (1<<bits - 1)
		x = append(x, (float64(code)-zero)*message["scales"][i/outer.BlockSize])
	}
	return x
}

// quantized is the reference: the scales and the codes, before rounding down.
func quantized(format string, x []float64, key []uint32) (scales, at []float64) {
	steps := map[string]float64{"int8": 127, "int4": 7}[format]
	zero := math.Exp2(float64(bitsOf[format] - 1))
	for b := range blocks {
		block := x[b*outer.BlockSize : (b+1)*outer.BlockSize]
		s := math.Max(floats.Max(block), -floats.Min(block)) / steps
		if steps == 0 {
			s = floats.Norm(block, 2) / math.Sqrt(outer.BlockSize)
		}
		scales = append(scales, s)
		for i, v := range block {
			random := op.Threefry([2]uint32{key[0], key[1]}, [2]uint32{uint32(b*outer.BlockSize + i), 0})[0]
			u := float64(random>>16) / (1 << 16)
			if s > 0 {
				v /= s
			}
			at = append(at, v+zero+u)
		}
	}
	return scales, at
}

func TestMessages(t *testing.T) {
	base, weights, residue := matrix(1, 1), matrix(2, 1), matrix(3, 0.1)
	x := make([]float64, len(base))
	for i := range x {
		x[i] = base[i] - weights[i] + residue[i]
	}
	for name, run := range runners(t) {
		for _, format := range outer.FormatNames() {
			t.Run(format+"/"+name, func(t *testing.T) {
				c := config(format)
				key := c.Key(5, 1, 7)
				out := run(program(t)(c.Send(blocks)), map[string][]float64{outer.BaseName: base, outer.WeightsName: weights,
					outer.ResidueName: residue, outer.KeyInput: asFloats(key)})
				sent := decoded(format, out)
				if c.Exact() {
					for i := range x {
						assert.InDelta(t, base[i]-weights[i], sent[i], 1e-6)
					}
					return
				}
				for i := range x {
					assert.InDelta(t, x[i]-sent[i], out[outer.ResidueName][i], 2e-5)
				}
				if format == "bf16" {
					for i := range x {
						assert.InDelta(t, x[i], sent[i], math.Abs(x[i])/256+1e-9)
					}
					return
				}
				scales, at := quantized(format, x, key)
				for b, s := range scales {
					assert.InEpsilon(t, 1+s, 1+out["scales"][b], 1e-6)
				}
				zero := math.Exp2(float64(bitsOf[format] - 1))
				for i, a := range at {
					if x[i] == 0 {
						assert.Zero(t, sent[i])
					}
					s := scales[i/outer.BlockSize]
					if f := a - math.Floor(a); f < 1e-3 || f > 1-1e-3 {
						assert.InDelta(t, (math.Round(a)-zero)*s, sent[i], 1.001*s, "either side") // of an edge, where f32 may round otherwise
						continue
					}
					assert.InDelta(t, (min(max(math.Floor(a), 1), 2*zero-1)-zero)*s, sent[i], 1e-5*(1+s), "element %d", i)
				}
				sum := run(program(t)(c.Add(blocks)), map[string][]float64{outer.SumName: weights, "codes": out["codes"], "scales": out["scales"]})
				applied := run(program(t)(c.Apply(blocks)), map[string][]float64{outer.BaseName: base, "codes": out["codes"],
					"scales": out["scales"]})
				for i := range sent {
					assert.InDelta(t, weights[i]+sent[i], sum[outer.SumName][i], 1e-5)
					assert.InDelta(t, base[i]+sent[i], applied[outer.BaseName][i], 1e-5)
				}
			})
		}
	}
}

// The mean of many roundings is the number.
func TestRoundingIsUnbiased(t *testing.T) {
	base, zeros := matrix(1, 1), make([]float64, blocks*outer.BlockSize)
	run := host(t)
	for _, format := range []string{"int8", "int4"} {
		c, mean := config(format), make([]float64, len(base))
		send := program(t)(c.Send(blocks))
		const times = 400
		for i := range times {
			out := run(send, map[string][]float64{outer.BaseName: base, outer.WeightsName: zeros, outer.ResidueName: zeros,
				outer.KeyInput: asFloats(c.Key(i, 0, 0))})
			floats.AddScaled(mean, 1.0/times, decoded(format, out))
		}
		scales, _ := quantized(format, base, c.Key(0, 0, 0))
		for i := range base {
			assert.InDelta(t, base[i], mean[i], 0.15*scales[i/outer.BlockSize], format)
		}
	}
}

// What messages lack stays in a residue that does not grow: all that was sent and the residue make up all that was to
// be sent.
func TestResiduesStayBounded(t *testing.T) {
	run := host(t)
	for _, format := range []string{"bf16", "int8", "int4", "int2"} {
		c := config(format)
		send := program(t)(c.Send(blocks))
		zeros := make([]float64, blocks*outer.BlockSize)
		residue, sent, meant := zeros, make([]float64, len(zeros)), make([]float64, len(zeros))
		for round := range 60 {
			delta := matrix(uint64(round), 1)
			out := run(send, map[string][]float64{outer.BaseName: delta, outer.WeightsName: zeros, outer.ResidueName: residue,
				outer.KeyInput: asFloats(c.Key(round, 0, 0))})
			residue = out[outer.ResidueName]
			floats.Add(sent, decoded(format, out))
			floats.Add(meant, delta)
		}
		for i := range meant {
			assert.InDelta(t, meant[i], sent[i]+residue[i], 1e-9)
		}
		assert.Less(t, floats.Norm(residue, 2), 1.2*floats.Norm(matrix(0, 1), 2), format)
	}
}

// Steps on the messages of three replicas are those of torch.optim.SGD(nesterov=True) on the mean of what they say.
func TestOuterSteps(t *testing.T) {
	const replicas = 3
	for name, run := range runners(t) {
		for _, lookahead := range []float64{0, 0.5} {
			c := config("f32")
			c.Correction, c.Lateness = "error_feedback", lookahead
			weights, momentum := matrix(9, 1), make([]float64, blocks*outer.BlockSize)
			want, buffer := append([]float64(nil), weights...), make([]float64, len(weights))
			base := weights
			for step := range 3 {
				mean, sum := make([]float64, len(weights)), make([]float64, len(weights))
				for r := range replicas {
					delta := matrix(uint64(10*step+r), 0.01)
					floats.AddScaled(mean, 1.0/replicas, delta)
					sum = run(program(t)(c.Add(blocks)), map[string][]float64{outer.SumName: sum, "values": delta})[outer.SumName]
				}
				out := run(program(t)(c.Step(blocks)), map[string][]float64{outer.SumName: sum, outer.OuterName: weights,
					outer.MomentumName: momentum, outer.HyperparametersInput: asFloats(c.Hyperparameters(replicas))})
				before := append([]float64(nil), want...)
				for i := range want {
					buffer[i] = c.Momentum*buffer[i] + mean[i]
					want[i] -= c.LR * (mean[i] + c.Momentum*buffer[i])
				}
				weights, momentum, base = out[outer.OuterName], out[outer.MomentumName], out["values"]
				for i := range want {
					assert.InDelta(t, want[i], weights[i], 4e-6, name)
					assert.InDelta(t, buffer[i], momentum[i], 4e-6, name)
					assert.InDelta(t, want[i]+lookahead/3*0.4/0.7*(want[i]-before[i]), base[i], 4e-6, name)
				}
			}
		}
	}
}

// With rate 1 and momentum 0 the outer weights are the average of the replicas.
func TestPlainAverage(t *testing.T) {
	run, c := host(t), config("f32")
	c.LR, c.Momentum = 1, 0
	base, a, b := matrix(1, 1), matrix(2, 1), matrix(3, 1)
	sum := make([]float64, len(base))
	for _, w := range [][]float64{a, b} {
		out := run(program(t)(c.Send(blocks)), map[string][]float64{outer.BaseName: base, outer.WeightsName: w})
		sum = run(program(t)(c.Add(blocks)), map[string][]float64{outer.SumName: sum, "values": out["values"]})[outer.SumName]
	}
	out := run(program(t)(c.Step(blocks)), map[string][]float64{outer.SumName: sum, outer.OuterName: base,
		outer.MomentumName: make([]float64, len(base)), outer.HyperparametersInput: asFloats(c.Hyperparameters(2))})
	for i := range a {
		assert.InDelta(t, (a[i]+b[i])/2, out[outer.OuterName][i], 1e-6)
	}
}

// The base follows the outer weights through rounded messages: what a change lacks is part of the next one.
func TestTheBaseFollowsTheOuterWeights(t *testing.T) {
	for name, run := range runners(t) {
		for _, format := range []string{"int4", "int2"} {
			c := config(format)
			n := blocks * outer.BlockSize
			weights, momentum := matrix(4, 1), make([]float64, n)
			base := make([]float64, n)
			first := floats.Distance(weights, base, 2)
			for round := range 12 {
				out := run(program(t)(c.Step(blocks)), map[string][]float64{outer.SumName: make([]float64, n), outer.OuterName: weights,
					outer.MomentumName: momentum, outer.BaseName: base, outer.KeyInput: asFloats(c.Key(round, -1, 0)),
					outer.HyperparametersInput: asFloats(c.Hyperparameters(2))})
				weights, momentum = out[outer.OuterName], out[outer.MomentumName]
				base = run(program(t)(c.Apply(blocks)), map[string][]float64{outer.BaseName: base, "codes": out["codes"],
					"scales": out["scales"]})[outer.BaseName]
			}
			assert.Less(t, floats.Distance(weights, base, 2), first/20, "%s on %s", format, name)
		}
	}
}

// A replica keeps the steps that it has made since it sent, with damped 1 − ¾·lateness of them. With eager it goes on
// from its own share of the step.
func TestLanding(t *testing.T) {
	for name, run := range runners(t) {
		c := config("f32")
		base, weights, sent := matrix(1, 1), matrix(2, 1), matrix(3, 1)
		for correction, kept := range map[string]float64{"damped": 0.625, "plain": 1, "error_feedback": 1, "eager": 1} {
			c.Correction, c.Lateness = correction, 0.5
			out := run(program(t)(c.Land(blocks)), map[string][]float64{outer.BaseName: base, outer.WeightsName: weights,
				outer.SentName: sent, outer.KeptInput: asFloats(c.Kept())})
			for i := range base {
				assert.InDelta(t, base[i]+kept*(weights[i]-sent[i]), out[outer.WeightsName][i], 1e-5, "%s on %s", correction, name)
			}
		}
		c.Correction, c.Lateness = "eager", 0.5
		require.True(t, c.Estimates())
		out := run(program(t)(c.Send(blocks)), map[string][]float64{outer.BaseName: base, outer.WeightsName: weights,
			outer.ShareInput: asFloats(c.Share(4))})
		for i := range base {
			assert.InDelta(t, base[i]-0.7*1.6/4*(base[i]-weights[i]), out[outer.EstimateName][i], 1e-5, name)
		}
	}
}

func TestKeysDiffer(t *testing.T) {
	c, seen := config("int4"), map[string]bool{}
	for step := range 5 {
		for sender := -1; sender < 5; sender++ {
			for m := range 5 {
				seen[fmt.Sprint(c.Key(step, sender, m))] = true
			}
		}
	}
	assert.Len(t, seen, 5*6*5)
}

func TestSizes(t *testing.T) {
	for format, want := range map[string]int64{"f32": 1024, "bf16": 512, "int8": 260, "int4": 132, "int2": 68} {
		assert.Equal(t, 2*want, config(format).Bytes(2), format)
	}
}

func TestCheck(t *testing.T) {
	assert.NoError(t, config("f32").Check())
	for want, change := range map[string]func(*outer.Config){
		"lr: found 0, expected a number above 0":                                         func(c *outer.Config) { c.LR = 0 },
		"lr: found NaN":                                                                  func(c *outer.Config) { c.LR = math.NaN() },
		"momentum: found 1, expected a number of at least 0":                             func(c *outer.Config) { c.Momentum = 1 },
		`wire: found "int3", expected one of f32, bf16, int8`:                            func(c *outer.Config) { c.Format = "int3" },
		`correction: found "none", expected one of damped, error_feedback, plain, eager`: func(c *outer.Config) { c.Correction = "none" },
		"lateness: found 2, expected a number from 0 to 1":                               func(c *outer.Config) { c.Lateness = 2 },
	} {
		c := config("f32")
		change(&c)
		assert.ErrorContains(t, c.Check(), want)
	}
}
