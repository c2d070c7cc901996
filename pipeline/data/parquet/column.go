package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Column reads the values of a column, one row after the other.
type Column struct {
	file   *File
	path   string
	nulls  bool    // all values are
	depth  int     // levels of optional fields
	chunks []chunk // that are left, the current one included
	at     int64   // of the next page of the chunk
	rest   int64   // rows of the chunk that are left, including the page's
	row    int64   // the current one

	dictionary *dictionary // of the chunk; nil: none yet
	left       int64       // rows of the page that are left
	levels     *hybrid     // nil: there are no nulls
	texts      texts
	unpacker   decompressor

	text []byte
	null bool
	err  error
}

// texts are the values of a page that are not null.
type texts interface{ next() ([]byte, error) }

// Column opens a column of byte arrays by its path, names joined by dots.
func (f *File) Column(path string) (*Column, error) {
	e, err := f.schema.find(path)
	if err != nil {
		return nil, err
	}
	c := &Column{file: f, path: path, nulls: e.kind == nullKind, depth: e.levels, row: -1}
	if c.chunks, err = f.chunks(e.leaf); err != nil {
		return nil, fmt.Errorf("footer: %w", err)
	}
	if len(c.chunks) > 0 {
		c.at, c.rest = c.chunks[0].from, c.chunks[0].rows
	}
	return c, nil
}

// SkipGroups skips row groups that end before a row and returns the row that Next gives next.
func (c *Column) SkipGroups(row int64) int64 {
	for len(c.chunks) > 0 && c.row+1+c.chunks[0].rows <= row {
		c.row += c.chunks[0].rows
		c.nextChunk()
	}
	return c.row + 1
}

// Next goes on to the next row and reports whether there is one.
func (c *Column) Next() bool {
	if c.err != nil {
		return false
	}
	ok, err := c.next()
	if err != nil {
		c.err = fmt.Errorf("column %q: row %d: %w", c.path, c.row+1, err)
		return false
	}
	return ok
}

func (c *Column) next() (bool, error) {
	for c.left == 0 {
		for len(c.chunks) > 0 && c.rest == 0 {
			c.nextChunk()
		}
		if len(c.chunks) == 0 {
			return false, nil
		}
		if c.nulls {
			c.nextNull()
			return true, nil
		}
		if err := c.nextPage(); err != nil {
			return false, err
		}
	}
	c.left--
	c.rest--
	c.null, c.text = false, nil
	if c.levels != nil {
		level, err := c.levels.next()
		if err != nil {
			return false, err
		}
		c.null = int(level) < c.depth
	}
	if !c.null {
		var err error
		if c.text, err = c.texts.next(); err != nil {
			return false, err
		}
	}
	c.row++
	return true, nil
}

// nextNull goes on to the next row of a column without values, whose pages need not be read.
func (c *Column) nextNull() {
	c.rest--
	c.null, c.text = true, nil
	c.row++
}

func (c *Column) nextChunk() {
	c.chunks, c.dictionary = c.chunks[1:], nil
	if len(c.chunks) > 0 {
		c.at, c.rest = c.chunks[0].from, c.chunks[0].rows
	}
}

// Text is the value of the current row, valid until Next; Null reports that it has none. Row counts rows from 0.
func (c *Column) Text() []byte { return c.text }

// Null reports whether the current row has no value.
func (c *Column) Null() bool { return c.null }

// Row is the number of the current row, from 0.
func (c *Column) Row() int64 { return c.row }

// Offset is the end of the part of the file that was read.
func (c *Column) Offset() int64 { return c.at }

// Err is the error at which Next stopped.
func (c *Column) Err() error { return c.err }

// Close frees the memory of decompression.
func (c *Column) Close() { c.unpacker.close() }

// nextPage reads the next page of the chunk. It may be a dictionary.
func (c *Column) nextPage() error {
	ch := c.chunks[0]
	if c.at >= ch.end() {
		return fmt.Errorf("the row group has %d rows fewer than it declares", c.rest)
	}
	at := c.at
	h, err := readHeader(c.file.r, at, ch.end())
	if err != nil {
		return fmt.Errorf("page at offset %d: %w", at, err)
	}
	c.at = at + h.headerBytes + h.compressed
	if h.kind == indexPage {
		return nil
	}
	content, err := c.unpacker.page(c.file.r, at+h.headerBytes, h, ch.codec)
	if err == nil {
		err = c.open(h, content)
	}
	if err != nil {
		return fmt.Errorf("page at offset %d: %w", at, err)
	}
	return nil
}

func (c *Column) open(h pageHeader, content []byte) (err error) {
	switch h.kind {
	case dictionaryPage:
		return c.openDictionary(h, content)
	case dataPage:
		if content, err = c.cutLevels(h, content); err != nil {
			return err
		}
	case dataPageV2:
		if c.levels, err = newHybrid(content[h.repetitionLength:][:h.definitionLength], levelWidth(c.depth)); err != nil {
			return err
		}
		content = content[h.repetitionLength+h.definitionLength:]
	default:
		return fmt.Errorf("its type is %d", h.kind)
	}
	if c.depth == 0 {
		c.levels = nil
	}
	if h.values > c.rest {
		return fmt.Errorf("%d rows where %d are left of the row group", h.values, c.rest)
	}
	c.left = h.values
	switch h.encoding {
	case plainEncoding:
		c.texts = &plainTexts{content}
	case plainDictionaryEncoding, dictionaryEncoding:
		if c.dictionary == nil {
			return errors.New("its dictionary is missing")
		}
		c.texts, err = newDictionaryTexts(content, c.dictionary)
	case deltaLengthEncoding, deltaBytesEncoding:
		c.texts, err = newDeltaTexts(content, h.values, h.encoding == deltaBytesEncoding)
	default:
		err = fmt.Errorf("encoding %d is not one of byte arrays", h.encoding)
	}
	return err
}

// cutLevels takes the levels off a page of version 1.
func (c *Column) cutLevels(h pageHeader, content []byte) ([]byte, error) {
	if c.depth == 0 {
		return content, nil
	}
	if h.levelEncoding != rleEncoding {
		return nil, fmt.Errorf("encoding %d of levels, expected %d", h.levelEncoding, rleEncoding)
	}
	if len(content) < 4 {
		return nil, errors.New("it has no levels")
	}
	n := uint64(binary.LittleEndian.Uint32(content))
	content = content[4:]
	if n > uint64(len(content)) {
		return nil, fmt.Errorf("levels of %d bytes where %d are left", n, len(content))
	}
	var err error
	c.levels, err = newHybrid(content[:n], levelWidth(c.depth))
	return content[n:], err
}

func (c *Column) openDictionary(h pageHeader, content []byte) error {
	if h.encoding != plainEncoding && h.encoding != plainDictionaryEncoding {
		return fmt.Errorf("encoding %d of the dictionary", h.encoding)
	}
	var err error
	c.dictionary, err = newDictionary(content, h.values)
	return err
}
