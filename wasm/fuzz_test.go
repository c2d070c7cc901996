package wasm

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"math/rand/v2"
	"testing"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// puppet is a module whose hook executes its first array, five words at a time: an action and four arguments.
// Action 0 overwrites a word of the descriptors, 1 a word anywhere, 2 grows the memory, and so on; 15 returns a number.
func puppet() *w.Module {
	word := func(n uint32) []byte { return w.Seq(w.Get(2), w.Load(4*n)) }
	actions := [][]byte{
		w.Seq(word(1), w.Const(60), w.I32And, w.Get(0), w.I32Add, word(2), w.Store(0)),
		w.Seq(word(1), word(2), w.Store(0)),
		w.Seq(word(1), w.MemoryGrow(), w.Drop),
		w.Seq(word(1), word(2), w.Call(fnLog)),
		w.Seq(word(1), word(2), w.Call(fnFail)),
		w.Seq(word(1), word(2), w.Call(fnRandom), w.Drop),
		w.Seq(word(1), w.ConstI64(0), word(2), w.Call(fnClock), w.Drop),
		w.Seq(word(1), word(2), word(3), word(4), w.Call(fnWrite), w.Drop),
		w.Seq(word(1), word(2), word(3), word(4), w.Call(fnPoll), w.Drop),
		w.Seq(word(1), word(2), word(3), w.MemoryFill()),
		w.Seq(word(1), word(2), word(3), w.MemoryCopy()),
		w.Seq(word(1), w.Const(3), w.I32And, w.If(w.Empty, w.Nop, w.Else, word(2), w.Call(fnExit))),
		w.Seq(word(1), word(2), w.I32DivS, w.Drop),
		w.Seq(word(1), w.GSet(0)), // where the allocator continues
		w.Seq(word(1), w.Get(2), w.Store(0)),
		w.Seq(word(1), w.Return),
	}
	labels := make([]uint32, len(actions))
	for i := range labels {
		labels[i] = uint32(i)
	}
	code := w.Seq(word(0), w.Const(15), w.I32And, w.BrTable(labels...))
	for i, a := range actions { // block i ends before action i; the actions go on at the loop's end
		code = w.Seq(w.Block(w.Empty, code), a, w.Br(uint32(len(actions)-1-i)))
	}
	return guestModule(hook("act", w.Types{w.I32, w.I32},
		w.Get(0), w.Load(28), w.Tee(2), w.Get(0), w.Load(12), w.I32Add, w.Set(3),
		w.Loop(w.Empty, w.Get(2), w.Const(20), w.I32Add, w.Get(3), 0x4b /* i32.gt_u */, w.I32Eqz, w.If(w.Empty,
			w.Block(w.Empty, code),
			w.Get(2), w.Const(20), w.I32Add, w.Set(2), w.Br(1))),
		w.Const(0)))
}

// act runs a script, twice in one instance: whatever it does, the outcome is a result or an *Error, and the same in
// another instance.
func act(t testing.TB, m *Module, script []byte) (kinds []Kind) {
	ctx := context.Background()
	var outcomes [2]string
	for n := range outcomes {
		i, err := m.Open(ctx, Options{Seed: 3})
		require.NoError(t, err)
		for batch := range 2 {
			out := Of(Out, make([]float32, 32), 4, 8)
			_, err := i.Call(ctx, "act", batch, Of(In, script), out)
			if err == nil {
				require.Len(t, out.Data, 4*out.Dims[0]*out.Dims[1])
				continue
			}
			var e *Error
			require.True(t, errors.As(err, &e), "%v", err)
			require.NotContains(t, err.Error(), "runtime error", "a panic of ours")
			require.NotContains(t, err.Error(), "gave up")
			outcomes[n] += err.Error()
			kinds = append(kinds, e.Kind)
		}
		require.NoError(t, i.Close())
	}
	require.Equal(t, outcomes[0], outcomes[1])
	return kinds
}

// script returns random actions whose arguments are often near the ends of the memory.
func scriptOf(r *rand.Rand) []byte {
	var b []byte
	for range 1 + r.IntN(12) {
		b = binary.LittleEndian.AppendUint32(b, uint32(r.IntN(15)))
		for range 4 {
			v := []uint32{0, 1, 16, 65536, 131072, 1 << 31, 1<<32 - 1}[r.IntN(7)]
			b = binary.LittleEndian.AppendUint32(b, v+uint32(r.IntN(64))-32)
		}
	}
	return b
}

// The number of scripts and the seed. A long run:
//
//	go test ./wasm -run TestScripts -timeout 0 -args -scripts 1000000 -seed 7
var (
	scripts = flag.Int("scripts", 2000, "scripts that TestScripts makes, each run four times")
	seed    = flag.Uint64("seed", 5, "of random numbers")
)

func TestScripts(t *testing.T) {
	m := load(t, newRuntime(t, Config{}), puppet(), Limits{MemoryPages: 16, Budget: 1_000_000})
	r := rand.New(rand.NewPCG(*seed, 6))
	seen := map[Kind]int{}
	for range *scripts {
		for _, k := range act(t, m, scriptOf(r)) {
			seen[k]++
		}
	}
	for _, k := range []Kind{Failed, Trap, Memory, Pointer, Shape, Exit, Closed} {
		assert.Greater(t, seen[k], 10, "%v", k)
	}
}

func FuzzScript(f *testing.F) {
	m := load(f, newRuntime(f, Config{}), puppet(), Limits{MemoryPages: 16, Budget: 1_000_000})
	r := rand.New(rand.NewPCG(7, 8))
	for range 50 {
		f.Add(scriptOf(r))
	}
	f.Fuzz(func(t *testing.T, script []byte) { act(t, m, script) })
}
