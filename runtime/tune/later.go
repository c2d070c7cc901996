package tune

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/shaders"
)

// firstTiming is how long timing a kernel is expected to take before one was timed.
const firstTiming = time.Second

// sizeRange is the ratio of sizes up to which a kernel takes the choice of another one.
const sizeRange = 4

// Postpone makes Choose time nothing. Where there is no earlier choice it takes the choice of a kernel that differs in
// size or was timed with another driver. Without such a kernel it takes the static choice. TimeFor times the kernels
// later, except native code of a CPU, whose static choice is as fast: see docs/RATIONALE.md.
func (c *Cache) Postpone() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.postponed = true
}

// guess chooses a candidate without timing it.
func (c *Cache) guess(k kernel) Choice {
	static := k.choice(k.candidates[k.fallback].Name)
	distance := func(other Choice) float64 { return math.Abs(math.Log(float64(other.Bytes) / float64(static.Bytes))) }
	best, nearest := static, math.Log(sizeRange)
	for _, key := range slices.Sorted(maps.Keys(c.known)) {
		other := c.known[key]
		if other.Family != static.Family || other.Bytes == 0 || other.in(k.candidates) < 0 {
			continue
		}
		if d := distance(other); d < nearest {
			best, nearest = k.choice(other.Candidate), d
		}
	}
	return best
}

// choice is the choice of a candidate, without times.
func (k kernel) choice(candidate string) Choice {
	return Choice{Label: k.label, Candidate: candidate, Family: familyOf(k), Bytes: bytesOf(k.candidates[0])}
}

// familyOf identifies kernels of the same ops and types on devices of the same kind. They may differ in their sizes, in
// their place in the model and in the driver.
func familyOf(k kernel) string {
	info, ops := k.dev.Info(), k.label
	if _, after, ok := strings.Cut(k.label, ": "); ok {
		ops = after
	}
	h := sha256.New()
	fmt.Fprintln(h, info.Adapter, info.API, ops)
	for _, p := range k.candidates[0].Passes {
		for _, a := range p.Args {
			if a.Value != nil {
				fmt.Fprintln(h, a.Value.Type.DType, len(a.Value.Type.Shape))
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// bytesOf is the size of a kernel's arrays, each counted once.
func bytesOf(k shaders.Kernel) (n int64) {
	seen := map[*graph.Value]bool{}
	for _, p := range k.Passes {
		for _, a := range p.Args {
			if a.Value != nil && !seen[a.Value] {
				seen[a.Value] = true
				n += a.Value.Type.Bytes()
			}
		}
	}
	return n
}

// queue notes a kernel that is to be timed later.
func (c *Cache) queue(k kernel, used Choice) {
	if !c.postponed || used.timed() || c.known[k.key].timed() || k.dev.Limits().Native {
		return
	}
	if i := slices.IndexFunc(c.untimed, func(other kernel) bool { return other.key == k.key }); i >= 0 {
		c.untimed[i] = k // the device may be another one, after a fault
		return
	}
	c.untimed = append(c.untimed, k)
}

// Due reports whether TimeFor would time a kernel.
func (c *Cache) Due(limit time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.due(limit)
}

func (c *Cache) due(limit time.Duration) bool { return len(c.untimed) > 0 && c.expected <= limit }

// TimeFor times kernels that are in use with choices that were not timed, one after the other, while the next one is
// expected to fit into the rest of the limit. The devices must have nothing else to do. It returns the time that it
// took. Plans use other kernels only after Adopt. A kernel that cannot be timed keeps its choice. It fails only if a
// device is lost.
func (c *Cache) TimeFor(limit time.Duration) (spent time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for began := time.Now(); c.due(limit - spent); spent = time.Since(began) {
		k := c.untimed[0]
		c.untimed = c.untimed[1:]
		if !k.fits() {
			continue
		}
		at := time.Now()
		choice, err := c.time(k)
		if errors.Is(err, device.ErrLost) {
			return time.Since(began), err
		}
		if c.expected = max(time.Since(at), c.expected/2); err == nil {
			c.known[k.key] = choice
		}
	}
	return spent, nil
}

// fits reports whether the device has memory to time a kernel besides the memory that is allocated.
func (k kernel) fits() bool {
	budget := device.Budget(k.dev)
	if budget == 0 {
		return true
	}
	var scratch int64
	for _, candidate := range k.candidates {
		var n int64
		for _, bytes := range candidate.Scratch {
			n += bytes
		}
		scratch = max(scratch, n)
	}
	buffers, staging := k.dev.Allocated()
	return buffers+staging+scratch+bytesOf(k.candidates[0]) <= budget
}

// Adopt replaces the choices in use that were not timed by timed choices, once no kernel waits to be timed. It returns
// how many kernels change. Plans that are made from then on use them.
func (c *Cache) Adopt() (changed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.untimed) > 0 {
		return 0
	}
	for key, old := range c.used {
		if better := c.known[key]; !old.timed() && better.timed() {
			c.used[key] = better
			if better.Candidate != old.Candidate {
				changed++
			}
		}
	}
	return changed
}
