package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// Limits of a header. The largest published files have some 100 keys, 1,500 tensors and 500,000 merges.
const (
	maxKeys    = 1 << 16
	maxTensors = 1 << 18
	maxDims    = 4
	maxName    = 1 << 10
	maxString  = 1 << 24
	maxArray   = 1 << 24
)

// File is an open file. It is safe for concurrent use.
type File struct {
	path    string
	closers []func() error
	keys    map[string]any
	tensors []located
	byName  map[string]int
}

// located is a tensor and the place of its data in its file.
type located struct {
	Tensor
	file         io.ReaderAt
	offset, size int64 // size is -1 for a type that this package does not read
}

// IsFile reports whether a path is a regular file that begins as GGUF does.
func IsFile(path string) bool {
	if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, len(magic))
	_, err = io.ReadFull(f, head)
	return err == nil && string(head) == magic
}

// Open opens a file and checks its whole header. It reads no tensor. If the file is one of several parts, it opens all
// parts, whichever is named.
func Open(path string) (*File, error) {
	if at, of, ok := PartName(path); ok && at > 1 {
		path = partPath(path, 1, of)
	}
	f, err := openOne(path)
	if err != nil {
		return nil, err
	}
	if err := f.addParts(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Parse reads the header of a file of size bytes.
func Parse(r io.ReaderAt, size int64) (*File, error) {
	h := &header{r: bufio.NewReaderSize(io.NewSectionReader(r, 0, size), 1<<16), left: size}
	f := &File{keys: map[string]any{}, byName: map[string]int{}}
	f.parse(h)
	if h.err != nil {
		return nil, h.err
	}
	for i := range f.tensors {
		f.tensors[i].file = r
	}
	return f, f.locate(size-h.left, size)
}

// parse reads the header. A mistake is kept in h.err.
func (f *File) parse(h *header) {
	if head := h.bytes(int64(len(magic)), "magic"); h.err != nil || string(head) != magic {
		h.err = errors.New("not a GGUF file")
		return
	}
	if v := h.uint32(); v != 2 && v != version {
		h.fail("version is %d, expected 2 or %d of a little-endian machine", v, version)
		return
	}
	tensors, keys := h.count("tensors", maxTensors, 8+4+8+4+8), h.count("keys", maxKeys, 8+4+1)
	for range keys {
		name := h.text("key", maxName)
		value := h.value(name, h.uint32())
		if h.err != nil {
			return
		}
		if _, twice := f.keys[name]; twice {
			h.fail("key %q is listed twice", name)
			return
		}
		f.keys[name] = value
	}
	for range tensors {
		t := h.tensor()
		if h.err != nil {
			return
		}
		if _, twice := f.byName[t.Name]; twice {
			h.fail("tensor %q is listed twice", t.Name)
			return
		}
		f.byName[t.Name] = len(f.tensors)
		f.tensors = append(f.tensors, t)
	}
}

// locate checks that the tensors' data lie within the file, behind its header of end bytes.
func (f *File) locate(end, size int64) error {
	alignment := int64(defaultAlignment)
	if v, ok := f.keys[alignmentKey]; ok {
		n, ok := v.(int64)
		if !ok || n < 1 || n > 1<<20 || n&(n-1) != 0 {
			return fmt.Errorf("%s is %v, expected a power of two up to %d", alignmentKey, v, 1<<20)
		}
		alignment = n
	}
	start := aligned(end, alignment)
	for i := range f.tensors {
		t := &f.tensors[i]
		t.size = -1
		if t.Type.supported() {
			var err error
			if t.size, err = t.Bytes(); err != nil {
				return err
			}
		}
		if t.offset < 0 || t.offset%alignment != 0 || t.offset > size-start-max(t.size, 0) {
			return fmt.Errorf("tensor %q: data of %d bytes at offset %d, but %d bytes of data are in the file", t.Name, t.size, t.offset,
				max(size-start, 0))
		}
		t.offset += start
	}
	return nil
}

// Key returns the value of a key: a bool, int64, float64, string, []bool, []int64, []float64 or []string.
func (f *File) Key(name string) (any, bool) {
	v, ok := f.keys[name]
	return v, ok
}

// Keys returns all keys. The map must not be changed.
func (f *File) Keys() map[string]any { return f.keys }

// Tensors lists the tensors in the order of the file.
func (f *File) Tensors() []Tensor {
	out := make([]Tensor, len(f.tensors))
	for i, t := range f.tensors {
		out[i] = t.Tensor
	}
	return out
}

// Lookup finds a tensor by name.
func (f *File) Lookup(name string) (Tensor, bool) {
	i, ok := f.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i].Tensor, true
}

// Has reports whether there is a tensor of this name.
func (f *File) Has(tensor string) bool {
	_, ok := f.byName[tensor]
	return ok
}

// Float32 reads a tensor.
func (f *File) Float32(name string) ([]float32, error) {
	i, ok := f.byName[name]
	if !ok {
		return nil, fmt.Errorf("%s: tensor %q is missing", f.path, name)
	}
	t := f.tensors[i]
	if _, err := t.Bytes(); err != nil {
		return nil, fmt.Errorf("%s: %w", f.path, err)
	}
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	out := make([]float32, n)
	buf := make([]byte, int64(min(n, chunk))*t.size/int64(n))
	for at := 0; at < n; at += chunk {
		m := min(chunk, n-at)
		part := buf[:int64(m)*t.size/int64(n)]
		if _, err := t.file.ReadAt(part, t.offset+int64(at)*t.size/int64(n)); err != nil {
			return nil, fmt.Errorf("%s: tensor %q: %w", f.path, name, err)
		}
		decodeFloats(out[at:at+m], part, t.Type)
	}
	return out, nil
}

// Close closes the file, with all its parts.
func (f *File) Close() error {
	var errs []error
	for _, c := range f.closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// header reads the header. It keeps the first error.
type header struct {
	r    *bufio.Reader
	left int64 // bytes of the file that were not read
	err  error
}

func (h *header) fail(format string, args ...any) {
	if h.err == nil {
		h.err = fmt.Errorf(format, args...)
	}
}

// bytes reads n bytes of what.
func (h *header) bytes(n int64, what string) []byte {
	if h.err != nil {
		return nil
	}
	if n > h.left {
		h.fail("%s: the file ends after %d of %d bytes", what, h.left, n)
		return nil
	}
	buf := make([]byte, n)
	if _, err := io.ReadFull(h.r, buf); err != nil {
		h.fail("%s: %w", what, err)
		return nil
	}
	h.left -= n
	return buf
}

func (h *header) uint32() uint32 {
	if b := h.bytes(4, "header"); h.err == nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (h *header) uint64() uint64 {
	if b := h.bytes(8, "header"); h.err == nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count reads the number of things, each of at least size bytes in the file.
func (h *header) count(what string, most int, size int64) int {
	n := h.uint64()
	if h.err == nil && (n > uint64(most) || int64(n) > h.left/size) {
		h.fail("%d %s, expected at most %d, and no more than the file has room for", n, what, most)
		return 0
	}
	return int(n)
}

func (h *header) text(what string, most uint64) string {
	n := h.uint64()
	if h.err == nil && n > most {
		h.fail("%s: a text of %d bytes, expected at most %d", what, n, most)
	}
	return string(h.bytes(int64(n), what))
}

// tensor reads the description of a tensor. Its offset counts from the first tensor's data.
func (h *header) tensor() (t located) {
	t.Name = h.text("name of a tensor", maxName)
	dims := h.uint32()
	if h.err == nil && (dims < 1 || dims > maxDims) {
		h.fail("tensor %q has %d dimensions, expected 1 to %d", t.Name, dims, maxDims)
		return t
	}
	t.Shape = make([]int, dims)
	for d := range t.Shape {
		n := h.uint64()
		if n > math.MaxInt32 {
			h.fail("tensor %q: a dimension of %d, expected at most %d", t.Name, n, math.MaxInt32)
			return t
		}
		t.Shape[len(t.Shape)-1-d] = int(n)
	}
	t.Type = Type(h.uint32())
	offset := h.uint64()
	if offset > math.MaxInt64/2 {
		h.fail("tensor %q: offset is %d", t.Name, offset)
	}
	t.offset = int64(offset)
	return t
}

// scalarSizes are the bytes of metadata types that have a fixed size.
var scalarSizes = map[uint32]int64{typeUint8: 1, typeInt8: 1, typeUint16: 2, typeInt16: 2, typeUint32: 4, typeInt32: 4, typeFloat32: 4,
	typeBool: 1, typeUint64: 8, typeInt64: 8, typeFloat64: 8}

// value reads a value of a type.
func (h *header) value(key string, kind uint32) any {
	switch {
	case h.err != nil:
		return nil
	case kind == typeString:
		return h.text(fmt.Sprintf("key %q", key), maxString)
	case kind == typeArray:
		return h.array(key, h.uint32())
	case scalarSizes[kind] == 0:
		h.fail("key %q has a value of type %d, expected 0 to %d", key, kind, typeFloat64)
		return nil
	}
	b := h.bytes(scalarSizes[kind], key)
	if h.err != nil {
		return nil
	}
	return scalar(b, kind)
}

// array reads the values of an array.
func (h *header) array(key string, kind uint32) any {
	size := scalarSizes[kind]
	if kind == typeString {
		size = 8
	}
	if size == 0 {
		h.fail("key %q is an array of type %d, expected numbers, texts or booleans", key, kind)
		return nil
	}
	n := h.count(fmt.Sprintf("elements of key %q", key), maxArray, size)
	switch kind {
	case typeString:
		return listOf(h, n, func() string { return h.text(fmt.Sprintf("key %q", key), maxString) })
	case typeBool:
		return listOf(h, n, func() bool { v, _ := h.value(key, kind).(bool); return v })
	case typeFloat32, typeFloat64:
		return listOf(h, n, func() float64 { v, _ := h.value(key, kind).(float64); return v })
	}
	return listOf(h, n, func() int64 { v, _ := h.value(key, kind).(int64); return v })
}

// listOf reads up to n elements. It stops at the first error.
func listOf[T any](h *header, n int, next func() T) []T {
	list := make([]T, 0, n)
	for len(list) < n && h.err == nil {
		list = append(list, next())
	}
	return list
}

// scalar is a number or boolean. Integers beyond int64 become the largest one.
func scalar(b []byte, kind uint32) any {
	le := binary.LittleEndian
	switch kind {
	case typeUint8:
		return int64(b[0])
	case typeInt8:
		return int64(int8(b[0]))
	case typeUint16:
		return int64(le.Uint16(b))
	case typeInt16:
		return int64(int16(le.Uint16(b)))
	case typeUint32:
		return int64(le.Uint32(b))
	case typeInt32:
		return int64(int32(le.Uint32(b)))
	case typeFloat32:
		return float64(math.Float32frombits(le.Uint32(b)))
	case typeBool:
		return b[0] != 0
	case typeFloat64:
		return math.Float64frombits(le.Uint64(b))
	case typeInt64:
		return int64(le.Uint64(b))
	}
	return int64(min(le.Uint64(b), math.MaxInt64)) // typeUint64
}
