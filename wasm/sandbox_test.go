package wasm

import (
	"context"
	"fmt"
	"testing"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// arg loads a word of descriptor a of the hook's first parameter.
func arg(a, word uint32) []byte { return w.Seq(w.Get(0), w.Load(32*a+4*word)) }

// double writes twice each element of array 0 (f32) to array 1, and the number of elements as array 1's shape.
func double() w.Func {
	return hook("double", w.Types{w.I32, w.I32, w.I32, w.I32},
		arg(0, 3), w.Set(2), arg(0, 7), w.Set(3), arg(1, 7), w.Set(4),
		w.Block(w.Empty, w.Loop(w.Empty,
			w.Get(5), w.Get(2), w.I32GeU, w.BrIf(1),
			w.Get(4), w.Get(3), w.LoadF32(0), w.Get(3), w.LoadF32(0), w.F32Add, w.StoreF32(0),
			w.Get(3), w.Const(4), w.I32Add, w.Set(3), w.Get(4), w.Const(4), w.I32Add, w.Set(4),
			w.Get(5), w.Const(1), w.I32Add, w.Set(5), w.Br(0))),
		w.Get(0), w.Get(2), w.Store(32+12),
		w.Const(7))
}

func engines(t *testing.T, test func(t *testing.T, r *Runtime)) {
	for _, interpreter := range []bool{false, true} {
		t.Run(map[bool]string{false: "compiled", true: "interpreted"}[interpreter], func(t *testing.T) {
			test(t, newRuntime(t, Config{Interpreter: interpreter}))
		})
	}
}

func TestCall(t *testing.T) {
	engines(t, func(t *testing.T, r *Runtime) {
		m := load(t, r, guestModule(double()), Limits{})
		assert.Equal(t, []string{"double"}, m.Hooks())
		i := open(t, m, Options{})
		for n := range 5 {
			in, out := make([]float32, n*1000), make([]float32, 5000)
			for k := range in {
				in[k] = float32(k)
			}
			result := Of(Out, out)
			got, err := i.Call(context.Background(), "double", n, Of(In, in), result)
			require.NoError(t, err)
			assert.EqualValues(t, 7, got)
			assert.Equal(t, []int{n * 1000}, result.Dims)
			require.Len(t, result.Data, 4*len(in))
			for k := range in {
				require.Equal(t, 2*in[k], out[k])
			}
			assert.Positive(t, i.Work())
		}
	})
}

// The work of a call is the same every time, on both engines, and for every size of the quantum.
func TestWorkIsDeterministic(t *testing.T) {
	var work []int64
	engines(t, func(t *testing.T, r *Runtime) {
		i := open(t, load(t, r, guestModule(double()), Limits{}), Options{})
		in, out := make([]float32, 100_000), make([]float32, 100_000)
		for range 3 {
			_, err := i.Call(context.Background(), "double", 0, Of(In, in), Of(Out, out))
			require.NoError(t, err)
			work = append(work, i.Work())
		}
	})
	assert.Greater(t, work[0], work[1], "the first call allocates")
	for n := range work {
		assert.Equal(t, work[n%3], work[n])
	}
	assert.Equal(t, work[1], work[2])

	// One unit less is too little, on both engines.
	engines(t, func(t *testing.T, r *Runtime) {
		for _, budget := range []int64{work[0], work[0] - 1} {
			i := open(t, load(t, r, guestModule(double()), Limits{Budget: budget}), Options{})
			_, err := i.Call(context.Background(), "double", 3, Of(In, make([]float32, 100_000)), Of(Out, make([]float32, 100_000)))
			if budget == work[0] {
				require.NoError(t, err)
				continue
			}
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, Error{Hook: "test.wasm", Export: "double", Batch: 3, Kind: Budget, Cause: e.Cause}, *e)
			assert.EqualError(t, e.Cause, fmt.Sprintf("took more than %d units of work", budget))
		}
	})
}
