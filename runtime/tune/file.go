package tune

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/codecache"
)

func read(path string) (map[string]Choice, error) {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var known map[string]Choice
	if err != nil || json.Unmarshal(b, &known) != nil || known == nil { // null decodes to a nil map
		known = map[string]Choice{}
	}
	return known, nil
}

// temporary is the prefix of temporary files.
const temporary = ".tune-"

// Save writes the cache file, if there is one. Choices that other processes saved there since Open take precedence,
// unless they are damaged: a run that is started again finds the choices of its first start, and computes the same
// bits.
func (c *Cache) Save() error {
	if c.path == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := maps.Clone(c.known)
	if saved, err := read(c.path); err == nil {
		maps.DeleteFunc(saved, func(key string, is Choice) bool {
			candidate, found := c.damaged[key]
			return found && is.Candidate == candidate
		})
		maps.Copy(all, saved)
	}
	b, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
		return fmt.Errorf("kernel choices: %w", err)
	}
	codecache.Sweep(filepath.Dir(c.path), temporary)
	tmp, err := os.CreateTemp(filepath.Dir(c.path), temporary+"*")
	if err != nil {
		return fmt.Errorf("kernel choices: %w", err)
	}
	_, err = tmp.Write(b)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = atomicfile.Rename(tmp.Name(), c.path)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("kernel choices: %w", err)
	}
	return nil
}
