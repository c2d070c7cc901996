package data

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"unicode/utf8"

	"github.com/gpupipe/gpupipe/internal/placeholder"
)

// headSize is how much of a file is looked at before work begins.
const headSize = 512

var utf8BOM = []byte("\xEF\xBB\xBF")

// encodings are the marks at the start of texts that are not UTF-8. Those of UTF-32 come first: one of them begins as
// one of UTF-16 does.
var encodings = []struct{ mark, name string }{
	{"\xFF\xFE\x00\x00", "UTF-32LE"}, {"\x00\x00\xFE\xFF", "UTF-32BE"}, {"\xFF\xFE", "UTF-16LE"}, {"\xFE\xFF", "UTF-16BE"},
}

// signatures are the first bytes of files that are no text, whatever their names. A text may begin as some of them do:
// they count in a head that is no text, unless always is set.
var signatures = []struct {
	bytes, what string
	always      bool
}{
	{"PK\x03\x04", "a ZIP archive", false}, // see inZIP
	{"%PDF-", "a PDF document", true},
	{"{\\rtf", "an RTF document", true},
	{"\xD0\xCF\x11\xE0", "an office document of before 2007 (.doc, .xls or .ppt)", false},
	{"\x89PNG", "a PNG image", false},
	{"\xFF\xD8\xFF", "a JPEG image", false},
	{"GIF8", "a GIF image", false},
	{"RIFF", "a recording or a WebP image", false},
	{"\x1F\x8B", "gzip: expected a name that ends in .gz", false},
	{"\x28\xB5\x2F\xFD", "zstd: expected a name that ends in .zst", false},
	{"\xFD7zXZ", "xz", false},
	{"BZh9", "bzip2", false},
	{"7z\xBC\xAF", "a 7z archive", false},
	{"Rar!", "a RAR archive", false},
	{"\x04\x22\x4D\x18", "LZ4", false},
	{"\x93NUMPY", "a NumPy array", false},
	{"\x80\x02", "a pickle", false},
	{"\x80\x03", "a pickle", false},
	{"\x80\x04\x95", "a pickle", false},
	{"\x80\x05\x95", "a pickle", false},
	{"PAR1", "Parquet: expected a name that ends in .parquet", false},
	{"FEA1", "Feather version 1: expected version 2, with a name that ends in .feather", false},
	{"ARROW1", "Arrow: expected a name that ends in .arrow", false},
	{"\x89HDF", "an HDF5 file", false},
	{"SQLite format 3", "an SQLite database", false},
	{"GGUF", "a GGUF model", false},
	{"\x7FELF", "a program", false},
}

// checkContent refuses a file of documents that holds something else, by its name and its first bytes.
func checkContent(path string) error {
	size, err := fileSize(path)
	if err != nil {
		return err
	}
	f, err := formatOf(path)
	if err != nil {
		return err
	}
	if size == 0 && f.kind != kindText && f.kind != kindJSON {
		return fmt.Errorf("%s: the file is empty", path)
	}
	if size == 0 {
		return nil
	}
	if err := checkPointer(path, size); err != nil || f.kind != kindText && f.kind != kindJSON {
		return err // readers of other kinds check the rest
	}
	s, err := openStream(path, f.compression)
	if err != nil {
		return err
	}
	defer s.Close()
	head := make([]byte, headSize)
	n, err := io.ReadFull(s, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s: %w", path, err)
	}
	return checkHead(path, head[:n])
}

// checkPointer refuses what Git LFS leaves in the place of a file that it has not fetched.
func checkPointer(path string, size int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := placeholder.CheckPointer(f, size); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// checkHead refuses the start of a content that is no UTF-8 text.
func checkHead(path string, head []byte) error {
	for _, e := range encodings {
		if bytes.HasPrefix(head, []byte(e.mark)) {
			return notUTF8(path, e.name, e.name[:len("UTF-16")])
		}
	}
	for _, s := range signatures {
		if bytes.HasPrefix(head, []byte(s.bytes)) && (s.always || !isText(head)) {
			return fmt.Errorf("%s: no text: the file begins as %s", path, cmp.Or(inZIP(head), s.what))
		}
	}
	if len(head) > 262 && string(head[257:262]) == "ustar" {
		return fmt.Errorf("%s: no text: a tar archive: expected the files in it", path)
	}
	if name := wide(head); name != "" {
		return notUTF8(path, name, name)
	}
	if i := bytes.IndexByte(head, 0); i >= 0 {
		return binary0(path, int64(i))
	}
	return nil
}

// zipped are the kinds of documents that are ZIP archives, by the beginning of their first file's name and content.
var zipped = []struct{ start, what string }{
	{"[Content_Types].xml", "an office document (.docx, .xlsx or .pptx)"},
	{"_rels/.rels", "an office document (.docx, .xlsx or .pptx)"},
	{"word/", "a Word document (.docx)"},
	{"xl/", "a spreadsheet (.xlsx)"},
	{"ppt/", "a presentation (.pptx)"},
	{"mimetypeapplication/epub", "an electronic book (.epub)"},
	{"mimetypeapplication/vnd.oasis.opendocument.text", "an OpenDocument text (.odt)"},
	{"mimetypeapplication/vnd.oasis.opendocument.spreadsheet", "a spreadsheet (.ods)"},
	{"mimetypeapplication/vnd.oasis.opendocument.presentation", "a presentation (.odp)"},
}

// inZIP names the document that a head begins, if it is one that is a ZIP archive.
func inZIP(head []byte) string {
	const name = 30 // its offset in the header of a file, which begins the archive
	if !bytes.HasPrefix(head, []byte("PK\x03\x04")) || len(head) < name {
		return ""
	}
	for _, z := range zipped {
		if bytes.HasPrefix(head[name:], []byte(z.start)) {
			return z.what
		}
	}
	return ""
}

// isText reports whether a head is UTF-8 without a byte 0. Its last character may be cut.
func isText(head []byte) bool {
	for n := len(head); n > len(head)-utf8.UTFMax && n > 0; n-- {
		if utf8.Valid(head[:n]) {
			return bytes.IndexByte(head, 0) < 0
		}
	}
	return len(head) == 0
}

func notUTF8(path, encoding, from string) error {
	return fmt.Errorf("%s: the text is %s: expected UTF-8; iconv -f %s -t UTF-8 converts it", path, encoding, from)
}

// binary0 is the error of a byte 0 in a text.
func binary0(path string, offset int64) error {
	return fmt.Errorf("%s: a NUL byte at offset %d: a binary file: expected text, or a name that ends in .jsonl or .bin", path, offset)
}

// wide names the encoding of a text without a mark in which most characters are ASCII; "" if it is none.
func wide(head []byte) string {
	for _, w := range []struct {
		name string
		unit int
		at   int // of the byte that is not 0
	}{{"UTF-32LE", 4, 0}, {"UTF-32BE", 4, 3}, {"UTF-16LE", 2, 0}, {"UTF-16BE", 2, 1}} {
		units, fit := 0, 0
		for u := range slices.Chunk(head[:len(head)/w.unit*w.unit], w.unit) {
			units++
			if u[w.at] != 0 && bytes.Count(u, []byte{0}) == w.unit-1 {
				fit++
			}
		}
		if units >= 2 && 2*fit > units {
			return w.name
		}
	}
	return ""
}

// maxInvalid is the share of bytes that may not be UTF-8 in a stretch of text before the file is taken for something
// else. The stretch is as long as a piece.
const maxInvalid = 0.01

// gauge counts the bytes of a file's texts that are not UTF-8.
type gauge struct {
	path  string
	bytes int64  // of the stretch
	bad   int64  // of them
	first string // says where the first of them is
}

// add takes the next text, in which lost characters were replaced already. It returns how many bytes and lost
// characters are bad. where says where an offset of the text is.
func (g *gauge) add(text []byte, lost int64, where func(offset int) string) (bad int64, err error) {
	bad = lost
	if lost > 0 && g.first == "" {
		g.first = "half of a surrogate pair" + where(0)
	}
	for i := 0; !utf8.Valid(text[i:]); {
		r, n := utf8.DecodeRune(text[i:])
		for ; r != utf8.RuneError || n > 1; r, n = utf8.DecodeRune(text[i:]) {
			i += n
		}
		if bad++; g.first == "" {
			g.first = fmt.Sprintf("0x%02X%s", text[i], where(i))
		}
		i++
	}
	g.bytes, g.bad = g.bytes+int64(len(text)), g.bad+bad
	if g.bytes >= pieceSize {
		err = g.end()
	}
	return bad, err
}

// end judges the bytes that were added last.
func (g *gauge) end() error {
	of := *g
	*g = gauge{path: g.path}
	if float64(of.bad) <= maxInvalid*float64(of.bytes) {
		return nil
	}
	return fmt.Errorf("%s: %d of %d bytes are not UTF-8, the first, %s: expected UTF-8 text", of.path, of.bad, of.bytes, of.first)
}
