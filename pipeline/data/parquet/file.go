package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gpupipe/gpupipe/pipeline/data/column"
)

const (
	magic     = "PAR1"
	maxFooter = 64 << 20
	maxGroups = 1 << 20
)

// File is the footer of a Parquet file.
type File struct {
	r      io.ReaderAt
	size   int64
	footer []byte
	rows   int64
	schema schema
}

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
	if err := f.readFooter(); err != nil {
		return nil, fmt.Errorf("footer: %w", err)
	}
	return f, nil
}

// chunk is a column's part of a row group.
type chunk struct {
	from, length int64 // bytes of the file
	codec        int64
	rows         int64
}

// chunks returns the chunks of a column. It checks that each lies in the file, and that together they have the rows of
// the file.
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
		return c, fmt.Errorf("%d columns, expected %d", n, f.schema.leaves)
	case c.rows < 0:
		return c, fmt.Errorf("%d rows", c.rows)
	case values != c.rows:
		return c, fmt.Errorf("%d rows, but the column has %d values", c.rows, values)
	case c.rows == 0: // it may lack a place in the file
		return chunk{}, nil
	}
	return c, c.check(f.size)
}

// check compares a chunk with the size of its file.
func (c *chunk) check(size int64) error {
	if c.from < int64(len(magic)) || c.length < 0 || c.length > size-c.from {
		return fmt.Errorf("%d bytes at offset %d of a file of %d", c.length, c.from, size)
	}
	return checkCodec(c.codec)
}

// readChunk reads where a chunk lies and its number of values.
func (f *File) readChunk(t *thrift, c *chunk) (values int64, err error) {
	var data, dictionary int64
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
						t.intField(kind, &c.length)
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
	}
	return values, nil
}

func (c *chunk) end() int64 { return c.from + c.length }
