package jsontext

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

const (
	// MaxValue bounds the bytes of an object.
	MaxValue = 256 << 20

	maxDepth   = 10000 // of arrays and objects in one another
	bufferSize = 64 << 10
	keptBuffer = 1 << 20 // a longer text is handed out instead of copied
)

var utf8BOM = []byte("\xEF\xBB\xBF")

// Reader reads the texts of a stream.
type Reader struct {
	in    scanner
	field string
	array bool // the stream is one array
	ended bool // and was read to its end
	begun bool

	number  int64 // of the object, from 1; 0 after Resume
	start   int64 // of the object in the stream
	line    int64 // on which it begins
	text    []byte
	halves  int64    // surrogates in the text that had no other half
	seen    bool     // an object has the field
	missing error    // of the first object, if it lacks the field
	keys    []string // of the current object
	scratch []byte
	err     error
}

// HasObject reports whether a text begins with a JSON object, alone or in an array, as a Reader would take it.
func HasObject(text []byte) bool {
	return NewReader(bytes.NewReader(text), "").Next()
}

// NewReader reads a stream from its start. Dots in field lead into objects.
func NewReader(r io.Reader, field string) *Reader {
	return &Reader{in: scanner{source: source{r: r, line: 1, most: MaxValue}}, field: field}
}

// Resume continues reading a stream behind one of its objects. r begins there, offset bytes from the stream's start.
// array is what Array reported. An earlier object must have had the field.
func Resume(r io.Reader, field string, array bool, offset int64) *Reader {
	return &Reader{in: scanner{source: source{r: r, base: offset, most: MaxValue}}, field: field, array: array, begun: true, seen: true}
}

// Array reports whether the stream is one array.
func (r *Reader) Array() (bool, error) {
	r.begin()
	return r.array, r.err
}

// Start is the offset of the current object.
func (r *Reader) Start() int64 { return r.start }

// Offset is how much of the stream was read: after Next, the end of the current object.
func (r *Reader) Offset() int64 { return r.in.offset() }

// Text is the text of the current object, or nil if the field is null or absent. The caller may keep it.
func (r *Reader) Text() []byte { return r.text }

// Halves counts the halves of surrogate pairs in the text, which became U+FFFD.
func (r *Reader) Halves() int64 { return r.halves }

// Err is the error that ended Next.
func (r *Reader) Err() error { return r.err }

// FieldError reports that no object has the field.
type FieldError struct {
	Field string
	Found []string // the fields that the first object has
}

func (e *FieldError) Error() string { return fmt.Sprintf("no field %q, found %q", e.Field, e.Found) }

// Next goes to the next object. It returns false at the end of the stream, and at an error.
func (r *Reader) Next() bool {
	r.begin()
	if r.err != nil {
		return false
	}
	more, err := r.between()
	if err == nil && more {
		err = r.object()
	}
	switch {
	case err != nil:
		r.err = r.place(err)
	case !more && !r.seen:
		r.err = r.missing
	}
	return err == nil && more
}

// place says where an error was found.
func (r *Reader) place(err error) error {
	switch {
	case r.in.err != nil && !errors.Is(r.in.err, io.EOF): // of the stream itself
		return r.in.err
	case r.in.line == 0:
		return fmt.Errorf("the object at offset %d: %w", r.start, err)
	case r.array:
		err = fmt.Errorf("element %d of the array, line %d: %w", r.number, r.line, err)
	default:
		err = fmt.Errorf("line %d: %w", r.line, err)
	}
	if r.in.line != r.line && r.in.fill(1) {
		err = fmt.Errorf("%w (on line %d)", err, r.in.line)
	}
	return err
}

// begin reads up to the first object, and finds out whether the stream is an array.
func (r *Reader) begin() {
	if r.begun {
		return
	}
	r.begun = true
	if r.in.fill(len(utf8BOM)) && bytes.Equal(r.in.buf[r.in.pos:r.in.pos+len(utf8BOM)], utf8BOM) {
		r.in.pos += len(utf8BOM)
	}
	if r.in.space() && r.in.peek() == '[' {
		r.in.pos++
		r.array = true
	}
}

// between goes from one object to the next. more is false at the end.
func (r *Reader) between() (more bool, err error) {
	first := r.number == 0 && r.in.line != 0
	if r.in.line != 0 {
		r.number++
	}
	r.in.limit = 0
	more = r.in.space()
	r.line = r.in.line
	if !r.array || r.ended {
		if more && r.ended {
			return false, fmt.Errorf("found %s after the end of the array, expected the end of the file", r.in.quote())
		}
		return more, r.in.failed()
	}
	if more && r.in.peek() == ']' {
		r.in.pos++
		r.ended = true
		r.number--
		return r.between()
	}
	if more && !first && r.in.peek() == ',' {
		r.in.pos++
		more = r.in.space()
		r.line = r.in.line
	} else if more && !first && r.in.line != 0 {
		return false, fmt.Errorf("found %s, expected a comma or the end of the array", r.in.quote())
	}
	if !more {
		return false, errors.Join(r.in.failed(), errors.New("the file ends within an array"))
	}
	return true, nil
}

// object reads an object, and what may follow it on its line.
func (r *Reader) object() error {
	r.start, r.text, r.halves, r.keys = r.in.offset(), nil, 0, r.keys[:0]
	r.line, r.in.limit = r.in.line, r.start+r.in.most
	if c := r.in.peek(); c != '{' {
		what, err := r.describe()
		if err != nil {
			return err
		}
		return fmt.Errorf("found %s, expected an object such as {%q: \"…\"}", what, r.field)
	}
	f, err := r.find(r.field, "", 0)
	if err != nil {
		return err
	}
	if !r.array && r.in.blanks() && r.in.peek() != '\n' {
		return fmt.Errorf("found %s after the object, expected the end of the line", r.in.quote())
	}
	r.seen = r.seen || f.kind != absent
	switch f.kind {
	case absent:
		if !r.seen && r.missing == nil {
			slices.Sort(r.keys)
			r.missing = r.place(&FieldError{r.field, slices.Compact(slices.Clone(r.keys))})
		}
	case noObject:
		return fmt.Errorf("field %q is %s: expected an object, in which %q is", f.name, f.what, r.field)
	case otherValue:
		if r.number == 1 && f.what == anObject {
			return fmt.Errorf("field %q is %s: expected a string; pandas.to_json writes rows with orient=\"records\"", r.field, f.what)
		}
		return fmt.Errorf("field %q is %s: expected a string", r.field, f.what)
	case stringValue:
		r.text, r.halves = f.text, f.halves
	}
	return r.in.failed()
}

const anObject = "an object"

type valueKind int

const (
	absent   valueKind = iota
	noObject           // in the place of an object around the field
	nullValue
	stringValue
	otherValue
)

// found is the value of a field.
type found struct {
	kind   valueKind
	text   []byte // of a string; not nil
	what   string // describes another value
	name   string // of the field that is no object
	halves int64
}

// find reads an object and returns the value at a path in it. prefix is the path of the object. A key that spells more
// of the path takes precedence; of equal keys the last one.
func (r *Reader) find(path, prefix string, depth int) (best found, err error) {
	spelled := 0 // the length of the key that led to best
	err = r.in.members(depth, func(key []byte) (err error) {
		rest, leads := strings.CutPrefix(path, string(key))
		leads = leads && (rest == "" || rest[0] == '.') && (len(key) >= spelled || best.kind <= noObject)
		name, inner := prefix+string(key), rest != "" && r.in.peek() == '{'
		if !leads || !inner {
			r.addKey(name)
		}
		if !leads {
			return r.in.skip(depth + 1)
		}
		spelled = len(key)
		if inner {
			best, err = r.find(rest[1:], name+".", depth+1)
			return err
		}
		if best, err = r.take(depth + 1); rest != "" && best.kind > nullValue {
			best.kind, best.name = noObject, name
			best.what = cmp.Or(best.what, "a string")
		}
		return err
	})
	return best, err
}

const maxKeys = 64 // that an error lists

func (r *Reader) addKey(name string) {
	if len(r.keys) < maxKeys {
		r.keys = append(r.keys, name)
	}
}

// take reads a value and keeps it, if it is a string.
func (r *Reader) take(depth int) (found, error) {
	switch r.in.peek() {
	case '"':
		r.in.halves = 0
		var err error
		if r.scratch, err = r.in.str(r.scratch[:0]); err != nil {
			return found{}, err
		}
		f := found{kind: stringValue, text: r.scratch, halves: r.in.halves}
		if cap(r.scratch) > keptBuffer {
			r.scratch = nil
		} else {
			f.text = append([]byte{}, r.scratch...)
		}
		return f, nil
	case 'n':
		return found{kind: nullValue}, r.in.literal("null")
	case '{', '[':
		what := map[byte]string{'{': anObject, '[': "a list"}[r.in.peek()]
		return found{kind: otherValue, what: what}, r.in.skip(depth)
	}
	what, err := r.in.scalar()
	return found{kind: otherValue, what: what}, err
}

// describe names the value that stands in the place of an object.
func (r *Reader) describe() (string, error) {
	switch c := r.in.peek(); c {
	case '[':
		return "a list", nil
	case '"':
		text, err := r.in.str(nil)
		if len(text) > 40 {
			text = append(text[:40], "…"...)
		}
		return fmt.Sprintf("a string, %q", text), err
	default:
		if c != '-' && (c < '0' || c > '9') && !bytes.ContainsRune([]byte("ntfNI"), rune(c)) {
			return "", r.in.notJSON("an object")
		}
		what, err := r.in.scalar()
		if c == '-' || '0' <= c && c <= '9' {
			what = "the number " + what
		}
		return what, err
	}
}
