package compute

import (
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

const patterns = 1 << 16 // of a 16-bit float

// CheckConversions converts every 16-bit float to f32, and to 16 bits every f32 at which rounding changes with its
// neighbors. It compares bits.
func CheckConversions(dev device.Device) []Result {
	var results []Result
	for _, d := range []graph.DType{graph.F16, graph.BF16} {
		every := make([]float64, patterns)
		for h := range every {
			every[h] = d.FromBits(uint32(h))
		}
		results = append(results, convert(dev, d, graph.F32, every), convert(dev, graph.F32, d, roundings(every)))
	}
	return results
}

// roundings returns the 16-bit floats, the midpoints between two of them, and the f32 neighbors of all these.
func roundings(every []float64) []float64 {
	var xs []float64
	for h, x := range every {
		next := every[(h+1)%len(every)]
		for _, y := range []float64{x, (x + next) / 2} {
			f := float32(y)
			xs = append(xs, y, float64(math.Nextafter32(f, math.MaxFloat32)), float64(math.Nextafter32(f, -math.MaxFloat32)))
		}
	}
	return xs
}

// convert casts values of one dtype to the other and compares the results.
func convert(dev device.Device, from, to graph.DType, xs []float64) Result {
	r := Result{Op: "16-bit floats", Case: fmt.Sprintf("%v to %v", from, to), Candidate: "map"}
	got, err := cast(dev, from, to, xs)
	if err != nil {
		r.Failure = err.Error()
		return r
	}
	for i, y := range exec.Decode(to, got) {
		if want := to.Round(xs[i]); to.Bits(y) != to.Bits(want) {
			r.Failure = fmt.Sprintf("%v (bits %#x) becomes %v (%#x), expected %v (%#x)", xs[i], from.Bits(xs[i]), y, to.Bits(y), want,
				to.Bits(want))
			return r
		}
	}
	return r
}

// cast returns the bytes of the result.
func cast(dev device.Device, from, to graph.DType, xs []float64) (out []byte, err error) {
	defer caught(&err)
	g, err := graph.Build(func(b *graph.Builder) {
		b.Output("y", op.Cast(b.Input("x", graph.T(from, len(xs))), to))
	})
	if err != nil {
		return nil, err
	}
	plan, err := exec.NewPlan(dev, map[string]*graph.Graph{"cast": g}, exec.Options{})
	if err != nil {
		return nil, err
	}
	s, err := plan.Load()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if err := s.SetInput("cast", "x", exec.Encode(from, xs)); err != nil {
		return nil, err
	}
	if err := s.Run("cast"); err != nil {
		return nil, err
	}
	read, err := s.Output("cast", "y")
	if err != nil {
		return nil, err
	}
	return read.Wait()
}
