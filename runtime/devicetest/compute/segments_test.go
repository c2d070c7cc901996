package compute_test

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/shaders"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSegmentsThatAreOneChangeNoBit runs attention and its gradient by each kind of kernel with one segment and without
// any.
func TestSegmentsThatAreOneChangeNoBit(t *testing.T) {
	tier.Rest(t)
	d := testdevice.Translated(t)
	for dim, length := range map[int]int{3: 5, 4: 70} { // scalars; vectors, and more than one tile
		for _, k := range []struct {
			dev  device.Device
			name string
		}{{d, "naive"}, {d, "rows"}, {hardware{d}, "rows"}, {hardware{d}, "tiles"}} {
			plain := attend(t, k.dev, k.name, length, dim, false)
			assert.Len(t, plain, 4)
			assert.Equal(t, plain, attend(t, k.dev, k.name, length, dim, true), "%s of %d on a %s device", k.name, dim, k.dev.Info().Kind)
		}
	}
}

// attend returns the result of attention and the gradients of its inputs; with segments, all in one.
func attend(t *testing.T, dev device.Device, kernel string, length, dim int, segments bool) map[string][]byte {
	t.Helper()
	kv := graph.T(graph.F32, 2, length, 2, dim)
	types := []graph.Type{graph.T(graph.F32, 2, length, 4, dim), kv, kv, graph.T(graph.U32, 2, length)}
	values := graph.Case{Inputs: types}.Values(3)
	clear(values[3].Data)
	return computed(t, dev, attentionGraph(t, types, segments, 0), values, named(kernel))
}

// inputs are x0, x1, …
func inputs(b *graph.Builder, types []graph.Type) (in []*graph.Value) {
	for i, typ := range types {
		in = append(in, b.Input(fmt.Sprint("x", i), typ))
	}
	return in
}

// attentionGraph has attention of its inputs, segments perhaps among them, and the gradients of q, k and v. A window of
// 0 is none.
func attentionGraph(t *testing.T, types []graph.Type, segments bool, window int) *graph.Graph {
	t.Helper()
	g, err := graph.Build(func(b *graph.Builder) {
		in := inputs(b, types)
		o := &op.AttentionOp{Window: window}
		more := in[3:]
		if segments {
			o.Form = op.WithinSegments
		} else {
			more = nil
		}
		y := o.Apply(in[0], in[1], in[2], more...)
		b.Output("y", y)
		for i, d := range autodiff.Gradients(op.Sum(op.Square(y), nil, false), nil, in[:3]...) {
			b.Output(fmt.Sprint("d", i), d)
		}
	})
	require.NoError(t, err)
	return g
}

// wholeWalk has blocks of attention walk the columns of all documents.
type wholeWalk struct{ device.Device }

var edges = regexp.MustCompile(`let (start|end) = workgroupUniformLoad\(&bound\)[^;]*;`)

func (d wholeWalk) Load(p *device.Program) (device.Loaded, error) {
	other := *p
	other.Shaders = slices.Clone(p.Shaders)
	count := 0
	for i, s := range other.Shaders {
		other.Shaders[i].Source = edges.ReplaceAllStringFunc(s.Source, func(text string) string {
			count++
			if strings.HasPrefix(text, "let start") {
				return "let start = 0u;"
			}
			return "let end = TQ;"
		})
	}
	if count != 3 {
		return nil, fmt.Errorf("%d of a forward and two backward passes end their walk early", count)
	}
	return d.Device.Load(&other)
}

// TestBlocksThatSeeLessChangeNoBit computes attention and its gradient of many layouts of documents. Walks that skip
// what a block cannot see must give the bits of walks over everything.
func TestBlocksThatSeeLessChangeNoBit(t *testing.T) {
	tier.Rest(t)
	d := testdevice.TranslatedToCompute(t)
	for _, k := range []struct {
		dev    device.Device
		kernel string
		dtype  graph.DType
		dim    int
	}{{d, "rows", graph.F32, 4}, {hardware{d}, "rows", graph.F32, 4}, {hardware{d}, "tiles", graph.F32, 4},
		{hardware{d}, "tiles", graph.F32, 44}, {cooperative{Device: d, subgroup: 1, size: square(8)}, "matrices", graph.F16, 8}} {
		t.Run(fmt.Sprintf("%s of %d on a %s device", k.kernel, k.dim, k.dev.Info().Kind), func(t *testing.T) {
			kv := graph.T(k.dtype, 2, documentsLength, 1, k.dim)
			types := []graph.Type{graph.T(k.dtype, 2, documentsLength, 2, k.dim), kv, kv, graph.T(graph.U32, 2, documentsLength)}
			g, err := graph.Expand(attentionGraph(t, types, true, 0))
			require.NoError(t, err)
			few, all := load(t, k.dev, g, named(k.kernel)), load(t, wholeWalk{k.dev}, g, named(k.kernel))
			defer few.Close()
			defer all.Close()
			in := graph.Case{Inputs: types}.Values(3)
			for name, segment := range documents() {
				for i := range in[3].Data {
					in[3].Data[i] = segment(i/documentsLength, i%documentsLength)
				}
				assert.Equal(t, outputs(t, all, g, in), outputs(t, few, g, in), name)
			}
			if k.dim == 44 {
				return // blocks have no 64 rows
			}
			for i := range in[3].Data {
				in[3].Data[i] = float64(i % documentsLength / 64)
			}
			for b := range 2 {
				for i := 64 * k.dim; i < 128*k.dim; i++ {
					in[2].Data[b*documentsLength*k.dim+i] = math.NaN()
				}
			}
			whole := outputs(t, all, g, in)
			for name, bits := range outputs(t, few, g, in) {
				assert.NotEqual(t, [3]bool{true, false, true}, numbersIn(whole[name]), name)
				assert.Equal(t, [3]bool{true, false, true}, numbersIn(bits), name)
			}
		})
	}
}

const documentsLength = 203

// documents number the places of two sequences.
func documents() map[string]func(b, i int) float64 {
	random := func(i int) uint32 { return uint32(i+1) * 2654435761 }
	return map[string]func(b, i int) float64{
		"one":                     func(b, i int) float64 { return 7 },
		"a token each":            func(b, i int) float64 { return float64(i) },
		"a token each, downwards": func(b, i int) float64 { return float64(1<<32 - 1 - i) },
		"eight":                   func(b, i int) float64 { return float64((i + 5*b) * 8 / documentsLength) },
		"eight, downwards":        func(b, i int) float64 { return float64(9 - (i+5*b)*8/documentsLength) },
		"numbers come again":      func(b, i int) float64 { return []float64{3, 1, 2, 3, 0}[i/(40+b)%5] },
		"as long as blocks":       func(b, i int) float64 { return float64((i + 32*b) / 64) },
		"padded":                  func(b, i int) float64 { return []float64{1, 2, 3, 0}[min(i/(50-b), 3)] },
		"random":                  func(b, i int) float64 { return float64(random(i + 7*b)) },
		"three, random":           func(b, i int) float64 { return float64(random(i+7*b) >> 8 % 3) },
		"runs, random":            func(b, i int) float64 { return float64(random(i / (17 + b))) },
	}
}

// numbersIn reports whether the first 64, the second 64 and the other positions of two sequences hold numbers only.
func numbersIn(bits []byte) (all [3]bool) {
	x := exec.Decode(graph.F32, bits)
	row := len(x) / 2 / documentsLength
	all = [3]bool{true, true, true}
	for i, y := range x {
		if math.IsNaN(y) {
			all[min(i/row%documentsLength/64, 2)] = false
		}
	}
	return all
}

// computed returns the outputs of a graph whose inputs are x0, x1, …; the last may be more than it has.
func computed(t *testing.T, dev device.Device, g *graph.Graph, inputs []*graph.Tensor, choose exec.Chooser) map[string][]byte {
	t.Helper()
	g, err := graph.Expand(g)
	require.NoError(t, err)
	s := load(t, dev, g, choose)
	defer s.Close()
	return outputs(t, s, g, inputs)
}

// load readies a graph that was expanded, and outputs computes it.
func load(t *testing.T, dev device.Device, g *graph.Graph, choose exec.Chooser) *exec.Session {
	t.Helper()
	p, err := exec.NewPlan(dev, map[string]*graph.Graph{"g": g}, exec.Options{Tune: choose})
	require.NoError(t, err)
	s, err := p.Load()
	require.NoError(t, err)
	return s
}

func outputs(t *testing.T, s *exec.Session, g *graph.Graph, inputs []*graph.Tensor) map[string][]byte {
	t.Helper()
	for i := range g.Sources("input") {
		require.NoError(t, s.SetInput("g", fmt.Sprint("x", i), exec.Encode(inputs[i].DType, inputs[i].Data)))
	}
	require.NoError(t, s.Run("g"))
	out := map[string][]byte{}
	for _, o := range g.Outputs {
		read, err := s.Output("g", o.Name)
		require.NoError(t, err)
		out[o.Name], err = read.Wait()
		require.NoError(t, err)
	}
	return out
}

// named chooses the attention kernels of a name.
type named string

func (n named) Choose(_ device.Device, _ string, ks []shaders.Kernel, fallback int) (int, error) {
	i := slices.IndexFunc(ks, func(k shaders.Kernel) bool { return k.Name == string(n) })
	if i < 0 {
		return fallback, nil
	}
	return i, nil
}
