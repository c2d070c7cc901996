package optim

import (
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stackedParams has stacks of wide, tall and square matrices, a stack of one, and single matrices and a norm in the
// same layer.
func stackedParams() (ps []Param) {
	add := func(name string, matrix bool, shape ...int) {
		ps = append(ps, Param{Name: name, Type: graph.T(graph.F32, shape...), Layer: "layers.0", Gradient: "grad/" + name,
			Matrix: matrix, Decay: len(shape) > 1})
	}
	add("norm", false, 8)
	add("q", true, 8, 8)
	add("down", true, 5, 8, 20)
	add("up", true, 4, 20, 8)
	add("gate", true, 4, 20, 8)
	add("aligned", true, 3, 64, 4)
	add("square", true, 2, 8, 8)
	add("one", true, 1, 20, 8)
	add("up0", true, 20, 8)
	return ps
}

// unstacked has a parameter for each matrix of a stack, in order.
func unstacked(p Param) (ps []Param) {
	if len(p.Type.Shape) != 3 {
		return []Param{p}
	}
	for i := range p.Type.Shape[0] {
		q := p
		q.Name, q.Gradient = fmt.Sprintf("%s.%d", p.Name, i), fmt.Sprintf("%s.%d", p.Gradient, i)
		q.Type.Shape = p.Type.Shape[1:]
		ps = append(ps, q)
	}
	return ps
}

func allUnstacked(ps []Param) (all []Param) {
	for _, p := range ps {
		all = append(all, unstacked(p)...)
	}
	return all
}

// apart is tensors of parameters by the names of their matrices.
func apart(ps []Param, xs map[string][]float64) map[string][]float64 {
	all := map[string][]float64{}
	for _, p := range ps {
		x := xs[p.Name]
		for _, q := range unstacked(p) {
			n := q.Type.Shape.Len()
			all[q.Name], x = x[:n:n], x[n:]
		}
	}
	return all
}

// joined is the tensors of a parameter's matrices, one after the other.
func joined(p Param, get func(Param) []float64) (x []float64) {
	for _, q := range unstacked(p) {
		x = append(x, get(q)...)
	}
	return x
}

// Each matrix of a stack is updated as the published algorithm updates a matrix. Unless the gradient is clipped, by a
// norm that is the sum of other partial sums, the bits are those of parameters of two axes. On devices they are not:
// the kernel of a product depends on how many matrices there are.
func TestAStackIsItsMatrices(t *testing.T) {
	const batches = 3
	onDevice := map[string]int{"muon": 2, "normuon": 1} // 1 + the delay
	eachMachine(t, func(t *testing.T, tolerance float64, on maker) {
		exact := tolerance < 1e-9
		for name, cfg := range testConfigs() {
			for _, delay := range []int{0, 1} {
				if !exact && onDevice[name] != delay+1 {
					continue
				}
				if cfg.Delay = delay; delay == 1 {
					cfg.Correction, cfg.Clip = &ErrorFeedback{}, 0
					if name == "muon" {
						cfg.Correction = &WeightPrediction{}
					}
				}
				t.Run(fmt.Sprintf("%s, delay %d", name, delay), func(t *testing.T) {
					params := stackedParams()
					single := allUnstacked(params)
					x := randomTensors(params, -1)
					o, m := start(t, cfg, params, on)
					o1, m1 := start(t, cfg, single, on)
					for name, x := range apart(params, x) {
						m1.set(name, x)
					}
					ref := newReference(cfg, single, apart(params, x))
					for step := range batches {
						gradients := randomTensors(params, step)
						for _, p := range params {
							m.set(p.Gradient, gradients[p.Name])
						}
						for name, g := range apart(params, gradients) {
							m1.set("grad/"+name, g)
						}
						norm, ok := run(m, o, step)
						require.True(t, ok)
						_, ok = run(m1, o1, step)
						require.True(t, ok)
						want := ref.step(step, o.cfg.Schedule.Factor(step), apart(params, gradients))
						require.InEpsilon(t, want, norm, tolerance)
						rotate(m, params, delay)
						rotate(m1, single, delay)
						for _, p := range params {
							got := m.get(p.Name)
							compare(t, fmt.Sprintf("step %d: %s", step, p.Name),
								joined(p, func(q Param) []float64 { return ref.newest(q.Name).RawMatrix().Data }), got, tolerance)
							if cfg.Clip == 0 && exact {
								assert.Equal(t, joined(p, func(q Param) []float64 { return m1.get(q.Name) }), got, "step %d: %s", step,
									p.Name)
							}
						}
					}
				})
			}
		}
	})
}

// A large stack is updated by sections, whose temporary values share memory.
func TestSectionsBoundTemporaryMemory(t *testing.T) {
	const n = 16
	for _, c := range []struct {
		name       string
		rows, cols int
		bound      int64 // of the temporary values of two matrices, in matrices
	}{{"muon", 96, 64, 6}, {"muon", 128, 48, 7}, {"normuon", 96, 64, 6}, {"normuon", 128, 48, 7}, {"soap", 96, 64, 20}} {
		t.Run(fmt.Sprintf("%s %dx%d", c.name, c.rows, c.cols), func(t *testing.T) {
			params := []Param{{Name: "w", Type: graph.T(graph.F32, n, c.rows, c.cols), Layer: "layers.0", Gradient: "g", Matrix: true,
				Decay: true}}
			matrix := params[0].Type.Bytes() / n
			arena := map[int64]int64{} // by matrices in a section
			for _, size := range []int64{2, n} {
				cfg := testConfigs()[c.name]
				if s, ok := cfg.Algorithm.(*SOAP); ok {
					s.MaxPrecondDim = c.rows
				}
				cfg.Delay, cfg.Correction = 1, &ErrorFeedback{}
				o, err := New(cfg, params)
				require.NoError(t, err)
				largest := matrix
				if c.name == "soap" {
					largest = int64(4 * c.rows * c.rows)
				}
				limit(o, size*largest)
				want := 1
				if size < n {
					want = int(n / size)
				}
				assert.Len(t, o.sections(o.groups[0].rule, params[0]), want)
				p, err := exec.NewPlan(null.New(null.Options{}), allPrograms(t, o.All()), exec.Options{})
				require.NoError(t, err)
				arena[size] = p.Memory().Arena
			}
			assert.LessOrEqual(t, arena[2], c.bound*matrix)
			assert.Greater(t, arena[n], 2*arena[2])
		})
	}
}
