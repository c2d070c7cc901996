package cc

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// scratch is the folder of files in progress, which only the user can access. It exists while a compiler runs, so that
// a process that is killed later leaves nothing.
type scratch struct {
	mu    sync.Mutex
	dir   string // "": there is none
	users int
}

// enter returns the folder and makes it if it does not exist.
func (s *scratch) enter() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dir == "" {
		dir, err := makeFolder()
		if err != nil {
			return "", err
		}
		s.dir = dir
	}
	s.users++
	return s.dir, nil
}

// leave removes the folder after the last compiler.
func (s *scratch) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 {
		os.RemoveAll(s.dir)
		s.dir = ""
	}
}

// makeFolder makes a folder with room for files: on a full disk, in memory.
func makeFolder() (string, error) {
	var first error
	for _, parent := range []string{os.TempDir(), "/dev/shm"} {
		dir, err := os.MkdirTemp(parent, "gpupipe-cc-")
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "room"), make([]byte, 1<<20), 0o600) // fails on a full disk
		}
		if err == nil {
			os.Remove(filepath.Join(dir, "room"))
			return dir, nil
		}
		if dir != "" {
			os.RemoveAll(dir)
		}
		if first == nil {
			first = err
		}
	}
	return "", fmt.Errorf("no folder for the compiler's files: %w", first)
}
