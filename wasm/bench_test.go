package wasm

import (
	"context"
	"testing"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
	"github.com/stretchr/testify/require"
)

func benchmark(b *testing.B, args ...*Array) {
	i := open(b, load(b, newRuntime(b, Config{}), guestModule(hook("h", nil, w.Const(0))), Limits{}), Options{})
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		for _, a := range args {
			if a.Dir == Out && a.Data != nil {
				a.Data = a.Data[:cap(a.Data)]
			}
		}
		if _, err := i.Call(ctx, "h", 0, args...); err != nil {
			b.Fatal(err)
		}
	}
}

// A call with two small arrays. The target is at most 2 µs.
func BenchmarkCall(b *testing.B) {
	benchmark(b, Of(In, make([]float32, 16)), Of(Out, make([]float32, 16)))
}

// 4 MB in and 4 MB out, copied. The target is at most 0.5 ms.
func BenchmarkCopy(b *testing.B) {
	benchmark(b, Of(In, make([]float32, 1<<20)), Of(Out, make([]float32, 1<<20)))
}

func BenchmarkOpen(b *testing.B) {
	m := load(b, newRuntime(b, Config{}), guestModule(double()), Limits{})
	b.ReportAllocs()
	for b.Loop() {
		i, err := m.Open(context.Background(), Options{})
		require.NoError(b, err)
		i.Close()
	}
}

// A million additions of floats in a loop of 14 instructions.
func BenchmarkLoop(b *testing.B) {
	i := open(b, load(b, newRuntime(b, Config{}), guestModule(double()), Limits{}), Options{})
	in, out := Of(In, make([]float32, 1<<20)), Of(Out, make([]float32, 1<<20))
	for b.Loop() {
		in.Dims, out.Dims = []int{1 << 20}, []int{1 << 20}
		if _, err := i.Call(context.Background(), "double", 0, in, out); err != nil {
			b.Fatal(err)
		}
	}
}
