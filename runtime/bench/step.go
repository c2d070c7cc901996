package bench

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/tune"
	"github.com/gpupipe/gpupipe/shaders"
)

// Step is a whole training step: forward, backward, clipping and the optimizer's update of the preset tiny, one batch
// of 16 sequences of 128 tokens, data on the device.
type Step struct {
	Name         string      `json:"name"`
	Parameters   int64       `json:"parameters"`
	Tokens       int         `json:"tokens"`
	Micros       float64     `json:"micros"`
	TokensPerSec float64     `json:"tokens_per_s"`
	GFLOPS       float64     `json:"gflops"` // by the model's FLOPs per token, backward included
	Memory       exec.Memory `json:"memory"`
	KernelMicros float64     `json:"kernel_micros"` // sum over the kernels below
	Kernels      []Kernel    `json:"kernels"`
}

// Kernel is the time of one kernel of a step: its programs are loaded on their own, with arrays of their own filled with
// noise, and repeated (tune.Time). Kernels of equal source are one entry. Copies are not counted.
type Kernel struct {
	Label     string  `json:"label"` // of the first of them
	Candidate string  `json:"candidate"`
	Count     int     `json:"count"`
	Micros    float64 `json:"micros"` // of all Count together
	Share     float64 `json:"share"`  // of the sum over all kernels
	GFLOPS    float64 `json:"gflops,omitempty"`
	GBps      float64 `json:"gb_per_s"`
}

const (
	stepBatch      = 16
	gradProgram    = "grad"
	votesProgram   = "votes"
	updateProgram  = "update"
	hyperStep      = 0
	initialisation = 1 // seed
)

// stepPrograms are the programs of a step, in order.
func stepPrograms() []string { return []string{gradProgram, votesProgram, updateProgram} }

func stepName(optimizer string) string { return "step tiny " + optimizer }

func measureStep(dev device.Device, name string, o Options) (Step, error) {
	config, err := model.Preset("tiny")
	if err != nil {
		return Step{}, err
	}
	s := Step{Name: stepName(name), Parameters: config.Count(), Tokens: stepBatch * config.SeqLen}
	opt, graphs, err := stepGraphs(config, name)
	if err != nil {
		return s, err
	}
	plan, err := exec.NewPlan(dev, graphs, exec.Options{Tune: o.Tune})
	if err != nil {
		return s, err
	}
	s.Memory = plan.Memory()
	session, err := plan.Load()
	if err != nil {
		return s, err
	}
	defer session.Close()
	if err := fillStep(session, config, opt, graphs[gradProgram]); err != nil {
		return s, err
	}
	fastest, err := o.best(func(n int) error {
		for range n {
			for _, p := range stepPrograms() {
				if err := session.Run(p); err != nil {
					return err
				}
			}
		}
		return session.Sync()
	}, nil)
	if err != nil {
		return s, err
	}
	s.Micros = micros(fastest)
	s.TokensPerSec = float64(s.Tokens) / fastest.Seconds()
	s.GFLOPS = s.TokensPerSec * config.FLOPsPerToken() / 1e9
	return s, s.share(dev, plan)
}

// stepGraphs are the programs of a step.
func stepGraphs(config model.Config, name string) (*optim.Optimizer, map[string]*graph.Graph, error) {
	grad, err := config.Grad(stepBatch, 1, false)
	if err != nil {
		return nil, nil, err
	}
	var params []optim.Param
	for _, p := range config.Parameters() {
		inner := len(p.Type.Shape) == 2 && p.Scope != model.EmbedScope && p.Scope != model.HeadScope
		gradients := config.Gradients(p.Name)
		last := len(gradients) - 1
		params = append(params, optim.Param{Name: p.Name, Type: p.Type, Layer: p.Scope,
			Gradient: gradients[last], Contributions: gradients[:last], Matrix: inner, Decay: len(p.Type.Shape) == 2})
	}
	opt, err := optim.New(optimizer(name), params)
	if err != nil {
		return nil, nil, err
	}
	votes, err := opt.All().Votes()
	if err != nil {
		return nil, nil, err
	}
	update, err := opt.All().Update(0)
	return opt, map[string]*graph.Graph{gradProgram: grad, votesProgram: votes, updateProgram: update}, err
}

func fillStep(s *exec.Session, config model.Config, opt *optim.Optimizer, grad *graph.Graph) error {
	for _, p := range config.Parameters() {
		if err := s.WriteVariable(p.Name, exec.F32Bytes(p.Initial(initialisation))); err != nil {
			return err
		}
	}
	c := Case{Below: config.VocabSize}
	for _, v := range grad.Sources("input") {
		if err := s.SetInput(gradProgram, v.Node.Op.(graph.Source).Label(), c.noise(v.Type)); err != nil {
			return err
		}
	}
	return s.SetInput(updateProgram, optim.HyperInput, exec.F32Bytes(opt.Hyper(hyperStep)))
}

// share times the step's kernels one by one.
func (s *Step) share(dev device.Device, plan *exec.Plan) error {
	type entry struct {
		Kernel
		kernel shaders.Kernel
		flops  float64
		bytes  int64
	}
	entries := map[string]*entry{}
	for _, name := range stepPrograms() {
		infos := plan.Kernels(name)
		kernels, err := plan.Chosen(name)
		if err != nil {
			return err
		}
		for i, k := range kernels {
			if len(k.Passes) == 0 {
				continue
			}
			key := source(k)
			if entries[key] == nil {
				entries[key] = &entry{Kernel: Kernel{Label: infos[i].Label, Candidate: k.Name}, kernel: k}
			}
			e := entries[key]
			e.Count, e.flops, e.bytes = e.Count+1, e.flops+infos[i].Flops, e.bytes+infos[i].Bytes
		}
	}
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		e := entries[key]
		t, err := tune.Time(dev, e.kernel)
		if err != nil {
			return fmt.Errorf("timing %s: %w", e.Label, err)
		}
		e.Micros = micros(t) * float64(e.Count)
		if e.Micros > 0 { // a device that computes nothing takes no time
			e.GFLOPS, e.GBps = e.flops/e.Micros/1e3, float64(e.bytes)/e.Micros/1e3
		}
		s.KernelMicros += e.Micros
		s.Kernels = append(s.Kernels, e.Kernel)
	}
	for i := range s.Kernels {
		s.Kernels[i].Share = s.Kernels[i].Micros / max(s.KernelMicros, 1e-3)
	}
	slices.SortStableFunc(s.Kernels, func(a, b Kernel) int { return cmp.Compare(b.Micros, a.Micros) })
	return nil
}

// source identifies a kernel by what it runs.
func source(k shaders.Kernel) string {
	var s string
	for _, p := range k.Passes {
		s += fmt.Sprintln(p.Groups, p.WGSL)
	}
	return s
}
