package wasm

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"testing"
	"time"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// endless are hooks that never return, each with a different kind of loop.
var endless = map[string][]byte{
	"loop":  forever,
	"calls": w.Loop(w.Empty, w.Call(self+1), w.Br(0)),
	"fills": w.Loop(w.Empty, w.Const(0), w.Const(1), w.MemorySize(), w.Const(65536), w.I32Mul, w.MemoryFill(), w.Br(0)),
	"copies": w.Loop(w.Empty, w.Const(0), w.Const(65536), w.MemorySize(), w.Const(65536), w.I32Mul, w.Const(65536), w.I32Sub,
		w.MemoryCopy(), w.Br(0)),
	"growth": w.Loop(w.Empty, w.Const(1), w.MemoryGrow(), w.Drop, w.Br(0)),
	"random": w.Loop(w.Empty, w.Const(0), w.MemorySize(), w.Const(65536), w.I32Mul, w.Call(fnRandom), w.Drop, w.Br(0)),
	"fail":   w.Loop(w.Empty, w.Const(0), w.Const(4096), w.Call(fnFail), w.Br(0)),
	"log":    w.Loop(w.Empty, w.Const(0), w.MemorySize(), w.Const(65536), w.I32Mul, w.Call(fnLog), w.Br(0)),
}

// spinning returns an instance, with 256 MB of memory, whose hook is one of them.
func spinning(t testing.TB, code []byte, l Limits) *Instance {
	m := misbehaves(w.If(w.Empty, w.Const(0), w.Drop), code, w.Const(0))
	m.Funcs[2].Body = w.Seq(code, w.Const(0))
	m.Funcs = append(m.Funcs, w.Func{})
	m.Memories[0].Min = 4000
	l.Budget = 1 << 60
	return open(t, load(t, newRuntime(t, Config{}), m, l), Options{})
}

// While a hook runs endlessly on the only processor, garbage collection and calls of another hook still make progress.
// The hook ends with its context.
func TestEndlessHooksBlockNothing(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	other := open(t, load(t, newRuntime(t, Config{}), guestModule(double()), Limits{}), Options{})
	for name, code := range endless {
		t.Run(name, func(t *testing.T) {
			i := spinning(t, code, Limits{Deadline: time.Hour})
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := i.Call(ctx, "h", 7)
				ended <- err
			}()
			in, out := make([]float32, 100), make([]float32, 100)
			for n := range 10 {
				runtime.GC() // stops the world: it returns only if the hook can be stopped, too
				_, err := other.Call(context.Background(), "double", n, Of(In, in), Of(Out, out))
				require.NoError(t, err)
			}
			require.Empty(t, ended, "it ended on its own")
			cancel()
			var e *Error
			require.ErrorAs(t, <-ended, &e)
			assert.Equal(t, Canceled, e.Kind)
			assert.ErrorIs(t, e, context.Canceled)
		})
	}
}

// The deadline ends all of them. BenchmarkStop measures how soon; this test allows much longer, since the machine may
// be busy.
func TestDeadline(t *testing.T) {
	for name, code := range endless {
		t.Run(name, func(t *testing.T) {
			i := spinning(t, code, Limits{Deadline: 20 * time.Millisecond})
			began := time.Now()
			_, err := i.Call(context.Background(), "h", 0)
			assert.ErrorContains(t, err, "hook test.wasm: h: batch 0: deadline exceeded: ")
			assert.ErrorContains(t, err, "more than 20ms")
			assert.Less(t, time.Since(began), time.Minute)
			assert.False(t, i.Alive())
		})
	}
}

// BenchmarkStop measures how long after its deadline an endless hook ends. The target is 50 ms. On a busy machine the
// median is more meaningful than the maximum.
func BenchmarkStop(b *testing.B) {
	const deadline = 20 * time.Millisecond
	for _, name := range slices.Sorted(maps.Keys(endless)) {
		b.Run(name, func(b *testing.B) {
			var late []float64
			for b.Loop() {
				i := spinning(b, endless[name], Limits{Deadline: deadline})
				began := time.Now()
				_, err := i.Call(context.Background(), "h", 0)
				late = append(late, (time.Since(began)-deadline).Seconds()*1e3)
				require.Error(b, err)
				require.NoError(b, i.Close())
			}
			slices.Sort(late)
			b.ReportMetric(late[len(late)/2], "median-ms")
			b.ReportMetric(late[len(late)-1], "worst-ms")
		})
	}
}

// BenchmarkGarbageCollection measures a collection while a hook never returns; the target is some tens of milliseconds.
func BenchmarkGarbageCollection(b *testing.B) {
	for _, name := range slices.Sorted(maps.Keys(endless)) {
		b.Run(name, func(b *testing.B) {
			i := spinning(b, endless[name], Limits{Deadline: time.Hour})
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() {
				_, err := i.Call(ctx, "h", 0)
				ended <- err
			}()
			worst := 0.0
			for b.Loop() {
				began := time.Now()
				runtime.GC()
				worst = max(worst, time.Since(began).Seconds()*1e3)
			}
			b.ReportMetric(worst, "worst-ms")
			cancel()
			require.Error(b, <-ended)
		})
	}
}
