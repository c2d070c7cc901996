// Package codecache keeps compiled code on disk, and throws away what was damaged there before anything runs it.
package codecache

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Dir is a folder of compiled modules; "" is none. What lies there is run as machine code, and wazero's own check
// covers only a part of it; so beside each file lies its SHA-256, and a file without the right one is thrown away
// before wazero sees it.
type Dir string

// SumSuffix ends the names of the files with the sums.
const SumSuffix = ".sha256"

// The prefix and suffix of the names of files that are being written.
const temporary, wazerosTemporary = ".new-", ".tmp"

// Make makes a folder that only the user may write to, or checks that an existing one is so. It removes what killed
// processes left there.
func Make(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s may be written to by others (mode %v), and what lies in it is run as machine code: chmod go-w it", dir,
			info.Mode().Perm())
	}
	if foreign(info, os.Getuid()) {
		return fmt.Errorf("%s belongs to another user, and what lies in it is run as machine code", dir)
	}
	sweep(dir)
	return nil
}

// Open makes or checks the folder, and throws away damaged files with their sums. The sum may be the damaged part, and
// Seal would keep it.
func Open(dir string) (Dir, error) {
	if err := Make(dir); err != nil {
		return "", err
	}
	c := Dir(dir)
	return c, c.walk(func(path string) error {
		want, errSum := os.ReadFile(path + SumSuffix)
		got, err := sum(path)
		if errSum == nil && err == nil && string(want) == got {
			return nil
		}
		if err := os.Remove(path + SumSuffix); err != nil && !os.IsNotExist(err) {
			return err
		}
		return os.Remove(path)
	})
}

// Seal writes the sums of added files. Two processes that share a folder may undo each other's work at worst.
func (c Dir) Seal() error {
	return c.walk(func(path string) error {
		if _, err := os.Stat(path + SumSuffix); err == nil {
			return nil
		}
		s, err := sum(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path+SumSuffix, []byte(s), 0o600)
	})
}

// Clear throws everything away.
func (c Dir) Clear() error { return c.walk(os.Remove) }

// walk visits the compiled modules; one that another process has taken away meanwhile is none.
func (c Dir) walk(visit func(path string) error) error {
	if c == "" {
		return nil
	}
	return filepath.WalkDir(string(c), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || !d.Type().IsRegular() || strings.HasSuffix(path, SumSuffix) || d.Name() == sweepMark:
		case !strings.HasSuffix(path, wazerosTemporary):
			err = visit(path)
		case abandoned(d):
			_ = os.Remove(path) // it does no harm if it stays
		}
		if os.IsNotExist(err) {
			return nil
		}
		return err
	})
}

func sum(path string) (string, error) {
	b, err := os.ReadFile(path)
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:]), err
}
