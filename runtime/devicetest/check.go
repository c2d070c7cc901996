// Package devicetest is the conformance suite of a device: every case of every op, by every candidate kernel, against
// the float64 reference. Tests call Run; gpupipe selftest calls Check on the user's own device.
package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/gpupipe/gpupipe/graph"
	_ "github.com/gpupipe/gpupipe/graph/op" // the catalogue
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/shaders"
)

// DefaultTolerance is the error allowed in f32, relative to the reference's largest magnitude.
const DefaultTolerance = 2e-6

// Result is the outcome of one case with one set of candidate kernels.
type Result struct {
	Op        string  `json:"op"`
	Case      string  `json:"case"` // the inputs' types
	Candidate string  `json:"candidate"`
	Error     float64 `json:"error"` // largest, relative to the reference's largest magnitude
	Tolerance float64 `json:"tolerance"`
	Failure   string  `json:"failure,omitempty"`
}

// OK tells whether the case passed.
func (r Result) OK() bool { return r.Failure == "" }

// Check runs a case on the device, once with each candidate kernel, and compares with the reference.
func Check(dev device.Device, c graph.Case) []Result {
	in, out := reference(c)
	var results []Result
	for i := 0; ; i++ {
		choose := &nth{n: i}
		r := Result{Op: c.Op.Name(), Case: fmt.Sprint(c.Inputs), Tolerance: c.Tolerance}
		if r.Tolerance == 0 {
			r.Tolerance = DefaultTolerance
		}
		got, err := execute(dev, c, in, choose)
		if i > 0 && choose.most <= i {
			return results
		}
		r.Candidate = choose.name
		if err != nil {
			r.Failure = err.Error()
		} else {
			r.compare(got, out)
		}
		results = append(results, r)
	}
}

// nth chooses the n-th candidate wherever there are that many.
type nth struct {
	n, most int
	name    string
}

func (c *nth) Choose(_ device.Device, _ string, ks []shaders.Kernel, _ int) (int, error) {
	i := min(c.n, len(ks)-1)
	if len(ks) > c.most {
		c.most, c.name = len(ks), ks[i].Name
	}
	return i, nil
}

// Fill returns the inputs of a case: the same numbers every time, as f32 holds them.
func Fill(c graph.Case) []*graph.Tensor {
	rng := rand.New(rand.NewPCG(1, 2))
	low, high := c.Low, c.High
	if low == high {
		low, high = -2, 2
	}
	in := make([]*graph.Tensor, len(c.Inputs))
	for i, t := range c.Inputs {
		in[i] = graph.NewTensor(t)
		for j := range in[i].Data {
			switch {
			case c.Fill != nil:
				in[i].Data[j] = c.Fill(i, j)
			case t.DType.Float():
				in[i].Data[j] = low + (high-low)*rng.Float64()
			default:
				in[i].Data[j] = float64(rng.IntN(4))
			}
			if t.DType.Float() {
				in[i].Data[j] = float64(float32(in[i].Data[j]))
			}
		}
	}
	return in
}

func reference(c graph.Case) (in, out []*graph.Tensor) {
	in = Fill(c)
	types, err := c.Op.Infer(c.Inputs)
	if err != nil {
		panic(fmt.Sprintf("devicetest: case of %s: %v", c.Op.Name(), err))
	}
	for _, t := range types {
		out = append(out, graph.NewTensor(t))
	}
	c.Op.Eval(in, out)
	return in, out
}

// execute runs the op alone as a program.
func execute(dev device.Device, c graph.Case, in []*graph.Tensor, choose exec.Chooser) ([][]float64, error) {
	var outs []*graph.Value
	g, err := graph.Build(func(b *graph.Builder) {
		args := make([]*graph.Value, len(in))
		for i, t := range in {
			args[i] = b.Input(fmt.Sprint("x", i), t.Type)
		}
		outs = b.Apply(c.Op, args...)
		for i, o := range outs {
			b.Output(fmt.Sprint("y", i), o)
		}
	})
	if err != nil {
		return nil, err
	}
	plan, err := exec.NewPlan(dev, map[string]*graph.Graph{"case": g}, exec.Options{Tune: choose})
	if err != nil {
		return nil, err
	}
	s, err := plan.Load()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for i, t := range in {
		if err := s.SetInput("case", fmt.Sprint("x", i), exec.Encode(t.DType, t.Data)); err != nil {
			return nil, err
		}
	}
	if err := s.Run("case"); err != nil {
		return nil, err
	}
	got := make([][]float64, len(outs))
	for i, o := range outs {
		p, err := s.Output("case", fmt.Sprint("y", i))
		if err != nil {
			return nil, err
		}
		b, err := p.Wait()
		if err != nil {
			return nil, err
		}
		got[i] = exec.Decode(o.DType, b)
	}
	return got, nil
}

// compare notes the largest error over all results. Integers must be equal.
func (r *Result) compare(got [][]float64, want []*graph.Tensor) {
	for i, w := range want {
		scale := 0.0
		for _, x := range w.Data {
			if !math.IsInf(x, 0) {
				scale = max(scale, math.Abs(x))
			}
		}
		if len(got[i]) != len(w.Data) {
			r.Failure = fmt.Sprintf("result %d has %d elements, expected %d", i, len(got[i]), len(w.Data))
			return
		}
		for j, x := range w.Data {
			e := math.Abs(got[i][j]-x) / max(scale, 1e-30)
			if got[i][j] == x || math.IsNaN(x) && math.IsNaN(got[i][j]) {
				e = 0
			}
			if !w.DType.Float() && e != 0 || math.IsNaN(e) || e > r.Tolerance {
				r.Failure = fmt.Sprintf("result %d element %d is %v, expected %v (error %.3g)", i, j, got[i][j], x, e)
				return
			}
			r.Error = max(r.Error, e)
		}
	}
}
