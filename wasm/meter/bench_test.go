package meter

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
)

// BenchmarkOverhead runs wazero's own benchmark (a TinyGo program) with and without metering.
func BenchmarkOverhead(b *testing.B) {
	ctx := context.Background()
	bin, err := os.ReadFile(corpus(b, "internal/integration_test/bench/testdata/case.wasm")[0])
	require.NoError(b, err)
	metered, err := Rewrite(bin, Options{})
	require.NoError(b, err)
	for _, f := range []struct {
		name string
		args []uint64
	}{
		{"fibonacci", []uint64{20}}, {"random_mat_mul", []uint64{20}}, {"string_manipulation", []uint64{20}},
		{"reverse_array", []uint64{500}}, {"base64", []uint64{20}},
	} {
		for _, version := range []struct {
			name string
			bin  []byte
		}{{"plain", bin}, {"metered", metered}} {
			b.Run(f.name+"/"+version.name, func(b *testing.B) {
				h := newHost(b, wazero.NewRuntimeConfig())
				wasi_snapshot_preview1.MustInstantiate(ctx, h.Runtime)
				_, err := h.NewHostModuleBuilder("env").NewFunctionBuilder().WithFunc(func(uint32,
					uint32) {
				}).Export("get_random_string").Instantiate(ctx)
				require.NoError(b, err)
				m, err := h.Instantiate(ctx, version.bin)
				require.NoError(b, err)
				fn := m.ExportedFunction(f.name)
				for b.Loop() {
					if _, err := fn.Call(ctx, f.args...); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
