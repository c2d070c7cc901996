package data

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/userpath"
)

// spillPrefix begins the names of temporary files with tokens.
const spillPrefix = ".tokens-"

// spill is a temporary file with the tokens of a stream. It has no name where the system lets an open file lose it;
// elsewhere a file that a killed process has left is removed by the next one that uses the folder.
type spill struct {
	dir  string
	file *os.File // nil: there are no tokens yet
	size int64
}

func (s *spill) open() (err error) {
	left, _ := filepath.Glob(filepath.Join(userpath.Literal(s.dir), spillPrefix+"*"))
	for _, path := range left {
		os.Remove(path)
	}
	if s.file, err = os.CreateTemp(s.dir, spillPrefix+"*"); err == nil {
		os.Remove(s.file.Name())
	}
	return err
}

// take moves the tokens of a part from memory into the file.
func (s *spill) take(c *Corpus) (err error) {
	for i, f := range c.tokenFiles {
		tokens, inMemory := f.r.(*bytes.Reader)
		if !inMemory {
			continue
		}
		if s.file == nil {
			err = s.open()
		}
		if err == nil {
			_, err = tokens.WriteTo(s.file)
		}
		if err != nil {
			return fmt.Errorf("keeping the tokens of %s: %w", f.path, err)
		}
		c.tokenFiles[i].r, c.tokenFiles[i].off = s.file, s.size
		s.size += int64(f.width) * f.n
	}
	return nil
}

func (s *spill) close() error {
	f := s.file
	if s.file = nil; f == nil {
		return nil
	}
	err := f.Close()
	os.Remove(f.Name())
	return err
}
