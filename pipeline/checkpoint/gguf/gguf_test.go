package gguf

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func entry(name string, t Type, xs []float32, shape ...int) Entry {
	return Entry{Tensor{name, shape, t}, func(w io.Writer) error { return EncodeFloats(w, xs, t) }}
}

// example is a file with every type of values and elements.
func example(t testing.TB) []byte {
	xs := make([]float32, 64)
	for i := range xs {
		xs[i] = float32(math.Sin(float64(i * i)))
	}
	var out bytes.Buffer
	require.NoError(t, Write(&out, []Key{{"general.architecture", "llama"}, {"a.uint8", uint8(3)}, {"a.int32", int32(-3)},
		{"a.uint32", uint32(7)},
		{"a.uint64", uint64(math.MaxUint64)}, {"a.float", float32(0.5)}, {"a.bool", true}, {"a.texts", []string{"", "é"}},
		{"a.ints", []int32{1, -1}},
		{"a.floats", []float32{1.5}}}, []Entry{entry("f32", F32, xs[:3], 3), entry("f16", F16, xs[:6], 2, 3),
		entry("bf16", BF16, xs[:1], 1, 1, 1, 1), entry("q8_0", Q8_0, xs, 2, 32)}))
	return out.Bytes()
}

func TestRoundTrip(t *testing.T) {
	data := example(t)
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(path, data, 0o666))
	assert.True(t, IsFile(path))
	f, err := Open(path)
	require.NoError(t, err)
	assert.Equal(t, map[string]any{"general.architecture": "llama", "a.uint8": int64(3), "a.int32": int64(-3), "a.uint32": int64(7),
		"a.uint64": int64(math.MaxInt64), "a.float": 0.5, "a.bool": true, "a.texts": []string{"", "é"}, "a.ints": []int64{1, -1},
		"a.floats": []float64{1.5}}, f.Keys())
	assert.Equal(t, []Tensor{{"f32", []int{3}, F32}, {"f16", []int{2, 3}, F16}, {"bf16", []int{1, 1, 1, 1}, BF16},
		{"q8_0", []int{2, 32}, Q8_0}}, f.Tensors())
	for name, tolerance := range map[string]float64{"f32": 0, "f16": 1.0 / 2048, "bf16": 1.0 / 256, "q8_0": 0.5/127 + 1e-3} {
		xs, err := f.Float32(name)
		require.NoError(t, err)
		for i, x := range xs {
			assert.InDelta(t, float64(float32(math.Sin(float64(i*i)))), float64(x), tolerance, "%s[%d]", name, i)
		}
	}
	_, err = f.Float32("none")
	assert.ErrorContains(t, err, `model.gguf: tensor "none" is missing`)
	assert.True(t, f.Has("f16"))
	require.NoError(t, f.Close())
}

// The bytes are those of PyPI's gguf 0.19: gguf.quants.quantize(x, GGMLQuantizationType.Q8_0).
func TestBlocksOfQ8(t *testing.T) {
	xs := make([]float32, 32)
	for i := range xs {
		xs[i] = float32(i*i%37) - 18.5
	}
	var out bytes.Buffer
	require.NoError(t, EncodeFloats(&out, xs, Q8_0))
	want, err := hex.DecodeString("a93081889cbfef2d78d33ab133c66411cd966a4f41414f6a96cd1164c633b13ad378")
	require.NoError(t, err)
	assert.Equal(t, want, out.Bytes())

	out.Reset()
	require.NoError(t, EncodeFloats(&out, make([]float32, 32), Q8_0))
	assert.Equal(t, make([]byte, 34), out.Bytes(), "zeros have a scale of zero")
}

func TestWriteRefuses(t *testing.T) {
	inf := float32(math.Inf(1))
	for want, xs := range map[string][]float32{
		"no scale in F16":                                     append(make([]float32, 31), inf),
		"elements 0 to 31 have no scale in F16":               append(make([]float32, 31), float32(math.NaN())),
		"31 elements, expected a multiple of 32":              make([]float32, 31),
		"expected finite numbers of at most 8319008":          append(make([]float32, 31), 1e9),
		"elements 65536 to 65567 have no scale in F16: expec": append(make([]float32, 1<<16+31), inf),
	} {
		assert.ErrorContains(t, EncodeFloats(io.Discard, xs, Q8_0), want)
	}
	assert.ErrorContains(t, EncodeFloats(io.Discard, []float32{0, 7e4}, F16), "element 1 is 70000, beyond F16")
	assert.ErrorContains(t, EncodeFloats(io.Discard, []float32{0}, Type(12)), "type is Q4_K, expected F32")
	assert.ErrorContains(t, Write(io.Discard, []Key{{"k", 1}}, nil), `key "k": a value of type int`)
	assert.ErrorContains(t, Write(io.Discard, nil, []Entry{entry("x", Q8_0, nil, 2, 33)}), "rows of Q8_0 have 33 elements")
	assert.ErrorContains(t, Write(io.Discard, nil, []Entry{entry("x", F32, make([]float32, 3), 2)}),
		`tensor "x": 12 bytes were written, expected 8`)
	assert.ErrorContains(t, Write(io.Discard, nil, []Entry{entry("x", F32, nil)}), "0 dimensions")
}

func parse(data []byte) (*File, error) { return Parse(bytes.NewReader(data), int64(len(data))) }

func TestMalformed(t *testing.T) {
	le := binary.LittleEndian
	head := func(version uint32, tensors, keys uint64) []byte {
		return le.AppendUint64(le.AppendUint64(le.AppendUint32([]byte(magic), version), tensors), keys)
	}
	key := func(name string, kind uint32, value ...byte) []byte {
		return append(le.AppendUint32(appendString(nil, name), kind), value...)
	}
	tensor := func(name string, kind Type, offset uint64, dims ...uint64) []byte {
		b := le.AppendUint32(appendString(nil, name), uint32(len(dims)))
		for _, d := range dims {
			b = le.AppendUint64(b, d)
		}
		return le.AppendUint64(le.AppendUint32(b, uint32(kind)), offset)
	}
	join := func(parts ...[]byte) []byte { return append(bytes.Join(parts, nil), make([]byte, 64)...) }
	u64 := func(n uint64) []byte { return le.AppendUint64(nil, n) }
	u32 := func(n uint32) []byte { return le.AppendUint32(nil, n) }
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"empty":             {nil, "not a GGUF file"},
		"another format":    {[]byte("PK\x03\x04aaaa"), "not a GGUF file"},
		"version":           {head(1, 0, 0), "version is 1"},
		"big-endian":        {head(3<<24, 0, 0), "version is 50331648"},
		"tensors":           {join(head(3, 1<<40, 0)), "1099511627776 tensors, expected at most"},
		"keys":              {join(head(3, 0, 60000)), "60000 keys, expected at most 65536, and no more than the file has room for"},
		"long name":         {join(head(3, 0, 1), u64(1<<62)), "key: a text of"},
		"type":              {join(head(3, 0, 1), key("k", 13)), `key "k" has a value of type 13`},
		"nested array":      {join(head(3, 0, 1), key("k", typeArray), u32(typeArray), u64(1)), `key "k" is an array of type 9`},
		"long array":        {join(head(3, 0, 1), key("k", typeArray), u32(typeString), u64(1<<60)), `elements of key "k", expected at most`},
		"array beyond file": {join(head(3, 0, 1), key("k", typeArray), u32(typeUint8), u64(1<<20)), "no more than the file has room for"},
		"long text":         {join(head(3, 0, 1), key("k", typeString), u64(1<<20)), "the file ends after"},
		"key twice":         {join(head(3, 0, 2), key("k", typeBool, 1), key("k", typeBool, 1)), `key "k" is listed twice`},
		"alignment":         {join(head(3, 0, 1), key(alignmentKey, typeUint32, 3, 0, 0, 0)), "general.alignment is 3"},
		"dimensions":        {join(head(3, 1, 0), tensor("x", F32, 0, 1, 1, 1, 1, 1)), "5 dimensions"},
		"large dimension":   {join(head(3, 1, 0), tensor("x", F32, 0, 1<<40)), "a dimension of 1099511627776"},
		"overflow":          {join(head(3, 1, 0), tensor("x", F32, 0, 1<<30, 1<<30, 1<<30, 1)), "has no size in 64 bits"},
		"zero":              {join(head(3, 1, 0), tensor("x", F32, 0, 0)), "has no size in 64 bits"},
		"beyond the file":   {join(head(3, 1, 0), tensor("x", F32, 0, 1000)), "data of 4000 bytes at offset 0"},
		"offset":            {join(head(3, 1, 0), tensor("x", F32, 7, 1)), "data of 4 bytes at offset 7"},
		"huge offset":       {join(head(3, 1, 0), tensor("x", F32, 1<<63, 1)), "offset is"},
		"tensor twice":      {join(head(3, 2, 0), tensor("x", F32, 0, 1), tensor("x", F32, 0, 1)), `tensor "x" is listed twice`},
		"rows of no blocks": {join(head(3, 1, 0), tensor("x", Q8_0, 0, 31)), "rows of Q8_0 have 31 elements"},
	} {
		_, err := parse(c.data)
		assert.ErrorContains(t, err, c.want, name)
	}
	f, err := parse(join(head(3, 1, 0), tensor("x", 12, 0, 256)))
	require.NoError(t, err, "a tensor of another type is refused when it is read")
	_, err = f.Float32("x")
	assert.ErrorContains(t, err, `tensor "x" is Q4_K, expected F32, F16, BF16 or Q8_0`)
	data := example(t)
	for n := range len(data) - 40 {
		_, err := parse(data[:n])
		require.Error(t, err, "the first %d bytes", n)
	}
}

// No file makes the reader panic, or read outside of the file.
func FuzzParse(f *testing.F) {
	f.Add(example(f))
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := parse(data)
		if err != nil {
			return
		}
		for _, tensor := range g.Tensors() {
			if _, err := tensor.Bytes(); err == nil {
				_, err := g.Float32(tensor.Name)
				require.NoError(t, err)
			}
		}
	})
}
