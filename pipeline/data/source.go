package data

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Expand resolves files, globs and folders that datasets saved to files, in the order given and by name within a glob. A
// name that matches nothing, is another folder or comes up twice is an error.
func Expand(patterns []string) ([]string, error) {
	var files []string
	seen := map[string]bool{}
	for _, p := range patterns {
		matches, err := expandOne(p)
		if err != nil {
			return nil, err
		}
		for _, f := range matches {
			if seen[filepath.Clean(f)] {
				return nil, fmt.Errorf("%s: listed twice", f)
			}
			seen[filepath.Clean(f)] = true
			if _, err := fileSize(f); err != nil {
				return nil, err
			}
			if _, err := formatOf(f); err != nil {
				return nil, err
			}
			files = append(files, f)
		}
	}
	if len(files) == 0 {
		return nil, errors.New("no file given")
	}
	return files, nil
}

func expandOne(p string) ([]string, error) {
	if p == "" {
		return nil, errors.New("an empty file name")
	}
	if st, err := os.Stat(p); err == nil && st.IsDir() {
		return savedFiles(p)
	} else if err == nil || !strings.ContainsAny(p, "*?[") {
		return []string{p}, nil
	}
	matches, err := filepath.Glob(p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	if len(matches) == 0 {
		return nil, fmt.Errorf("%s: no file matches", p)
	}
	slices.Sort(matches)
	return matches, nil
}

// fileSize is the size of a regular file that is not empty.
func fileSize(path string) (int64, error) {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, fmt.Errorf("%s: no such file", path)
	case err != nil:
		return 0, err
	case st.IsDir():
		return 0, fmt.Errorf("%s: a folder: expected files, or a glob such as %s", path, filepath.Join(path, "*.txt"))
	case !st.Mode().IsRegular():
		return 0, fmt.Errorf("%s: not a regular file", path)
	case st.Size() == 0:
		return 0, fmt.Errorf("%s: the file is empty", path)
	}
	return st.Size(), nil
}

// pieceSize is about how much text is encoded at once. A longer document is cut, after a line break between two
// characters that are not space where there is one: there the patterns of GPT-2 and its descendants always cut, so that
// the pieces give the tokens of the whole. Where text is cut depends on nothing but the text.
const pieceSize = 1 << 20

// mark is where a piece begins in its file: at the byte offset of its text, or, in jsonl, of its line with pieces
// counted within the document.
type mark struct {
	Offset int64 `json:"offset"`
	Piece  int   `json:"piece"`
}

// piece is text to encode.
type piece struct {
	mark
	text        []byte
	first, last bool  // of its document
	read        int64 // bytes of the file it accounts for
}

// readPieces calls emit with the pieces of a file of documents, from one of its marks on. emit owns the text.
func readPieces(path, field string, from mark, emit func(piece) error) error {
	return readInput(path, field, from, emit, emitDocument)
}

// readInput calls emit with the pieces of a text, or each with every document of a file of several.
func readInput(path, field string, from mark, emit func(piece) error, each eachDocument) error {
	format, err := formatOf(path)
	if err != nil {
		return err
	}
	if format.kind == kindParquet || format.kind == kindArrow {
		return readTable(path, format.kind, field, from, emit, each)
	}
	s, err := openStream(path, format.compression)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.seek(from.Offset); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if format.kind == kindJSONL {
		return readJSONL(s, path, field, from, emit, each)
	}
	return readText(s, path, from, emit)
}

// eachDocument takes a document that begins at an offset of its file, after read bytes of the file since the last one,
// and emits all but the first skip of its pieces.
type eachDocument func(text []byte, at, read int64, skip int, emit func(piece) error) error

func readText(r *inputStream, path string, from mark, emit func(piece) error) error {
	at, size := from.Offset, r.size
	var rest []byte
	for {
		// One more than is left, to see the end; corpora may have very many small files.
		buf := make([]byte, min(pieceSize, max(size-at, 0)+1))
		n := copy(buf, rest)
		m, err := io.ReadFull(r, buf[n:])
		buf = buf[:n+m]
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return fmt.Errorf("%s: %w", path, err)
		}
		cut := len(buf)
		if !last && cut < pieceSize {
			return fmt.Errorf("%s: grew while it was read", path)
		}
		if !last {
			cut = cutPoint(buf)
		}
		if last && at+int64(cut) == 0 {
			return fmt.Errorf("%s: no text in the compressed file", path)
		}
		if err := checkText(path, buf[:cut], at); err != nil {
			return err
		}
		p := piece{mark{Offset: at}, buf[:cut], at == 0, last, r.took(int64(cut))}
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

// maxInvalid is the share of bytes of a piece that may not be UTF-8 before the file is taken for something else.
const maxInvalid = 0.01

func checkText(path string, text []byte, at int64) error {
	if i := bytes.IndexByte(text, 0); i >= 0 {
		return fmt.Errorf("%s: a NUL byte at offset %d: a binary file: expected text, or a name that ends in .jsonl or .bin", path, at+int64(i))
	}
	if utf8.Valid(text) {
		return nil
	}
	bad, where := 0, -1
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n == 1 {
			if bad++; where < 0 {
				where = i
			}
		}
		i += n
	}
	if float64(bad) > maxInvalid*float64(len(text)) {
		return fmt.Errorf("%s: %d of %d bytes are not UTF-8, the first, 0x%02X, at offset %d: expected UTF-8 text", path, bad, len(text), text[where], at+int64(where))
	}
	return nil
}

// maxLine bounds a line of a jsonl file.
const maxLine = 256 << 20

// readJSONL calls each with every document, and with emit.
func readJSONL(r *inputStream, path, field string, from mark, emit func(piece) error, each eachDocument) error {
	field = cmp.Or(field, "text")
	in := bufio.NewReaderSize(r, 1<<16)
	at, skip, docs := from.Offset, from.Piece, 0
	pending := int64(0) // bytes not yet accounted for
	for number := 1; ; number++ {
		where := fmt.Sprintf("line %d", number)
		if from.Offset > 0 {
			where = fmt.Sprintf("line at offset %d", at)
		}
		line, err := readLine(in)
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return fmt.Errorf("%s: %s: %w", path, where, err)
		}
		pending += r.took(int64(len(line)))
		if len(bytes.TrimSpace(line)) > 0 {
			text, err := jsonText(line, field)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", path, where, err)
			}
			if len(text) > 0 {
				docs++
				if err := each(text, at, pending, skip, emit); err != nil {
					return err
				}
				pending = 0
			}
		}
		skip = 0
		at += int64(len(line))
		if !last {
			continue
		}
		if docs == 0 && from == (mark{}) {
			return fmt.Errorf("%s: no document: expected lines such as {%q: \"…\"}", path, field)
		}
		return nil
	}
}

func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return nil, fmt.Errorf("longer than %d bytes", maxLine)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// NoFieldError reports a jsonl object without the field that was to be read.
type NoFieldError struct {
	Field string
	Found []string // the object's fields
}

func (e *NoFieldError) Error() string { return fmt.Sprintf("no field %q, found %q", e.Field, e.Found) }

// FieldSetting adds to a NoFieldError where the user sets the name of the field: with a flag, or a key of a config.
func FieldSetting(err error, setting string) error {
	var missing *NoFieldError
	if errors.As(err, &missing) {
		return fmt.Errorf("%w; %s names the field to read", err, setting)
	}
	return err
}

func jsonText(line []byte, field string) ([]byte, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		return nil, fmt.Errorf("not a JSON object: %w", err)
	}
	raw, ok := object[field]
	if !ok {
		return nil, &NoFieldError{Field: field, Found: slices.Sorted(maps.Keys(object))}
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil || string(raw) == "null" {
		return nil, fmt.Errorf("field %q is %.40s: expected a string", field, raw)
	}
	return []byte(text), nil
}

// emitDocument cuts one document into pieces and emits all but the first skip of them.
func emitDocument(text []byte, at, read int64, skip int, emit func(piece) error) error {
	for n, first := 0, true; ; n++ {
		cut := len(text)
		if cut > pieceSize {
			cut = cutPoint(text[:pieceSize])
		}
		p := piece{mark{at, n}, text[:cut], first, cut == len(text), 0}
		if first = false; p.last {
			p.read = read
		}
		if n >= skip {
			if err := emit(p); err != nil {
				return err
			}
		}
		if p.last {
			return nil
		}
		text = text[cut:]
	}
}
