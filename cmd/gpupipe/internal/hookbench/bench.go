// Package hookbench measures what the sandbox costs: a call of a hook that does nothing, and arrays handed over and
// taken back.
package hookbench

import (
	"context"
	"time"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/gpupipe/gpupipe/wasm"
)

// Most that is meant for each.
const (
	MostCall      = 2 * time.Microsecond
	MostRoundTrip = 500 * time.Microsecond
)

// empty is a module whose hook "h" does nothing.
func empty() *w.Module {
	i32 := w.Types{w.I32}
	return &w.Module{
		Memories: []w.Limits{{Min: 200, Export: "memory"}},
		Globals:  []w.Global{{Type: w.I32, Mutable: true, Init: w.Const(65536)}},
		Funcs: []w.Func{
			{Export: "gpupipe_abi_v1", Results: i32, Body: w.Const(0)},
			{Export: "gpupipe_alloc", Params: i32, Results: i32, Locals: i32, Body: w.Seq(
				w.GGet(0), w.Tee(1), w.Get(0), w.I32Add, w.GSet(0), w.Get(1))},
			{Export: "h", Params: w.Types{w.I32, w.I32}, Results: i32, Body: w.Const(0)},
		},
	}
}

// Result is the time of one, the least of several means.
type Result struct{ Call, RoundTrip time.Duration }

// Run measures for a time each: a call with an input and an output of 16 numbers; and one with 4 MiB in and 4 MiB out,
// copied.
func Run(ctx context.Context, long time.Duration) (r Result, err error) {
	rt, err := wasm.NewRuntime(wasm.Config{})
	if err != nil {
		return r, err
	}
	defer rt.Close()
	m, err := rt.Load("empty.wasm", empty().Encode(), wasm.Limits{})
	if err != nil {
		return r, err
	}
	i, err := m.Open(ctx, wasm.Options{})
	if err != nil {
		return r, err
	}
	defer i.Close()
	if r.Call, err = least(ctx, i, long, 1000, 16); err != nil {
		return r, err
	}
	r.RoundTrip, err = least(ctx, i, long, 10, 1<<20)
	return r, err
}

// least is the least mean time of a number of calls with so many numbers in and out.
func least(ctx context.Context, i *wasm.Instance, long time.Duration, calls, numbers int) (best time.Duration, err error) {
	in, out := wasm.Of(wasm.In, make([]float32, numbers)), wasm.Of(wasm.Out, make([]float32, numbers))
	for began := time.Now(); best == 0 || time.Since(began) < long; {
		at := time.Now()
		for range calls {
			if _, err := i.Call(ctx, "h", 0, in, out); err != nil {
				return 0, err
			}
		}
		if t := time.Since(at) / time.Duration(calls); best == 0 || t < best {
			best = t
		}
	}
	return best, nil
}
