package main

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// spread processes n items with some instances, in reverse order if backwards.
func spread(n, instances int, backwards bool, do func(i int) error) error {
	errs := make([]error, instances)
	var group sync.WaitGroup
	for w := range instances {
		group.Go(func() {
			for k := w; k < n && errs[w] == nil; k += instances {
				if i := k; backwards {
					errs[w] = do(n - 1 - i)
				} else {
					errs[w] = do(i)
				}
			}
		})
	}
	group.Wait()
	return cmp.Or(errs...)
}

// documentGuest maps documents with some instances, every second time in reverse order: unless the module has state,
// the result for one document must not depend on others.
func documentGuest(a *app, m *hook.Module, texts [][]byte, instances int) *guest {
	p := m.Mapper(instances)
	if m.Stateful() {
		instances = 1
	}
	return &guest{close: p.Close, run: func(n int) (any, error) {
		mapped := make([][][]byte, len(texts))
		return mapped, spread(len(texts), instances, n%2 == 1 && !m.Stateful(), func(i int) (err error) {
			mapped[i], err = p.Map(a.ctx, i, texts[i])
			return err
		})
	}, found: func(out any) string {
		n := 0
		for _, t := range out.([][][]byte) {
			n += len(t)
		}
		return fmt.Sprintf("%d documents became %d", len(texts), n)
	}}
}

// batchGuest maps or weighs batches of sample text, in the same way.
func (f *moduleFlags) batchGuest(a *app, m *hook.Module, state []byte, instances int) (*guest, error) {
	if m.Stateful() {
		instances = 1
	}
	samples, err := f.batches()
	if err != nil {
		return nil, err
	}
	p := m.Batches(instances)
	p.Restore(state)
	s := &guest{close: p.Close, found: func(out any) string { return changes(samples, out.([]*hook.Batch)) }}
	s.run = func(n int) (any, error) {
		done := make([]*hook.Batch, len(samples))
		return done, spread(len(samples), instances, n%2 == 1 && !m.Stateful(), func(i int) error {
			done[i] = copied(samples[i])
			return p.Apply(a.ctx, i, done[i])
		})
	}
	if m.Stateful() {
		s.again = func() (*guest, error) {
			kept, err := p.Save(a.ctx)
			if err != nil {
				return nil, err
			}
			return f.batchGuest(a, m, kept, instances)
		}
	}
	return s, nil
}

// maxSample bounds the tokens of a sequence in sample data.
const maxSample = 1 << 16

// batches of sequences of the sample text's bytes.
func (f *moduleFlags) batches() ([]*hook.Batch, error) {
	if f.SeqLen > maxSample {
		return nil, usererror.Errorf("--seq-len: found %d, expected at most %d for batches", f.SeqLen, maxSample)
	}
	texts, _, err := f.documents()
	if err != nil {
		return nil, err
	}
	var stream []byte
	for _, t := range texts {
		stream = append(stream, t...)
	}
	all := make([]*hook.Batch, trialBatches)
	at := 0
	token := func() uint32 {
		at++
		return uint32(stream[(at-1)%len(stream)]) % uint32(f.Vocab)
	}
	for step := range all {
		n := trialRows * f.SeqLen
		b := &hook.Batch{Rows: trialRows, SeqLen: f.SeqLen, Vocab: f.Vocab, Step: step, Steps: trialSteps, Tokens: make([]uint32, n),
			Targets: make([]uint32, n), Weights: make([]float32, n), Segments: make([]uint32, n)}
		last := token()
		for i := range n {
			b.Tokens[i], b.Weights[i] = last, 1
			last = token()
			b.Targets[i] = last
		}
		aligned, _ := f.aligned() // check has validated them
		for _, a := range aligned {
			b.Aligned = append(b.Aligned, hook.Aligned{Name: a.ID, DType: map[graph.DType]wasm.DType{graph.F32: wasm.F32,
				graph.I32: wasm.I32, graph.U32: wasm.U32}[a.Type.DType],
				Dims: a.Type.Shape, Data: make([]byte, 4*n*a.Type.Shape.Len())})
		}
		all[step] = b
	}
	return all, nil
}

func copied(b *hook.Batch) *hook.Batch {
	c := *b
	c.Tokens, c.Targets = slices.Clone(b.Tokens), slices.Clone(b.Targets)
	c.Weights, c.Segments = slices.Clone(b.Weights), slices.Clone(b.Segments)
	c.Aligned = slices.Clone(b.Aligned)
	for i := range c.Aligned {
		c.Aligned[i].Data = slices.Clone(b.Aligned[i].Data)
	}
	return &c
}

// changes describes how batches were changed.
func changes(before, after []*hook.Batch) string {
	var tokens, targets, weights, segments, n int
	for i, b := range before {
		n += len(b.Tokens)
		tokens += differ(b.Tokens, after[i].Tokens)
		targets += differ(b.Targets, after[i].Targets)
		weights += differ(b.Weights, after[i].Weights)
		segments += differ(b.Segments, after[i].Segments)
	}
	return fmt.Sprintf("of %d positions in %d batches it changed %d tokens, %d targets, %d weights, %d segments", n, len(before), tokens,
		targets, weights, segments)
}

func differ[T comparable](a, b []T) (n int) {
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}
