package pipebench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// pipe is a pipeline to measure.
type pipe struct {
	schedule     string
	stages       int
	microbatches int
	stale        int // of the microbatches, with 2bw; 0: as few as cost nothing
	rows         int // sequences per microbatch
	model        model.Config
	cut          []int // nil: even
	warm         int   // batches trained before the measured ones: kernels are compiled in their first run
	batches      int   // that are measured, at least 3
	open         func(stage int) (device.Device, error)
	execute      engine.Executor
}

// timing is the time of a pipeline in its steady state.
type timing struct {
	batch  float64   // seconds
	busy   []float64 // share of the time, by stage
	work   []float64 // seconds of forwards and backwards a microbatch, by stage
	memory int64     // planned bytes of all stages
}

// measure trains the pipeline and summarizes its trace.
func (p pipe) measure(ctx context.Context) (t timing, err error) {
	e, devices, err := p.engine()
	defer func() {
		if e != nil {
			err = errors.Join(err, e.Close())
		}
		for _, d := range devices {
			err = errors.Join(err, d.Close())
		}
	}()
	if err != nil {
		return t, err
	}
	if err := p.load(e); err != nil {
		return t, err
	}
	dir, remove, err := atomicfile.Temporary("gpupipe-bench")
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	path := filepath.Join(dir, "trace.json")
	if err := p.train(ctx, e, path); err != nil {
		return t, err
	}
	s, err := trace.Summarize(path)
	if err != nil {
		return t, err
	}
	t = p.timing(s)
	for _, r := range e.Ranks() {
		t.memory += r.Memory.Total
	}
	return t, nil
}

// engine plans the pipeline on devices of its own.
func (p pipe) engine() (*engine.Engine, []device.Device, error) {
	o := engine.Options{Model: p.model, MicrobatchSize: p.rows, Microbatches: p.microbatches, Execute: p.execute, Schedule: p.generate}
	g, err := o.Schedule(1)
	if err != nil {
		return nil, nil, err
	}
	o.Layout = engine.Layout{Stages: p.stages, Chunks: 1, Replicas: 1, Delay: g.Head().Delay, Cut: p.cut}
	if p.cut == nil {
		o.Layout.Cut = engine.EvenCut(p.model, p.stages)
	}
	if o.Optimizer, err = p.optimizer(o); err != nil {
		return nil, nil, err
	}
	for stage := range p.stages {
		d, err := p.open(stage)
		if err != nil {
			return nil, o.Devices, err
		}
		o.Devices = append(o.Devices, d)
	}
	e, err := engine.New(o)
	return e, o.Devices, err
}

// generate is the pipeline's schedule, with split backwards as training has them.
func (p pipe) generate(batches int) (*schedule.Generator, error) {
	g, err := schedule.New(p.schedule, schedule.Options{Stages: p.stages, Microbatches: p.microbatches, Stale: p.stale, Batches: batches})
	if err == nil && g.Head().Delay > 0 && p.stages > 1 {
		g = g.SplitBackward()
	}
	return g, err
}

func (p pipe) optimizer(o engine.Options) (*optim.Optimizer, error) {
	var params []optim.Param
	for _, x := range p.model.Parameters() {
		gradients := o.Contributions(x.Name)
		last := len(gradients) - 1
		params = append(params, optim.Param{Name: x.Name, Type: x.Type, Layer: x.Unit, Gradient: gradients[last],
			Contributions: gradients[:last]})
	}
	return optim.New(optim.Config{Algorithm: &optim.AdamW{LR: 1e-4, Betas: [2]float64{0.9, 0.95}, Eps: 1e-8}, Clip: 1,
		Losses: append(o.LossContributions(), model.LossVariable), Delay: o.Layout.Delay,
		Schedule: optim.Schedule{Name: "constant", Steps: p.warm + p.batches}}, params)
}

// load loads the pipeline with initial weights, because the time of some operations depends on their values.
func (p pipe) load(e *engine.Engine) error {
	if err := e.Load(); err != nil {
		return err
	}
	for _, x := range p.model.Parameters() {
		data := exec.F32Bytes(x.Initial(1))
		for _, v := range []engine.Version{engine.Older, engine.Newest} {
			if err := e.WriteWeights(x.Name, v, data); err != nil {
				return err
			}
		}
	}
	return nil
}

// train trains and traces the batches that are measured.
func (p pipe) train(ctx context.Context, e *engine.Engine, path string) error {
	source := engine.Tokens(noise{p.model, p.microbatches * p.rows}.batch)
	to := func(from, to int) error {
		if from == to {
			return nil
		}
		reached, err := e.Train(ctx, source, from, to, func(engine.Measured) error { return nil })
		if err == nil && reached < to {
			err = context.Cause(ctx)
		}
		return err
	}
	if err := to(0, p.warm); err != nil {
		return err
	}
	w, err := trace.Create(path, "bench")
	if err != nil {
		return err
	}
	for _, l := range e.Ranks() {
		w.Tracks(l.Tracks()...)
	}
	e.SetTrace(w)
	return errors.Join(to(p.warm, p.warm+p.batches), w.Close())
}

func (p pipe) timing(s trace.Summary) timing {
	t := timing{batch: s.Steady.Seconds / float64(s.Steady.Batches)}
	for _, stage := range s.Stages {
		t.busy = append(t.busy, stage.Steady.Busy)
		t.work = append(t.work, stage.Means["F"]+stage.Means["B"]+stage.Means["I"]+stage.Means["W"])
	}
	return t
}

// String is as in "2 stages, 2bw, 4 microbatches".
func (p pipe) String() string {
	stages := "one stage"
	if p.stages > 1 {
		stages = fmt.Sprintf("%d stages, %s", p.stages, p.schedule)
	}
	if p.stale > 0 {
		stages += fmt.Sprintf(", %d stale", p.stale)
	}
	return fmt.Sprintf("%s, %d microbatches", stages, p.microbatches)
}

// noise is a source of random tokens.
type noise struct {
	model model.Config
	rows  int // of a batch
}

func (n noise) batch(batch int64) (tokens, targets []int32, err error) {
	rng := rand.New(rand.NewPCG(1, uint64(batch)))
	draw := func() []int32 {
		x := make([]int32, n.rows*n.model.SeqLen)
		for i := range x {
			x[i] = rng.Int32N(int32(n.model.VocabSize))
		}
		return x
	}
	return draw(), draw(), nil
}
