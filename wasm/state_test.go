package wasm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gpupipe/gpupipe/internal/codecache"
	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/gpupipe/gpupipe/wasm/internal/abi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stateful counts calls in a word at 1024, returns the count, and saves that word; open sets it to the seed.
func stateful() *w.Module {
	bump := w.Seq(w.Const(1024), w.Const(1024), w.Load(0), w.Const(1), w.I32Add, w.Store(0))
	two := w.Types{w.I32, w.I32}
	return guestModule(
		hook("count", nil, bump, w.Const(1024), w.Load(0)),
		w.Func{Export: abi.Open, Params: w.Types{w.I32, w.I32, w.I64}, Results: w.Types{w.I32}, Body: w.Seq(
			w.Get(0), w.Get(1), w.Call(fnLog), // the configuration
			w.Const(1024), w.Get(2), w.I32WrapI64, w.Store(0), w.Const(0))},
		w.Func{Export: abi.Save, Params: two, Results: w.Types{w.I32}, Body: w.Seq(
			w.Get(1), w.Const(4), w.I32GeU, w.If(w.Empty, w.Get(0), w.Const(1024), w.Load(0), w.Store(0)), w.Const(4))},
		w.Func{Export: abi.Load, Params: two, Results: w.Types{w.I32}, Body: w.Seq(
			w.Get(1), w.Const(4), w.I32Sub, w.If(w.Empty, w.Const(-1), w.Return),
			w.Const(1024), w.Get(0), w.Load(0), w.Store(0), w.Const(0))},
	)
}

func TestState(t *testing.T) {
	ctx := context.Background()
	m := load(t, newRuntime(t, Config{}), stateful(), Limits{})
	require.True(t, m.Stateful())
	var lines []string
	options := Options{Hook: "counter", Config: []byte(`{"a": 1}`), Seed: 40, Log: func(s string) { lines = append(lines, s) }}
	a := open(t, m, options)
	assert.Equal(t, []string{`{"a": 1}`}, lines)
	for n := range 3 {
		got, err := a.Call(ctx, "count", n)
		require.NoError(t, err)
		assert.EqualValues(t, 41+n, got)
	}
	state, err := a.Save(ctx)
	require.NoError(t, err)
	assert.Equal(t, []byte{43, 0, 0, 0}, state)

	b := open(t, m, options)
	require.NoError(t, b.Load(ctx, state))
	got, err := b.Call(ctx, "count", 3)
	require.NoError(t, err)
	assert.EqualValues(t, 44, got)
	assert.EqualError(t, b.Load(ctx, []byte("xyz")), "hook counter: gpupipe_load: failed: returned -1")

	stateless := open(t, load(t, newRuntime(t, Config{}), guestModule(double()), Limits{}), Options{})
	state, err = stateless.Save(ctx)
	require.NoError(t, err)
	assert.Nil(t, state)
	assert.ErrorContains(t, stateless.Load(ctx, []byte("x")), "found a state of 1 bytes, expected none: the module exports no gpupipe_load")
}

// Random bytes and the clock depend only on the seed and the batch, not on the instance.
func TestSeedAndBatchDecide(t *testing.T) {
	ctx := context.Background()
	m := load(t, newRuntime(t, Config{}), guestModule(hook("h", nil,
		arg(0, 7), w.Const(64), w.Call(fnRandom),
		w.Const(0), w.ConstI64(1), arg(0, 7), w.Const(64), w.I32Add, w.Call(fnClock), w.I32Add,
		w.Const(0), w.ConstI64(1), arg(0, 7), w.Const(72), w.I32Add, w.Call(fnClock), w.I32Add)), Limits{})
	ask := func(i *Instance, batch int) string {
		out := Of(Out, make([]uint8, 80))
		got, err := i.Call(ctx, "h", batch, out)
		require.NoError(t, err)
		require.Zero(t, got)
		times := As[int64](out.Data[64:])
		assert.Greater(t, times[1], times[0])
		return string(out.Data)
	}
	a, b, c := open(t, m, Options{Seed: 1}), open(t, m, Options{Seed: 1}), open(t, m, Options{Seed: 2})
	ask(a, 7)
	ask(a, 8)
	first := ask(a, 9)
	ask(b, 0)
	assert.Equal(t, first, ask(b, 9), "another instance, other calls before it")
	assert.NotEqual(t, first[:64], ask(c, 9)[:64])
	assert.NotEqual(t, first[:64], ask(a, 10)[:64])
}

func TestLogIsBounded(t *testing.T) {
	var lines []string
	m := load(t, newRuntime(t, Config{}), with(guestModule(hook("h", nil,
		w.Repeat(3, w.Seq(w.Const(8), w.Const(10), w.Call(fnLog))), w.Const(0))), func(m *w.Module) {
		m.Data = []w.Data{{Offset: w.Const(8), Bytes: []byte("0123\n56789")}}
	}), Limits{LogBytes: 15})
	i := open(t, m, Options{Log: func(s string) { lines = append(lines, s) }})
	for range 2 {
		_, err := i.Call(context.Background(), "h", 0)
		require.NoError(t, err)
		assert.Equal(t, []string{"0123", "56789", "0123", "(18 more bytes were dropped)"}, lines)
		lines = nil
	}
}

func TestImportsOfTheOwner(t *testing.T) {
	var seen []int
	mistake := errors.New("no such thing")
	r := newRuntime(t, Config{Imports: []Import{{Name: "op", Params: []byte{i32, i32}, Results: []byte{i32},
		Call: func(i *Instance, s []uint64) error {
			b, err := i.Read(uint32(s[0]), uint32(s[1]))
			if err != nil {
				return err
			}
			if len(b) == 3 {
				return mistake
			}
			_, err = i.Call(context.Background(), "h", 0)
			assert.Equal(t, Busy, err.(*Error).Kind, "a call within a call")
			seen = append(seen, i.Batch(), len(b))
			s[0] = 99
			return nil
		}}}})
	m := load(t, r, with(guestModule(hook("h", nil, w.Get(0), arg(0, 3), w.Call(imported))), func(m *w.Module) {
		m.Imports = append(m.Imports, w.Import{Module: "gpupipe", Name: "op", Params: w.Types{w.I32, w.I32}, Results: w.Types{w.I32}})
	}), Limits{})
	i := open(t, m, Options{})
	got, err := i.Call(context.Background(), "h", 5, Of(In, make([]uint8, 8)))
	require.NoError(t, err)
	assert.EqualValues(t, 99, got)
	assert.Equal(t, []int{5, 8}, seen)
	_, err = i.Call(context.Background(), "h", 6, Of(In, make([]uint8, 3)))
	assert.ErrorIs(t, err, mistake)
	assert.EqualError(t, err, "hook test.wasm: h: batch 6: failed: op: no such thing")
	assert.False(t, i.Alive(), "the module was in the middle of something")
}

func TestPool(t *testing.T) {
	ctx := context.Background()
	m := load(t, newRuntime(t, Config{}), guestModule(double(), hook("bad", nil, w.Unreachable)), Limits{})
	p := NewPool(m, 3, Options{})
	defer p.Close()
	var wg sync.WaitGroup
	for n := range 60 {
		wg.Go(func() {
			hook := "double"
			if n%5 == 0 {
				hook = "bad"
			}
			err := p.Do(ctx, func(i *Instance) error {
				out := make([]float32, 8)
				_, err := i.Call(ctx, hook, n, Of(In, []float32{float32(n)}), Of(Out, out))
				if err == nil {
					assert.EqualValues(t, 2*n, out[0])
				}
				return err
			})
			assert.Equal(t, hook == "bad", err != nil, "%v", err)
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, len(p.idle), 3)

	canceled, cancel := context.WithCancel(ctx)
	cancel()
	require.NoError(t, p.Do(ctx, func(*Instance) error {
		return p.Do(ctx, func(*Instance) error {
			return p.Do(ctx, func(*Instance) error {
				assert.ErrorIs(t, p.Do(canceled, nil), context.Canceled, "all are lent")
				return nil
			})
		})
	}))
}

func TestCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	run := func() {
		r, err := NewRuntime(Config{CacheDir: dir})
		require.NoError(t, err)
		defer r.Close()
		i := open(t, load(t, r, guestModule(double()), Limits{}), Options{})
		_, err = i.Call(context.Background(), "double", 0, Of(In, []float32{1}), Of(Out, []float32{0}))
		require.NoError(t, err)
	}
	files := func() (names []string) {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				names = append(names, path)
			}
			return err
		}))
		return names
	}
	run()
	kept := files()
	require.NotEmpty(t, kept)
	run()
	assert.Equal(t, kept, files())
	for _, damage := range []func([]byte) []byte{
		func(b []byte) []byte { return nil },
		func(b []byte) []byte { return b[:len(b)/2] },
		func(b []byte) []byte { return append([]byte("WAZEVO?"), b[7:]...) },
		func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
	} {
		for _, f := range kept {
			if strings.HasSuffix(f, codecache.SumSuffix) {
				continue
			}
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(f, damage(b), 0o600))
		}
		run()
		assert.Equal(t, kept, files())
	}

	require.NoError(t, os.Chmod(dir, 0o777))
	_, err := NewRuntime(Config{CacheDir: dir})
	assert.ErrorContains(t, err, "may be written to by others")
}

func TestMessages(t *testing.T) {
	r := newRuntime(t, Config{})
	_, err := r.Load("a.wat", []byte("(module)"), Limits{})
	assert.EqualError(t, err, "hook a.wat: refused: module (byte 0): is WebAssembly in text format: assemble it first")
	m := load(t, r, guestModule(double()), Limits{})
	i := open(t, m, Options{})
	_, err = i.Call(context.Background(), "map_batch", 0)
	assert.EqualError(t, err, "hook test.wasm: refused: does not export the function map_batch (i32, i32) → (i32); it exports double, gpupipe_abi_v1, gpupipe_alloc")
	assert.True(t, i.Alive())
	assert.ErrorContains(t, m.CheckHook(abi.Alloc), "it is a function of the ABI")
	_, err = r.Load("a.wasm", nil, Limits{MemoryPages: 1 << 20})
	assert.ErrorContains(t, err, "memory limit: found 1048576 pages")
	require.NoError(t, i.Close())
	require.NoError(t, i.Close())
	_, err = i.Call(context.Background(), "double", 0)
	assert.ErrorContains(t, err, "closed: hook test.wasm: closed: Close was called")
	for k := Refused; k <= Busy; k++ {
		assert.NotContains(t, k.String(), "kind", fmt.Sprint(int(k)))
	}
	assert.Equal(t, "kind 99", Kind(99).String())
	assert.True(t, strings.HasPrefix(DType(9).String(), "dtype"))
}
