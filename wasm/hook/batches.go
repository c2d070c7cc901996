package hook

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/gpupipe/gpupipe/wasm"
)

// Batch is what map_batch and token_weights work on: Rows sequences of SeqLen tokens.
type Batch struct {
	Rows, SeqLen, Vocab int
	Step, Steps         int       // counted from 0, of so many
	Tokens, Targets     []uint32  // below Vocab
	Weights             []float32 // of the targets' losses: finite, ≥ 0, not all 0
	Segments            []uint32  // a token sees those before it in its row with the same number
	Aligned             []Aligned // in the order of their names
}

// Aligned is an array that goes along with the tokens.
type Aligned struct {
	Name  string
	DType wasm.DType // F32, I32 or U32
	Dims  []int      // of one token's
	Data  []byte     // [Rows, SeqLen, Dims…], little-endian
}

// mostState bounds what a module may keep in a checkpoint.
const mostState = 1 << 20

// Batches is instances of a module that map batches, or weigh their tokens. Of a module that keeps nothing there are
// several, and several goroutines may use them; of one with state there is one, which must be given the batches in
// order.
type Batches struct {
	m     *Module
	pool  *wasm.Pool // nil: the module has state
	mu    sync.Mutex
	one   *wasm.Instance // nil: none is open
	state []byte         // with which the next is opened
}

// Batches makes at most n instances, as they are needed.
func (m *Module) Batches(n int) *Batches {
	if m.Stateful() {
		return &Batches{m: m}
	}
	return &Batches{m: m, pool: wasm.NewPool(m.module, n, m.options())}
}

// Apply changes a batch. number is that of the batch, from which the module's random numbers are made. After an error
// the batch may hold anything, and a module with state must be restored.
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

// open opens the instance of a module with state, in the state that it is to go on from.
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

// Save is the state after the last batch, nil if the module keeps none, or has not been called yet and was not
// restored.
func (p *Batches) Save(ctx context.Context) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.one == nil {
		return p.state, nil
	}
	state, err := p.one.Save(ctx)
	if err == nil && len(state) > mostState {
		err = p.m.wrong(-1, fmt.Errorf("its state has %d bytes, at most %d can be kept", len(state), mostState))
	}
	return state, err
}

// Restore has the next batch be worked on in a state that Save gave; nil is that of a new instance.
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
			return m.wrong(number, fmt.Errorf("%s: %w", names[n], err))
		}
	}
	if err := b.check(); err != nil {
		return m.wrong(number, err)
	}
	return nil
}

// arrays are what the hooks get, and their names: map_batch, which may change all but the clock, or token_weights.
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

// check says what is wrong with a batch.
func (b *Batch) check() error {
	for n, ids := range [][]uint32{b.Tokens, b.Targets} {
		if at := slices.IndexFunc(ids, func(id uint32) bool { return uint64(id) >= uint64(b.Vocab) }); at >= 0 {
			return fmt.Errorf("%s[%d,%d] is %d, expected a token below %d", [...]string{"tokens", "targets"}[n], at/b.SeqLen, at%b.SeqLen, ids[at], b.Vocab)
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
		return fmt.Errorf("the weights are all 0: nothing would be learned")
	}
	return nil
}
