package codecache

import (
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
)

// Read returns what Write wrote; nil when there is nothing, or it is damaged.
func Read(path string) []byte {
	b, err := os.ReadFile(path)
	if err != nil || len(b) < sha256.Size {
		return nil
	}
	if sum := sha256.Sum256(b[sha256.Size:]); string(sum[:]) != string(b[:sha256.Size]) {
		return nil
	}
	return b[sha256.Size:]
}

// Write replaces a file by the SHA-256 of data and data, completely or not at all. A file damaged by a power failure
// fails its checksum.
func Write(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), temporary+"*")
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	_, err = f.Write(append(sum[:], data...))
	if err = errors.Join(err, f.Close()); err == nil {
		err = atomicfile.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
