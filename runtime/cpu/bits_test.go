//go:build linux && cgo

package cpu_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The sizes are no multiples of vectors or blocks: B = batch, T = sequence, C = channels, V = vocabulary.
const b, tokens, channels, vocabulary = 3, 37, 44, 101

// weights are the variables of one layer of attention and one of SiLU.
var weights = map[string][]int{
	"table": {vocabulary, channels}, "norm": {channels}, "q": {channels, channels}, "k": {channels, channels}, "v": {channels, channels},
	"o": {channels, channels}, "up": {channels, 3 * channels}, "down": {3 * channels, channels}, "head": {channels, vocabulary},
}

// training returns a step of gradient descent.
func training(t *testing.T) *graph.Graph {
	t.Helper()
	g, err := graph.Build(func(m *graph.Builder) {
		w := map[string]*graph.Value{}
		var order []*graph.Value
		for _, name := range slices.Sorted(maps.Keys(weights)) {
			w[name] = m.Variable(name, graph.T(graph.F32, weights[name]...))
			order = append(order, w[name])
		}
		ids, targets := m.Input("ids", graph.T(graph.U32, b, tokens)), m.Input("targets", graph.T(graph.U32, b, tokens))
		x := op.Embedding(w["table"], ids)
		y := op.RMSNorm(x, w["norm"], 1e-5)
		heads := func(name string) *graph.Value {
			return op.Reshape(op.MatMul(y, w[name], false, false), b, tokens, 4, channels/4)
		}
		a := op.Attention(heads("q"), heads("k"), heads("v"), nil)
		x = op.Add(x, op.MatMul(op.Reshape(a, b, tokens, channels), w["o"], false, false))
		x = op.Add(x, op.MatMul(op.SiLU(op.MatMul(x, w["up"], false, false)), w["down"], false, false))
		loss, _ := op.CrossEntropy(op.Reshape(op.MatMul(x, w["head"], false, false), b*tokens, vocabulary), op.Reshape(targets, b*tokens),
			op.CrossEntropyOptions{})
		mean := op.Mean(loss, nil, false)
		m.Output("loss", mean)
		for i, d := range autodiff.Gradients(mean, nil, order...) {
			m.Assign(order[i], op.Sub(order[i], op.Scale(d, 0.1)))
		}
	})
	require.NoError(t, err)
	return g
}

// norms returns a program that has kernels in common with training.
func norms(t *testing.T) *graph.Graph {
	t.Helper()
	g, err := graph.Build(func(m *graph.Builder) {
		x := m.Variable("head", graph.T(graph.F32, weights["head"]...))
		m.Output("norm", op.Sum(op.Mul(x, x), nil, false))
		m.Output("product", op.MatMul(m.Variable("q", graph.T(graph.F32, channels, channels)), x, false, false))
	})
	require.NoError(t, err)
	return g
}

// trained returns the bytes of the weights after three steps.
func trained(t *testing.T, o cpu.Options, graphs map[string]*graph.Graph) map[string]string {
	t.Helper()
	d, err := cpu.Open(o)
	require.NoError(t, err)
	defer d.Close()
	p, err := exec.NewPlan(d, graphs, exec.Options{})
	require.NoError(t, err)
	s, err := p.Load()
	require.NoError(t, err)
	defer s.Close()
	for i, name := range slices.Sorted(maps.Keys(weights)) {
		data := make([]float64, graph.Shape(weights[name]).Len())
		for k := range data {
			data[k] = float64((k*7919+i*104729)%2003-1001) / 5000
		}
		require.NoError(t, s.WriteVariable(name, exec.Encode(graph.F32, data)))
	}
	for i, name := range []string{"ids", "targets"} {
		data := make([]float64, b*tokens)
		for k := range data {
			data[k] = float64((k*31 + i*17) % vocabulary)
		}
		require.NoError(t, s.SetInput("train", name, exec.Encode(graph.U32, data)))
	}
	for range 3 {
		require.NoError(t, s.Run("train"))
	}
	out := map[string]string{}
	for name := range weights {
		r, err := s.ReadVariable(name)
		require.NoError(t, err)
		data, err := r.Wait()
		require.NoError(t, err)
		out[name] = string(data)
	}
	return out
}

// The weights have the same bits on any number of threads, whichever other programs there are, and whether kernels are
// compiled together or alone.
func TestTrainingHasEqualBits(t *testing.T) {
	cache := t.TempDir()
	one := map[string]*graph.Graph{"train": training(t)}
	first := trained(t, cpu.Options{Threads: 1, CacheDir: cache}, one)
	for _, threads := range []int{2, 3, 8} {
		assert.True(t, maps.Equal(first, trained(t, cpu.Options{Threads: threads, CacheDir: cache}, one)), "%d threads", threads)
	}
	both := map[string]*graph.Graph{"train": training(t), "norms": norms(t)}
	assert.True(t, maps.Equal(first, trained(t, cpu.Options{Threads: 2, CacheDir: cache}, both)), "with another program")
	command, runs := alone(t)
	assert.True(t, maps.Equal(first, trained(t, cpu.Options{Threads: 2, Compiler: command}, both)), "compiled alone")
	assert.Greater(t, runs(), 30)
	for name, bytes := range first {
		for _, x := range exec.Decode(graph.F32, []byte(bytes)) {
			require.Less(t, x*x, 100.0, "%s diverges", name)
		}
	}
}

// alone writes a compiler that refuses several units at once, so it gets each kernel alone.
func alone(t *testing.T) (command string, runs func() int) {
	t.Helper()
	command = filepath.Join(t.TempDir(), "cc")
	text := "#!/bin/sh\ncase \"$*\" in *1.c*) exit 1;; esac\necho >> $0.runs\nexec cc \"$@\"\n"
	require.NoError(t, os.WriteFile(command, []byte(text), 0o755))
	return command, func() int {
		lines, err := os.ReadFile(command + ".runs")
		require.NoError(t, err)
		return len(lines)
	}
}

// Matrix units, whose registers belong to threads, give the same bits on any number of threads too.
func TestProductsOfBF16HaveEqualBits(t *testing.T) {
	cache := t.TempDir()
	first := products(t, 1, cache)
	for _, threads := range []int{2, 3, 8} {
		assert.True(t, slices.Equal(first, products(t, threads, cache)), "%d threads", threads)
	}
}

// products returns the bytes of products of bf16 in many workgroups, the second with sums that are split.
func products(t *testing.T, threads int, cache string) []string {
	t.Helper()
	d, err := cpu.Open(cpu.Options{Threads: threads, CacheDir: cache})
	require.NoError(t, err)
	defer d.Close()
	inputs := map[string]graph.Shape{"x": {1500, 1100}, "y": {1100, 300}, "z": {1500, 100}, "w": {7, 90, 100}}
	g, err := graph.Build(func(m *graph.Builder) {
		in := map[string]*graph.Value{}
		for name, s := range inputs {
			in[name] = m.Input(name, graph.T(graph.BF16, s...))
		}
		m.Output("whole", op.MatMul(in["x"], in["y"], false, false))
		m.Output("split", op.MatMul(in["z"], in["x"], true, false))
		offsets := m.Constant("offsets", graph.T(graph.U32, 8), []float64{0, 0, 1, 300, 613, 1000, 1499, 1500})
		for name, as := range map[string]graph.DType{"grouped": graph.BF16, "grouped f32": graph.F32} {
			rows := op.GroupedMatMul(op.Cast(in["z"], as), op.Cast(in["w"], as), offsets, true)
			m.Output(name, rows)
			m.Output(name+" sums", op.GroupedMatMulReduce(op.Cast(rows, as), op.Cast(in["z"], as), offsets))
		}
	})
	require.NoError(t, err)
	p, err := exec.NewPlan(d, map[string]*graph.Graph{"products": g}, exec.Options{})
	require.NoError(t, err)
	s, err := p.Load()
	require.NoError(t, err)
	defer s.Close()
	for name, shape := range inputs {
		data := make([]float64, shape.Len())
		for k := range data {
			data[k] = float64((k*7919+len(data))%2003-1001) / 500
		}
		require.NoError(t, s.SetInput("products", name, exec.Encode(graph.BF16, data)))
	}
	require.NoError(t, s.Run("products"))
	return outputs(t, s, "products", "whole", "split", "grouped", "grouped sums", "grouped f32", "grouped f32 sums")
}

// Symmetric products, of which half is computed, have the same bits on any number of threads. They are those of
// products whose operands lie in two inputs, except with AMX, which adds the terms of both operands in an order of its
// own.
func TestSymmetricProductsHaveEqualBits(t *testing.T) {
	tier.Rest(t)
	cache := t.TempDir()
	found, err := cpu.FindToolchain(cache)
	require.NoError(t, err)
	first := symmetric(t, 1, cache, false)
	if !slices.Contains(found.Limits().Cooperative, target.AMX) {
		assert.True(t, slices.Equal(first, symmetric(t, 1, cache, true)), "half of a product has other bits")
	}
	for _, threads := range []int{2, 3, 8} {
		assert.True(t, slices.Equal(first, symmetric(t, threads, cache, false)), "%d threads", threads)
	}
}

// symmetric returns the bytes of the products of a Newton–Schulz step of a stack of wide matrices and of one of tall
// ones. Where twice, an operand is read from an input of its own.
func symmetric(t *testing.T, threads int, cache string, twice bool) (out []string) {
	t.Helper()
	d, err := cpu.Open(cpu.Options{Threads: threads, CacheDir: cache})
	require.NoError(t, err)
	defer d.Close()
	inputs := map[string]graph.Shape{"wide": {7, 205, 500}, "tall": {2, 700, 333}}
	graphs := map[string]*graph.Graph{}
	for name, shape := range inputs {
		g, err := graph.Build(func(m *graph.Builder) {
			x := m.Input("x", graph.T(graph.F32, shape...))
			y := x
			if twice {
				y = m.Input("y", x.Type)
			}
			tall := name == "tall"
			a := op.MatMul(x, y, tall, !tall)
			var product *graph.Value
			if twice {
				product = op.MatMul(a, op.MatMul(y, x, tall, !tall), false, false)
			} else {
				product = op.SymmetricMatMul(a, a)
			}
			m.Output("a", a)
			m.Output("p", op.Add(op.Scale(product, 0.5), m.Input("bias", graph.T(graph.F32, a.Shape[2]))))
		})
		require.NoError(t, err)
		graphs[name] = g
	}
	p, err := exec.NewPlan(d, graphs, exec.Options{})
	require.NoError(t, err)
	s, err := p.Load()
	require.NoError(t, err)
	defer s.Close()
	for _, name := range slices.Sorted(maps.Keys(inputs)) {
		data := make([]float64, inputs[name].Len())
		for k := range data {
			data[k] = float64((k*7919+len(data))%2003-1001) / 5000
		}
		require.NoError(t, s.SetInput(name, "x", exec.Encode(graph.F32, data)))
		if twice {
			require.NoError(t, s.SetInput(name, "y", exec.Encode(graph.F32, data)))
		}
		require.NoError(t, s.SetInput(name, "bias", exec.Encode(graph.F32, data[:min(inputs[name][1], inputs[name][2])])))
		require.NoError(t, s.Run(name))
		out = append(out, outputs(t, s, name, "a", "p")...)
	}
	return out
}

// Bits do not depend on what a kernel stores beside: what is computed again in the backward pass, or in another chunk
// of a pipeline, is what was computed before.
func TestFusionKeepsBits(t *testing.T) {
	cache := t.TempDir()
	assert.Equal(t, fused(t, cache, false), fused(t, cache, true))
}

// fused returns the bytes of sums of products, in a map, in a reduction and behind a matrix product. The products are
// results, too, if they are stored.
func fused(t *testing.T, cache string, stored bool) []string {
	t.Helper()
	const rows, cols = 33, 70
	d, err := cpu.Open(cpu.Options{CacheDir: cache})
	require.NoError(t, err)
	defer d.Close()
	inputs := map[string]graph.Shape{"x": {rows, cols}, "y": {rows, cols}, "z": {rows, cols}, "w": {cols, cols}}
	g, err := graph.Build(func(m *graph.Builder) {
		in := map[string]*graph.Value{}
		for name, s := range inputs {
			in[name] = m.Input(name, graph.T(graph.F32, s...))
		}
		product := op.Mul(in["x"], in["y"])
		behind := op.Mul(op.MatMul(in["x"], in["w"], false, false), in["y"])
		normal := op.Mul(op.RMSNorm(in["y"], op.Full(m, graph.F32, 1, cols), 1e-5), in["x"])
		m.Output("map", op.Sub(in["z"], product))
		m.Output("reduction", op.Sum(product, []int{1}, false))
		m.Output("behind", op.Add(behind, in["z"]))
		m.Output("norm", op.Add(in["z"], normal))
		if stored {
			m.Output("product", product)
			m.Output("product behind", behind)
			m.Output("normal", normal)
		}
	})
	require.NoError(t, err)
	p, err := exec.NewPlan(d, map[string]*graph.Graph{"g": g}, exec.Options{})
	require.NoError(t, err)
	s, err := p.Load()
	require.NoError(t, err)
	defer s.Close()
	for i, name := range slices.Sorted(maps.Keys(inputs)) {
		data := make([]float64, inputs[name].Len())
		for k := range data {
			data[k] = float64((k*7919+i*104729)%2003-1001) / 1000
		}
		require.NoError(t, s.SetInput("g", name, exec.Encode(graph.F32, data)))
	}
	require.NoError(t, s.Run("g"))
	return outputs(t, s, "g", "map", "reduction", "behind", "norm")
}

// outputs returns the bytes of a program's outputs.
func outputs(t *testing.T, s *exec.Session, program string, names ...string) (out []string) {
	t.Helper()
	for _, name := range names {
		r, err := s.Output(program, name)
		require.NoError(t, err)
		data, err := r.Wait()
		require.NoError(t, err)
		out = append(out, string(data))
	}
	return out
}
