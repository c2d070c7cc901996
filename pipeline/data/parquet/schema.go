package parquet

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/data/column"
)

const (
	maxFields = 1 << 16  // of a schema
	maxPaths  = 16 << 20 // bytes of the paths of all columns
)

const byteArray = 6

var physicalTypes = []string{"BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"}

// Annotations of fields, by ConvertedType and by LogicalType. Only these change how a column is read.
var (
	convertedTypes = map[int64]string{1: mapKind, 2: mapKind, 3: listKind, 5: "decimal", 20: "BSON"}
	logicalTypes   = map[int64]string{2: mapKind, 3: listKind, 5: "decimal", 11: nullKind, 13: "BSON", 16: "variant", 17: "geometry",
		18: "geography"}
)

// Kinds of fields that have no physical type of their own.
const (
	textKind   = "text"
	nullKind   = "null"
	structKind = "struct"
	listKind   = "list"
	mapKind    = "map"
)

// schemaField is a column, a struct around columns, or a list or map with all that is in it.
type schemaField struct {
	path   string // names from the top, joined by dots
	kind   string // textKind, nullKind, structKind, or why it is no text
	leaf   int    // index among the columns of a row group
	levels int    // of optional fields on the path
}

func (s *schemaField) readable() bool { return s.kind == textKind || s.kind == nullKind }

// schema is the fields of a file, depth first.
type schema struct {
	fields []schemaField
	leaves int
	paths  int // bytes
}

// Columns lists the columns of texts that are in no list. A column of nulls is one.
func (f *File) Columns() (paths []string) {
	for _, e := range f.schema.fields {
		if e.readable() {
			paths = append(paths, e.path)
		}
	}
	return paths
}

// find returns a column that can be read.
func (s *schema) find(path string) (*schemaField, error) {
	i := slices.IndexFunc(s.fields, func(e schemaField) bool { return e.path == path })
	if i < 0 { // in one that is no struct?
		i = slices.IndexFunc(s.fields, func(e schemaField) bool {
			return e.kind != structKind && strings.HasPrefix(path, e.path+".")
		})
	}
	if i < 0 {
		return nil, &column.MissingError{Column: path, Found: s.describe()}
	}
	switch e := &s.fields[i]; {
	case e.readable() && e.path == path:
		return e, nil
	case e.kind == structKind:
		return nil, fmt.Errorf("column %q is a struct, expected texts: found %q", path, s.describe())
	case e.kind == listKind || e.kind == mapKind:
		return nil, fmt.Errorf("column %q is a %s, expected texts", e.path, e.kind)
	case e.path != path:
		return nil, fmt.Errorf("column %q has type %s, expected a struct, in which %q is", e.path, e.kind, path)
	default:
		return nil, fmt.Errorf("column %q has type %s, expected texts as BYTE_ARRAY", path, e.kind)
	}
}

// describe lists columns. A column that is no text has its kind.
func (s *schema) describe() (found []string) {
	for _, e := range s.fields {
		switch {
		case e.kind == structKind:
		case e.readable():
			found = append(found, e.path)
		default:
			found = append(found, fmt.Sprintf("%s (%s)", e.path, e.kind))
		}
	}
	return found
}

// field is an element of the schema as the file has it: fields in depth-first order.
type field struct {
	name                           string
	physical, repetition, children int64
	annotation                     string // of convertedTypes and logicalTypes
}

const repeatedField = 2

// kind is the kind of a field.
func (e *field) kind() string {
	switch {
	case e.annotation == mapKind:
		return e.annotation
	case e.annotation == listKind || e.repetition == repeatedField:
		return listKind
	case e.children > 0:
		return structKind
	case e.annotation != "":
		return e.annotation
	case e.physical == byteArray:
		return textKind
	case e.physical >= 0 && e.physical < int64(len(physicalTypes)):
		return physicalTypes[e.physical]
	}
	return fmt.Sprint("number ", e.physical)
}

func (f *File) readFooter() error {
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
	rest, err := f.schema.add(fields[1:], fields[0].children, schemaField{}, maxDepth)
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
		case 6:
			converted := int64(-1)
			t.intField(kind, &converted)
			if name := convertedTypes[converted]; name != "" {
				e.annotation = name
			}
		case 10: // a union
			t.want(kind, thriftStruct, func() {
				t.structure(func(id int64, kind byte) {
					if name := logicalTypes[id]; name != "" {
						e.annotation = name
					}
					t.skip(kind)
				})
			})
		default:
			t.skip(kind)
		}
	})
	return e
}

// add adds the first n fields and the fields within them, and returns the fields behind them. It counts the fields
// within a list or a map without adding them.
func (s *schema) add(fields []field, n int64, parent schemaField, depth int) (rest []field, err error) {
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
		own := schemaField{strings.TrimPrefix(parent.path+"."+e.name, "."), e.kind(), s.leaves, parent.levels}
		if e.repetition != 0 {
			own.levels++
		}
		if parent.kind == "" || parent.kind == structKind {
			if s.paths += len(own.path); s.paths > maxPaths {
				return nil, fmt.Errorf("the names of columns have more than %d bytes", maxPaths)
			}
			s.fields = append(s.fields, own)
		} else {
			own.path, own.kind = "", parent.kind
		}
		if e.children <= 0 {
			s.leaves++
			continue
		}
		if fields, err = s.add(fields, e.children, own, depth-1); err != nil {
			return nil, err
		}
	}
	return fields, nil
}
