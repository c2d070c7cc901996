package data

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"
)

// readText calls emit with the pieces of a text. A byte order mark before it is left out.
func readText(path string, c compression, from mark, emit func(piece) error) error {
	s, err := openStream(path, c)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.seek(from.Offset); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	t := textFile{path: path, in: s, gauge: gauge{path: path}}
	return t.read(from.Offset, emit)
}

// textFile is a file that is one document.
type textFile struct {
	path  string
	in    *inputStream
	gauge gauge
}

func (t *textFile) read(at int64, emit func(piece) error) error {
	var rest []byte
	for {
		// One more than is left, to see the end; corpora may have very many small files.
		buf := make([]byte, min(pieceSize, max(t.in.size-at, 0)+1))
		n := copy(buf, rest)
		m, err := io.ReadFull(t.in, buf[n:])
		buf = buf[:n+m]
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return fmt.Errorf("%s: %w", t.path, err)
		}
		cut := len(buf)
		if !last && cut < pieceSize {
			return fmt.Errorf("%s: grew while it was read", t.path)
		}
		if !last {
			cut = cutPoint(buf)
		}
		text := buf[:cut]
		if at == 0 {
			text = bytes.TrimPrefix(text, utf8BOM)
		}
		if at == 0 && last && len(text) == 0 {
			return nil
		}
		bad, err := t.check(text, at+int64(cut-len(text)))
		if err != nil {
			return err
		}
		p := piece{mark: mark{Offset: at}, text: text, first: at == 0, last: last, read: t.in.took(int64(cut)), tally: Tally{NotUTF8: bad}}
		if err := emit(p); err != nil {
			return err
		}
		if last {
			return nil
		}
		rest = buf[cut:]
		at += int64(cut)
	}
}

// check refuses a piece that is no text, and counts its bytes that are not UTF-8.
func (t *textFile) check(text []byte, at int64) (bad int64, err error) {
	if at < headSize {
		if err := checkHead(t.path, text[:min(len(text), headSize)]); err != nil {
			return 0, err
		}
	}
	if i := bytes.IndexByte(text, 0); i >= 0 {
		return 0, binary0(t.path, at+int64(i))
	}
	bad, err = t.gauge.add(text, 0, func(i int) string { return fmt.Sprintf(", at offset %d", at+int64(i)) })
	return bad, errors.Join(err, t.gauge.end())
}

// cutPoint is where a full buffer is cut: in its second half, after a line break between two non-spaces; else after
// any line break; else at any character.
func cutPoint(buf []byte) int {
	half := len(buf) / 2
	anyLine := 0
	for p := len(buf) - utf8.UTFMax; p > half; p-- {
		if buf[p-1] != '\n' {
			continue
		}
		before, _ := utf8.DecodeLastRune(buf[:p-1])
		after, _ := utf8.DecodeRune(buf[p:])
		if !unicode.IsSpace(before) && !unicode.IsSpace(after) {
			return p
		}
		anyLine = max(anyLine, p)
	}
	if anyLine > 0 {
		return anyLine
	}
	for p := len(buf) - utf8.UTFMax; p > half; p-- {
		if utf8.RuneStart(buf[p]) {
			return p
		}
	}
	return len(buf) - 1 // not text; something is always left for the last piece
}
