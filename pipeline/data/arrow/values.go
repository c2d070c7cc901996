package arrow

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// MaxText bounds the bytes of a text.
const MaxText = 256 << 20

// values are the values of a column in a record batch. A text is nil if it is null; it does not change later.
type values interface {
	text(row int64) ([]byte, error)
}

// openValues opens the values of a field of a batch, without nulls of structs around it.
func (b *batch) openValues(kind byte, at place, rows int64) (values, error) {
	if rows == 0 || kind == typeNull { // buffers may be missing
		return nulls{}, nil
	}
	first, err := b.first(at)
	if err != nil {
		return nil, err
	}
	validity, err := b.validity(at, rows)
	if err != nil {
		return nil, err
	}
	var v values
	if kind == typeStringView || kind == typeBinaryView {
		v, err = b.openViews(first, at.views, rows)
	} else {
		v, err = b.openTexts(kind, first, rows)
	}
	if err != nil || validity == nil {
		return v, err
	}
	return &validValues{validity, v}, nil
}

// nulls are values of the type null.
type nulls struct{}

func (nulls) text(int64) ([]byte, error) { return nil, nil }

// bitmap holds bits, the lowest of a byte first.
type bitmap struct{ b *buffer }

func (b bitmap) set(row int64) (bool, error) {
	raw, err := b.b.bytes(row/8, 1)
	if err != nil {
		return false, err
	}
	return raw[0]>>(row%8)&1 == 1, nil
}

// validity returns which rows of a field are not null; nil: all.
func (b *batch) validity(at place, rows int64) (*bitmap, error) {
	length, nulls, err := b.node(at.nodes)
	if err != nil {
		return nil, err
	}
	if length != rows {
		return nil, fmt.Errorf("a column of %d rows, expected %d", length, rows)
	}
	first, err := b.first(at)
	if err != nil {
		return nil, err
	}
	if nulls == 0 {
		return nil, nil
	}
	bits, err := b.buffer(first)
	switch {
	case err != nil:
		return nil, err
	case bits.size < (rows+7)/8:
		return nil, fmt.Errorf("nulls of %d rows in %d bytes", rows, bits.size)
	}
	return &bitmap{bits}, nil
}

// validValues are values that may be null.
type validValues struct {
	validity *bitmap
	values   values
}

func (v *validValues) text(row int64) ([]byte, error) {
	if set, err := v.validity.set(row); err != nil || !set {
		return nil, err
	}
	return v.values.text(row)
}

// texts are values with offsets of where each begins.
type texts struct {
	offsets, content *buffer
	width            int64 // of an offset
}

func (b *batch) openTexts(kind byte, first int, rows int64) (t *texts, err error) {
	t = &texts{width: 4}
	if kind == typeLargeBinary || kind == typeLargeString {
		t.width = 8
	}
	if t.offsets, err = b.buffer(first + 1); err != nil {
		return nil, err
	}
	if t.offsets.size/t.width <= rows {
		return nil, fmt.Errorf("%d rows with offsets of %d bytes, expected one more than rows", rows, t.offsets.size)
	}
	t.content, err = b.buffer(first + 2)
	return t, err
}

func (t *texts) text(row int64) ([]byte, error) {
	from, err := t.offsets.integer(row, t.width, true)
	if err != nil {
		return nil, err
	}
	to, err := t.offsets.integer(row+1, t.width, true)
	if err != nil {
		return nil, err
	}
	return cut(t.content, from, to-from)
}

// cut returns a text; one of no bytes is not nil.
func cut(b *buffer, at, n int64) ([]byte, error) {
	if n > MaxText {
		return nil, fmt.Errorf("a text of %d bytes, expected at most %d", n, MaxText)
	}
	if n == 0 {
		return []byte{}, nil
	}
	return b.bytes(at, n)
}

// views are values of 16 bytes each, which hold a text of up to 12 bytes, or say where it is.
type views struct {
	views   *buffer
	batch   *batch
	first   int       // of the variadic buffers
	buffers []*buffer // nil: not open
	held    int64     // bytes that all open columns together may keep in memory
}

const (
	viewBytes = 16
	inView    = 12
)

func (b *batch) openViews(first, view int, rows int64) (*views, error) {
	n, err := b.variadic(view)
	if err != nil {
		return nil, err
	}
	own, err := b.buffer(first + 1)
	if err != nil {
		return nil, err
	}
	if own.size/viewBytes < rows {
		return nil, fmt.Errorf("%d rows with views of %d bytes", rows, own.size)
	}
	return &views{views: own, batch: b, first: first + buffersOfListOrView, buffers: make([]*buffer, n)}, nil
}

func (v *views) text(row int64) ([]byte, error) {
	view, err := v.views.bytes(row*viewBytes, viewBytes)
	if err != nil {
		return nil, err
	}
	n := int64(int32(binary.LittleEndian.Uint32(view)))
	switch {
	case n < 0:
		return nil, fmt.Errorf("a text of %d bytes", n)
	case n <= inView:
		return view[4:][:n:n], nil
	}
	b, err := v.open(int64(int32(binary.LittleEndian.Uint32(view[8:]))))
	if err != nil {
		return nil, err
	}
	return cut(b, int64(int32(binary.LittleEndian.Uint32(view[12:]))), n)
}

// open returns a variadic buffer.
func (v *views) open(index int64) (*buffer, error) {
	if index < 0 || index >= int64(len(v.buffers)) {
		return nil, fmt.Errorf("buffer %d of the %d of a view", index, len(v.buffers))
	}
	if b := v.buffers[index]; b != nil {
		return b, nil
	}
	b, err := v.batch.buffer(v.first + int(index))
	if err != nil {
		return nil, err
	}
	v.keep(int(index), b)
	return b, nil
}

// keep leaves a buffer open. All open ones keep at most maxBuffer bytes in memory, or are one: a file may declare very
// many that lie in the same place.
func (v *views) keep(index int, b *buffer) {
	if v.held += b.held(); v.held > maxBuffer {
		clear(v.buffers)
		v.held = b.held()
	}
	v.buffers[index] = b
}

// dictionary is the values that indexes name, in the order in which batches add to them.
type dictionary struct {
	texts [][]byte // nil: null
	bytes int64
}

// maxDictionary bounds the bytes of a dictionary, with textHead for each text.
const (
	maxDictionary = 512 << 20
	textHead      = 24
)

// add adds the values of a batch.
func (d *dictionary) add(v values, rows int64) error {
	for row := range rows {
		text, err := v.text(row)
		if err != nil {
			return fmt.Errorf("value %d: %w", row, err)
		}
		if d.bytes += int64(len(text)) + textHead; d.bytes > maxDictionary {
			return fmt.Errorf("more than %d bytes", maxDictionary)
		}
		d.texts = append(d.texts, bytes.Clone(text)) // without the window that it was read in
	}
	return nil
}

// indexes are values of a dictionary.
type indexes struct {
	indexes    *buffer
	kind       *dictionaryType
	dictionary *dictionary
}

func (b *batch) openIndexes(e *field, d *dictionary, rows int64) (values, error) {
	if rows == 0 {
		return nulls{}, nil
	}
	validity, err := b.validity(e.place, rows)
	if err != nil {
		return nil, err
	}
	first, err := b.first(e.place)
	if err != nil {
		return nil, err
	}
	own, err := b.buffer(first + 1)
	if err != nil {
		return nil, err
	}
	v := &indexes{own, e.dictionary, d}
	if validity == nil {
		return v, nil
	}
	return &validValues{validity, v}, nil
}

func (v *indexes) text(row int64) ([]byte, error) {
	i, err := v.indexes.integer(row, v.kind.bytes, v.kind.signed)
	switch {
	case err != nil:
		return nil, err
	case v.dictionary == nil:
		return nil, errors.New("its dictionary is missing")
	case i < 0 || i >= int64(len(v.dictionary.texts)):
		return nil, fmt.Errorf("value %d of a dictionary of %d", i, len(v.dictionary.texts))
	}
	return v.dictionary.texts[i], nil
}
