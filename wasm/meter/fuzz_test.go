package meter

import (
	"context"
	"flag"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	w "github.com/gpupipe/gpupipe/internal/testing/wasmtest"
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

// mutated changes a few bytes behind the first ones: flips, cuts, doubles, or takes a piece from another module.
func mutated(r *rand.Rand, b, other []byte, first int) []byte {
	b = slices.Clone(b)
	for range 1 + r.IntN(4) {
		if len(b) <= first {
			break
		}
		at := first + r.IntN(len(b)-first)
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

// mutants makes modules to try: three of four of the corpus, the others of programs of which only a function's code was
// changed, so that more of them get as far as the code.
type mutants struct {
	*rand.Rand
	corpus   [][]byte
	programs []*w.Module
}

func newMutants(t testing.TB, nth, largest int) *mutants {
	m := &mutants{Rand: rand.New(rand.NewPCG(*seed, 4)), corpus: modules(t, nth, largest)}
	for range 100 {
		choices := make([]byte, 300)
		for i := range choices {
			choices[i] = byte(m.Uint32())
		}
		m.programs = append(m.programs, program(choices))
	}
	return m
}

func (m *mutants) next() []byte {
	other := m.corpus[m.IntN(len(m.corpus))]
	if m.IntN(4) > 0 {
		return mutated(m.Rand, m.corpus[m.IntN(len(m.corpus))], other, 8)
	}
	p := *m.programs[m.IntN(len(m.programs))]
	p.Funcs = slices.Clone(p.Funcs)
	f := &p.Funcs[m.IntN(len(p.Funcs))]
	f.Body = mutated(m.Rand, f.Body, other, 0)
	return p.Encode()
}

// examine holds what Rewrite does with any bytes against what a WebAssembly runtime says of them, if compile says so.
func examine(t testing.TB, h *host, bin []byte, compile bool) (accepted bool) {
	given := fnv1a(bin)
	out, err := Rewrite(bin, Options{})
	if given != fnv1a(bin) {
		require.Fail(t, "the module given was changed", "%x", bin)
	}
	if err != nil {
		if _, known := err.(*Error); !known || out != nil {
			require.Fail(t, "an error of another type", "%T %v: %x", err, err, bin)
		}
		return false
	}
	if !compile {
		return true
	}
	_, err = Rewrite(out, Options{})
	require.Error(t, err, "a metered module is not metered again")
	// A metered module is valid if and only if it was: nothing is made valid by what is added. Names are not looked at.
	plain, errPlain := h.CompileModule(context.Background(), bin)
	metered, errMetered := h.CompileModule(context.Background(), out)
	if errPlain != nil && strings.HasPrefix(errPlain.Error(), "section custom") {
		return true
	}
	require.Equal(t, errPlain == nil, errMetered == nil, "plain: %v\nmetered: %v\n%x", errPlain, errMetered, bin)
	if errPlain == nil {
		plain.Close(context.Background())
		metered.Close(context.Background())
	}
	return true
}

func fnv1a(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}

// How much is tried; more than by default is for long runs:
//
//	go test ./wasm/meter -run TestMutatedModules -timeout 0 -args -mutations 10000000 -seed 7
var (
	mutations = flag.Int("mutations", 30_000, "modules that TestMutatedModules makes")
	programs  = flag.Int("programs", 300, "programs that TestProgramsComputeTheSame makes")
	seed      = flag.Uint64("seed", 3, "of random numbers")
)

func TestMutatedModules(t *testing.T) {
	nth, largest := 7, 20_000
	if *mutations > 1_000_000 { // small ones are quicker
		nth, largest = 2, 1_500
	}
	h, m := newHost(t, wazero.NewRuntimeConfigInterpreter()), newMutants(t, nth, largest)
	accepted := 0
	for n := range *mutations {
		if examine(t, h, m.next(), n%16 == 0) {
			accepted++
		}
	}
	require.Greater(t, accepted, *mutations/20, "mutations that are always refused test little")
	t.Logf("%d modules, %d of them got through, a sixteenth was compiled", *mutations, accepted)
}

func FuzzRewrite(f *testing.F) {
	for _, b := range modules(f, 25, 2_000) {
		f.Add(b)
	}
	h := newHost(f, wazero.NewRuntimeConfigInterpreter())
	f.Fuzz(func(t *testing.T, bin []byte) {
		examine(t, h, bin, fnv1a(bin)%4 == 0)
	})
}
