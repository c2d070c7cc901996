package meter

import (
	"bytes"
	"context"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"
)

// patterns of real modules: the specification's, the runtime's fuzzers' finds, programs of several compilers.
var patterns = []string{
	"internal/integration_test/spectest/v2/testdata/*.wasm", "internal/integration_test/spectest/tail-call/testdata/*.wasm",
	"internal/integration_test/spectest/threads/testdata/*.wasm", "internal/integration_test/spectest/exception-handling/testdata/*.wasm",
	"internal/integration_test/fuzzcases/testdata/*.wasm", "imports/wasi_snapshot_preview1/testdata/*/*.wasm",
}

// modules reads every nth file of the corpus that is not large.
func modules(t testing.TB, nth, largest int) [][]byte {
	var all [][]byte
	for _, p := range patterns {
		for i, f := range corpus(t, p) {
			if b, err := os.ReadFile(f); i%nth == 0 && err == nil && len(b) <= largest {
				all = append(all, b)
			}
		}
	}
	return all
}

// mutated changes a few bytes: flips, cuts, doubles, or takes a piece from another module.
func mutated(r *rand.Rand, b, other []byte) []byte {
	b = slices.Clone(b)
	for range 1 + r.IntN(4) {
		if len(b) < 9 {
			break
		}
		at := 8 + r.IntN(len(b)-8)
		n := min(1+r.IntN(8), len(b)-at)
		switch r.IntN(6) {
		case 0:
			b[at] = byte(r.Uint32())
		case 1:
			b[at] ^= 1 << r.IntN(8)
		case 2:
			b = slices.Delete(b, at, at+n)
		case 3:
			b = slices.Insert(b, at, b[at:at+n]...)
		case 4:
			b[at] = []byte{0, 0x7f, 0x80, 0xff, 0x0b, 0x40, 0xfc, 0xfd}[r.IntN(8)]
		default:
			from := r.IntN(len(other))
			b = slices.Insert(b, at, other[from:min(from+n, len(other))]...)
		}
	}
	return b
}

// examine holds what Rewrite does with any bytes against what a WebAssembly runtime says of them.
func examine(t testing.TB, h *host, bin []byte, compile bool) {
	given := slices.Clone(bin)
	out, err := Rewrite(bin, Options{})
	require.True(t, bytes.Equal(given, bin), "the module given was changed")
	if err != nil {
		require.IsType(t, &Error{}, err)
		require.Nil(t, out)
		return
	}
	_, err = Rewrite(out, Options{})
	require.Error(t, err, "a metered module is not metered again")
	if !compile {
		return
	}
	// A metered module is valid if and only if it was: nothing is made valid by what is added. Names are not looked at.
	plain, errPlain := h.CompileModule(context.Background(), bin)
	metered, errMetered := h.CompileModule(context.Background(), out)
	if errPlain != nil && strings.HasPrefix(errPlain.Error(), "section custom") {
		return
	}
	require.Equal(t, errPlain == nil, errMetered == nil, "plain: %v\nmetered: %v\n%x", errPlain, errMetered, bin)
	if errPlain == nil {
		plain.Close(context.Background())
		metered.Close(context.Background())
	}
}

func TestMutatedModules(t *testing.T) {
	all := modules(t, 7, 20_000)
	h := newHost(t, wazero.NewRuntimeConfigInterpreter())
	r := rand.New(rand.NewPCG(3, 4))
	accepted := 0
	for n := range 30_000 {
		b := mutated(r, all[r.IntN(len(all))], all[r.IntN(len(all))])
		examine(t, h, b, n%8 == 0)
		if _, err := Rewrite(b, Options{}); err == nil {
			accepted++
		}
	}
	require.Greater(t, accepted, 1000, "mutations that are always refused test little")
}

func FuzzRewrite(f *testing.F) {
	for _, b := range modules(f, 25, 2_000) {
		f.Add(b)
	}
	h := newHost(f, wazero.NewRuntimeConfigInterpreter())
	f.Fuzz(func(t *testing.T, bin []byte) {
		sum := fnv.New32a()
		sum.Write(bin)
		examine(t, h, bin, sum.Sum32()%4 == 0)
	})
}
