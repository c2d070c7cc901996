package data

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"unicode/utf8"

	"github.com/gpupipe/gpupipe/pipeline/data/arrow"
	"github.com/gpupipe/gpupipe/pipeline/data/column"
	"github.com/gpupipe/gpupipe/pipeline/data/parquet"
)

// rows are the texts of a column.
type rows interface {
	Next() bool
	Row() int64
	Offset() int64 // in the file, of what was read
	Text() []byte  // nil: null
	Err() error
	Close()
}

// readTable calls each with every text of a column that is not empty. Rows count as offsets.
func readTable(path string, k kind, field string, from mark, emit func(piece) error, each eachDocument) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	r, err := openRows(f, st.Size(), k, cmp.Or(field, "text"), from.Offset)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer r.Close()
	t := table{path: path, size: st.Size(), rows: r}
	return t.read(from, emit, each)
}

func openRows(f *os.File, size int64, k kind, column string, row int64) (rows, error) {
	if k == kindArrow {
		a, err := arrow.Open(f, size)
		if err != nil {
			return nil, err
		}
		c, err := a.Column(column)
		if err != nil {
			return nil, missingColumn(err)
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
		return nil, missingColumn(err)
	}
	c.SkipGroups(row)
	return c, nil
}

// missingColumn makes the error of a missing column that of a missing field.
func missingColumn(err error) error {
	var missing *column.MissingError
	if errors.As(err, &missing) {
		return &NoFieldError{Field: missing.Column, Found: missing.Found}
	}
	return err
}

// table reads the documents of a table.
type table struct {
	path string
	size int64 // of the file
	rows rows
}

func (t *table) read(from mark, emit func(piece) error, each eachDocument) error {
	docs, content, reported := 0, int64(0), int64(0)
	for t.rows.Next() {
		text := t.rows.Text()
		if content += int64(len(text)) + 1; expanded(content, t.size) {
			return fmt.Errorf("%s: %d bytes became %d of text, expected at most %d times as many", t.path, t.size, content, maxExpansion)
		}
		if t.rows.Row() < from.Offset || len(text) == 0 {
			continue
		}
		if err := checkUTF8(text); err != nil {
			return fmt.Errorf("%s: row %d: %w", t.path, t.rows.Row(), err)
		}
		skip := 0
		if t.rows.Row() == from.Offset {
			skip = from.Piece
		}
		docs++
		read := max(t.rows.Offset()-reported, 0)
		reported += read
		if err := each(text, t.rows.Row(), read, skip, emit); err != nil {
			return err
		}
	}
	if err := t.rows.Err(); err != nil {
		return fmt.Errorf("%s: %w", t.path, err)
	}
	if docs == 0 && from == (mark{}) {
		return fmt.Errorf("%s: no document: no row has a text", t.path)
	}
	return nil
}

// checkUTF8 refuses what is no text, as checkText does.
func checkUTF8(text []byte) error {
	if utf8.Valid(text) {
		return nil
	}
	bad := 0
	for rest := text; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		if r == utf8.RuneError && n == 1 {
			bad++
		}
		rest = rest[n:]
	}
	if float64(bad) > maxInvalid*float64(len(text)) {
		return fmt.Errorf("%d of %d bytes are not UTF-8, as in %.40q: expected text", bad, len(text), bytes.TrimSpace(text))
	}
	return nil
}
