package arrow

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gpupipe/gpupipe/pipeline/data/column"
)

const (
	magic       = "ARROW1"
	maxMetadata = 64 << 20
	maxDepth    = 32
	maxFields   = 1 << 16
)

// Messages.
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
	begin  int64 // of the first batch
	fields []field
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
	if string(head) == magic {
		f.begin = 8
		if err := column.ReadAt(r, head, size-int64(len(head))); err != nil {
			return nil, err
		}
		if string(head) != magic {
			return nil, fmt.Errorf("ends with %q, expected %q: truncated", head, magic)
		}
	}
	m, err := f.message(f.begin)
	if err != nil {
		return nil, fmt.Errorf("not an Arrow file: %w", err)
	}
	if m == nil || m.kind != schemaMessage {
		return nil, errors.New("not an Arrow file: it does not begin with a schema")
	}
	f.begin = m.next
	return f, f.readSchema(m)
}

const continuation = 0xffffffff

// message reads the metadata of the message at an offset; nil: the stream ends there.
func (f *File) message(at int64) (*message, error) {
	var head [8]byte
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
	m := &message{kind: root.byte(1), header: root.table(2), body: at + int64(length), length: root.i64(3), metadata: fb}
	switch {
	case fb.err != nil:
		return nil, fb.err
	case m.length < 0 || m.length > f.size-m.body:
		return nil, fmt.Errorf("a message of %d bytes at offset %d of a file of %d", m.length, m.body, f.size)
	}
	m.next = m.body + m.length
	return m, nil
}

// Types.
const (
	typeNull            = 1
	typeBinary          = 4
	typeString          = 5
	typeList            = 12
	typeStruct          = 13
	typeUnion           = 14
	typeFixedList       = 16
	typeMap             = 17
	typeLargeBinary     = 19
	typeLargeString     = 20
	typeLargeList       = 21
	typeRunEnd          = 22
	typeBinaryView      = 23
	typeStringView      = 24
	typeListView        = 25
	typeLargeListView   = 26
	denseUnion          = 1
	littleEndian        = 0
	buffersOfFixedSize  = 2 // validity and values
	buffersOfTexts      = 3 // validity, offsets and values
	buffersOfListView   = 3
	buffersOfListOrView = 2 // a view's variadic buffers come on top
)

// field is a field of the schema, in depth-first order. nodes and buffers are those of the fields before it.
type field struct {
	path           string
	kind           byte
	dictionary     bool
	structs        []int // indexes of the structs around it
	inList         bool
	nodes, buffers int
	views          int // variadic counts of the fields before it
}

// layout counts what the fields so far take of a record batch.
type layout struct{ nodes, buffers, views, paths int }

func (f *File) readSchema(m *message) error {
	if m.header.i16(0) != littleEndian {
		return errors.New("numbers are big-endian, expected little-endian")
	}
	var l layout
	err := f.addFields(m.header, 1, field{}, &l, maxDepth)
	if m.metadata.err != nil {
		return fmt.Errorf("schema: %w", m.metadata.err)
	}
	return err
}

// addFields adds the fields that a vector of a table lists.
func (f *File) addFields(t table, index int, parent field, l *layout, depth int) error {
	at, n := t.vector(index, 4)
	if n > 0 && depth == 0 {
		return fmt.Errorf("the schema nests deeper than %d", maxDepth)
	}
	for i := range n {
		if t.f.err != nil {
			return t.f.err
		}
		if len(f.fields) == maxFields {
			return fmt.Errorf("the schema has more than %d fields", maxFields)
		}
		element := table{t.f, t.f.follow(at + 4*i)}
		e := field{path: element.text(0), kind: element.byte(2), dictionary: element.field(4) > 0, structs: parent.structs,
			inList: parent.inList, nodes: l.nodes, buffers: l.buffers, views: l.views}
		if parent.path != "" {
			e.path = parent.path + "." + e.path
		}
		if l.paths += len(e.path); l.paths > maxMetadata {
			return fmt.Errorf("the names of fields have more than %d bytes", maxMetadata)
		}
		self := len(f.fields)
		f.fields = append(f.fields, e)
		l.nodes++
		if e.dictionary { // indexes stand for the values
			l.buffers += buffersOfFixedSize
			continue
		}
		l.add(e.kind, element.table(3))
		if e.kind == typeStruct {
			e.structs = append(e.structs[:len(e.structs):len(e.structs)], self)
		} else {
			e.inList = true
		}
		if err := f.addFields(element, 5, e, l, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// add counts the buffers of a type.
func (l *layout) add(kind byte, t table) {
	switch kind {
	case typeNull, typeRunEnd:
	case typeStruct, typeFixedList:
		l.buffers++
	case typeUnion:
		l.buffers++
		if t.i16(0) == denseUnion {
			l.buffers++
		}
	case typeList, typeLargeList, typeMap:
		l.buffers += buffersOfListOrView
	case typeBinary, typeString, typeLargeBinary, typeLargeString:
		l.buffers += buffersOfTexts
	case typeListView, typeLargeListView:
		l.buffers += buffersOfListView
	case typeBinaryView, typeStringView:
		l.buffers += buffersOfListOrView
		l.views++
	default:
		l.buffers += buffersOfFixedSize
	}
}

func (e field) readable() bool {
	switch e.kind {
	case typeBinary, typeString, typeLargeBinary, typeLargeString:
		return !e.dictionary && !e.inList
	}
	return false
}

// Columns lists the columns that can be read.
func (f *File) Columns() (paths []string) {
	for _, e := range f.fields {
		if e.readable() {
			paths = append(paths, e.path)
		}
	}
	return paths
}
