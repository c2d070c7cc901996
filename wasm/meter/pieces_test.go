package meter

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"
)

// bulkModule exports copy, fill (i32, i32, i32) and its memory, "m".
func bulkModule() *w.Module {
	three := w.Types{w.I32, w.I32, w.I32}
	return &w.Module{
		Memories: []w.Limits{{Min: 1, Max: 1, Export: "m"}},
		Funcs: []w.Func{
			{Export: "copy", Params: three, Body: w.Seq(w.Get(0), w.Get(1), w.Get(2), w.MemoryCopy())},
			{Export: "fill", Params: three, Body: w.Seq(w.Get(0), w.Get(1), w.Get(2), w.MemoryFill())},
		},
	}
}

// Copies and fills that are done in pieces leave the same memory as those that are not, overlapping or not, and trap
// before they have written anything.
func TestPieces(t *testing.T) {
	ctx := context.Background()
	metered, err := Rewrite(bulkModule().Encode(), Options{piece: 37})
	require.NoError(t, err)
	for _, config := range []wazero.RuntimeConfig{wazero.NewRuntimeConfig(), wazero.NewRuntimeConfigInterpreter()} {
		h := newHost(t, config)
		h.grant = 0
		plain, err := h.Instantiate(ctx, bulkModule().Encode())
		require.NoError(t, err)
		pieces, err := h.Instantiate(ctx, metered)
		require.NoError(t, err)
		r := rand.New(rand.NewPCG(1, 1))
		address := func() uint64 { return []uint64{0, 65536, 1 << 31, 1<<32 - 1}[r.IntN(4)] + uint64(r.IntN(300)) - 100 }
		trapped := 0
		for n := range 3000 {
			name := []string{"copy", "fill"}[n%2]
			args := []uint64{address() & (1<<32 - 1), address() & (1<<32 - 1), uint64(r.IntN(250))}
			if n%50 == 0 {
				args[2] = address() & (1<<32 - 1)
			}
			_, errPlain := plain.ExportedFunction(name).Call(ctx, args...)
			h.ticks = 0
			_, errPieces := pieces.ExportedFunction(name).Call(ctx, args...)
			require.Equal(t, errPlain == nil, errPieces == nil, "%s%v: plain: %v, in pieces: %v", name, args, errPlain, errPieces)
			if errPlain != nil {
				trapped++
				require.Equal(t, outcome(errPlain), outcome(errPieces))
				require.LessOrEqual(t, h.ticks, 1, "%s%v", name, args)
			} else if args[2] >= 8 {
				require.EqualValues(t, 1+(args[2]+36)/37, h.ticks, "%s%v", name, args)
			}
			a, _ := plain.Memory().Read(0, 65536)
			b, _ := pieces.Memory().Read(0, 65536)
			require.True(t, bytes.Equal(a, b), "%s%v", name, args)
		}
		assert.Greater(t, trapped, 500)
		assert.Less(t, trapped, 2500)
	}
}

// A unit pays for eight bytes of a data segment.
func TestDataSegmentsArePaidFor(t *testing.T) {
	ctx := context.Background()
	m := &w.Module{
		Memories: []w.Limits{{Min: 1, Max: 1}}, Data: []w.Data{{Bytes: make([]byte, 4096), Passive: true}}, DataCount: true,
		Funcs: []w.Func{{Export: "init", Params: w.Types{w.I32}, Body: w.Seq(w.Const(0), w.Const(0), w.Get(0), w.MemoryInit(0))}},
	}
	metered, err := Rewrite(m.Encode(), Options{})
	require.NoError(t, err)
	h := newHost(t, wazero.NewRuntimeConfigInterpreter())
	module, err := h.Instantiate(ctx, metered)
	require.NoError(t, err)
	cost := func(bytes uint64) int64 {
		before := h.left + int64(module.ExportedGlobal(Fuel).Get())
		_, err := module.ExportedFunction("init").Call(ctx, bytes)
		require.NoError(t, err)
		return before - h.left - int64(module.ExportedGlobal(Fuel).Get())
	}
	assert.EqualValues(t, 512, cost(4096)-cost(0))
}
