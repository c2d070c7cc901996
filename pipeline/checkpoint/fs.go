package checkpoint

import (
	"hash"
	"io"
	"os"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
)

// fileSystem is every way in which saving changes the disk, so that tests can fail each one in turn.
type fileSystem interface {
	MkdirAll(dir string) error
	Mkdir(dir string) error
	Create(path string) (file, error) // the file must be new
	Rename(from, to string) error
	RemoveAll(path string) error
	SyncDir(dir string) error
}

type file interface {
	io.WriteCloser
	Sync() error
}

type disk struct{}

func (disk) MkdirAll(dir string) error    { return os.MkdirAll(dir, 0o777) }
func (disk) Mkdir(dir string) error       { return os.Mkdir(dir, 0o777) }
func (disk) Rename(from, to string) error { return atomicfile.Rename(from, to) }
func (disk) RemoveAll(path string) error  { return os.RemoveAll(path) }
func (disk) SyncDir(dir string) error     { return atomicfile.SyncDir(dir) }

func (disk) Create(path string) (file, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
}

// summing counts and hashes the bytes that pass through.
type summing struct {
	to   io.Writer
	size int64
	hash hash.Hash
}

func (s *summing) Write(p []byte) (int, error) {
	n, err := s.to.Write(p)
	s.size += int64(n)
	s.hash.Write(p[:n])
	return n, err
}
