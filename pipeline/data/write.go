package data

import (
	"bufio"
	"io"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
)

// tempPrefix begins the names of files that are not finished.
const tempPrefix = ".tmp-"

// tempFile is a file on its way: under its final name there is the old one, or none, or the whole new one.
type tempFile struct {
	f *os.File
	w *bufio.Writer
}

func newTempFile(dir string) (*tempFile, error) {
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return nil, err
	}
	return &tempFile{f, bufio.NewWriterSize(f, 1<<18)}, nil
}

// discard gives the file up, if it was not finished.
func (t *tempFile) discard() {
	if t.f != nil {
		t.f.Close()
		os.Remove(t.f.Name())
		t.f = nil
	}
}

// finish writes head over the start of the file, syncs it and gives it its name.
func (t *tempFile) finish(path string, head []byte) error {
	if err := t.w.Flush(); err != nil {
		return err
	}
	if _, err := t.f.WriteAt(head, 0); err != nil {
		return err
	}
	if err := t.f.Chmod(0o644); err != nil {
		return err
	}
	if err := t.f.Sync(); err != nil {
		return err
	}
	if err := t.f.Close(); err != nil {
		return err
	}
	if err := atomicfile.Rename(t.f.Name(), path); err != nil {
		return err
	}
	t.f = nil
	_ = atomicfile.SyncDir(filepath.Dir(path)) // where it fails, the rename is no less atomic
	return nil
}

func writeAtomic(path string, write func(io.Writer) error) error {
	t, err := newTempFile(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer t.discard()
	if err := write(t.w); err != nil {
		return err
	}
	return t.finish(path, nil)
}

// shardWriter writes an llm.c shard; the number of its tokens goes into the header last.
type shardWriter struct {
	*tempFile
	width int
	n     int64
	buf   []byte
}

func newShardWriter(dir string, width int) (*shardWriter, error) {
	t, err := newTempFile(dir)
	if err != nil {
		return nil, err
	}
	if _, err := t.w.Write(make([]byte, binHeader)); err != nil {
		t.discard()
		return nil, err
	}
	return &shardWriter{tempFile: t, width: width}, nil
}

func (s *shardWriter) token(id uint32) error {
	s.buf = appendToken(s.buf[:0], id, s.width)
	s.n++
	_, err := s.w.Write(s.buf)
	return err
}

func (s *shardWriter) finish(path string) error {
	return s.tempFile.finish(path, binHead(s.width, int(s.n)))
}

func (s *shardWriter) discard() {
	if s != nil {
		s.tempFile.discard()
	}
}
