package measure

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/atomicfile"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Cache remembers measurements in a file, by device and by the source of what was run.
type Cache struct {
	mu    sync.Mutex
	path  string
	known map[string]entry
}

type entry struct {
	record
	Device device.Info `json:"device"` // for those who read the file
	Time   time.Time   `json:"time"`
}

// OpenCache reads the file at path, if there is one; an unreadable file is an error, a damaged one is started anew. Without a
// path measurements are kept in memory only.
func OpenCache(path string) (*Cache, error) {
	c := &Cache{path: path, known: map[string]entry{}}
	if path == "" {
		return c, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("measured costs: %w", err)
	}
	if json.Unmarshal(text, &c.known) != nil || c.known == nil { // JSON's null leaves no map
		c.known = map[string]entry{}
	}
	return c, nil
}

// Save writes the file, if there is one.
func (c *Cache) Save() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.path == "" {
		return nil
	}
	text, err := json.MarshalIndent(c.known, "", " ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(c.path), 0o755)
	}
	if err == nil {
		err = atomicfile.Write(c.path, func(w io.Writer) error {
			_, err := w.Write(text)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("measured costs: %w", err)
	}
	return nil
}

func (c *Cache) get(key string) (record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.known[key]
	return e.record, ok
}

func (c *Cache) put(key string, e entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[key] = e
}

// remembered is what the cache has, or else run's result, which the cache then has.
func (t Target) remembered(ctx context.Context, dev device.Device, kinds [3]kind, o Options) (r record, cached bool, err error) {
	if o.Cache == nil {
		r, err = t.run(ctx, dev, kinds, o)
		return r, false, err
	}
	key, err := keyOf(dev, kinds)
	if err != nil {
		return r, false, err
	}
	if r, ok := o.Cache.get(key); ok && !o.Fresh {
		return r, true, nil
	}
	if r, err = t.run(ctx, dev, kinds, o); err == nil {
		o.Cache.put(key, entry{record: r, Device: kindOf(dev), Time: time.Now().UTC().Truncate(time.Second)})
	}
	return r, false, err
}

// keyOf identifies a measurement: the device and its driver, and every kernel that is run, which holds the sizes of the model
// and of the microbatch, and the optimizer.
func keyOf(dev device.Device, kinds [3]kind) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%+v\n", kindOf(dev))
	for _, k := range kinds {
		fmt.Fprintln(h, k.unit, k.shares)
		for _, program := range k.programs {
			kernels, err := k.plan.Chosen(program)
			if err != nil {
				return "", err
			}
			for _, kernel := range kernels {
				fmt.Fprintln(h, program, kernel.Name, kernel.Scratch)
				for _, pass := range kernel.Passes {
					fmt.Fprintln(h, pass.Groups, pass.WGSL)
				}
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}
