// Package tune chooses among the variants of a kernel for a device: by timing them, or first by earlier choices and
// later by timing. It keeps its timings on disk, by device and source.
package tune

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/internal/jsonfile"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/shaders"
)

// Choice is a variant of a kernel.
type Choice struct {
	Label          string             `json:"label"`
	Candidate      string             `json:"candidate"`
	DurationMicros map[string]float64 `json:"micros,omitempty"` // by candidate; none if they were not timed
	Family         string             `json:"family,omitempty"` // of kernels that differ in size; see familyOf
	Bytes          int64              `json:"bytes,omitempty"`  // of the kernel's arrays
}

// timed reports whether the choice follows from times.
func (c Choice) timed() bool { return len(c.DurationMicros) > 0 }

// in returns the index of the chosen candidate, or -1.
func (c Choice) in(ks []shaders.Kernel) int {
	return slices.IndexFunc(ks, func(k shaders.Kernel) bool { return k.Name == c.Candidate })
}

// Cache remembers choices. It implements exec.Chooser.
type Cache struct {
	mu        sync.Mutex
	path      string
	known     map[string]Choice // from the file, or timed
	used      map[string]Choice // since Pin
	pinned    map[string]Choice // nil: none
	damaged   map[string]string // names in the file that no candidate has
	strays    int
	progress  progress
	postponed bool          // see Postpone
	untimed   []kernel      // in use with choices that were not timed
	expected  time.Duration // of timing the next one
}

// kernel is a kernel on a device, for which a candidate is chosen.
type kernel struct {
	dev        device.Device
	key, label string
	candidates []shaders.Kernel
	fallback   int // the static choice
}

// progress counts timings.
type progress struct {
	onTimed   func(Timing)    // nil: timings are not reported
	timed     int             // kernels timed since Open
	announced map[string]bool // kernels announced and not timed yet, by key
}

// Timing describes a kernel whose candidates are about to be timed.
type Timing struct {
	Label      string
	Candidates int
	Kernel     int // counts the timings since Open, from 1
	Kernels    int // timings known to be needed since Open, the earlier ones included
}

// Open reads the cache file if it exists. An unreadable file is an error; a damaged one is replaced. Without a path
// choices are kept in memory only. onTimed, if not nil, is called before each timing.
func Open(path string, onTimed func(Timing)) (*Cache, error) {
	known, err := jsonfile.ReadCache[Choice](path)
	if err != nil {
		return nil, fmt.Errorf("kernel choices: %w", err)
	}
	return &Cache{path: path, known: known, used: map[string]Choice{}, damaged: map[string]string{}, expected: firstTiming,
		progress: progress{onTimed: onTimed, announced: map[string]bool{}}}, nil
}

// Pin makes earlier choices override all others: a resumed run uses the kernels with which it was saved.
func (c *Cache) Pin(choices map[string]Choice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pinned, c.used, c.untimed = maps.Clone(choices), map[string]Choice{}, nil
	if c.pinned == nil {
		c.pinned = map[string]Choice{}
	}
	for key, choice := range choices {
		if choice.timed() {
			c.known[key] = choice
		}
	}
}

// Strays returns the number of choices since Pin that were not among the pinned ones. The device, its driver or a
// kernel's source has changed then, and perhaps the order of a sum.
func (c *Cache) Strays() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.strays
}

// Used returns the choices made or found since Open or Pin, by key, for Pin.
func (c *Cache) Used() map[string]Choice {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.used)
}

// Announce counts the kernels whose candidates will have to be timed.
func (c *Cache) Announce(dev device.Device, kernels [][]shaders.Kernel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.postponed || dev.Info().Kind == device.Null {
		return
	}
	for _, ks := range kernels {
		key := keyOf(dev.Info(), ks)
		if _, ok := c.recall(key, ks); !ok {
			c.progress.announced[key] = true
		}
	}
}

// Choose returns the candidate that was chosen before for the same device and sources: since Pin, among the pinned
// choices, or among those known. Without one it times all candidates and returns the fastest; see Postpone for when it
// does not.
func (c *Cache) Choose(dev device.Device, label string, ks []shaders.Kernel, fallback int) (int, error) {
	if dev.Info().Kind == device.Null {
		return fallback, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := kernel{dev, keyOf(dev.Info(), ks), label, ks, fallback}
	if _, ok := c.pinned[k.key]; !ok && c.pinned != nil {
		c.strays++
	}
	choice, ok := c.recall(k.key, ks)
	switch {
	case ok:
	case c.postponed:
		choice = c.guess(k)
	default:
		var err error
		if choice, err = c.time(k); err != nil {
			return 0, err
		}
		c.known[k.key] = choice
	}
	c.used[k.key] = choice
	c.queue(k, choice)
	return choice.in(ks), nil
}

// recall returns an earlier choice among the candidates. It drops a known choice of a candidate that does not exist any
// more.
func (c *Cache) recall(key string, ks []shaders.Kernel) (Choice, bool) {
	if choice, ok := c.known[key]; ok && choice.in(ks) < 0 {
		c.damaged[key] = choice.Candidate
		delete(c.known, key)
	}
	for _, from := range []map[string]Choice{c.used, c.pinned, c.known} {
		if choice, ok := from[key]; ok && choice.in(ks) >= 0 {
			return choice, true
		}
	}
	return Choice{}, false
}

// nearTie is the ratio to the fastest time up to which the static choice is taken, so that noise decides as rarely as
// possible: other kernels may compute other bits.
const nearTie = 1.05

// A naive kernel is not timed if another variant takes longer than slow. It would take many times as long, and drivers
// reset a GPU that is busy for seconds. Native ones are timed only without another variant: they were never the
// fastest.
const (
	naive   = "naive"
	slow    = 20 * time.Millisecond
	forever = time.Hour
)

// time times the candidates of a kernel and chooses the fastest.
func (c *Cache) time(k kernel) (Choice, error) {
	delete(c.progress.announced, k.key)
	c.progress.timed++
	if c.progress.onTimed != nil {
		c.progress.onTimed(Timing{Label: k.label, Candidates: len(k.candidates), Kernel: c.progress.timed,
			Kernels: c.progress.timed + len(c.progress.announced) + len(c.untimed)})
	}
	choice := k.choice("")
	choice.DurationMicros = map[string]float64{}
	best, fastest := 0, forever
	for i, candidate := range slices.Backward(k.candidates) { // the naive one last, so that it is often skipped
		if candidate.Name == naive && fastest < forever && (fastest > slow || k.dev.Limits().Native) {
			continue
		}
		t, err := timeUpTo(k.dev, candidate, 2*fastest)
		if i > 0 && declined(err) {
			continue
		}
		if err != nil {
			return Choice{}, fmt.Errorf("timing %s of %s: %w", candidate.Name, k.label, err)
		}
		choice.DurationMicros[candidate.Name] = float64(t.Nanoseconds()) / 1e3
		if t < fastest {
			best, fastest = i, t
		}
	}
	if t, ok := choice.DurationMicros[k.candidates[k.fallback].Name]; ok && t <= nearTie*choice.DurationMicros[k.candidates[best].Name] {
		best = k.fallback
	}
	choice.Candidate = k.candidates[best].Name
	return choice, nil
}

// declined reports whether a device has no room for a valid kernel: its driver could not compile it, for instance for
// lack of registers, or there is no memory for its scratch. Another candidate is used then.
func declined(err error) bool {
	var e *device.Error
	if !errors.As(err, &e) || errors.Is(err, device.ErrLost) || errors.Is(err, device.ErrClosed) {
		return false
	}
	return e.Op == "alloc" || e.Op == "compile" && !errors.Is(err, device.ErrValidation)
}

func keyOf(info device.Info, ks []shaders.Kernel) string {
	h := sha256.New()
	fmt.Fprintln(h, info.Adapter, info.Driver, info.API)
	for _, k := range ks {
		fmt.Fprintln(h, k.Name, k.Scratch)
		for _, p := range k.Passes {
			fmt.Fprintln(h, p.Groups, p.Source)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
