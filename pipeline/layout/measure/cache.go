package measure

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/jsonfile"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Cache keeps measurements in a file, by device and by the source of the kernels. It may be used by one goroutine at a
// time.
type Cache struct {
	path  string
	known map[string]entry
	stale map[string]bool // keys of known to measure again
}

// entry is one measurement: of a program, or of transfers.
type entry struct {
	Seconds float64        `json:"seconds,omitempty"`
	Link    partition.Link `json:"link,omitzero"`
	What    string         `json:"what"` // this and the fields below are for people who read the file
	Device  device.Info    `json:"device"`
	Time    time.Time      `json:"time"`
}

// NewCache is a cache in memory only.
func NewCache() *Cache { return &Cache{known: map[string]entry{}} }

// OpenCache reads the file at path, if it exists. An unreadable file is an error; the contents of a damaged one are
// discarded.
func OpenCache(path string) (_ *Cache, err error) {
	c := NewCache()
	c.path = path
	if c.known, err = jsonfile.ReadCache[entry](path); err != nil {
		return nil, fmt.Errorf("measured costs: %w", err)
	}
	return c, nil
}

// Save writes the file, if the cache has one.
func (c *Cache) Save() error {
	if c.path == "" {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(c.path), 0o755)
	if err == nil {
		err = jsonfile.Write(c.path, c.known, " ")
	}
	if err != nil {
		return fmt.Errorf("measured costs: %w", err)
	}
	return nil
}

// Renew makes every measurement that is needed from now on run again, once.
func (c *Cache) Renew() {
	c.stale = map[string]bool{}
	for key := range c.known {
		c.stale[key] = true
	}
}

func (c *Cache) get(key string) (entry, bool) {
	e, ok := c.known[key]
	return e, ok && !c.stale[key]
}

func (c *Cache) put(key string, dev device.Device, what string, e entry) {
	e.What, e.Device, e.Time = what, kindOf(dev), time.Now().UTC().Truncate(time.Second)
	c.known[key] = e
	delete(c.stale, key)
}

// key identifies a measurement on a kind of device with its driver.
func (c *Cache) key(dev device.Device, source string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%+v\n%s", kindOf(dev), source))
	return hex.EncodeToString(sum[:16])
}

// programKey identifies a program by the source of its kernels, which holds the sizes of the model and of the
// microbatch.
func (c *Cache) programKey(dev device.Device, p *exec.Plan, program string) (string, error) {
	kernels, err := p.Chosen(program)
	if err != nil {
		return "", err
	}
	var source strings.Builder
	for _, k := range kernels {
		fmt.Fprintln(&source, k.Name, k.Scratch)
		for _, pass := range k.Passes {
			fmt.Fprintln(&source, pass.Groups, pass.Source)
		}
	}
	return c.key(dev, source.String()), nil
}
