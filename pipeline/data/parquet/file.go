package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/data/column"
)

const (
	magic     = "PAR1"
	maxFooter = 64 << 20
	maxFields = 1 << 16 // of a schema
	maxGroups = 1 << 20
	maxPaths  = 16 << 20 // bytes of the paths of all columns
)

// File is the footer of a Parquet file.
type File struct {
	r      io.ReaderAt
	size   int64
	footer []byte
	rows   int64
	leaves []leaf
	paths  int // bytes
}

// leaf is a field of the schema that has values.
type leaf struct {
	path     string // names from the top, joined by dots
	physical int64
	levels   int  // of optional fields on the path
	repeated bool // a field on the path is a list
}

const byteArray = 6

var physicalTypes = []string{"BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"}

// Open reads the footer of a file of the given size.
func Open(r io.ReaderAt, size int64) (*File, error) {
	var tail [8]byte
	if size < int64(len(magic)+len(tail)) {
		return nil, fmt.Errorf("%d bytes, expected at least %d of a Parquet file", size, len(magic)+len(tail))
	}
	if err := column.ReadAt(r, tail[:4], 0); err != nil {
		return nil, err
	}
	if string(tail[:4]) != magic {
		return nil, fmt.Errorf("begins with %q, expected %q of a Parquet file", tail[:4], magic)
	}
	if err := column.ReadAt(r, tail[:], size-int64(len(tail))); err != nil {
		return nil, err
	}
	if string(tail[4:]) != magic {
		return nil, fmt.Errorf("ends with %q, expected %q: truncated or encrypted", tail[4:], magic)
	}
	length := int64(binary.LittleEndian.Uint32(tail[:4]))
	if most := min(size-int64(len(magic)+len(tail)), maxFooter); length > most {
		return nil, fmt.Errorf("a footer of %d bytes, expected at most %d", length, most)
	}
	f := &File{r: r, size: size, footer: make([]byte, length)}
	if err := column.ReadAt(r, f.footer, size-int64(len(tail))-length); err != nil {
		return nil, err
	}
	if err := f.readSchema(); err != nil {
		return nil, fmt.Errorf("footer: %w", err)
	}
	return f, nil
}

// Rows is the number of rows that the footer declares.
func (f *File) Rows() int64 { return f.rows }

// Columns lists the columns that hold byte arrays and are no lists.
func (f *File) Columns() (paths []string) {
	for _, l := range f.leaves {
		if l.physical == byteArray && !l.repeated {
			paths = append(paths, l.path)
		}
	}
	return paths
}

// field is an element of the schema: fields in depth-first order.
type field struct {
	name                           string
	physical, repetition, children int64
}

func (f *File) readSchema() error {
	var fields []field
	t := &thrift{b: f.footer}
	t.structure(func(id int64, kind byte) {
		switch id {
		case 2:
			t.want(kind, thriftList, func() {
				t.list(func(kind byte) {
					if len(fields) == maxFields {
						t.fail(fmt.Errorf("a schema of more than %d fields", maxFields))
						return
					}
					t.want(kind, thriftStruct, func() { fields = append(fields, readField(t)) })
				})
			})
		case 3:
			t.intField(kind, &f.rows)
		default:
			t.skip(kind)
		}
	})
	switch {
	case t.err != nil:
		return t.err
	case len(fields) == 0:
		return errors.New("it has no schema")
	case f.rows < 0:
		return fmt.Errorf("%d rows", f.rows)
	}
	rest, err := f.addLeaves(fields[1:], fields[0].children, leaf{}, maxDepth)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("the schema has %d fields that belong to no other", len(rest))
	}
	return err
}

func readField(t *thrift) field {
	e := field{physical: -1}
	t.structure(func(id int64, kind byte) {
		switch id {
		case 1:
			t.intField(kind, &e.physical)
		case 3:
			t.intField(kind, &e.repetition)
		case 4:
			t.want(kind, thriftBinary, func() { e.name = string(t.binary()) })
		case 5:
			t.intField(kind, &e.children)
		default:
			t.skip(kind)
		}
	})
	return e
}

// addLeaves adds the leaves of the first n fields and returns the fields behind them.
func (f *File) addLeaves(fields []field, n int64, parent leaf, depth int) (rest []field, err error) {
	if depth == 0 {
		return nil, fmt.Errorf("the schema nests deeper than %d", maxDepth)
	}
	for range n {
		if len(fields) == 0 {
			return nil, errors.New("the schema declares more fields than it has")
		}
		e := fields[0]
		fields = fields[1:]
		if len(parent.path)+len(e.name) > maxPaths/maxDepth {
			return nil, fmt.Errorf("the name of a column has %d bytes", len(parent.path)+len(e.name))
		}
		l := leaf{strings.TrimPrefix(parent.path+"."+e.name, "."), e.physical, parent.levels, parent.repeated || e.repetition == 2}
		if e.repetition != 0 {
			l.levels++
		}
		if e.children > 0 {
			if fields, err = f.addLeaves(fields, e.children, l, depth-1); err != nil {
				return nil, err
			}
			continue
		}
		if f.paths += len(l.path); f.paths > maxPaths {
			return nil, fmt.Errorf("the names of columns have more than %d bytes", maxPaths)
		}
		f.leaves = append(f.leaves, l)
	}
	return fields, nil
}

// find returns the index of a column that can be read.
func (f *File) find(path string) (int, error) {
	i := slices.IndexFunc(f.leaves, func(l leaf) bool { return l.path == path })
	switch {
	case i < 0:
		return 0, &column.MissingError{Column: path, Found: f.Columns()}
	case f.leaves[i].repeated:
		return 0, fmt.Errorf("column %q is a list, expected texts", path)
	case f.leaves[i].physical != byteArray:
		name := fmt.Sprint(f.leaves[i].physical)
		if p := f.leaves[i].physical; p >= 0 && p < int64(len(physicalTypes)) {
			name = physicalTypes[p]
		}
		return 0, fmt.Errorf("column %q has type %s, expected BYTE_ARRAY", path, name)
	}
	return i, nil
}

// chunk is a column's part of a row group.
type chunk struct {
	from, to int64 // bytes of the file
	codec    int64
	rows     int64
}

// chunks returns the chunks of a column. Each lies in the file, and their rows are those of the file.
func (f *File) chunks(column int) (all []chunk, err error) {
	t := &thrift{b: f.footer}
	t.structure(func(id int64, kind byte) {
		if id != 4 {
			t.skip(kind)
			return
		}
		t.want(kind, thriftList, func() {
			t.list(func(kind byte) {
				t.want(kind, thriftStruct, func() {
					c, err := f.readGroup(t, column)
					if err == nil && len(all) == maxGroups {
						err = fmt.Errorf("more than %d", maxGroups)
					}
					if err != nil {
						t.fail(fmt.Errorf("row group %d: %w", len(all), err))
					}
					all = append(all, c)
				})
			})
		})
	})
	if t.err != nil {
		return nil, t.err
	}
	rows := int64(0)
	for _, c := range all {
		if rows += c.rows; rows < 0 {
			return nil, errors.New("the row groups have more than 2^63 rows")
		}
	}
	if rows != f.rows {
		return nil, fmt.Errorf("%d rows declared, but the row groups have %d", f.rows, rows)
	}
	return all, nil
}

func (f *File) readGroup(t *thrift, column int) (c chunk, err error) {
	n, values, found := 0, int64(0), false
	c.rows = -1
	t.structure(func(id int64, kind byte) {
		switch id {
		case 1:
			t.want(kind, thriftList, func() {
				t.list(func(kind byte) {
					t.want(kind, thriftStruct, func() {
						if n++; n-1 != column {
							t.skip(thriftStruct)
							return
						}
						found = true
						values, err = f.readChunk(t, &c)
					})
				})
			})
		case 3:
			t.intField(kind, &c.rows)
		default:
			t.skip(kind)
		}
	})
	switch {
	case t.err != nil:
		return c, t.err
	case err != nil:
		return c, err
	case !found:
		return c, fmt.Errorf("%d columns, expected %d", n, len(f.leaves))
	case c.rows < 0:
		return c, fmt.Errorf("%d rows", c.rows)
	case values != c.rows:
		return c, fmt.Errorf("%d rows, but the column has %d values", c.rows, values)
	}
	return c, nil
}

// readChunk reads where a chunk lies and its number of values.
func (f *File) readChunk(t *thrift, c *chunk) (values int64, err error) {
	var data, dictionary, length int64
	elsewhere := false
	t.structure(func(id int64, kind byte) {
		switch id {
		case 1:
			t.want(kind, thriftBinary, func() { elsewhere = len(t.binary()) > 0 })
		case 3:
			t.want(kind, thriftStruct, func() {
				t.structure(func(id int64, kind byte) {
					switch id {
					case 4:
						t.intField(kind, &c.codec)
					case 5:
						t.intField(kind, &values)
					case 7:
						t.intField(kind, &length)
					case 9:
						t.intField(kind, &data)
					case 11:
						t.intField(kind, &dictionary)
					default:
						t.skip(kind)
					}
				})
			})
		default:
			t.skip(kind)
		}
	})
	c.from = data
	if dictionary > 0 && dictionary < data {
		c.from = dictionary
	}
	switch {
	case t.err != nil:
		return 0, t.err
	case elsewhere:
		return 0, errors.New("its values are in another file")
	case c.from < int64(len(magic)) || length < 0 || length > math.MaxInt64-c.from || c.from+length > f.size:
		return 0, fmt.Errorf("bytes %d to %d of a file of %d", c.from, c.from+length, f.size)
	}
	c.to = c.from + length
	return values, checkCodec(c.codec)
}
