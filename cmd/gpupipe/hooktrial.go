package main

import (
	"crypto/sha256"
	"encoding/gob"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// trial runs a hook on sample data.
type trial struct {
	name    string
	calls   int  // in a run
	bytes   int  // in a run; 0: speed is measured in calls
	forgets bool // a second run of a guest must give the result of the first
	begin   func() (*guest, error)
}

// guest is one or more instances of the module, which run its sample.
type guest struct {
	run   func(n int) (out any, err error) // the whole sample, for the nth time
	found func(out any) string             // describes the result
	again func() (*guest, error)           // another guest with the saved state of this one; nil: the module has no state
	close func()
}

const (
	trialSteps   = 1000
	trialBatches = 8
	trialRows    = 8
)

// trials returns the trials of a module: its hook, and the scalars of its loss.
func (f *moduleFlags) trials(a *app, m *hook.Module, instances int) ([]trial, error) {
	switch m.Hook {
	case hook.BuildLoss:
		loss := trial{name: m.Hook, calls: 1, forgets: true, begin: func() (*guest, error) { return f.lossGuest(a, m), nil }}
		if m.Has(hook.LossScalars) {
			return []trial{loss, {name: hook.LossScalars, calls: trialSteps,
				begin: func() (*guest, error) { return f.scalarGuest(a, m) }}}, nil
		}
		return []trial{loss}, nil
	case hook.BuildModel:
		return []trial{{name: m.Hook, calls: 1, forgets: true, begin: func() (*guest, error) { return f.modelGuest(a, m), nil }}}, nil
	case hook.MapDocument:
		texts, size, err := f.documents()
		return []trial{{name: m.Hook, calls: len(texts), bytes: size, forgets: !m.Stateful(),
			begin: func() (*guest, error) { return documentGuest(a, m, texts, instances), nil }}}, err
	case hook.MapBatch, hook.TokenWeights:
		return []trial{{name: m.Hook, calls: trialBatches, bytes: trialBatches * trialRows * f.SeqLen * 16, forgets: !m.Stateful(),
			begin: func() (*guest, error) { return f.batchGuest(a, m, nil, instances) }}}, nil
	case hook.LearningRate:
		return []trial{{name: m.Hook, calls: trialSteps, begin: func() (*guest, error) { return rateGuest(a, m) }}}, nil
	case hook.OnMetrics:
		return []trial{{name: m.Hook, calls: 100, begin: func() (*guest, error) { return metricsGuest(a, m, nil) }}}, nil
	}
	panic(fmt.Sprintf("hook %q has no trial", m.Hook))
}

// sumOf returns a checksum of a result.
func sumOf(out any) (string, error) {
	if g, ok := out.(interface{ hashed() *graph.Graph }); ok {
		return graph.Hash(g.hashed())
	}
	h := sha256.New()
	err := gob.NewEncoder(h).Encode(out)
	return string(h.Sum(nil)), err
}

func (f *moduleFlags) lossInputs(rows int) graphhook.Inputs {
	in := graphhook.Inputs{Rows: rows, Vocab: f.Vocab, Width: 32, More: []graph.Named{
		{ID: "lm_head.weight", Type: graph.T(graph.F32, f.Vocab, 32)}, {ID: "model.norm.weight", Type: graph.T(graph.F32, 32)}}}
	aligned, _ := f.aligned() // check has validated them
	for _, n := range aligned {
		in.More = append(in.More, graph.Named{ID: n.ID, Type: graph.T(n.Type.DType, append([]int{rows}, n.Type.Shape...)...)})
	}
	return in
}

type (
	builtLoss  struct{ *graphhook.Loss }
	builtModel struct{ *model.Draft }
)

func (b builtLoss) hashed() *graph.Graph  { return b.Graph }
func (b builtModel) hashed() *graph.Graph { return b.Graph }

func (f *moduleFlags) lossGuest(a *app, m *hook.Module) *guest {
	return &guest{close: func() {}, run: func(int) (any, error) {
		loss, err := m.BuildLoss(a.ctx, f.lossInputs(64))
		return builtLoss{loss}, err
	}, found: func(out any) string {
		g := out.(builtLoss)
		return fmt.Sprintf("a loss %v of %d ops; reads %s; logits are f32[64,%d]; a call opens an instance", g.Outputs[0].Value.Type,
			len(g.Nodes)-len(g.Sources("input")), strings.Join(append(slices.Clone(g.Asked), g.Scalars...), ", "), f.Vocab)
	}}
}

func (f *moduleFlags) modelGuest(a *app, m *hook.Module) *guest {
	return &guest{close: func() {}, run: func(int) (any, error) {
		d, err := m.BuildModel(a.ctx, graphhook.Dims{Batch: 2, SeqLen: f.SeqLen, Vocab: f.Vocab})
		return builtModel{d}, err
	}, found: func(out any) string {
		d := out.(builtModel)
		var elements int64
		for _, p := range d.Parameters {
			elements += int64(p.Type.Shape.Len())
		}
		return fmt.Sprintf("a model of %s elements in %d parameters and %d units: %s; a call opens an instance", grouped(elements),
			len(d.Parameters), len(d.Units), shortened(d.Units))
	}}
}

// shortened lists the first two names and the last.
func shortened(names []string) string {
	if len(names) > 4 {
		names = []string{names[0], names[1], "…", names[len(names)-1]}
	}
	return strings.Join(names, ", ")
}

func (f *moduleFlags) scalarGuest(a *app, m *hook.Module) (*guest, error) {
	loss, err := m.BuildLoss(a.ctx, f.lossInputs(64))
	if err != nil {
		return nil, err
	}
	s, err := m.Scalars(a.ctx, len(loss.Scalars))
	if err != nil {
		return nil, err
	}
	return &guest{close: func() { s.Close() }, run: func(int) (any, error) {
		all := make([][]float32, trialSteps)
		for step := range all {
			if all[step], err = s.Values(a.ctx, step, trialSteps); err != nil {
				return nil, err
			}
		}
		return all, nil
	}, found: func(out any) string {
		all := out.([][]float32)
		return fmt.Sprintf("%s from %v at step 0 to %v at step %d", strings.Join(loss.Scalars, ", "), all[0], all[trialSteps-1],
			trialSteps-1)
	}}, nil
}

func rateGuest(a *app, m *hook.Module) (*guest, error) {
	r, err := m.Rate(a.ctx)
	if err != nil {
		return nil, err
	}
	return &guest{close: func() { r.Close() }, run: func(int) (any, error) {
		all := make([]float64, trialSteps)
		for step := range all {
			if all[step], err = r.Factor(a.ctx, step, trialSteps, 1); err != nil {
				return nil, err
			}
		}
		return all, nil
	}, found: func(out any) string {
		all := out.([]float64)
		return fmt.Sprintf("factors from %.4g at step 0 to %.4g at step %d", all[0], all[trialSteps-1], trialSteps-1)
	}}, nil
}

// heard is the answers and the state of a listener.
type heard struct {
	Stops []bool
	State []byte
}

func metricsGuest(a *app, m *hook.Module, state []byte) (*guest, error) {
	l, err := m.Listener(a.ctx, state)
	if err != nil {
		return nil, err
	}
	s := &guest{close: func() { l.Close() }, found: foundMetrics}
	s.run = func(int) (any, error) {
		h := heard{Stops: make([]bool, 100)}
		for i := range h.Stops {
			step := i + 1
			text := fmt.Appendf(nil, `{"grad_norm":1,"loss":%g,"lr":0.01,"staleness":0,"step":%d,"tokens":%d,"val_loss":%g}`,
				5/float64(step), step, step*1024, 5/float64(step))
			if h.Stops[i], err = l.Observe(a.ctx, step, text); err != nil {
				return nil, err
			}
		}
		h.State, err = l.Save(a.ctx)
		return h, err
	}
	if m.Stateful() {
		s.again = func() (*guest, error) {
			kept, err := l.Save(a.ctx)
			if err != nil {
				return nil, err
			}
			return metricsGuest(a, m, kept)
		}
	}
	return s, nil
}

func foundMetrics(out any) string {
	h := out.(heard)
	text := "it lets 100 steps of a falling loss continue"
	if at := slices.Index(h.Stops, true); at >= 0 {
		text = fmt.Sprintf("it ends a run of a falling loss at step %d", at+1)
	}
	if h.State != nil {
		text += fmt.Sprintf("; its state has %d bytes", len(h.State))
	}
	return text
}
