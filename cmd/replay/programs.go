package main

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/shaders/spirv"
)

// program is a graph whose kernels are generated.
type program struct {
	name  string
	build func() (*graph.Graph, error)
	spirv bool // also as SPIR-V
}

// generate returns the kernels of all programs for all platforms.
func generate() (*kernels, error) {
	compiler, err := spirv.NewCompiler("")
	if err != nil {
		return nil, err
	}
	defer compiler.Close()
	all, work := newKernels(), make(chan program)
	errs := make([]error, runtime.GOMAXPROCS(0))
	var workers sync.WaitGroup
	for i := range errs {
		workers.Go(func() {
			for p := range work {
				errs[i] = errors.Join(errs[i], all.generate(p, compiler))
			}
		})
	}
	programs, err := programs()
	for _, p := range programs {
		work <- p
	}
	close(work)
	workers.Wait()
	return all, errors.Join(append(errs, err)...)
}

// generate adds the kernels of a program for all platforms.
func (k *kernels) generate(p program, compiler *spirv.Compiler) error {
	g, err := p.build()
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	for _, to := range platforms() {
		c := compiler
		if !p.spirv || !to.spirv {
			c = nil
		}
		if err := k.lower(p.name, g, to, c); err != nil {
			return err
		}
	}
	return nil
}

// programs are the programs of every preset, the programs of every optimizer, and every op's cases.
func programs() (all []program, err error) {
	for _, name := range model.Presets() {
		of, err := preset(name)
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	updates, err := optimizers()
	if err != nil {
		return nil, err
	}
	return append(append(all, updates...), cases()...), nil
}

// preset are the programs of a preset, cut to few layers and a short context: other layers have the same kernels.
func preset(name string) (all []program, err error) {
	c, err := model.Preset(name)
	if err != nil {
		return nil, err
	}
	const period = 4 // of the presets whose layers differ
	if c.NLayers > period && len(c.Attention.Pattern)+len(c.Attention.Rope) > 0 {
		c.Attention.Pattern, c.Attention.Rope = head(c.Attention.Pattern, period), head(c.Attention.Rope, period)
		c.NLayers = period
	} else {
		c.NLayers = c.MoE.DenseFirst + 1
	}
	c.SeqLen = min(c.SeqLen, 512)
	add := func(of string, spirv bool, build func() (*graph.Graph, error)) {
		all = append(all, program{name + " " + of, build, spirv})
	}
	for _, d := range []graph.DType{graph.F32, graph.F16, graph.BF16} {
		m := model.InPrecision(c, d)
		stage := sync.OnceValues(func() (*model.Stage, error) {
			return m.Stage(model.StageOptions{Last: m.Units(), Batch: 2, Microbatches: 2, Inputs: model.Inputs{Segments: d == graph.F16}})
		})
		for pass, of := range map[string]func(*model.Stage) *graph.Graph{
			"forward":  func(s *model.Stage) *graph.Graph { return s.Forward },
			"backward": func(s *model.Stage) *graph.Graph { return s.BackwardNext },
			"eval":     func(s *model.Stage) *graph.Graph { return s.Eval },
		} {
			add(fmt.Sprint(d, " ", pass), name == "tiny", func() (*graph.Graph, error) {
				s, err := stage()
				if err != nil {
					return nil, err
				}
				return of(s), nil
			})
		}
	}
	add("decode", name == "tiny", c.Decode)
	add("prefill", false, func() (*graph.Graph, error) { return c.Prefill(64) })
	add("batch", false, func() (*graph.Graph, error) {
		d, err := c.BatchDecoder(4)
		return d.Decode, err
	})
	return all, nil
}

// head is the first n values, or all.
func head[T any](all []T, n int) []T { return all[:min(n, len(all))] }

// optimizers are the programs of a step of each optimizer and of each correction, for a few parameters.
func optimizers() (all []program, err error) {
	var params []optim.Param
	add := func(name string, matrix bool, shape ...int) {
		params = append(params, optim.Param{Name: name, Type: graph.T(graph.F32, shape...), Layer: name, Gradient: "grad/" + name,
			Matrix: matrix, Decay: len(shape) > 1})
	}
	add("embed", false, 300, 64)
	add("norm", false, 64)
	add("square", true, 64, 64)
	add("wide", true, 64, 176)
	add("stack", true, 3, 64, 48)
	type step struct {
		name string
		optim.Config
	}
	var steps []step
	for _, k := range optim.Optimizers() {
		for _, d := range []graph.DType{graph.F32, graph.BF16} {
			steps = append(steps, step{fmt.Sprint(k.Name, " ", d), optim.Config{Algorithm: k.New(), Moments: d}})
		}
	}
	for _, k := range optim.Corrections() {
		if k.Name != optim.CorrectionNone {
			steps = append(steps, step{k.Name, optim.Config{Algorithm: optim.DefaultAdamW(), Delay: 1, Correction: k.New()}})
		}
	}
	for _, s := range steps {
		s.AdamW, s.WeightDecay, s.Clip, s.Schedule = *optim.DefaultAdamW(), 0.1, 1, optim.Schedule{Name: "constant", Steps: 10}
		o, err := optim.New(s.Config, params)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		all = append(all, program{"optimizer " + s.name + " norms", o.All().NormSquares, false})
		for v := range o.Variants() {
			all = append(all, program{fmt.Sprintf("optimizer %s update %d", s.name, v),
				func() (*graph.Graph, error) { return o.All().Update(v) }, false})
		}
	}
	return all, nil
}

// cases are the cases of every op, each with a result for each output.
func cases() (all []program) {
	for _, o := range op.Catalogue() {
		for i, c := range o.Cases() {
			all = append(all, program{fmt.Sprintf("op %s case %d", o.Name(), i), func() (*graph.Graph, error) { return one(c) }, false})
		}
	}
	return all
}

// one is a graph of an op alone.
func one(c graph.Case) (*graph.Graph, error) {
	return graph.Build(func(b *graph.Builder) {
		in := make([]*graph.Value, len(c.Inputs))
		for i, t := range c.Inputs {
			in[i] = b.Input(fmt.Sprint("in", i), t)
		}
		for i, out := range b.Apply(c.Op, in...) {
			b.Output(fmt.Sprint("out", i), out)
		}
	})
}
