package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpupipe/gpupipe/internal/userpath"
)

const (
	manifestVersion = 1
	maxManifest     = 16 << 20 // bytes
)

// manifest lists what a checkpoint consists of. It is written last.
type manifest struct {
	Version int        `json:"version"`
	Step    int        `json:"step"`
	Files   []FileInfo `json:"files"`
}

// FileInfo is the manifest's entry of a file.
type FileInfo struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

func readManifest(dir string) (manifest, error) {
	var m manifest
	path := filepath.Join(dir, manifestFile)
	text, err := readSmall(path)
	if err != nil {
		return m, err
	}
	// The version first: what a newer one says of itself matters more than the keys it adds.
	if err := json.Unmarshal(text, &struct{ Version *int }{&m.Version}); err == nil && m.Version > manifestVersion {
		return m, fmt.Errorf("%s: version %d is newer than this program, which reads %d", path, m.Version, manifestVersion)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return m, fmt.Errorf("%s: more text after its end", path)
	}
	if err := m.check(); err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

func readSmall(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", path)
	case info.Size() > maxManifest:
		return nil, fmt.Errorf("%s: %d bytes, at most %d are allowed", path, info.Size(), maxManifest)
	}
	return os.ReadFile(path)
}

func (m manifest) check() error {
	if m.Version != manifestVersion {
		return fmt.Errorf("version is %d, expected %d", m.Version, manifestVersion)
	}
	if m.Step < 0 {
		return fmt.Errorf("step is %d, expected at least 0", m.Step)
	}
	seen := map[string]bool{manifestFile: true}
	for _, f := range m.Files {
		sum, err := hex.DecodeString(f.SHA256)
		switch {
		case !userpath.IsName(f.Name):
			return fmt.Errorf("file %q is not a name within the checkpoint", f.Name)
		case seen[f.Name]:
			return fmt.Errorf("file %q is listed twice, or is the manifest itself", f.Name)
		case f.Size < 0:
			return fmt.Errorf("file %q: size is %d", f.Name, f.Size)
		case err != nil || len(sum) != sha256.Size:
			return fmt.Errorf("file %q: sha256 is %q, expected 64 hexadecimal digits", f.Name, f.SHA256)
		}
		seen[f.Name] = true
	}
	return nil
}

// verify compares a file with the manifest: kind and size before any byte is read, then the checksum.
func (f FileInfo) verify(dir string) error {
	path := filepath.Join(dir, f.Name)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s: missing: %w", path, err)
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: not a regular file", path)
	case info.Size() != f.Size:
		return fmt.Errorf("%s: found %d bytes, the manifest has %d", path, info.Size(), f.Size)
	}
	r, err := os.Open(path)
	if err != nil {
		return err
	}
	defer r.Close()
	h := sha256.New()
	if _, err := io.CopyBuffer(h, struct{ io.Reader }{r}, make([]byte, 128<<10)); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != strings.ToLower(f.SHA256) {
		return fmt.Errorf("%s: altered: sha256 is %s, the manifest has %s", path, sum, f.SHA256)
	}
	return nil
}
