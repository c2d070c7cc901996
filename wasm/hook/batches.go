package hook

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/wasm"
)

// Batch is the argument of map_batch and token_weights: Rows sequences of SeqLen tokens.
type Batch struct {
	Rows, SeqLen, Vocab int
	Step, Steps         int       // the step, counted from 0, and the number of steps
	Tokens, Targets     []uint32  // below Vocab
	Weights             []float32 // of the targets' losses: finite, ≥ 0, not all 0
	Segments            []uint32  // a token attends to earlier tokens of its row with the same number
	Aligned             []Aligned // in the order of their names
}

// Aligned is an array with values for each token.
type Aligned struct {
	Name  string
	DType wasm.DType // F32, I32 or U32
	Dims  []int      // of one token's values
	Data  []byte     // [Rows, SeqLen, Dims…], little-endian
}

// maxState is the most bytes of a module's state that a checkpoint keeps.
const maxState = 1 << 20

// Batches applies a module to batches. A stateless module has several instances, and several goroutines may call Apply.
// A module with state has one instance, to which batches must be passed in order.
type Batches struct {
	m     *Module
	pool  *wasm.Pool // nil if the module has state
	mu    sync.Mutex
	one   *wasm.Instance // nil if none is open
	state []byte         // the state in which the next instance is opened
}

// Batches returns a Batches that opens at most n instances, as they are needed.
func (m *Module) Batches(n int) *Batches {
	if m.Stateful() {
		return &Batches{m: m}
	}
	return &Batches{m: m, pool: wasm.NewPool(m.module, n, m.options())}
}

// Apply changes a batch. The module's random numbers depend on number, the number of the batch. After an error the
// content of the batch is undefined, and a module with state must be restored.
func (p *Batches) Apply(ctx context.Context, number int, b *Batch) error {
	call := func(i *wasm.Instance) error { return p.m.applyTo(ctx, i, number, b) }
	if p.pool != nil {
		return p.pool.Do(ctx, call)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.open(ctx); err != nil {
		return err
	}
	return call(p.one)
}

// open opens the instance of a module with state, in the state of the last Restore.
func (p *Batches) open(ctx context.Context) (err error) {
	if p.one != nil {
		return nil
	}
	i, err := p.m.open(ctx)
	if err != nil {
		return err
	}
	if p.state != nil {
		if err := i.Load(ctx, p.state); err != nil {
			i.Close()
			return err
		}
	}
	p.one = i
	return nil
}

// Save returns the state after the last batch. It is nil if the module keeps no state, or if it was neither called nor
// restored.
func (p *Batches) Save(ctx context.Context) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.one == nil {
		return p.state, nil
	}
	state, err := p.one.Save(ctx)
	if err == nil && len(state) > maxState {
		err = p.m.invalid(-1, fmt.Errorf("the state has %d bytes, expected at most %d", len(state), maxState))
	}
	return state, err
}

// Restore sets the module's state for the next batch to one that Save returned; nil is the state of a new instance.
func (p *Batches) Restore(state []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.one != nil {
		p.one.Close()
	}
	p.one, p.state = nil, state
}

// Close closes the instances.
func (p *Batches) Close() {
	if p.pool != nil {
		p.pool.Close()
	}
	p.Restore(nil)
}

// applyTo calls the module's hook, which is map_batch or token_weights.
func (m *Module) applyTo(ctx context.Context, i *wasm.Instance, number int, b *Batch) error {
	names, arrays := b.arrays(m.Hook == MapBatch)
	want := make([][]int, len(arrays))
	for n, a := range arrays {
		want[n] = a.Dims
	}
	if _, err := i.Call(ctx, m.Hook, number, arrays...); err != nil {
		return err
	}
	for n, a := range arrays {
		if err := sameShape(a, want[n]); err != nil {
			return m.invalid(number, fmt.Errorf("%s: %w", names[n], err))
		}
	}
	if err := b.check(); err != nil {
		return m.invalid(number, err)
	}
	return nil
}

// arrays returns the arguments of the hook and their names: of map_batch if maps, which may change all except the
// clock, else of token_weights, which may change the weights only.
func (b *Batch) arrays(maps bool) (names []string, arrays []*wasm.Array) {
	add := func(name string, a *wasm.Array) { names, arrays = append(names, name), append(arrays, a) }
	shape := []int{b.Rows, b.SeqLen}
	changes := wasm.In
	if maps {
		changes = wasm.InOut
	}
	add("tokens", wasm.Of(changes, b.Tokens, shape...))
	add("targets", wasm.Of(changes, b.Targets, shape...))
	add("weights", wasm.Of(wasm.InOut, b.Weights, shape...))
	if maps {
		add("segments", wasm.Of(changes, b.Segments, shape...))
	}
	add("clock", wasm.Of(wasm.In, []int64{int64(b.Step), int64(b.Steps)}))
	if maps {
		for _, a := range b.Aligned {
			add(a.Name, &wasm.Array{DType: a.DType, Dir: changes, Dims: append(slices.Clone(shape), a.Dims...), Data: a.Data})
		}
	}
	return names, arrays
}

// check returns an error if the batch is invalid.
func (b *Batch) check() error {
	for n, ids := range [][]uint32{b.Tokens, b.Targets} {
		if at := slices.IndexFunc(ids, func(id uint32) bool { return uint64(id) >= uint64(b.Vocab) }); at >= 0 {
			return fmt.Errorf("%s[%d,%d] is %d, expected a token below %d", [...]string{"tokens", "targets"}[n], at/b.SeqLen, at%b.SeqLen,
				ids[at], b.Vocab)
		}
	}
	some := false
	for at, w := range b.Weights {
		if !(w >= 0) || math.IsInf(float64(w), 1) {
			return fmt.Errorf("weights[%d,%d] is %v, expected a finite number of at least 0", at/b.SeqLen, at%b.SeqLen, w)
		}
		some = some || w > 0
	}
	if !some {
		return fmt.Errorf("weights are all 0, expected at least one above 0")
	}
	return nil
}
