package data

import (
	"context"
	"fmt"
	"io"
)

// readDocuments calls emit with whole documents: of a jsonl file its lines, of a text file all of it. Their numbers are
// counted in piece.Piece.
func readDocuments(path, field string, emit func(piece) error) error {
	format, err := formatOf(path)
	if err != nil {
		return err
	}
	if format.kind != kindText {
		n := 0
		return readInput(path, field, mark{}, emit, func(text []byte, at, read int64, _ int, emit func(piece) error) error {
			p := piece{mark{at, n}, text, true, true, read}
			n++
			return emit(p)
		})
	}
	s, err := openStream(path, format.compression)
	if err != nil {
		return err
	}
	defer s.Close()
	text, err := io.ReadAll(io.LimitReader(s, maxLine+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	case len(text) > maxLine:
		return fmt.Errorf("%s: a document of more than %d bytes, which is what hooks take at most: expected .jsonl with one document a line", path, maxLine)
	}
	if err := checkText(path, text, 0); err != nil {
		return err
	}
	return emit(piece{mark{}, text, true, true, s.took(int64(len(text)))})
}

// mapping encodes what a Mapper makes of documents.
type mapping struct {
	path   string
	tok    Tokenizer
	mapper Mapper
	before int64 // documents of the files before
}

func (m mapping) encode(ctx context.Context, p piece) encoded {
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
		err := emitDocument(text, p.Offset, 0, 0, func(p piece) error {
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
