package safetensors

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/placeholder"
	"github.com/gpupipe/gpupipe/internal/userpath"
)

// Reader gives the tensors of one file, or of several with an index. It is safe for concurrent use.
type Reader struct {
	path    string
	files   []*os.File
	tensors map[string]located
	names   []string
}

type located struct {
	Tensor
	file *os.File
	data *io.SectionReader
}

// Open opens a .safetensors file, an index (….json), or a folder that holds model.safetensors or
// model.safetensors.index.json. Every header is checked wholly; no tensor is read. Errors name the file and
// the tensor.
func Open(path string) (*Reader, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return OpenDir(path, "model")
	case strings.HasSuffix(path, ".json"):
		return openIndex(path)
	}
	r := &Reader{path: path, tensors: map[string]located{}}
	tensors, err := r.add(path)
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r.adopt(tensors)
	return r, nil
}

// OpenDir opens base.safetensors of a folder, or the shards that base.safetensors.index.json lists.
func OpenDir(dir, base string) (*Reader, error) {
	single := filepath.Join(dir, base+".safetensors")
	if _, err := os.Stat(single); err == nil {
		return Open(single)
	}
	sharded := filepath.Join(dir, indexName(base))
	if _, err := os.Stat(sharded); err == nil {
		return openIndex(sharded)
	}
	return nil, fmt.Errorf("%s: neither %s.safetensors nor %s found: %w", dir, base, indexName(base), os.ErrNotExist)
}

// add opens one file and checks its header.
func (r *Reader) add(path string) ([]located, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe would wait for ever
		return nil, errors.New("not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r.files = append(r.files, f)
	list, data, err := readHeader(f, info.Size())
	if err != nil {
		return nil, cmp.Or(placeholder.Check(f, info.Size()), err)
	}
	var out []located
	for _, t := range list {
		out = append(out, located{t.Tensor, f, io.NewSectionReader(f, data+t.begin, t.end-t.begin)})
	}
	return out, nil
}

func (r *Reader) adopt(list []located) {
	for _, t := range list {
		r.tensors[t.Name] = t
		r.names = append(r.names, t.Name)
	}
}

func openIndex(path string) (*Reader, error) {
	r := &Reader{path: path, tensors: map[string]located{}}
	if err := r.openShards(path); err != nil {
		r.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func (r *Reader) openShards(path string) error {
	where, err := readIndex(path)
	if err != nil {
		return err
	}
	byShard := map[string][]string{}
	for name, shard := range where {
		if !userpath.IsName(shard) {
			return fmt.Errorf("tensor %q: shard %q is not a file name in this folder", name, shard)
		}
		byShard[shard] = append(byShard[shard], name)
	}
	for _, shard := range slices.Sorted(maps.Keys(byShard)) {
		list, err := r.add(filepath.Join(filepath.Dir(path), shard))
		if err != nil {
			return fmt.Errorf("shard %s: %w", shard, err)
		}
		// The index decides: a tensor that a shard holds without being listed for it stays unseen.
		list = slices.DeleteFunc(list, func(t located) bool { return where[t.Name] != shard })
		r.adopt(list)
		for _, name := range byShard[shard] {
			if _, ok := r.tensors[name]; !ok {
				return fmt.Errorf("tensor %q: not in shard %s, where the index has it", name, shard)
			}
		}
	}
	return nil
}

// readIndex returns the file of each tensor. Hugging Face's indexes also hold metadata that nothing here needs.
func readIndex(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxHeader+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxHeader {
		return nil, fmt.Errorf("more than the %d bytes that are allowed", maxHeader)
	}
	var ix struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &ix); err != nil {
		return nil, cmp.Or(placeholder.CheckBytes(text), err)
	}
	if len(ix.WeightMap) == 0 {
		return nil, errors.New("weight_map is missing or empty")
	}
	return ix.WeightMap, nil
}

// Tensors lists all tensors, file by file in the order of their data.
func (r *Reader) Tensors() []Tensor {
	out := make([]Tensor, len(r.names))
	for i, name := range r.names {
		out[i] = r.tensors[name].Tensor
	}
	return out
}

// Rename gives all tensors other names. It must not run beside other methods. Two tensors with one name are an error.
func (r *Reader) Rename(name func(string) string) error {
	renamed := map[string]located{}
	for i, old := range r.names {
		t := r.tensors[old]
		t.Name = name(old)
		if _, twice := renamed[t.Name]; twice {
			return fmt.Errorf("tensor %q: another one is %q, too", old, t.Name)
		}
		renamed[t.Name] = t
		r.names[i] = t.Name
	}
	r.tensors = renamed
	return nil
}

// Lookup finds a tensor by name.
func (r *Reader) Lookup(name string) (Tensor, bool) {
	t, ok := r.tensors[name]
	return t.Tensor, ok
}

// Section returns a reader of a tensor's bytes: little-endian, row-major.
func (r *Reader) Section(name string) (*io.SectionReader, error) {
	t, err := r.find(name)
	if err != nil {
		return nil, err
	}
	return io.NewSectionReader(t.data, 0, t.data.Size()), nil
}

// Bytes reads a whole tensor: little-endian, row-major.
func (r *Reader) Bytes(name string) ([]byte, error) {
	t, err := r.find(name)
	if err != nil {
		return nil, err
	}
	b := make([]byte, t.data.Size())
	if n, err := t.data.ReadAt(b, 0); n < len(b) {
		return nil, t.failed(err)
	}
	return b, nil
}

// Float32 reads a tensor of F64, F32, F16 or BF16 and converts it; only F64 can lose precision.
func (r *Reader) Float32(name string) ([]float32, error) {
	t, err := r.find(name)
	if err != nil {
		return nil, err
	}
	size, err := t.floatSize()
	if err != nil {
		return nil, err
	}
	out := make([]float32, t.data.Size()/size)
	return out, t.floats(0, out)
}

// Float32At is Float32 of the elements of a tensor from one on. It fills dst.
func (r *Reader) Float32At(name string, from int, dst []float32) error {
	t, err := r.find(name)
	if err != nil {
		return err
	}
	if _, err := t.floatSize(); err != nil {
		return err
	}
	return t.floats(from, dst)
}

// floatSize returns the size of an element, which must be a float.
func (t located) floatSize() (int64, error) {
	switch t.DType {
	case F64, F32, F16, BF16:
		return t.DType.Size(), nil
	}
	return 0, fmt.Errorf("%s: tensor %q: dtype is %s, expected F32, F16, BF16 or F64", t.file.Name(), t.Name, t.DType)
}

// floats reads elements from one on.
func (t located) floats(from int, dst []float32) error {
	size := t.DType.Size()
	const chunk = 1 << 16
	buf := make([]byte, min(int64(chunk), int64(len(dst)))*size)
	for at := 0; at < len(dst); at += chunk {
		part := dst[at:min(at+chunk, len(dst))]
		b := buf[:int64(len(part))*size]
		if n, err := t.data.ReadAt(b, int64(from+at)*size); n < len(b) {
			return t.failed(err)
		}
		toFloat32(part, b, t.DType)
	}
	return nil
}

func (t located) failed(err error) error {
	return fmt.Errorf("%s: tensor %q: %w", t.file.Name(), t.Name, err)
}

func (r *Reader) find(name string) (located, error) {
	t, ok := r.tensors[name]
	if !ok {
		return t, fmt.Errorf("%s: no tensor %q among %d", r.path, name, len(r.names))
	}
	return t, nil
}

// Close closes the files.
func (r *Reader) Close() error {
	var errs []error
	for _, f := range r.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
