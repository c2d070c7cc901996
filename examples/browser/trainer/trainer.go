// Package trainer trains a small language model on the bytes of a text, on one device. It uses the graphs, the
// optimizers and the engine of gpupipe train, but no files, so that it runs in a page too.
package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
)

// Config is the config of a run. Decoding JSON into Defaults keeps the defaults of omitted keys.
type Config struct {
	Model     model.Config `json:"model"`
	BatchSize int          `json:"batch_size"` // sequences
	Steps     int          `json:"steps"`
	Optimizer string       `json:"optimizer"` // a name of optim.Optimizers
	LR        float64      `json:"lr"`        // of the parameters that Optimizer takes; 0: its default
	AdamWLR   float64      `json:"adamw_lr"`  // of the other parameters; 0: the default
	Warmup    int          `json:"warmup"`
	GradClip  float64      `json:"grad_clip"`
	Seed      uint64       `json:"seed"`
}

// Defaults is a model that learns something on a laptop's GPU within a minute.
func Defaults() Config {
	m := model.Defaults()
	m.VocabSize, m.DModel, m.NLayers, m.NHeads, m.NKVHeads, m.FFN.DFF, m.SeqLen = 256, 64, 2, 4, 4, 176, 64
	return Config{Model: m, BatchSize: 8, Steps: 500, Optimizer: Optimizers()[0], Warmup: 20, GradClip: 1, Seed: 1}
}

// Optimizers lists the values of Config.Optimizer.
func Optimizers() []string { return optim.OptimizerNames() }

// Hooks are the user's modules. A nil field is no hook.
type Hooks struct {
	Loss   *graphhook.Loss
	Factor func(step, steps int, base float64) (float64, error) // of the learning rates, called once per step, in order
}

// LossInputs describes the inputs of a Loss.
func (c Config) LossInputs() graphhook.Inputs {
	return graphhook.Inputs{Rows: c.BatchSize * c.Model.SeqLen, Vocab: c.Model.VocabSize, Width: c.Model.DModel}
}

// Trainer is a run. It belongs to one goroutine.
type Trainer struct {
	config   Config
	hooks    Hooks
	text     []byte
	schedule optim.Schedule
	factors  []float64 // of the steps so far, from the hook
	engine   *engine.Engine
	dev      device.Device
	sampler  *sampler // nil until it is needed
	step     int
}

// New loads the model on a device, which the caller closes. The text needs more bytes than a sequence has.
func New(dev device.Device, c Config, text []byte, h Hooks) (t *Trainer, err error) {
	if err := c.check(text); err != nil {
		return nil, err
	}
	t = &Trainer{config: c, hooks: h, text: text, dev: dev, schedule: optim.Schedule{Name: "cosine", Steps: c.Steps, Warmup: c.Warmup,
		MinRatio: 0.1}}
	o := engine.Options{Layout: engine.Layout{Stages: 1, Chunks: 1, Replicas: 1, Cut: engine.EvenCut(c.Model, 1)}, Model: c.Model,
		MicrobatchSize: c.BatchSize, Microbatches: 1, Devices: []device.Device{dev},
		Schedule: func(batches int) (*schedule.Generator, error) {
			return schedule.New(schedule.OneF1B, schedule.Options{Stages: 1, Microbatches: 1, Batches: batches})
		}}
	if h.Loss != nil {
		o.Loss = t.loss
	}
	if err := t.rates(1); err != nil { // building the update needs the factor of the first step
		return nil, err
	}
	if o.Optimizer, err = t.optimizer(o.Contributions); err != nil {
		return nil, err
	}
	if t.engine, err = engine.New(o); err != nil {
		return nil, err
	}
	if err = t.load(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (c Config) check(text []byte) error {
	if err := c.Model.Validate(); err != nil {
		return err
	}
	switch {
	case c.Model.VocabSize != 256:
		return fmt.Errorf("vocab_size: found %d, expected 256, a token for each byte", c.Model.VocabSize)
	case c.BatchSize < 1 || c.Steps < 1:
		return fmt.Errorf("batch_size, steps: found %d and %d, expected at least 1", c.BatchSize, c.Steps)
	case len(text) <= c.Model.SeqLen:
		return fmt.Errorf("the text has %d bytes, expected more than a sequence has, %d", len(text), c.Model.SeqLen)
	}
	return nil
}

// optimizer makes the optimizer as gpupipe train does, but without weight decay.
func (t *Trainer) optimizer(contributions func(string) []string) (*optim.Optimizer, error) {
	var params []optim.Param
	for _, p := range t.config.Model.Parameters() {
		all := contributions(p.Name)
		params = append(params, optim.Param{Name: p.Name, Type: p.Type, Layer: p.Unit, Gradient: all[len(all)-1],
			Contributions: all[:len(all)-1],
			Matrix:        len(p.Type.Shape) == 2 && p.Unit != model.EmbedScope && p.Unit != model.HeadScope})
	}
	a, err := optim.NewAlgorithm(t.config.Optimizer)
	if err != nil {
		return nil, fmt.Errorf("optimizer.%w", err)
	}
	if t.config.LR != 0 {
		optim.SetLearningRate(a, t.config.LR)
	}
	rest := *optim.DefaultRest()
	rest.LR = cmp.Or(t.config.AdamWLR, rest.LR)
	c := optim.Config{Algorithm: a, AdamW: rest, Clip: t.config.GradClip, Losses: []string{model.LossVariable}, Schedule: t.schedule}
	if t.hooks.Factor != nil {
		c.Factor = func(step int) float64 { return t.factors[step] }
	}
	return optim.New(c, params)
}

// loss adds the hook's loss to the model's graph.
func (t *Trainer) loss(in model.LossInputs) *graph.Value {
	b := in.Targets.Builder()
	inputs := map[string]*graph.Value{graphhook.Logits: in.Logits, graphhook.Targets: in.Targets, graphhook.Hidden: in.Hidden,
		graphhook.Weights: op.Full(b, graph.F32, 1, in.Targets.Shape...)}
	maps.Copy(inputs, in.Parameters)
	return b.Inline(t.hooks.Loss.Graph, inputs)[graphhook.Output]
}

func (t *Trainer) load() error {
	if err := t.engine.Load(); err != nil {
		return err
	}
	for _, p := range t.config.Model.Parameters() {
		if err := t.engine.WriteWeights(p.Name, engine.Newest, exec.F32Bytes(p.Initial(t.config.Seed))); err != nil {
			return err
		}
	}
	return nil
}

// batch cuts sequences out of the text. Their places are a function of the seed and the batch.
func (t *Trainer) batch(number int64) (tokens, targets []int32, err error) {
	rng := rand.New(rand.NewPCG(t.config.Seed, uint64(number)))
	for range t.config.BatchSize {
		at := rng.IntN(len(t.text) - t.config.Model.SeqLen)
		for i := at; i < at+t.config.Model.SeqLen; i++ {
			tokens, targets = append(tokens, int32(t.text[i])), append(targets, int32(t.text[i+1]))
		}
	}
	return tokens, targets, nil
}

// rates asks the hook for the factors of the steps before to.
func (t *Trainer) rates(to int) error {
	for step := len(t.factors); t.hooks.Factor != nil && step < to; step++ {
		f, err := t.hooks.Factor(step, t.config.Steps, t.schedule.Factor(step))
		if err != nil {
			return err
		}
		t.factors = append(t.factors, f)
	}
	return nil
}

// Steps is the number of steps of the whole run.
func (t *Trainer) Steps() int { return t.config.Steps }

// SeqLen is the number of bytes of a sequence.
func (t *Trainer) SeqLen() int { return t.config.Model.SeqLen }

// Step is the number of steps done.
func (t *Trainer) Step() int { return t.step }

// Train does up to n more steps, or fewer if ctx ends. It calls each with every step's number, counted from 1, and its
// loss before the update. It is an error if a loss is not finite.
func (t *Trainer) Train(ctx context.Context, n int, each func(step int, loss float64)) error {
	to := min(t.step+n, t.config.Steps)
	if err := t.rates(to); err != nil {
		return err
	}
	reached, err := t.engine.Train(ctx, engine.Tokens(t.batch), t.step, to, func(m engine.Measured) error {
		if !m.OK {
			return fmt.Errorf("step %d: the loss is %v and the norm of its gradient %v: its update was not applied", m.Batch+1, m.Loss,
				m.GradNorm)
		}
		each(m.Batch+1, m.Loss)
		return nil
	})
	t.step = reached
	return err
}

// Close releases the device's memory.
func (t *Trainer) Close() error {
	var err error
	if t.sampler != nil {
		err = t.sampler.session.Close()
	}
	return errors.Join(err, t.engine.Close())
}
