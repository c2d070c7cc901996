package data

import (
	"bytes"
	"context"
	"fmt"
	"io"
)

// maxDocument bounds a text file that hooks map.
const maxDocument = 256 << 20

// readWhole calls emit with whole documents: each document of a file, or a text file as one document. piece.Piece
// counts the documents.
func readWhole(path, field string, emit func(piece) error) error {
	format, err := formatOf(path)
	if err != nil {
		return err
	}
	if format.kind != kindText {
		n := 0
		return readInput(path, field, mark{}, emit, func(d document, emit func(piece) error) error {
			p := piece{mark{d.mark, n}, d.text, true, true, d.read, d.tally}
			n++
			return emit(p)
		})
	}
	s, err := openStream(path, format.compression)
	if err != nil {
		return err
	}
	defer s.Close()
	text, err := io.ReadAll(io.LimitReader(s, maxDocument+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	case len(text) > maxDocument:
		return fmt.Errorf("%s: a document of more than %d bytes, which is what hooks take at most: expected .jsonl with one document a line", path, maxDocument)
	}
	read := s.took(int64(len(text)))
	if text = bytes.TrimPrefix(text, utf8BOM); len(text) == 0 {
		return nil
	}
	t := textFile{path: path, gauge: gauge{path: path}}
	bad, err := t.check(text, 0)
	if err != nil {
		return err
	}
	return emit(piece{mark{}, text, true, true, read, Tally{NotUTF8: bad}})
}

// mapping encodes what a Mapper makes of documents.
type mapping struct {
	path   string
	tok    Tokenizer
	mapper Mapper
	before int64 // documents of the files before
}

func (m mapping) encode(ctx context.Context, p piece) encoded {
	if p.empty() {
		return encoded{piece: p}
	}
	out := encoded{piece: p, mapped: 1}
	texts, err := m.mapper.Map(ctx, m.before+int64(p.Piece), p.text)
	if err != nil {
		return encoded{err: fmt.Errorf("%s: the document at offset %d: %w", m.path, p.Offset, err)}
	}
	out.text = nil
	for _, text := range texts {
		if len(text) == 0 {
			continue
		}
		err := emitDocument(document{text: text, mark: p.Offset}, func(p piece) error {
			e := encodePiece(p, m.path, m.tok)
			out.ids, out.documents = append(out.ids, e.ids...), out.documents+e.documents
			return e.err
		})
		if err != nil {
			return encoded{err: err}
		}
	}
	return out
}
