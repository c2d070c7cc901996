package tune

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/jsonfile"
)

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
	if saved, err := jsonfile.ReadCache[Choice](c.path); err == nil {
		maps.DeleteFunc(saved, func(key string, is Choice) bool {
			candidate, found := c.damaged[key]
			return found && is.Candidate == candidate
		})
		maps.Copy(all, saved)
	}
	err := os.MkdirAll(filepath.Dir(c.path), 0o755)
	if err == nil {
		err = jsonfile.Write(c.path, all, " ")
	}
	if err != nil {
		return fmt.Errorf("kernel choices: %w", err)
	}
	return nil
}
