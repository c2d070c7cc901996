package data

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/data/jsontext"
)

// Tally counts texts that are no documents, and bytes of documents that are not UTF-8.
type Tally struct {
	Nulls   int64 `json:"nulls,omitempty"`    // documents whose text is null
	Empty   int64 `json:"empty,omitempty"`    // documents whose text is empty
	NotUTF8 int64 `json:"not_utf8,omitempty"` // bytes of text, and halves of surrogate pairs
}

func (t *Tally) add(u Tally) {
	t.Nulls += u.Nulls
	t.Empty += u.Empty
	t.NotUTF8 += u.NotUTF8
}

// Findings are what users should know of files that were read.
type Findings struct {
	Tally
	Documents  int64
	WithoutEnd bool     // documents are joined without a token between them
	EmptyFiles int64    // files without a document
	SomeOfThem []string // the first of them
	JSONText   string   // a text file that holds JSON
}

// join adds what was found in other files.
func (f *Findings) join(g Findings) {
	f.Tally.add(g.Tally)
	f.Documents += g.Documents
	f.WithoutEnd = f.WithoutEnd || g.WithoutEnd
	f.EmptyFiles += g.EmptyFiles
	f.SomeOfThem = append(f.SomeOfThem, g.SomeOfThem[:min(len(g.SomeOfThem), maxNamed-len(f.SomeOfThem))]...)
	f.JSONText = cmp.Or(f.JSONText, g.JSONText)
}

// see looks at a piece of a file.
func (f *Findings) see(path string, p piece) {
	format, err := formatOf(path)
	if err != nil || format.kind != kindText || !p.first || p.Offset > 0 || f.JSONText != "" {
		return
	}
	if (bytes.HasPrefix(p.text, []byte("{")) || bytes.HasPrefix(p.text, []byte("["))) && jsontext.HasObject(p.text) {
		f.JSONText = path
	}
}

// names lists files without a document.
func (f *Findings) names() string {
	if len(f.SomeOfThem) == 0 {
		return fmt.Sprint(f.EmptyFiles)
	}
	names := strings.Join(f.SomeOfThem, ", ")
	if n := f.EmptyFiles - int64(len(f.SomeOfThem)); n > 0 {
		names += fmt.Sprintf(" and %d more", n)
	}
	return names
}

// noDocument is the error of files without any.
func (f *Findings) noDocument() error {
	if f.Nulls+f.Empty > 0 {
		return fmt.Errorf("%s: no document with text: found %d null and %d empty", f.names(), f.Nulls, f.Empty)
	}
	return fmt.Errorf("%s: no document", f.names())
}

// maxNamed is how many files without a document are named.
const maxNamed = 5

// emptyFile counts a file without a document.
func (f *Findings) emptyFile(path string) {
	if f.EmptyFiles++; len(f.SomeOfThem) < maxNamed {
		f.SomeOfThem = append(f.SomeOfThem, path)
	}
}

// Notes says what was found, a sentence each; nothing if there is nothing to say.
func (f *Findings) Notes() (notes []string) {
	if f.Nulls+f.Empty > 0 {
		notes = append(notes, fmt.Sprintf("documents without text are skipped: %d null, %d empty", f.Nulls, f.Empty))
	}
	if f.EmptyFiles > 0 {
		notes = append(notes, "files without a document are skipped: "+f.names())
	}
	if f.JSONText != "" {
		notes = append(notes, f.JSONText+" holds JSON and is read as plain text, because of its name: of a file named .jsonl a field would be read")
	}
	if f.NotUTF8 > 0 {
		notes = append(notes, fmt.Sprintf("%d bytes of text are not UTF-8: they are kept, and halves of surrogate pairs become U+FFFD",
			f.NotUTF8))
	}
	if f.WithoutEnd && f.Documents > 1 {
		notes = append(notes, fmt.Sprintf("the tokenizer has no token that ends a document: %d documents are joined without one",
			f.Documents))
	}
	return notes
}
