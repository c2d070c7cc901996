package hook_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero/api"
)

const every = "../sdk/testdata/every/"

// scribe replaces the host and records the module's calls. It numbers values; each has the shape [3,5].
type scribe struct {
	lines  []string
	values uint32
}

func (s *scribe) imports() []wasm.Import {
	make := func(name string, params int, results int, call func(read func(address, n uint64) []byte, s []uint64) uint32) wasm.Import {
		types := func(n int) (ts []api.ValueType) {
			for range n {
				ts = append(ts, api.ValueTypeI32)
			}
			return ts
		}
		return wasm.Import{Name: name, Params: types(params), Results: types(results),
			Call: func(i *wasm.Instance, stack []uint64) (err error) {
				r := call(func(address, n uint64) []byte {
					b, e := i.Read(uint32(address), uint32(n))
					if e != nil {
						err = e
					}
					return b
				}, stack)
				if results > 0 {
					stack[0] = uint64(r)
				}
				return err
			}}
	}
	next := func(format string, a ...any) uint32 {
		s.values += 2 // as if each op had two results
		s.lines = append(s.lines, fmt.Sprintf(format, a...))
		return s.values - 1
	}
	type reader = func(address, n uint64) []byte
	return []wasm.Import{
		make("emit", 2, 0, func(read reader, a []uint64) uint32 { return next("emit %q", read(a[0], a[1])) }),
		make("graph_input", 2, 1, func(read reader, a []uint64) uint32 { return next("input %s", read(a[0], a[1])) }),
		make("graph_scalar", 2, 1, func(read reader, a []uint64) uint32 { return next("scalar %s", read(a[0], a[1])) }),
		make("graph_unit", 2, 1, func(read reader, a []uint64) uint32 { return next("unit %s", read(a[0], a[1])) }),
		make("graph_op", 6, 1, func(read reader, a []uint64) uint32 {
			return next("%s %v %v", read(a[0], a[1]), words32(read(a[2], 4*a[3])), attributes(read(a[4], a[5])))
		}),
		make("graph_parameter", 6, 1, func(read reader, a []uint64) uint32 {
			return next("parameter %s %v %v", read(a[0], a[1]), words32(read(a[2], 4*a[3])), attributes(read(a[4], a[5])))
		}),
		make("graph_shape", 3, 1, func(read reader, a []uint64) uint32 {
			if a[2] > 0 {
				dims := read(a[1], 8)
				binary.LittleEndian.PutUint32(dims, 3)
				binary.LittleEndian.PutUint32(dims[4:], 5)
			}
			return 2
		}),
	}
}

func words32(b []byte) (ws []uint32) {
	for ; len(b) > 0; b = b[4:] {
		ws = append(ws, binary.LittleEndian.Uint32(b))
	}
	return ws
}

// attributes normalizes JSON attributes, so that different notations of a number are equal.
func attributes(text []byte) any {
	if len(text) == 0 {
		return nil
	}
	var a map[string]any
	if err := json.Unmarshal(text, &a); err != nil {
		return err
	}
	for k, v := range a {
		if s, ok := v.(string); ok {
			if f, err := strconv.ParseFloat(s, 64); err == nil {
				a[k] = f
			}
		}
		if a[k] == false { // is the default
			delete(a, k)
		}
	}
	return a
}

// play calls every hook of a module and returns a record of the results.
func play(t *testing.T, file string) []string {
	s := &scribe{}
	r, err := wasm.NewRuntime(wasm.Config{Imports: s.imports()})
	require.NoError(t, err)
	defer r.Close()
	bin, err := os.ReadFile(file)
	require.NoError(t, err)
	m, err := r.Load(file, bin, wasm.Limits{})
	require.NoError(t, err)
	i, err := m.Open(ctx, wasm.Options{Config: []byte(`{"scale": 1.25, "loud": true, "name": "Jürgen"}`),
		Log: func(line string) { s.lines = append(s.lines, "log "+line) }})
	require.NoError(t, err)
	call := func(hook string, arrays ...*wasm.Array) {
		result, err := i.Call(ctx, hook, 3, arrays...)
		require.NoError(t, err, "%s %s", file, hook)
		s.lines = append(s.lines, fmt.Sprint(hook, " ", result))
		for _, a := range arrays {
			s.lines = append(s.lines, fmt.Sprintf("%v %v %v", a.DType, a.Dims, a.Data))
		}
	}
	f32, u32 := func(n int) []float32 {
		xs := make([]float32, n)
		for i := range xs {
			xs[i] = float32(i)*0.37 - 1
		}
		return xs
	}, func(n int) []uint32 {
		xs := make([]uint32, n)
		for i := range xs {
			xs[i] = uint32(i*7919) % 11
		}
		return xs
	}
	call("map_document", wasm.Of(wasm.In, []byte("Grüße, 世界 🌍\n\x00")))
	call("map_document", wasm.Of(wasm.In, []byte{}))
	for _, n := range [][2]int{{2, 3}, {0, 4}, {1, 1}} {
		size := n[0] * n[1]
		clock := wasm.Of(wasm.In, []int64{17, 1 << 40})
		call("map_batch", wasm.Of(wasm.InOut, u32(size), n[0], n[1]), wasm.Of(wasm.InOut, u32(size), n[0], n[1]),
			wasm.Of(wasm.InOut, f32(size), n[0], n[1]),
			wasm.Of(wasm.InOut, make([]uint32, size), n[0], n[1]), clock, wasm.Of(wasm.InOut, f32(2*size), n[0], n[1], 2))
		call("map_batch", wasm.Of(wasm.InOut, u32(size), n[0], n[1]), wasm.Of(wasm.InOut, u32(size), n[0], n[1]),
			wasm.Of(wasm.InOut, f32(size), n[0], n[1]), wasm.Of(wasm.InOut, make([]uint32, size), n[0], n[1]), clock)
		call("token_weights", wasm.Of(wasm.In, u32(size), n[0], n[1]), wasm.Of(wasm.In, u32(size), n[0], n[1]),
			wasm.Of(wasm.InOut, f32(size), n[0], n[1]), clock)
	}
	call("learning_rate", wasm.Of(wasm.In, []float64{3, 7, 0.3}), wasm.Of(wasm.Out, []float64{0}))
	call("on_metrics", wasm.Of(wasm.In, []byte(`{"a\"":[{"loss":9},"]}"],"loss" : 1.2500000001, "z":{}}`)))
	call("on_metrics", wasm.Of(wasm.In, []byte(`{"loss":1.25}`)))
	call("on_metrics", wasm.Of(wasm.In, []byte(`{}`)))
	call("loss_scalars", wasm.Of(wasm.In, []float64{3, 7}), wasm.Of(wasm.Out, make([]float32, 2)))
	call("loss_grad", wasm.Of(wasm.In, f32(3*11), 3, 11), wasm.Of(wasm.In, u32(3)), wasm.Of(wasm.Out, make([]float32, 3)),
		wasm.Of(wasm.Out, make([]float32, 3*11), 3, 11))
	call("build_loss")
	call("build_model")
	state, err := i.Save(ctx)
	require.NoError(t, err)
	require.NoError(t, i.Load(ctx, []byte{1, 2, 3, 4}))
	loaded, err := i.Save(ctx)
	require.NoError(t, err)
	return append(s.lines, fmt.Sprint("state ", state, loaded))
}

// callable lists the functions that a module may export: the hooks of the table and their companions.
func callable() (names []string) {
	for _, k := range hook.Kinds() {
		names = append(names, k.Name)
		for _, c := range k.Companions {
			names = append(names, c.Name)
		}
	}
	return names
}

// Each language's SDK has every hook of the table. All pass the same arrays, texts and numbers to it, and make the same
// calls of the host.
func TestEveryHookInAllLanguages(t *testing.T) {
	want := play(t, every+"c.wasm")
	assert.Contains(t, want, "log Jürgen")
	assert.Contains(t, want, `emit "Grüße, 世界 🌍\n\x00"`)
	assert.Contains(t, want, "parameter layer.1.q [64 64] map[init:normal std:0.01]")
	assert.Contains(t, want, "state [6 0 0 0] [1 2 3 4]")
	for _, name := range callable() {
		assert.True(t, slices.ContainsFunc(want, func(line string) bool { return strings.HasPrefix(line, name+" ") }),
			"%s is not in testdata/every", name)
	}
	for _, language := range []string{"rust", "assemblyscript", "tinygo"} {
		assert.Equal(t, want, play(t, every+language+".wasm"), language)
	}
}

func TestEveryHookInGo(t *testing.T) {
	tier.Rest(t)
	file := filepath.Join(t.TempDir(), "go.wasm")
	build := exec.Command("go", "build", "-trimpath", "-buildmode=c-shared", "-o", file, every+"go")
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	assert.Equal(t, play(t, every+"c.wasm"), play(t, file))
}
