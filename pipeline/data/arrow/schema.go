package arrow

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/data/column"
)

// Values of Field.type_type.
const (
	typeNull          = 1
	typeInt           = 2
	typeFloat         = 3
	typeBinary        = 4
	typeString        = 5
	typeList          = 12
	typeStruct        = 13
	typeUnion         = 14
	typeFixedList     = 16
	typeMap           = 17
	typeLargeBinary   = 19
	typeLargeString   = 20
	typeLargeList     = 21
	typeRunEnd        = 22
	typeBinaryView    = 23
	typeStringView    = 24
	typeListView      = 25
	typeLargeListView = 26
)

var typeNames = []string{"none", "null", "int", "float", "binary", "string", "bool", "decimal", "date", "time", "timestamp", "interval",
	"list",
	"struct", "union", "fixed_size_binary", "fixed_size_list", "map", "duration", "large_binary", "large_string", "large_list",
	"run_end_encoded", "binary_view", "string_view", "list_view", "large_list_view"}

var floatNames = []string{"half_float", "float", "double"}

const (
	denseUnion          = 1
	littleEndian        = 0
	buffersOfFixedSize  = 2 // validity and values
	buffersOfTexts      = 3 // validity, offsets and values
	buffersOfListView   = 3
	buffersOfListOrView = 2 // a view's variadic buffers come on top
)

// field is a field of the schema. File.fields has those that are in no list, depth first.
type field struct {
	path       string
	kind       byte
	inList     bool   // in a list, a map or a union, at any depth
	name       string // of the type
	dictionary *dictionaryType
	structs    []place // places of the structs around it
	place      place
}

// dictionaryType is how a field names values of a dictionary.
type dictionaryType struct {
	id     int64
	bytes  int64 // of an index
	signed bool
	nested bool // values have fields or dictionaries of their own
}

// place is a position in a record batch: how many nodes, buffers and counts of buffers of views come before it.
type place struct{ nodes, buffers, views int }

// schemaReader reads the fields of a schema.
type schemaReader struct {
	file  *File
	at    place
	seen  int // fields
	paths int // bytes
}

func (f *File) readSchema(t table) error {
	switch {
	case t.f.err == nil && t.at == 0:
		return errors.New("it has no schema")
	case t.i16(schemaEndianness) != littleEndian:
		return errors.New("numbers are big-endian, expected little-endian")
	}
	r := schemaReader{file: f}
	err := r.addFields(t, schemaFields, field{kind: typeStruct}, maxDepth)
	if t.f.err != nil {
		return fmt.Errorf("schema: %w", t.f.err)
	}
	return err
}

// addFields adds the children of a field, depth first. Those in a list are not added, but their nodes and buffers count
// for the places of the fields behind them.
func (r *schemaReader) addFields(t table, slot int, parent field, depth int) error {
	at, n := t.vector(slot, 4)
	if n > 0 && depth == 0 {
		return fmt.Errorf("the schema nests deeper than %d", maxDepth)
	}
	for i := range n {
		if t.f.err != nil {
			return t.f.err
		}
		if r.seen++; r.seen > maxFields {
			return fmt.Errorf("the schema has more than %d fields", maxFields)
		}
		element := table{t.f, t.f.follow(at + 4*i)}
		e := readField(element, parent, r.at)
		if !e.inList {
			if r.paths += len(e.path); r.paths > maxMetadata {
				return fmt.Errorf("the names of fields have more than %d bytes", maxMetadata)
			}
			r.file.fields = append(r.file.fields, e)
		}
		r.at.nodes++
		if e.dictionary != nil { // indexes stand for the values
			r.at.buffers += buffersOfFixedSize
			continue
		}
		r.at.add(e.kind, element.table(fieldType))
		e.structs = append(e.structs[:len(e.structs):len(e.structs)], e.place)
		if err := r.addFields(element, fieldChildren, e, depth-1); err != nil {
			return err
		}
	}
	return nil
}

func readField(t table, parent field, at place) field {
	e := field{path: t.text(fieldName), kind: t.byte(fieldTypeType), inList: parent.inList || parent.kind != typeStruct,
		structs: parent.structs, place: at}
	if parent.path != "" {
		e.path = parent.path + "." + e.path
	}
	e.name = fmt.Sprint("number ", e.kind)
	if int(e.kind) < len(typeNames) {
		e.name = typeNames[e.kind]
	}
	if precision := t.table(fieldType).i16(floatingPointPrecision); e.kind == typeFloat && precision < len(floatNames) {
		e.name = floatNames[precision]
	}
	if d := t.table(fieldDictionary); d.at > 0 {
		e.dictionary = &dictionaryType{id: d.i64(dictionaryEncodingID), bytes: 4, signed: true}
		if index := d.table(dictionaryEncodingIndexType); index.at > 0 {
			e.dictionary.bytes, e.dictionary.signed = int64(index.i32(intBitWidth)/8), index.byte(intIsSigned) != 0
		}
		_, inside := t.vector(fieldChildren, 4)
		e.dictionary.nested = inside > 0
		e.name = "dictionary of " + e.name
	}
	return e
}

// add counts the buffers of a type.
func (l *place) add(kind byte, t table) {
	switch kind {
	case typeNull, typeRunEnd:
	case typeStruct, typeFixedList:
		l.buffers++
	case typeUnion:
		l.buffers++
		if t.i16(unionMode) == denseUnion {
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

// readable reports whether a field has texts: it may have nulls alone.
func (e *field) readable() bool {
	switch e.kind {
	case typeBinary, typeString, typeLargeBinary, typeLargeString, typeBinaryView, typeStringView:
		return e.dictionary == nil || !e.dictionary.nested && slices.Contains([]int64{1, 2, 4, 8}, e.dictionary.bytes)
	case typeNull:
		return e.dictionary == nil
	}
	return false
}

// Columns lists the columns of texts that are in no list. A column of nulls is one.
func (f *File) Columns() (paths []string) {
	for _, e := range f.fields {
		if e.readable() {
			paths = append(paths, e.path)
		}
	}
	return paths
}

// describe lists columns. A column that is no text has its type.
func (f *File) describe() (found []string) {
	for _, e := range f.fields {
		switch {
		case e.readable():
			found = append(found, e.path)
		case e.kind != typeStruct || e.dictionary != nil:
			found = append(found, fmt.Sprintf("%s (%s)", e.path, e.name))
		}
	}
	return found
}

// find returns a column that can be read.
func (f *File) find(path string) (field, error) {
	i := slices.IndexFunc(f.fields, func(e field) bool { return e.path == path })
	if i < 0 { // in one that is no struct?
		i = slices.IndexFunc(f.fields, func(e field) bool {
			return (e.kind != typeStruct || e.dictionary != nil) && strings.HasPrefix(path, e.path+".")
		})
	}
	if i < 0 {
		return field{}, &column.MissingError{Column: path, Found: f.describe()}
	}
	switch e := f.fields[i]; {
	case e.path != path:
		return field{}, fmt.Errorf("column %q has type %s, expected a struct, in which %q is", e.path, e.name, path)
	case e.readable():
		return e, nil
	case e.kind == typeStruct && e.dictionary == nil:
		return field{}, fmt.Errorf("column %q is a struct, expected texts: found %q", path, f.describe())
	default:
		return field{}, fmt.Errorf("column %q has type %s, expected texts: string, binary, their large and view forms, or a dictionary of them",
			e.path, e.name)
	}
}
