package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
)

// DefaultShardLimit is how many bytes of tensors Hugging Face puts in one file.
const DefaultShardLimit = 5_000_000_000

// Entry is a tensor to write: its bytes in Data, or produced when they are needed by WriteTo.
type Entry struct {
	Name    string
	DType   DType
	Shape   []int
	Data    []byte
	WriteTo func(io.Writer) error // used when not nil
}

func (e Entry) tensor() Tensor { return Tensor{e.Name, e.DType, e.Shape} }

// Encode writes one safetensors file. The bytes depend on the entries alone, not on their order: wide
// elements first (so that all are aligned), then by name. Each entry is produced once and may then be freed.
func Encode(w io.Writer, entries []Entry) error {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(b.DType.Size(), a.DType.Size()), cmp.Compare(a.Name, b.Name))
	})
	text, err := encodeHeader(entries)
	if err != nil {
		return err
	}
	if _, err := w.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(text)))); err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	for _, e := range entries {
		if err := e.write(w); err != nil {
			return fmt.Errorf("tensor %q: %w", e.Name, err)
		}
	}
	return nil
}

func (e Entry) write(w io.Writer) error {
	want, _ := e.tensor().Bytes() // checked by encodeHeader
	c := &exact{w: w, left: want}
	var err error
	if e.WriteTo != nil {
		err = e.WriteTo(c)
	} else {
		_, err = c.Write(e.Data)
	}
	if err == nil && c.left > 0 {
		err = fmt.Errorf("got %d bytes, shape %v of %s takes %d", want-c.left, e.Shape, e.DType, want)
	}
	return err
}

// exact refuses more bytes than announced, before they damage the file.
type exact struct {
	w    io.Writer
	left int64
}

func (x *exact) Write(p []byte) (int, error) {
	if int64(len(p)) > x.left {
		return 0, fmt.Errorf("got at least %d bytes more than its shape takes", int64(len(p))-x.left)
	}
	n, err := x.w.Write(p)
	x.left -= int64(n)
	return n, err
}

func encodeHeader(sorted []Entry) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(`{"` + metadataKey + `":{"format":"pt"}`)
	names := map[string]bool{metadataKey: true}
	var at int64
	for _, e := range sorted {
		n, err := e.tensor().Bytes()
		switch {
		case err != nil:
			return nil, err
		case names[e.Name]:
			return nil, fmt.Errorf("tensor %q: the name is taken", e.Name)
		case !utf8.ValidString(e.Name):
			return nil, fmt.Errorf("tensor %q: the name is not UTF-8", e.Name)
		case at+n < at:
			return nil, fmt.Errorf("tensor %q: all tensors together overflow 64 bits", e.Name)
		case len(e.Shape) > maxRank:
			return nil, fmt.Errorf("tensor %q: %d dimensions, at most %d are allowed", e.Name, len(e.Shape), maxRank)
		}
		names[e.Name] = true
		shape := e.Shape
		if shape == nil {
			shape = []int{}
		}
		b.WriteByte(',')
		b.Write(compact(e.Name))
		b.WriteByte(':')
		b.Write(compact(struct {
			DType   DType    `json:"dtype"`
			Shape   []int    `json:"shape"`
			Offsets [2]int64 `json:"data_offsets"`
		}{e.DType, shape, [2]int64{at, at + n}}))
		at += n
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len() > maxHeader {
		return nil, fmt.Errorf("header of %d bytes, at most %d are allowed", b.Len(), maxHeader)
	}
	return b.Bytes(), nil
}

// compact is json.Marshal without the escapes meant for HTML.
func compact(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // strings and integers always encode
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Write writes one safetensors file at path: wholly or, on error, not at all.
func Write(path string, entries []Entry) error {
	return atomicfile.Write(path, func(w io.Writer) error { return Encode(w, entries) })
}

// Output is one file to be written.
type Output struct {
	Name   string
	Encode func(io.Writer) error
}

// Layout returns which files hold the entries: base.safetensors, or, when their data exceed limit bytes
// (0: DefaultShardLimit), base-00001-of-0000N.safetensors … and base.safetensors.index.json, in the order in
// which to write them. Tensors keep their order; one larger than the limit gets a file of its own.
func Layout(base string, entries []Entry, limit int64) ([]Output, error) {
	if limit < 0 {
		return nil, fmt.Errorf("shard limit %d is negative", limit)
	}
	if limit == 0 {
		limit = DefaultShardLimit
	}
	if _, err := encodeHeader(entries); err != nil { // every mistake before anything is written
		return nil, err
	}
	var shards [][]Entry
	var total, filled int64
	for _, e := range entries {
		n, _ := e.tensor().Bytes()
		if len(shards) == 0 || filled > 0 && n > limit-filled {
			shards, filled = append(shards, nil), 0
		}
		last := len(shards) - 1
		shards[last] = append(shards[last], e)
		filled += n
		total += n
	}
	if len(shards) <= 1 {
		return []Output{{base + ".safetensors", func(w io.Writer) error { return Encode(w, entries) }}}, nil
	}
	var out []Output
	where := map[string]string{}
	for i, shard := range shards {
		name := fmt.Sprintf("%s-%05d-of-%05d.safetensors", base, i+1, len(shards))
		for _, e := range shard {
			where[e.Name] = name
		}
		out = append(out, Output{name, func(w io.Writer) error { return Encode(w, shard) }})
	}
	return append(out, Output{indexName(base), func(w io.Writer) error { return encodeIndex(w, total, where) }}), nil
}

func indexName(base string) string { return base + ".safetensors.index.json" }

func encodeIndex(w io.Writer, total int64, where map[string]string) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(map[string]any{"metadata": map[string]int64{"total_size": total}, "weight_map": where})
}
