package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/profile"
	"github.com/gpupipe/gpupipe/runtime/tune"
	"github.com/gpupipe/gpupipe/shaders"
)

// Step is a whole training step: forward, backward, clipping and the optimizer's update of the preset tiny. The batch
// is 16 sequences of 128 tokens, which are on the device already.
type Step struct {
	Name                 string       `json:"name"`
	Parameters           int64        `json:"parameters"`
	Tokens               int          `json:"tokens"`
	DurationMicros       float64      `json:"micros"` // by the host's clock
	TokensPerSec         float64      `json:"tokens_per_s"`
	GFLOPS               float64      `json:"gflops"`  // by the model's FLOPs per token, with backward
	OfPeak               float64      `json:"of_peak"` // of the device's GFLOP/s
	Memory               exec.Memory  `json:"memory"`
	Clock                string       `json:"clock"`         // of the kernels
	KernelDurationMicros float64      `json:"kernel_micros"` // sum over all kernels
	Profile              profile.Rank `json:"profile"`       // of further steps
	Profiled             int          `json:"profiled"`
}

const (
	stepBatch     = 16
	gradProgram   = "grad"
	normsProgram  = "norms"
	updateProgram = "update"
	hyperStep     = 0
	initSeed      = 1
)

// stepPrograms are the programs of a step, in order.
func stepPrograms() []string { return []string{gradProgram, normsProgram, updateProgram} }

func stepName(optimizer string) string { return "step tiny " + optimizer }

// measureStep measures whole steps on devices in alternation.
func measureStep(devs []device.Device, name string, peaks []profile.Peak, o Options) ([]Step, error) {
	config, err := model.Preset("tiny")
	if err != nil {
		return nil, err
	}
	var steps []*trial
	var subjects []*subject
	for _, dev := range devs {
		t, err := newTrial(dev, config, name, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dev.Info().Name, err)
		}
		defer t.session.Close()
		w := programWork(dev, t.session, stepPrograms()...)
		w.timed = nil // measure the whole step, with the gaps between kernels
		s, err := w.subject()
		if err != nil {
			return nil, err
		}
		steps, subjects = append(steps, t), append(subjects, s)
	}
	if err := o.alternate(subjects, nil); err != nil {
		return nil, err
	}
	var out []Step
	for i, t := range steps {
		took := subjects[i].median()
		t.DurationMicros = inMicros(took)
		t.TokensPerSec = float64(t.Tokens) / took.Seconds()
		t.GFLOPS = t.TokensPerSec * config.FLOPsPerToken() / 1e9
		t.OfPeak, _ = profile.Peak{GFLOPS: peaks[i].GFLOPS}.Share(t.GFLOPS, 0)
	}
	if err := profileAlternately(steps, peaks); err != nil {
		return nil, err
	}
	for _, t := range steps {
		out = append(out, t.Step)
	}
	return out, nil
}

// trial is a step on one device.
type trial struct {
	Step
	dev     device.Device
	plan    *exec.Plan
	session *exec.Session
}

func newTrial(dev device.Device, config model.Config, name string, o Options) (*trial, error) {
	t := &trial{Step: Step{Name: stepName(name), Parameters: config.Count(), Tokens: stepBatch * config.SeqLen}, dev: dev}
	opt, graphs, err := stepGraphs(config, name)
	if err != nil {
		return nil, err
	}
	if t.plan, err = exec.NewPlan(dev, graphs, exec.Options{Tune: o.Tune}); err != nil {
		return nil, err
	}
	t.Memory = t.plan.Memory()
	if t.session, err = t.plan.Load(); err != nil {
		return nil, err
	}
	if err := fillStep(t.session, config, opt, graphs[gradProgram]); err != nil {
		return nil, errors.Join(err, t.session.Close())
	}
	return t, nil
}

// profiledSteps is the number of steps that the profile averages.
const profiledSteps = 3

// profileAlternately measures the steps' kernels.
func profileAlternately(ts []*trial, peaks []profile.Peak) error {
	recorders, totals := make([]*profile.Recorder, len(ts)), make([][]time.Duration, len(ts))
	for i, t := range ts {
		recorders[i] = profile.NewRecorder(t.Name, t.dev.Info(), peaks[i])
	}
	for range profiledSteps {
		for i, t := range ts {
			var total time.Duration
			for _, p := range stepPrograms() {
				times, err := t.timed(p)
				if err != nil {
					return err
				}
				recorders[i].Add(p, t.plan.Kernels(p), times)
				total += times.Total()
			}
			totals[i] = append(totals[i], total)
		}
	}
	for i, t := range ts {
		t.Clock, t.Profiled, t.Profile, t.KernelDurationMicros = GPU, profiledSteps, recorders[i].Rank(), inMicros(median(totals[i]))
		if t.KernelDurationMicros == 0 {
			if err := t.alone(peaks[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// timed runs a program. On a device without a clock its kernels take no time.
func (t *trial) timed(program string) (exec.Times, error) {
	m, err := t.session.RunTimed(program, nil)
	if errors.Is(err, device.ErrNoTimestamps) {
		return exec.Times{Kernels: make([]time.Duration, len(t.plan.Kernels(program)))}, nil
	}
	if err != nil {
		return exec.Times{}, err
	}
	return m.Wait()
}

// alone measures the step's kernels one by one by the host's clock. Each is loaded alone, with arrays of its own filled
// with noise, and repeated. Copies are not counted.
func (t *trial) alone(peak profile.Peak) error {
	r := profile.NewRecorder(t.Name, t.dev.Info(), peak)
	t.Clock, t.Profiled = Host, 1
	known := map[string]time.Duration{} // by source
	for _, p := range stepPrograms() {
		kernels, err := t.plan.Chosen(p)
		if err != nil {
			return err
		}
		times := exec.Times{Kernels: make([]time.Duration, len(kernels))}
		for i, k := range kernels {
			key := source(k)
			if _, measured := known[key]; !measured && len(k.Passes) > 0 {
				if known[key], err = tune.Time(t.dev, k); err != nil {
					return fmt.Errorf("timing %s: %w", t.plan.Kernels(p)[i].Label, err)
				}
			}
			times.Kernels[i] = known[key]
		}
		r.Add(p, t.plan.Kernels(p), times)
	}
	t.Profile = r.Rank()
	t.KernelDurationMicros = t.Profile.DurationMicros
	return nil
}

// stepGraphs returns the programs of a step.
func stepGraphs(config model.Config, name string) (*optim.Optimizer, map[string]*graph.Graph, error) {
	grad, err := config.Grad(stepBatch, 1, false)
	if err != nil {
		return nil, nil, err
	}
	var params []optim.Param
	for _, p := range config.Parameters() {
		inner := len(p.Type.Shape) >= 2 && p.Unit != model.EmbedScope && p.Unit != model.HeadScope
		gradients := config.Gradients(p.Name)
		last := len(gradients) - 1
		params = append(params, optim.Param{Name: p.Name, Type: p.Type, Layer: p.Unit,
			Gradient: gradients[last], Contributions: gradients[:last], Matrix: inner, Decay: len(p.Type.Shape) >= 2})
	}
	c, err := optimizer(name)
	if err != nil {
		return nil, nil, err
	}
	opt, err := optim.New(c, params)
	if err != nil {
		return nil, nil, err
	}
	norms, err := opt.All().NormSquares()
	if err != nil {
		return nil, nil, err
	}
	update, err := opt.All().Update(0)
	return opt, map[string]*graph.Graph{gradProgram: grad, normsProgram: norms, updateProgram: update}, err
}

func fillStep(s *exec.Session, config model.Config, opt *optim.Optimizer, grad *graph.Graph) error {
	for _, p := range config.Parameters() {
		if err := s.WriteVariable(p.Name, exec.F32Bytes(p.Initial(initSeed))); err != nil {
			return err
		}
	}
	c := Case{Below: config.VocabSize}
	for _, v := range grad.Sources("input") {
		if err := s.SetInput(gradProgram, v.Node.Op.(graph.Source).Label(), c.noise(v.Type)); err != nil {
			return err
		}
	}
	return s.SetInput(updateProgram, optim.HyperparametersInput, exec.F32Bytes(opt.Hyperparameters(hyperStep, true).Float32s()))
}

// source identifies a kernel by its code.
func source(k shaders.Kernel) string {
	var s string
	for _, p := range k.Passes {
		s += fmt.Sprintln(p.Groups, p.Source)
	}
	return s
}
