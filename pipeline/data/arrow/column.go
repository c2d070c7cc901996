package arrow

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/data/column"
	"github.com/klauspost/compress/zstd"
)

const (
	// MaxText bounds the bytes of a text.
	MaxText = 256 << 20

	maxBuffer    = 512 << 20 // of a buffer that was compressed
	maxExpansion = 256       // of a buffer of more than freeBuffer bytes
	freeBuffer   = 32 << 20
	bufferNone   = -1 // a compressed batch stores a buffer as it is
	codecZstd    = 1
)

// Column reads the values of a column, one row after the other.
type Column struct {
	file *File
	leaf field
	at   int64 // of the next message
	row  int64 // the current one

	left     int64     // rows of the batch that are left
	validity []*bitmap // of the structs around the column and of the column; nil: no nulls
	offsets  *reader
	values   *reader
	position int64 // in values
	unzip    *zstd.Decoder

	text []byte
	null bool
	err  error
}

// Column opens a column of strings by its path, names joined by dots.
func (f *File) Column(path string) (*Column, error) {
	i := slices.IndexFunc(f.fields, func(e field) bool { return e.path == path && !e.inList })
	switch {
	case i < 0:
		return nil, &column.MissingError{Column: path, Found: f.Columns()}
	case f.fields[i].dictionary:
		return nil, fmt.Errorf("column %q is encoded by a dictionary, expected a string", path)
	case !f.fields[i].readable():
		return nil, fmt.Errorf("column %q has type %d, expected string, large_string, binary or large_binary", path, f.fields[i].kind)
	}
	return &Column{file: f, leaf: f.fields[i], at: f.begin, row: -1}, nil
}

// SkipBatches skips record batches that end before a row and returns the row that Next gives next.
func (c *Column) SkipBatches(row int64) (next int64, err error) {
	for {
		m, err := c.file.message(c.at)
		if err != nil || m == nil {
			return c.row + 1, err
		}
		if m.kind == recordBatchMessage {
			n := m.header.i64(0)
			if m.metadata.err != nil || n < 0 || n > row-c.row-1 {
				return c.row + 1, m.metadata.err
			}
			c.row += n
		}
		c.at = m.next
	}
}

// Next goes on to the next row and reports whether there is one.
func (c *Column) Next() bool {
	if c.err != nil {
		return false
	}
	ok, err := c.next()
	if err != nil {
		c.err = fmt.Errorf("column %q: row %d: %w", c.leaf.path, c.row+1, err)
		return false
	}
	return ok
}

func (c *Column) next() (bool, error) {
	for c.left == 0 {
		m, err := c.file.message(c.at)
		if err != nil || m == nil {
			return false, err
		}
		c.at = m.next
		if m.kind != recordBatchMessage {
			continue
		}
		if err := c.open(m); err != nil {
			return false, fmt.Errorf("record batch at offset %d: %w", m.body, err)
		}
	}
	c.left--
	c.null = false
	for _, v := range c.validity {
		set, err := v.next()
		if err != nil {
			return false, err
		}
		c.null = c.null || !set
	}
	if err := c.readText(); err != nil {
		return false, err
	}
	c.row++
	return true, nil
}

// readText reads the text of a row. A null may have bytes, too.
func (c *Column) readText() error {
	end, err := c.offset()
	if err != nil {
		return err
	}
	n := end - c.position
	if n < 0 || n > c.values.left || n > MaxText {
		return fmt.Errorf("a text of %d bytes, expected at most %d", n, min(c.values.left, MaxText))
	}
	c.position = end
	c.text = make([]byte, n)
	if err := c.values.read(c.text); err != nil {
		return err
	}
	if c.null {
		c.text = nil
	}
	return nil
}

// Text is the value of the current row; nil if it is null.
func (c *Column) Text() []byte { return c.text }

// Null reports whether the current row has no value.
func (c *Column) Null() bool { return c.null }

// Row is the number of the current row, from 0.
func (c *Column) Row() int64 { return c.row }

// Offset is where what was read of the file ends.
func (c *Column) Offset() int64 { return c.at }

// Err is the error at which Next stopped.
func (c *Column) Err() error { return c.err }

// Close frees what decompression needed.
func (c *Column) Close() {
	if c.unzip != nil {
		c.unzip.Close()
	}
}

// open begins a record batch.
func (c *Column) open(m *message) error {
	rows := m.header.i64(0)
	nodes, nodeCount := m.header.vector(1, 16)
	_, buffers := m.header.vector(2, 16)
	index := c.leaf.buffers
	counts, n := m.header.vector(4, 8)
	if m.metadata.err != nil {
		return m.metadata.err
	}
	if c.leaf.views > n {
		return fmt.Errorf("%d counts of buffers, expected at least %d", n, c.leaf.views)
	}
	extra := 0
	for i := range c.leaf.views {
		more := m.metadata.i64(counts + 8*i)
		if more < 0 || more > int64(buffers) {
			return fmt.Errorf("%d buffers of a view", more)
		}
		extra += int(more)
	}
	index += extra
	if rows < 0 || c.leaf.nodes >= nodeCount || index+buffersOfTexts > buffers {
		return fmt.Errorf("%d rows, %d nodes and %d buffers, expected at least %d nodes and %d buffers", rows, nodeCount, buffers, c.leaf.nodes+1,
			index+buffersOfTexts)
	}
	c.validity = c.validity[:0]
	for _, s := range c.leaf.structs {
		if err := c.addValidity(m, nodes, c.file.fields[s].nodes, c.structBuffer(m, counts, c.file.fields[s]), rows); err != nil {
			return err
		}
	}
	if err := c.addValidity(m, nodes, c.leaf.nodes, index, rows); err != nil {
		return err
	}
	return c.openTexts(m, index, rows)
}

// structBuffer is the index of the validity of a struct around the column.
func (c *Column) structBuffer(m *message, counts int, s field) int {
	index := s.buffers
	for i := range s.views {
		index += int(m.metadata.i64(counts + 8*i))
	}
	return index
}

// addValidity adds the nulls of a field, if it has any.
func (c *Column) addValidity(m *message, nodes, node, index int, rows int64) error {
	length, nulls := m.metadata.i64(nodes+16*node), m.metadata.i64(nodes+16*node+8)
	if length != rows {
		return fmt.Errorf("a column of %d rows, expected %d", length, rows)
	}
	r, err := c.buffer(m, index)
	if err != nil {
		return err
	}
	switch {
	case r.left == 0 && nulls == 0:
		return nil
	case r.left < (rows+7)/8:
		return fmt.Errorf("nulls of %d rows in %d bytes", rows, r.left)
	}
	c.validity = append(c.validity, &bitmap{r: r})
	return nil
}

func (c *Column) openTexts(m *message, index int, rows int64) (err error) {
	if c.offsets, err = c.buffer(m, index+1); err != nil {
		return err
	}
	if c.values, err = c.buffer(m, index+2); err != nil {
		return err
	}
	if c.left = rows; rows == 0 {
		return nil
	}
	if width := int64(c.leaf.offsetBytes()); c.offsets.left/width <= rows {
		return fmt.Errorf("%d rows with offsets of %d bytes, expected %d more than rows", rows, c.offsets.left, 1)
	}
	if c.position, err = c.offset(); err != nil {
		return err
	}
	if c.position < 0 || c.position > c.values.left {
		return fmt.Errorf("texts begin at byte %d of %d", c.position, c.values.left)
	}
	return c.values.skip(c.position)
}

func (e field) offsetBytes() int {
	if e.kind == typeLargeBinary || e.kind == typeLargeString {
		return 8
	}
	return 4
}

// offset reads the next offset.
func (c *Column) offset() (int64, error) {
	var b [8]byte
	n := c.leaf.offsetBytes()
	if err := c.offsets.read(b[:n]); err != nil {
		return 0, err
	}
	if n == 4 {
		return int64(int32(binary.LittleEndian.Uint32(b[:]))), nil
	}
	return int64(binary.LittleEndian.Uint64(b[:])), nil
}

// buffer opens a buffer of a batch.
func (c *Column) buffer(m *message, index int) (*reader, error) {
	at, _ := m.header.vector(2, 16)
	offset, length := m.metadata.i64(at+16*index), m.metadata.i64(at+16*index+8)
	if m.metadata.err != nil {
		return nil, m.metadata.err
	}
	if offset < 0 || length < 0 || offset > m.length || length > m.length-offset {
		return nil, fmt.Errorf("a buffer of %d bytes at %d of a body of %d", length, offset, m.length)
	}
	section := io.NewSectionReader(c.file.r, m.body+offset, length)
	compression := m.header.table(3)
	if compression.at == 0 || length == 0 {
		return newReader(section, length), nil
	}
	if codec := compression.byte(0); codec != codecZstd {
		return nil, errors.New("buffers compressed by lz4, expected zstd or none")
	}
	return c.decompress(section, length)
}

func (c *Column) decompress(section *io.SectionReader, length int64) (*reader, error) {
	var head [8]byte
	if err := column.ReadAt(section, head[:], 0); err != nil {
		return nil, err
	}
	size, length := int64(binary.LittleEndian.Uint64(head[:])), length-8
	switch {
	case size == bufferNone:
		return newReader(io.NewSectionReader(section, 8, length), length), nil
	case size < 0 || size > maxBuffer || length > maxBuffer:
		return nil, fmt.Errorf("a compressed buffer of %d bytes, expected at most %d", size, maxBuffer)
	case size > freeBuffer && size > maxExpansion*length:
		return nil, fmt.Errorf("a buffer that expands from %d to %d bytes, expected at most %d times as many", length, size, maxExpansion)
	}
	raw := make([]byte, length)
	if err := column.ReadAt(section, raw, 8); err != nil {
		return nil, err
	}
	if c.unzip == nil {
		var err error
		if c.unzip, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true)); err != nil {
			return nil, err
		}
	}
	out, err := c.unzip.DecodeAll(raw, make([]byte, 0, size))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	if int64(len(out)) != size {
		return nil, fmt.Errorf("zstd: %d bytes, expected %d", len(out), size)
	}
	return &reader{memory: out, left: size}, nil
}

// reader reads a buffer from its start.
type reader struct {
	file   *bufio.Reader // nil: memory
	memory []byte
	left   int64
}

func newReader(r io.Reader, n int64) *reader {
	return &reader{file: bufio.NewReaderSize(r, int(min(max(n, 16), 1<<16))), left: n}
}

func (r *reader) read(b []byte) error {
	if int64(len(b)) > r.left {
		return io.ErrUnexpectedEOF
	}
	r.left -= int64(len(b))
	if r.file == nil {
		r.memory = r.memory[copy(b, r.memory):]
		return nil
	}
	_, err := io.ReadFull(r.file, b)
	return err
}

func (r *reader) skip(n int64) error {
	r.left -= n
	if r.file == nil {
		r.memory = r.memory[n:]
		return nil
	}
	_, err := io.CopyN(io.Discard, r.file, n)
	return err
}

// bitmap reads bits, the lowest of a byte first.
type bitmap struct {
	r    *reader
	byte [1]byte
	used uint // bits of the byte
}

func (b *bitmap) next() (bool, error) {
	if b.used%8 == 0 {
		if err := b.r.read(b.byte[:]); err != nil {
			return false, err
		}
	}
	bit := b.byte[0] >> (b.used % 8) & 1
	b.used++
	return bit == 1, nil
}
