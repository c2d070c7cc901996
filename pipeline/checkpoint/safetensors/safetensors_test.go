package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func f32(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func encode(t *testing.T, entries ...Entry) []byte {
	var b bytes.Buffer
	require.NoError(t, Encode(&b, entries))
	return b.Bytes()
}

func sample() []Entry {
	return []Entry{
		{Name: "model.w", DType: F32, Shape: []int{2, 3}, Data: f32(1, 2, 3, -4, 5, 6)},
		{Name: "model.b", DType: BF16, Shape: []int{3}, Data: []byte{0x80, 0x3f, 0, 0xc0, 0xc0, 0x7f}},
		{Name: "scalar", DType: I64, Data: []byte{7, 0, 0, 0, 0, 0, 0, 0}},
		{Name: "empty", DType: F32, Shape: []int{0, 5}},
		{Name: "half", DType: F16, Shape: []int{2}, WriteTo: func(w io.Writer) error {
			_, err := w.Write([]byte{0, 0x3c, 1, 0x80})
			return err
		}},
	}
}

func TestGoldenBytes(t *testing.T) {
	got := encode(t, Entry{Name: "a<b>", DType: F32, Shape: []int{2}, Data: f32(1, 2)})
	header := `{"__metadata__":{"format":"pt"},"a<b>":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`
	for len(header)%8 != 0 {
		header += " "
	}
	want := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	want = append(append(want, header...), f32(1, 2)...)
	assert.Equal(t, want, got)
}

func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.safetensors")
	require.NoError(t, Write(path, sample()))
	r, err := Open(path)
	require.NoError(t, err)
	defer r.Close()
	var names []string
	for _, d := range r.Tensors() {
		names = append(names, d.Name)
	}
	assert.Equal(t, []string{"scalar", "empty", "model.w", "half", "model.b"}, names, "wide elements first")
	d, ok := r.Lookup("model.w")
	assert.True(t, ok)
	assert.Equal(t, Tensor{"model.w", F32, []int{2, 3}}, d)

	w, err := r.Float32("model.w")
	require.NoError(t, err)
	assert.Equal(t, []float32{1, 2, 3, -4, 5, 6}, w)
	b, err := r.Float32("model.b")
	require.NoError(t, err)
	assert.Equal(t, []float32{1, -2}, b[:2])
	assert.True(t, b[2] != b[2])
	h, err := r.Float32("half")
	require.NoError(t, err)
	assert.Equal(t, []float32{1, -1.0 / (1 << 24)}, h)
	e, err := r.Float32("empty")
	require.NoError(t, err)
	assert.Empty(t, e)
	raw, err := r.Bytes("scalar")
	require.NoError(t, err)
	assert.Equal(t, []byte{7, 0, 0, 0, 0, 0, 0, 0}, raw)
	s, err := r.Section("model.w")
	require.NoError(t, err)
	all, err := io.ReadAll(s)
	require.NoError(t, err)
	assert.Equal(t, f32(1, 2, 3, -4, 5, 6), all)

	_, err = r.Float32("scalar")
	assert.ErrorContains(t, err, path+`: tensor "scalar": dtype is I64, expected F32`)
	_, err = r.Bytes("nothing")
	assert.ErrorContains(t, err, `no tensor "nothing"`)
}

func TestBytesDoNotDependOnOrder(t *testing.T) {
	a := sample()
	want := encode(t, a...)
	a[0], a[3], a[1] = a[1], a[0], a[3]
	assert.Equal(t, want, encode(t, a...))
	assert.Zero(t, binary.LittleEndian.Uint64(want)%8)
}

// Long tensors cross the chunks in which conversion reads.
func TestFloat32InChunks(t *testing.T) {
	const n = 3<<16 + 5
	data := make([]byte, 0, 8*n)
	for i := range n {
		data = binary.LittleEndian.AppendUint64(data, math.Float64bits(float64(i)/2))
	}
	path := filepath.Join(t.TempDir(), "a.safetensors")
	require.NoError(t, Write(path, []Entry{{Name: "x", DType: F64, Shape: []int{n}, Data: data}}))
	r, err := Open(path)
	require.NoError(t, err)
	defer r.Close()
	got, err := r.Float32("x")
	require.NoError(t, err)
	require.Len(t, got, n)
	for i, v := range got {
		require.Equal(t, float32(i)/2, v)
	}
	// A file that shrinks after it was opened is an error, not zeros.
	require.NoError(t, os.Truncate(path, 1000))
	_, err = r.Float32("x")
	assert.ErrorContains(t, err, `tensor "x"`)
	_, err = r.Bytes("x")
	assert.ErrorContains(t, err, `tensor "x"`)
}

// Every binary16 against the definition, in float64.
func TestHalf(t *testing.T) {
	for i := range 1 << 16 {
		exp, frac := i>>10&31, float64(i&1023)
		var want float64
		switch {
		case exp == 31 && frac == 0:
			want = math.Inf(1)
		case exp == 31:
			want = math.NaN()
		case exp == 0:
			want = math.Ldexp(frac, -24)
		default:
			want = math.Ldexp(1+frac/1024, exp-15)
		}
		if i>>15 == 1 {
			want = -want
		}
		got := float64(widened(uint16(i), F16))
		if math.IsNaN(want) {
			require.True(t, math.IsNaN(got), "%04x", i)
			continue
		}
		require.Equal(t, math.Float64bits(want), math.Float64bits(got), "%04x", i)
	}
}

func TestEncodeRefuses(t *testing.T) {
	broken := errors.New("device lost")
	big := math.MaxInt / 2
	for name, c := range map[string]struct {
		entries []Entry
		want    string
	}{
		"short":    {[]Entry{{Name: "a", DType: F32, Shape: []int{2}, Data: f32(1)}}, `tensor "a": got 4 bytes, shape [2] of F32 takes 8`},
		"long":     {[]Entry{{Name: "a", DType: F32, Shape: []int{2}, Data: f32(1, 2, 3)}}, `tensor "a": got at least 4 bytes more`},
		"dtype":    {[]Entry{{Name: "a", DType: "Q4"}}, `tensor "a": unknown dtype "Q4"`},
		"negative": {[]Entry{{Name: "a", DType: F32, Shape: []int{-1}}}, "negative dimension"},
		"overflow": {[]Entry{{Name: "a", DType: F32, Shape: []int{big, 3}}}, "overflows"},
		"sum": {[]Entry{{Name: "a", DType: U8, Shape: []int{big}}, {Name: "b", DType: U8, Shape: []int{big}},
			{Name: "c", DType: U8, Shape: []int{big}}}, "together overflow"},
		"twice":      {[]Entry{{Name: "a", DType: F32, Shape: []int{0}}, {Name: "a", DType: F32, Shape: []int{0}}}, "the name is taken"},
		"reserved":   {[]Entry{{Name: metadataKey, DType: F32, Shape: []int{0}}}, "the name is taken"},
		"not utf-8":  {[]Entry{{Name: "\xff", DType: F32, Shape: []int{0}}}, "not UTF-8"},
		"dimensions": {[]Entry{{Name: "a", DType: F32, Shape: make([]int, 65)}}, "at most 64"},
		"source": {[]Entry{{Name: "a", DType: F32, Shape: []int{1}, WriteTo: func(io.Writer) error { return broken }}},
			`tensor "a": device lost`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			assert.ErrorContains(t, Write(filepath.Join(dir, "x.safetensors"), c.entries), c.want)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			assert.Empty(t, left)
		})
	}
}

func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

func one(dtype, shape, offsets string) string {
	return fmt.Sprintf(`{"w":{"dtype":%q,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
}

func TestOpenRefuses(t *testing.T) {
	huge := binary.LittleEndian.AppendUint64(nil, 1<<60)
	beyond := binary.LittleEndian.AppendUint64(nil, 99_999_999)
	two := `{"a":{"dtype":"F32","shape":[2],"data_offsets":[%s]},"b":{"dtype":"F32","shape":[2],"data_offsets":[%s]}}`
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"empty":             {nil, "file of 0 bytes is too short"},
		"header of 2^60":    {append(huge, "{}"...), "header claims 1152921504606846976 bytes, at most 100000000"},
		"header past end":   {append(beyond, "{}"...), "header claims 99999999 bytes, the file has 2"},
		"no header":         {file("", 0), "invalid JSON"},
		"not JSON":          {file("{nonsense}", 0), "invalid JSON"},
		"torn JSON":         {file(`{"w":{"dtype"`, 0), "invalid JSON"},
		"array":             {file(`[]`, 0), "found [, expected {"},
		"null":              {file(`null`, 0), "found <nil>, expected {"},
		"second value":      {file(`{}{}`, 0), "2 bytes after the closing brace"},
		"not UTF-8":         {file("{\"\xff\":1}", 0), "not UTF-8"},
		"duplicate tensor":  {file(`{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), `duplicate key "w"`},
		"escaped duplicate": {file(`{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0077":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), `duplicate key "w"`},
		"duplicate field":   {file(`{"w":{"dtype":"U8","dtype":"U8"}}`, 0), `tensor "w": duplicate key "dtype"`},
		"duplicate meta":    {file(`{"__metadata__":{"a":"1","a":"2"}}`, 0), `duplicate key "a"`},
		"meta not text":     {file(`{"__metadata__":{"a":1}}`, 0), `"a": found 1, expected a string`},
		"missing dtype":     {file(`{"w":{"shape":[1],"data_offsets":[0,1]}}`, 1), `tensor "w": dtype is missing`},
		"unknown field":     {file(`{"w":{"stride":[1]}}`, 1), `tensor "w": unknown key "stride"`},
		"unknown dtype":     {file(one("Q4_0", "[4]", "[0,2]"), 2), `tensor "w": unknown dtype "Q4_0"`},
		"not a tensor":      {file(`{"w":3}`, 0), `tensor "w": found 3, expected {`},
		"negative shape":    {file(one("F32", "[-1]", "[0,4]"), 4), `tensor "w": shape: found -1, expected a whole number`},
		"fraction":          {file(one("F32", "[1.5]", "[0,4]"), 4), "found 1.5"},
		"exponent":          {file(one("F32", "[1e3]", "[0,4]"), 4), "found 1e3"},
		"shape 2^70":        {file(one("F32", "[1180591620717411303424]", "[0,4]"), 4), "expected a whole number below 2^63"},
		"shape of text":     {file(one("F32", `["1"]`, "[0,4]"), 4), "shape: found 1"},
		"product overflows": {file(one("F32", "[4294967296,4294967296]", "[0,4]"), 4),
			`tensor "w": shape [4294967296 4294967296] of F32 overflows`},
		"rank":             {file(one("F32", "[1"+string(bytes.Repeat([]byte(",1"), 64))+"]", "[0,4]"), 4), "more than 64 numbers"},
		"one offset":       {file(one("F32", "[1]", "[0]"), 4), "data_offsets: found 1 numbers, expected 2"},
		"three offsets":    {file(one("F32", "[1]", "[0,4,8]"), 4), "data_offsets: more than 2"},
		"out of range":     {file(one("F32", "[2]", "[0,8]"), 4), `tensor "w": data_offsets [0, 8] are not a range within the file's 4 bytes`},
		"backwards":        {file(one("F32", "[1]", "[4,0]"), 4), "are not a range"},
		"wrong shape":      {file(one("F32", "[3]", "[0,8]"), 8), `tensor "w": data_offsets [0, 8] span 8 bytes, shape [3] of F32 takes 12`},
		"starts late":      {file(one("F32", "[1]", "[4,8]"), 8), `tensor "w": begins at 4, a gap after the start, which ends at 0`},
		"overlap":          {file(fmt.Sprintf(two, "0,8", "4,12"), 12), `tensor "b": begins at 4 and overlaps tensor "a", which ends at 8`},
		"same range":       {file(fmt.Sprintf(two, "0,8", "0,8"), 8), "overlaps"},
		"gap":              {file(fmt.Sprintf(two, "0,8", "12,20"), 20), `tensor "b": begins at 12, a gap after tensor "a"`},
		"trailing bytes":   {file(one("F32", "[1]", "[0,4]"), 5), "the tensors end at 4, the file has 5 bytes of data"},
		"data without any": {file(`{}`, 5), "the tensors end at 0, the file has 5"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bad.safetensors")
			require.NoError(t, os.WriteFile(path, c.file, 0o644))
			r, err := Open(path)
			require.Error(t, err)
			require.Nil(t, r)
			assert.ErrorContains(t, err, path)
			assert.ErrorContains(t, err, c.want)
		})
	}
}

func TestOpenAccepts(t *testing.T) {
	for name, b := range map[string][]byte{
		"nothing at all":    file("{}", 0),
		"padding":           file("{}      ", 0),
		"unaligned header":  file(one("U8", "[1]", "[0,1]"), 1),
		"scalar":            file(one("F32", "[]", "[0,4]"), 4),
		"unsorted, empties": file(`{"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},"e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"z":{"dtype":"U8","shape":[3,0],"data_offsets":[3,3]}}`, 3),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.safetensors")
			require.NoError(t, os.WriteFile(path, b, 0o644))
			r, err := Open(path)
			require.NoError(t, err)
			require.NoError(t, r.Close())
		})
	}
	_, err := Open(filepath.Join(t.TempDir(), "no"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, err = Open(os.DevNull)
	assert.ErrorContains(t, err, "not a regular file")
}

func numbered(n int) []Entry {
	var out []Entry
	for i := range n {
		out = append(out, Entry{Name: fmt.Sprintf("t%02d", n-i), DType: F32, Shape: []int{4}, Data: f32(float32(n-i), 0, 0, 0)})
	}
	return out
}

// writeAll writes the files of Layout into a folder and returns their names.
func writeAll(t *testing.T, dir string, entries []Entry, limit int64) (names []string) {
	t.Helper()
	outputs, err := Layout("model", entries, limit)
	require.NoError(t, err)
	for _, o := range outputs {
		require.NoError(t, atomicfile.Write(filepath.Join(dir, o.Name), o.Encode))
		names = append(names, o.Name)
	}
	return names
}

func TestShards(t *testing.T) {
	dir := t.TempDir()
	entries := append(numbered(5), Entry{Name: "big", DType: U8, Shape: []int{100}, Data: make([]byte, 100)})
	names := writeAll(t, dir, entries, 40)
	assert.Equal(t, []string{"model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
		"model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors", "model.safetensors.index.json"}, names)
	var index struct {
		Metadata  map[string]int64
		WeightMap map[string]string `json:"weight_map"`
	}
	text, err := os.ReadFile(filepath.Join(dir, names[4]))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &index))
	assert.Equal(t, int64(180), index.Metadata["total_size"])
	assert.Equal(t, map[string]string{"t05": names[0], "t04": names[0], "t03": names[1], "t02": names[1],
		"t01": names[2], "big": names[3]}, index.WeightMap)

	for _, path := range []string{dir, filepath.Join(dir, names[4])} {
		r, err := Open(path)
		require.NoError(t, err)
		assert.Len(t, r.Tensors(), 6)
		for i := 1; i <= 5; i++ {
			v, err := r.Float32(fmt.Sprintf("t%02d", i))
			require.NoError(t, err)
			assert.Equal(t, float32(i), v[0])
		}
		require.NoError(t, r.Close())
	}

	assert.Equal(t, []string{"model.safetensors"}, writeAll(t, t.TempDir(), entries, 0))
	_, err = Layout("model", entries, -1)
	assert.ErrorContains(t, err, "negative")
	_, err = OpenDir(t.TempDir(), "model")
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestIndexRefuses(t *testing.T) {
	for name, c := range map[string]struct{ index, want string }{
		"not JSON":      {`{`, "unexpected end"},
		"no map":        {`{"metadata":{}}`, "weight_map is missing"},
		"traversal":     {`{"weight_map":{"w":"../a.safetensors"}}`, `tensor "w": shard "../a.safetensors" is not a file name`},
		"absolute":      {`{"weight_map":{"w":"/etc/passwd"}}`, "is not a file name"},
		"backslash":     {`{"weight_map":{"w":"..\\a"}}`, "is not a file name"},
		"missing shard": {`{"weight_map":{"w":"b.safetensors"}}`, "shard b.safetensors"},
		"wrong shard":   {`{"weight_map":{"w":"a.safetensors","v":"a.safetensors"}}`, `tensor "v": not in shard a.safetensors`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, Write(filepath.Join(dir, "a.safetensors"), []Entry{{Name: "w", DType: U8, Shape: []int{0}}}))
			path := filepath.Join(dir, "model.safetensors.index.json")
			require.NoError(t, os.WriteFile(path, []byte(c.index), 0o644))
			_, err := Open(path)
			require.Error(t, err)
			assert.ErrorContains(t, err, path)
			assert.ErrorContains(t, err, c.want)
		})
	}
}

// FuzzHeader: no bytes crash the reader, and what it accepts it can write and read again alike.
func FuzzHeader(f *testing.F) {
	var b bytes.Buffer
	if err := Encode(&b, sample()); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(file("{}", 0))
	f.Add(file(one("F32", "[2]", "[0,8]"), 8))
	f.Add(file(one("F32", "[4294967296,4294967296]", "[0,8]"), 8))
	f.Add(file(`{"__metadata__":{"a":"b"},"w":{"dtype":"BOOL","shape":[],"data_offsets":[0,1]}}  `, 1))
	f.Add(append(binary.LittleEndian.AppendUint64(nil, 1<<60), "{}"...))
	f.Fuzz(func(t *testing.T, in []byte) {
		tensors, data, err := readHeader(bytes.NewReader(in), int64(len(in)))
		if err != nil {
			return
		}
		content := map[string][]byte{}
		var entries []Entry
		for _, p := range tensors {
			content[p.Name] = in[data+p.begin : data+p.end]
			entries = append(entries, Entry{Name: p.Name, DType: p.DType, Shape: p.Shape, Data: content[p.Name]})
		}
		var out bytes.Buffer
		require.NoError(t, Encode(&out, entries))
		again, data, err := readHeader(bytes.NewReader(out.Bytes()), int64(out.Len()))
		require.NoError(t, err)
		require.Len(t, again, len(tensors))
		for _, p := range again {
			require.True(t, bytes.Equal(content[p.Name], out.Bytes()[data+p.begin:data+p.end]), p.Name)
		}
	})
}
