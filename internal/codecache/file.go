package codecache

import (
	"crypto/sha256"
	"os"

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
	sum := sha256.Sum256(data)
	return atomicfile.Replace(path, temporary, append(sum[:], data...))
}
