package arrow

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gpupipe/gpupipe/pipeline/data/column"
)

const (
	magic       = "ARROW1"
	feather1    = "FEA1"
	maxMetadata = 64 << 20
	maxDepth    = 32
	maxFields   = 1 << 16
)

// Values of Message.header_type.
const (
	schemaMessage      = 1
	dictionaryMessage  = 2
	recordBatchMessage = 3
)

// message is a message of the stream.
type message struct {
	kind     byte
	header   table
	body     int64 // offset in the file
	length   int64 // of the body
	next     int64 // where the next message begins
	metadata *flatbuffer
}

// File is a file whose schema was read.
type File struct {
	r      io.ReaderAt
	size   int64
	fields []field

	begin                 int64   // of a stream: of the message behind the schema
	footer                bool    // the footer lists the messages
	dictionaries, batches []int64 // offsets of messages, with a footer
}

// Open reads the schema of a file of the given size, in the stream or the file format.
func Open(r io.ReaderAt, size int64) (*File, error) {
	f := &File{r: r, size: size}
	head := make([]byte, len(magic))
	if size < 8 {
		return nil, fmt.Errorf("%d bytes, expected at least 8 of an Arrow file", size)
	}
	if err := column.ReadAt(r, head, 0); err != nil {
		return nil, err
	}
	if bytes.HasPrefix(head, []byte(feather1)) {
		return nil, errors.New("a file of Feather version 1, expected version 2, which is Arrow: pyarrow.feather.read_table and write_feather convert it")
	}
	if string(head) == magic {
		if err := f.readFooter(); err != nil {
			return nil, fmt.Errorf("footer: %w", err)
		}
		return f, nil
	}
	m, err := f.message(0)
	if err != nil {
		return nil, fmt.Errorf("not an Arrow file: %w", err)
	}
	if m == nil || m.kind != schemaMessage {
		return nil, errors.New("not an Arrow file: it does not begin with a schema")
	}
	f.begin = m.next
	return f, f.readSchema(m.header)
}

// readFooter reads the schema and where messages are from the end of a file in the file format.
func (f *File) readFooter() error {
	var tail [4 + len(magic)]byte
	most := f.size - int64(len(magic)+len(tail))
	if most < 0 {
		return fmt.Errorf("a file of %d bytes: truncated", f.size)
	}
	if err := column.ReadAt(f.r, tail[:], f.size-int64(len(tail))); err != nil {
		return err
	}
	if string(tail[4:]) != magic {
		return fmt.Errorf("ends with %q, expected %q: truncated", tail[4:], magic)
	}
	length := int64(binary.LittleEndian.Uint32(tail[:]))
	if most = min(most, maxMetadata); length > most {
		return fmt.Errorf("%d bytes, expected at most %d", length, most)
	}
	fb := &flatbuffer{b: make([]byte, length)}
	if err := column.ReadAt(f.r, fb.b, f.size-int64(len(tail))-length); err != nil {
		return err
	}
	root := fb.root()
	f.footer, f.dictionaries, f.batches = true, blocks(root, footerDictionaries), blocks(root, footerRecordBatches)
	return f.readSchema(root.table(footerSchema))
}

// blocks returns the offsets of the messages that a vector of a footer lists.
func blocks(footer table, slot int) (offsets []int64) {
	const size = 24 // offset, length of the metadata, length of the body
	at, n := footer.vector(slot, size)
	for i := range n {
		offsets = append(offsets, footer.f.i64(at+size*i))
	}
	return offsets
}

const continuation = 0xffffffff

// message reads the metadata of the message at an offset; nil: the stream ends there.
func (f *File) message(at int64) (*message, error) {
	var head [8]byte
	if at < 0 || at > f.size {
		return nil, fmt.Errorf("a message at offset %d of a file of %d", at, f.size)
	}
	if err := column.ReadAt(f.r, head[:4], at); err != nil {
		return nil, fmt.Errorf("the mark at the end of the stream is missing: truncated: %w", err)
	}
	length := binary.LittleEndian.Uint32(head[:])
	at += 4
	if length == continuation {
		if err := column.ReadAt(f.r, head[4:], at); err != nil {
			return nil, err
		}
		length = binary.LittleEndian.Uint32(head[4:])
		at += 4
	}
	if length == 0 {
		return nil, nil
	}
	if most := min(f.size-at, maxMetadata); int64(length) > most {
		return nil, fmt.Errorf("metadata of %d bytes at offset %d, expected at most %d", length, at, most)
	}
	fb := &flatbuffer{b: make([]byte, length)}
	if err := column.ReadAt(f.r, fb.b, at); err != nil {
		return nil, err
	}
	root := fb.root()
	m := &message{kind: root.byte(messageHeaderType), header: root.table(messageHeader), body: at + int64(length),
		length: root.i64(messageBodyLength), metadata: fb}
	switch {
	case fb.err != nil:
		return nil, fb.err
	case m.length < 0 || m.length > f.size-m.body:
		return nil, fmt.Errorf("a message of %d bytes at offset %d of a file of %d", m.length, m.body, f.size)
	}
	m.next = m.body + m.length
	return m, nil
}
