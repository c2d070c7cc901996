package arrow

import (
	"errors"
	"fmt"
)

// Column reads the values of a column, one row after the other.
type Column struct {
	file    *File
	field   field
	at      int64    // of the next message of a stream
	batch   int      // index of the next message of a footer
	pending *message // the next one, if it was read
	read    int64    // where the last one ends
	row     int64    // the current one

	rows       int64 // of the record batch
	inside     int64 // rows of it that were read
	structs    []*bitmap
	values     values
	dictionary *dictionary
	unzip      unzip

	text []byte
	err  error
}

// Column opens a column of texts by its path, names joined by dots.
func (f *File) Column(path string) (*Column, error) {
	e, err := f.find(path)
	if err != nil {
		return nil, err
	}
	c := &Column{file: f, field: e, at: f.begin, row: -1}
	if e.dictionary == nil {
		return c, nil
	}
	for _, at := range f.dictionaries {
		m, err := f.message(at)
		if err == nil && (m == nil || m.kind != dictionaryMessage) {
			err = errors.New("it is no dictionary")
		}
		if err == nil {
			err = c.readDictionary(m)
		}
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("column %q: dictionary at offset %d: %w", path, at, err)
		}
	}
	return c, nil
}

// message returns the next message; nil: there is none.
func (c *Column) message() (m *message, err error) {
	switch {
	case c.pending != nil:
		m, c.pending = c.pending, nil
		return m, nil
	case c.file.footer && c.batch == len(c.file.batches):
		return nil, nil
	case c.file.footer:
		m, err = c.file.message(c.file.batches[c.batch])
		if err == nil && (m == nil || m.kind != recordBatchMessage) {
			err = fmt.Errorf("the message at offset %d is no record batch", c.file.batches[c.batch])
		}
		c.batch++
	default:
		m, err = c.file.message(c.at)
	}
	if err != nil || m == nil {
		return nil, err
	}
	c.at, c.read = m.next, m.next
	return m, nil
}

// nextBatch returns the next record batch; nil: there is none. It reads the dictionaries before it.
func (c *Column) nextBatch() (*message, error) {
	for {
		m, err := c.message()
		if err != nil || m == nil || m.kind == recordBatchMessage {
			return m, err
		}
		if m.kind == dictionaryMessage && c.field.dictionary != nil {
			if err := c.readDictionary(m); err != nil {
				return nil, fmt.Errorf("dictionary at offset %d: %w", m.body, err)
			}
		}
	}
}

// readDictionary reads a dictionary batch, if it is of the column.
func (c *Column) readDictionary(m *message) error {
	id, delta := m.header.i64(dictionaryBatchID), m.header.byte(dictionaryBatchIsDelta) != 0
	b := &batch{c.file, m, m.header.table(dictionaryBatchData), &c.unzip}
	rows := b.rows()
	switch {
	case m.metadata.err != nil:
		return m.metadata.err
	case id != c.field.dictionary.id:
		return nil
	case rows < 0:
		return fmt.Errorf("%d values", rows)
	case !delta && c.dictionary != nil && c.file.footer:
		return errors.New("it is there twice")
	case !delta || c.dictionary == nil:
		c.dictionary = &dictionary{}
	}
	v, err := b.openValues(c.field.kind, place{}, rows)
	if err != nil {
		return err
	}
	return c.dictionary.add(v, rows)
}

// SkipBatches skips record batches that end before a row and returns the row that Next gives next.
func (c *Column) SkipBatches(row int64) (next int64, err error) {
	for {
		m, err := c.nextBatch()
		if err != nil || m == nil {
			return c.row + 1, err
		}
		n := m.header.i64(recordBatchLength)
		if m.metadata.err != nil || n < 0 || n > row-c.row-1 {
			c.pending = m
			return c.row + 1, m.metadata.err
		}
		c.row += n
	}
}

// Next goes on to the next row and reports whether there is one.
func (c *Column) Next() bool {
	if c.err != nil {
		return false
	}
	ok, err := c.next()
	if err != nil {
		c.err = fmt.Errorf("column %q: row %d: %w", c.field.path, c.row+1, err)
		return false
	}
	return ok
}

func (c *Column) next() (bool, error) {
	for c.inside == c.rows {
		m, err := c.nextBatch()
		if err != nil || m == nil {
			return false, err
		}
		if err := c.open(m); err != nil {
			return false, fmt.Errorf("record batch at offset %d: %w", m.body, err)
		}
	}
	c.text = nil
	valid := true
	for _, s := range c.structs {
		set, err := s.set(c.inside)
		if err != nil {
			return false, err
		}
		valid = valid && set
	}
	if valid {
		var err error
		if c.text, err = c.values.text(c.inside); err != nil {
			return false, err
		}
	}
	c.inside++
	c.row++
	return true, nil
}

// open begins a record batch.
func (c *Column) open(m *message) (err error) {
	b := &batch{c.file, m, m.header, &c.unzip}
	rows := b.rows()
	switch {
	case m.metadata.err != nil:
		return m.metadata.err
	case rows < 0:
		return fmt.Errorf("%d rows", rows)
	}
	c.rows, c.inside, c.structs = rows, 0, c.structs[:0]
	if rows == 0 {
		return nil
	}
	for _, at := range c.field.structs {
		v, err := b.validity(at, rows)
		if err != nil {
			return err
		}
		if v != nil {
			c.structs = append(c.structs, v)
		}
	}
	if c.field.dictionary != nil {
		c.values, err = b.openIndexes(&c.field, c.dictionary, rows)
		return err
	}
	c.values, err = b.openValues(c.field.kind, c.field.place, rows)
	return err
}

// Text is the value of the current row; nil if it is null.
func (c *Column) Text() []byte { return c.text }

// Null reports whether the current row has no value.
func (c *Column) Null() bool { return c.text == nil }

// Row is the number of the current row, from 0.
func (c *Column) Row() int64 { return c.row }

// Offset is the end of the part of the file that was read.
func (c *Column) Offset() int64 { return c.read }

// Err is the error at which Next stopped.
func (c *Column) Err() error { return c.err }

// Close frees the memory of decompression.
func (c *Column) Close() { c.unzip.close() }
