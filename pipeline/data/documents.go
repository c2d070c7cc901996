package data

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/gpupipe/gpupipe/pipeline/data/arrow"
	"github.com/gpupipe/gpupipe/pipeline/data/column"
	"github.com/gpupipe/gpupipe/pipeline/data/jsontext"
	"github.com/gpupipe/gpupipe/pipeline/data/parquet"
)

// FieldSetting adds to the error of a missing field, or column, where the user sets its name: with a flag, or a key of
// a config.
func FieldSetting(err error, setting string) error {
	var missing *jsontext.FieldError
	if errors.As(err, &missing) {
		return fmt.Errorf("%w; %s names the field to read", err, setting)
	}
	return err
}

// rows are the texts of a file of several documents.
type rows interface {
	Next() bool
	Row() int64    // of the current text: its number, in JSON the offset of its object
	After() int64  // where reading goes on after it
	Offset() int64 // in the file, of what was read since rows were opened
	Text() []byte  // nil: null
	Lost() int64   // characters of it that could not be kept
	Err() error
	Close()
}

// readDocuments calls each with every text of a file that is not empty.
func readDocuments(path string, f format, field string, from mark, emit func(piece) error, each eachDocument) error {
	field = cmp.Or(field, "text")
	var r rows
	var err error
	if f.kind == kindJSON {
		r, err = openJSON(path, f.compression, field, from.Offset)
	} else {
		r, err = openTable(path, f.kind, field, from.Offset)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, missingField(err))
	}
	defer r.Close()
	d := documentFile{path: path, rows: r, unit: "row", gauge: gauge{path: path}}
	if f.kind == kindJSON {
		d.unit = "the object at offset"
	}
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	d.size = st.Size()
	return d.read(from, emit, each)
}

// missingField turns the error of a missing column into the error of a missing field.
func missingField(err error) error {
	var missing *column.MissingError
	if errors.As(err, &missing) {
		return &jsontext.FieldError{Field: missing.Column, Found: missing.Found}
	}
	return err
}

// documentFile is a file of several documents.
type documentFile struct {
	path  string
	size  int64 // of the file
	rows  rows
	unit  string // of a row's place
	gauge gauge
	tally Tally // since the last document
}

func (d *documentFile) read(from mark, emit func(piece) error, each eachDocument) error {
	content, reported := int64(0), int64(0)
	after, skip := from.Offset, from.Piece
	for d.rows.Next() {
		text := d.rows.Text()
		if content += int64(len(text)) + 1; expanded(content, d.size) {
			return fmt.Errorf("%s: %d bytes became %d of text, expected at most %d times as many", d.path, d.size, content, maxExpansion)
		}
		if d.rows.Row() < from.Offset || !d.accept(text) {
			continue
		}
		bad, err := d.gauge.add(text, d.rows.Lost(), func(int) string { return fmt.Sprintf(", in %s %d", d.unit, d.rows.Row()) })
		if err != nil {
			return err
		}
		d.tally.NotUTF8 += bad
		read := max(d.rows.Offset()-reported, 0)
		reported += read
		if err := each(document{text, after, skip, read, d.tally}, emit); err != nil {
			return err
		}
		after, skip, d.tally = d.rows.After(), 0, Tally{}
	}
	if err := d.rows.Err(); err != nil {
		return fmt.Errorf("%s: %w", d.path, err)
	}
	if err := d.gauge.end(); err != nil {
		return err
	}
	if d.tally == (Tally{}) {
		return nil
	}
	return emit(piece{mark: mark{Offset: after}, tally: d.tally})
}

// accept counts a text that is no document.
func (d *documentFile) accept(text []byte) bool {
	switch {
	case text == nil:
		d.tally.Nulls++
	case len(text) == 0:
		d.tally.Empty++
	}
	return len(text) > 0
}

// jsonRows are the texts of JSON objects.
type jsonRows struct {
	*jsontext.Reader
	stream *inputStream
	from   int64 // offset in the content
}

func openJSON(path string, c compression, field string, from int64) (rows, error) {
	s, err := openStream(path, c)
	if err != nil {
		return nil, err
	}
	r := jsontext.NewReader(s, field)
	if from > 0 {
		array, err := r.Array()
		if err := errors.Join(err, s.Close()); err != nil {
			return nil, err
		}
		if s, err = openStream(path, c); err != nil {
			return nil, err
		}
		if err := s.seek(from); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		r = jsontext.Resume(s, field, array, from)
	}
	return &jsonRows{r, s, from}, nil
}

func (r *jsonRows) Row() int64   { return r.Start() }
func (r *jsonRows) After() int64 { return r.Reader.Offset() }
func (r *jsonRows) Lost() int64  { return r.Halves() }
func (r *jsonRows) Close()       { r.stream.Close() }
func (r *jsonRows) Offset() int64 {
	if r.stream.counted != nil {
		return r.stream.counted.n
	}
	return r.Reader.Offset() - r.from
}

// columnReader reads the texts of a column.
type columnReader interface {
	Next() bool
	Row() int64
	Offset() int64
	Text() []byte
	Err() error
	Close()
}

// tableRows are the texts of a column.
type tableRows struct {
	columnReader
	file *os.File
}

func (r *tableRows) After() int64 { return r.Row() + 1 }
func (r *tableRows) Lost() int64  { return 0 }
func (r *tableRows) Close() {
	r.columnReader.Close()
	r.file.Close()
}

func openTable(path string, k kind, column string, from int64) (rows, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil {
		var c columnReader
		if c, err = openColumn(f, st.Size(), k, column, from); err == nil {
			return &tableRows{c, f}, nil
		}
	}
	return nil, errors.Join(err, f.Close())
}

func openColumn(f *os.File, size int64, k kind, column string, row int64) (columnReader, error) {
	if k == kindArrow {
		a, err := arrow.Open(f, size)
		if err != nil {
			return nil, err
		}
		c, err := a.Column(column)
		if err != nil {
			return nil, err
		}
		_, err = c.SkipBatches(row)
		return c, err
	}
	p, err := parquet.Open(f, size)
	if err != nil {
		return nil, err
	}
	c, err := p.Column(column)
	if err != nil {
		return nil, err
	}
	c.SkipGroups(row)
	return c, nil
}
