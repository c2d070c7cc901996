package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// caseProgram is the name of a case's one program.
const caseProgram = "case"

// measure measures a case on devices in alternation.
func measure(devs []device.Device, c Case, o Options) ([]Result, error) {
	var results []Result
	var subjects []*subject
	for _, dev := range devs {
		s, r, err := c.load(dev, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dev.Info().Name, err)
		}
		defer s.Close()
		x, err := programWork(dev, s, caseProgram).subject()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dev.Info().Name, err)
		}
		r.Clock = x.clock
		results, subjects = append(results, r), append(subjects, x)
	}
	var host *gemm
	var between func()
	if c.Product != nil {
		host = newGemm(*c.Product)
		between = host.run
	}
	if err := o.alternate(subjects, between); err != nil {
		return nil, err
	}
	for i := range results {
		r, t := &results[i], subjects[i].median()
		r.DurationMicros = inMicros(t)
		r.GFLOPS, r.GBps = c.Flops/t.Seconds()/1e9, c.Bytes/t.Seconds()/1e9
		if host != nil {
			r.Gonum = c.Flops / host.fastest.Seconds() / 1e9
			r.Ratio = r.GFLOPS / r.Gonum
		}
	}
	return results, nil
}

// load loads a case on a device.
func (c Case) load(dev device.Device, o Options) (*exec.Session, Result, error) {
	r := Result{Name: c.Name}
	g, err := graph.Build(c.Build)
	if err != nil {
		return nil, r, err
	}
	plan, err := exec.NewPlan(dev, map[string]*graph.Graph{caseProgram: g}, exec.Options{Tune: o.Tune})
	if err != nil {
		return nil, r, err
	}
	for _, k := range plan.Kernels(caseProgram) {
		r.Kernels = append(r.Kernels, k.Candidate)
	}
	s, err := plan.Load()
	if err != nil {
		return nil, r, err
	}
	if err := c.fill(s, g); err != nil {
		return nil, r, errors.Join(err, s.Close())
	}
	return s, r, nil
}

func inMicros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// fill uploads noise: floats in [−1, 1), and integers below the case's bound. The optimizer's state stays zero.
func (c Case) fill(s *exec.Session, g *graph.Graph) error {
	for _, v := range g.Sources("input") {
		name := v.Node.Op.(graph.Source).Label()
		data := c.noise(v.Type)
		if x, ok := c.Inputs[name]; ok {
			data = exec.F32Bytes(x)
		}
		if err := s.SetInput(caseProgram, name, data); err != nil {
			return err
		}
	}
	for _, v := range s.Variables() {
		if strings.HasPrefix(v.ID, "optim/") {
			continue
		}
		if err := s.WriteVariable(v.ID, c.noise(v.Type)); err != nil {
			return err
		}
	}
	return nil
}

func (c Case) noise(t graph.Type) []byte {
	rng := rand.New(rand.NewPCG(5, uint64(t.Shape.Len())))
	below := c.Below
	if below == 0 {
		below = 256
	}
	data := make([]float64, t.Shape.Len())
	for i := range data {
		if t.DType.Float() {
			data[i] = 2*rng.Float64() - 1
		} else {
			data[i] = float64(rng.IntN(below))
		}
	}
	return exec.Encode(t.DType, data)
}

// gemm is the same product in gonum, on all threads that Go uses.
type gemm struct {
	a, b, c blas32.General
	fastest time.Duration
}

func newGemm(p Product) *gemm {
	rng := rand.New(rand.NewPCG(7, 8))
	matrix := func(rows, cols int) blas32.General {
		m := blas32.General{Rows: rows, Cols: cols, Stride: cols, Data: make([]float32, rows*cols)}
		for i := range m.Data {
			m.Data[i] = 2*rng.Float32() - 1
		}
		return m
	}
	g := &gemm{a: matrix(p.M, p.K), b: matrix(p.K, p.N), c: matrix(p.M, p.N)}
	g.run() // touches the memory
	return g
}

// run multiplies for 50 ms, and keeps the best time.
func (g *gemm) run() {
	for begin := time.Now(); time.Since(begin) < 50*time.Millisecond; {
		start := time.Now()
		blas32.Gemm(blas.NoTrans, blas.NoTrans, 1, g.a, g.b, 0, g.c)
		if t := time.Since(start); g.fastest == 0 || t < g.fastest {
			g.fastest = t
		}
	}
}
