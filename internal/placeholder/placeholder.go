// Package placeholder recognizes the small texts that stand where a file of another kind is expected: pointers of Git
// LFS, targets of symbolic links, and pages of the web.
package placeholder

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"
)

// headBytes is as much of a file as Of needs.
const headBytes = 512

// Of describes the text that a file of size bytes begins with, and what to do about it. It is empty for other files.
func Of(head []byte, size int64) string {
	text := string(head[:min(len(head), headBytes)])
	switch {
	case isPointer(text):
		return fmt.Sprintf("a Git LFS pointer of %d bytes in place of the file: run \"git lfs pull\" in its repository, or download the file", size)
	case isPage(text):
		return "a page of the web (HTML) in place of the file: download the file again"
	case size < headBytes && isLink(strings.TrimSuffix(text, "\n")):
		return fmt.Sprintf("the text %q in place of the file: a symbolic link that was copied as text, so copy or download the file itself", strings.TrimSuffix(text, "\n"))
	}
	return ""
}

// isPointer reports whether a text begins as pointers of Git LFS do.
func isPointer(text string) bool {
	return strings.HasPrefix(text, "version https://git-lfs.github.com/spec/")
}

// isPage reports whether a text begins as HTML does.
func isPage(text string) bool {
	start := strings.ToLower(strings.TrimLeftFunc(text, unicode.IsSpace))
	return strings.HasPrefix(start, "<!doctype html") || strings.HasPrefix(start, "<html")
}

// isLink reports whether a text is one line with a relative or absolute path.
func isLink(text string) bool {
	return (strings.HasPrefix(text, "../") || strings.HasPrefix(text, "./") || strings.HasPrefix(text, "/")) && utf8.ValidString(text) &&
		!strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) })
}

// Check returns an error if r, of size bytes, begins with such a text. It reads nothing else.
func Check(r io.ReaderAt, size int64) error {
	head := make([]byte, min(size, headBytes))
	n, err := r.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return nil // whoever reads the file reports it
	}
	if found := Of(head[:n], size); found != "" {
		return fmt.Errorf("found %s", found)
	}
	return nil
}

// CheckPointer is Check for a file that may be a text: pages of the web and paths are texts, too.
func CheckPointer(r io.ReaderAt, size int64) error {
	head := make([]byte, min(size, headBytes))
	if n, _ := r.ReadAt(head, 0); isPointer(string(head[:n])) {
		return Check(r, size)
	}
	return nil
}

// CheckFile is Check of a regular file. It returns nil for a path that cannot be opened.
func CheckFile(path string) error {
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	return Check(f, st.Size())
}

// CheckBytes is Check of a file's content.
func CheckBytes(content []byte) error { return Check(bytes.NewReader(content), int64(len(content))) }
