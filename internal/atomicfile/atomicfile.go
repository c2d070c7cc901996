// Package atomicfile writes files that exist completely or not at all, and that survive a power failure: temporary
// file, fsync, rename, fsync of the folder.
package atomicfile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// Write replaces the file at path by the bytes that write writes to a buffered writer. On any error the old file stays
// and nothing else is left. A later Write removes what a killed process left, after a day.
func Write(path string, write func(io.Writer) error) error {
	return writeMode(filepath.Dir(path), path, 0o666, write)
}

// WriteAside is Write with its temporary file in another folder of the same file system.
func WriteAside(folder, path string, write func(io.Writer) error) error {
	return writeMode(folder, path, 0o666, write)
}

// WriteBytes is Write of data.
func WriteBytes(path string, data []byte) error {
	return writeMode(filepath.Dir(path), path, 0o666, bytesOf(data))
}

// WritePrivate is WriteBytes for secrets: only the file's owner may read it, from its first byte on.
func WritePrivate(path string, data []byte) error {
	return writeMode(filepath.Dir(path), path, 0o600, bytesOf(data))
}

func bytesOf(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

func writeMode(aside, path string, mode os.FileMode, write func(io.Writer) error) (err error) {
	if err := CheckName(path); err != nil {
		return err
	}
	dir, base := filepath.Split(path)
	sweep(aside, base, "tmp")
	tmp := side(aside, base, "tmp")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	hold(f)
	defer func() {
		if err != nil {
			f.Close() // a second Close is harmless
			os.Remove(tmp)
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	b := bufio.NewWriterSize(f, 1<<20)
	if err := write(b); err != nil {
		return err
	}
	if err := b.Flush(); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := Rename(tmp, path); err != nil {
		return err
	}
	return SyncDir(dir)
}

// Replace replaces the file at path by data at once, as Write does, but does not wait until it is on the disk: a power
// failure may damage it. Only its owner may read it. The name of the temporary file, which a killed process leaves,
// begins with temporary.
func Replace(path, temporary string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), temporary+"*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// SyncDir makes the names in a folder durable if the system can. Windows and some network file systems cannot.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	if dir == "" {
		dir = "."
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// MissingFolders lists the folders of a path that do not exist, the innermost first.
func MissingFolders(path string) (missing []string) {
	for path = filepath.Clean(path); ; path = filepath.Dir(path) {
		if _, err := os.Lstat(path); err == nil || path == filepath.Dir(path) {
			return missing
		}
		missing = append(missing, path)
	}
}
