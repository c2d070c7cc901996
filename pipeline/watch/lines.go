package watch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

const (
	// maxLine is the largest line that is read, in bytes. Longer lines are skipped.
	maxLine = 1 << 20
	// chunkBytes is how much is read from a file at a time.
	chunkBytes = 256 << 10
	// markBytes is how much of the text before the position is kept, to recognize a file that was rewritten in place.
	markBytes = 64
)

// lines follows a file of lines that another process appends to. Its position is behind the last line with content, and
// before the end of that line. So the end of a JSON array, which a trace writer overwrites with its next event, is read
// again.
type lines struct {
	root     *os.Root
	name     string
	info     fs.FileInfo // of the file when it was read last; nil: it was not there
	position int64
	mark     []byte // the text before the position
	skipping bool   // the rest of a line that is too long
	skipped  int    // lines that were too long
}

// errNotRegular is the error for a file that is a folder, a pipe or a device.
var errNotRegular = errors.New("not a regular file")

// poll calls each with every complete line that is new. The line is valid during the call. If the file was replaced,
// truncated or removed, poll calls reset first, and reads from the beginning. A file that does not exist has no lines.
func (l *lines) poll(reset func(), each func(line []byte)) error {
	info, err := l.root.Stat(l.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if l.info != nil {
			l.rewind(reset)
		}
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: %w", l.name, errNotRegular)
	case l.info != nil && os.SameFile(info, l.info) && info.Size() == l.info.Size() && info.ModTime().Equal(l.info.ModTime()):
		return nil
	}
	f, err := l.root.Open(l.name)
	if err != nil {
		return err
	}
	defer f.Close()
	if l.info != nil && (!os.SameFile(info, l.info) || info.Size() < l.position || !l.unchanged(f)) {
		l.rewind(reset)
	}
	l.info = info
	return l.read(f, each)
}

// rewind goes back to the beginning.
func (l *lines) rewind(reset func()) {
	l.info, l.position, l.mark, l.skipping, l.skipped = nil, 0, nil, false, 0
	reset()
}

// unchanged reports whether the text before the position is what was read.
func (l *lines) unchanged(f io.ReaderAt) bool {
	now := make([]byte, len(l.mark))
	_, err := f.ReadAt(now, l.position-int64(len(now)))
	return err == nil && bytes.Equal(now, l.mark)
}

// read reads from the position to the last complete line.
func (l *lines) read(f io.ReaderAt, each func(line []byte)) error {
	var text []byte // from the position, or from somewhat behind it
	start := l.position
	for chunk := make([]byte, chunkBytes); ; {
		n, err := f.ReadAt(chunk, start+int64(len(text)))
		text = append(text, chunk[:n]...)
		rest := text
		for {
			line, after, complete := bytes.Cut(rest, []byte("\n"))
			if !complete {
				break
			}
			l.take(line, start+int64(len(text)-len(rest)+len(line)), each)
			rest = after
		}
		start += int64(len(text) - len(rest))
		text = append(text[:0], rest...)
		if len(text) > maxLine {
			if !l.skipping {
				l.skipping = true
				l.skipped++
			}
			l.position, l.mark = start+int64(len(text)), mark(text)
			start, text = l.position, text[:0]
		}
		if errors.Is(err, io.EOF) || n == 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// take takes a complete line that ends before an offset.
func (l *lines) take(line []byte, end int64, each func(line []byte)) {
	if l.skipping {
		l.skipping, l.position, l.mark = false, end, mark(line)
		return
	}
	if len(line) <= len("],\r") && len(bytes.Trim(line, "[], \t\r")) == 0 {
		return // nothing, or the ends of an array
	}
	l.position, l.mark = end, mark(line)
	each(bytes.TrimRight(line, ", \t\r"))
}

// mark is a copy of the end of a text.
func mark(text []byte) []byte { return bytes.Clone(text[max(0, len(text)-markBytes):]) }
