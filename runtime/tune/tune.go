// Package tune times the variants of a kernel on a device and chooses the fastest. It keeps its choices on disk, by
// device and source.
package tune

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/codecache"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/shaders"
)

// Choice is the outcome of one timing.
type Choice struct {
	Label          string             `json:"label"`
	Candidate      string             `json:"candidate"`
	DurationMicros map[string]float64 `json:"micros"` // by candidate
}

// Cache remembers choices. It implements exec.Chooser.
type Cache struct {
	mu      sync.Mutex
	path    string
	known   map[string]Choice
	used    map[string]Choice
	pinned  map[string]bool
	damaged map[string]string // names in the file that no candidate has
	strays  int
	onTimed func(Timing)
	timed   int             // kernels timed since Open
	pending map[string]bool // kernels announced and not timed yet, by key
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
	known, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("kernel choices: %w", err)
	}
	return &Cache{path: path, known: known, used: map[string]Choice{}, damaged: map[string]string{}, pending: map[string]bool{}, onTimed: onTimed}, nil
}

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

// Pin makes earlier choices override the cache: a resumed run uses the kernels with which it started.
func (c *Cache) Pin(choices map[string]Choice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pinned = map[string]bool{}
	for k, v := range choices {
		c.known[k], c.pinned[k] = v, true
	}
}

// Strays returns the number of choices since Pin that were not among the pinned ones. The device, its driver or a
// kernel's source has changed then, and perhaps the order of a sum.
func (c *Cache) Strays() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.strays
}

// Used returns the choices made or found since Open, by key, for Pin.
func (c *Cache) Used() map[string]Choice {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]Choice, len(c.used))
	for k, v := range c.used {
		out[k] = v
	}
	return out
}

// nearTie is the ratio to the fastest time up to which the static choice is taken, so that noise decides as rarely as
// possible: other kernels may compute other bits.
const nearTie = 1.05

// A naive kernel is not timed if another variant takes longer than slow. It would take many times as long, and drivers
// reset a GPU that is busy for seconds.
const (
	naive   = "naive"
	slow    = 20 * time.Millisecond
	forever = time.Hour
)

// Announce counts the kernels whose candidates will have to be timed.
func (c *Cache) Announce(dev device.Device, kernels [][]shaders.Kernel) {
	if dev.Info().Kind == device.Null {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ks := range kernels {
		if key := keyOf(dev.Info(), ks); !c.knows(key, ks) {
			c.pending[key] = true
		}
	}
}

// knows reports whether one of the candidates was chosen before.
func (c *Cache) knows(key string, ks []shaders.Kernel) bool {
	known, ok := c.known[key]
	return ok && slices.ContainsFunc(ks, func(k shaders.Kernel) bool { return k.Name == known.Candidate })
}

// Choose returns the fastest candidate on the device, from the cache or by timing all candidates.
func (c *Cache) Choose(dev device.Device, label string, ks []shaders.Kernel, fallback int) (int, error) {
	if dev.Info().Kind == device.Null {
		return fallback, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := keyOf(dev.Info(), ks)
	if c.pinned != nil && !c.pinned[key] {
		c.strays++
	}
	if known, ok := c.known[key]; ok {
		for i, k := range ks {
			if k.Name == known.Candidate {
				c.used[key] = known
				return i, nil
			}
		}
		c.damaged[key] = known.Candidate
	}
	delete(c.pending, key)
	c.timed++
	if c.onTimed != nil {
		c.onTimed(Timing{Label: label, Candidates: len(ks), Kernel: c.timed, Kernels: c.timed + len(c.pending)})
	}
	choice := Choice{Label: label, DurationMicros: map[string]float64{}}
	best, fastest := 0, forever
	for i, k := range slices.Backward(ks) { // the naive one last, so that it is often skipped
		if k.Name == naive && fastest > slow && fastest < forever {
			continue
		}
		t, err := timeUpTo(dev, k, 2*fastest)
		if i > 0 && declined(err) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("timing %s of %s: %w", k.Name, label, err)
		}
		choice.DurationMicros[k.Name] = float64(t.Nanoseconds()) / 1e3
		if t < fastest {
			best, fastest = i, t
		}
	}
	if t, timed := choice.DurationMicros[ks[fallback].Name]; timed && t <= nearTie*choice.DurationMicros[ks[best].Name] {
		best = fallback
	}
	choice.Candidate = ks[best].Name
	c.known[key], c.used[key] = choice, choice
	return best, nil
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
		err = os.Rename(tmp.Name(), c.path)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("kernel choices: %w", err)
	}
	return nil
}

func keyOf(info device.Info, ks []shaders.Kernel) string {
	h := sha256.New()
	fmt.Fprintln(h, info.Adapter, info.Driver, info.API)
	for _, k := range ks {
		fmt.Fprintln(h, k.Name, k.Scratch)
		for _, p := range k.Passes {
			fmt.Fprintln(h, p.Groups, p.WGSL)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Time returns the duration of one execution of a kernel on random data: the best of several batches, after a warm-up.
func Time(dev device.Device, k shaders.Kernel) (time.Duration, error) {
	return timeUpTo(dev, k, forever)
}

// timeUpTo is Time, except that a kernel whose first run exceeds limit is not measured more exactly.
func timeUpTo(dev device.Device, k shaders.Kernel, limit time.Duration) (time.Duration, error) {
	b := &bench{dev: dev, values: map[*graph.Value]device.Buffer{}}
	defer b.release()
	var scratch []device.Buffer
	for _, n := range k.Scratch {
		buf, err := b.alloc("scratch", n)
		if err != nil {
			return 0, err
		}
		scratch = append(scratch, buf)
	}
	program := func(repeat int) (device.Loaded, error) {
		p := &device.Program{Label: k.Name}
		var once []device.Command
		for _, pass := range k.Passes {
			c, err := b.command(p, pass, scratch)
			if err != nil {
				return nil, err
			}
			once = append(once, c)
		}
		for range repeat {
			p.Commands = append(p.Commands, once...)
		}
		return dev.Load(p)
	}
	return best(dev, program, limit)
}

// best runs once to warm up and once to estimate the time, then a few batches of about 20 ms.
func best(dev device.Device, program func(repeat int) (device.Loaded, error), limit time.Duration) (time.Duration, error) {
	run := func(repeat int) (time.Duration, error) {
		l, err := program(repeat)
		if err != nil {
			return 0, err
		}
		defer l.Release()
		if err := dev.Sync(); err != nil {
			return 0, err
		}
		start := time.Now()
		if err := dev.Run(l); err != nil {
			return 0, err
		}
		err = dev.Sync()
		return time.Since(start) / time.Duration(repeat), err
	}
	if _, err := run(1); err != nil { // compiles
		return 0, err
	}
	once, err := run(1)
	if err != nil || once > limit {
		return once, err
	}
	repeat := max(1, min(200, int(20*time.Millisecond/max(once, time.Microsecond))))
	fastest := once
	for range 3 {
		t, err := run(repeat)
		if err != nil {
			return 0, err
		}
		fastest = min(fastest, t)
	}
	return fastest, nil
}

// bench is the memory of one timing.
type bench struct {
	dev    device.Device
	values map[*graph.Value]device.Buffer
	all    []device.Buffer
}

func (b *bench) alloc(label string, size int64) (device.Buffer, error) {
	buf, err := b.dev.Alloc("tune "+label, size)
	if err == nil {
		b.all = append(b.all, buf)
	}
	return buf, err
}

func (b *bench) release() {
	for _, buf := range b.all {
		buf.Release()
	}
}

// Shader returns what a device compiles for a pass. label names it in errors.
func Shader(label string, pass shaders.Pass) device.Shader {
	return device.Shader{Label: label, WGSL: pass.WGSL, Bindings: make([]device.Access, len(pass.Args)),
		Workgroup: pass.Workgroup, WorkgroupMemory: pass.WorkgroupMemory, Inside: pass.Inside}
}

func (b *bench) command(p *device.Program, pass shaders.Pass, scratch []device.Buffer) (device.Command, error) {
	c := device.Command{Shader: len(p.Shaders), Groups: pass.Groups}
	p.Shaders = append(p.Shaders, Shader(p.Label, pass))
	for _, a := range pass.Args {
		if a.Value == nil {
			from := scratch[a.Scratch]
			offset, n := a.Within(from.Size())
			c.Args = append(c.Args, device.Range{Buffer: from, Offset: offset, Size: n})
			continue
		}
		buf := b.values[a.Value]
		if buf == nil {
			var err error
			if buf, err = b.alloc("value", a.Value.Type.Bytes()); err != nil {
				return c, err
			}
			data := noise(a.Value.Type)
			if a.Grouped > 0 {
				data = offsets(a.Value.Shape.Len()-1, a.Grouped)
			}
			if err := b.dev.Write(buf, 0, data); err != nil {
				return c, err
			}
			b.values[a.Value] = buf
		}
		c.Args = append(c.Args, device.Range{Buffer: buf, Size: buf.Size()})
	}
	return c, nil
}

// offsets returns those of groups that share the rows evenly.
func offsets(groups, rows int) (data []byte) {
	for g := range groups + 1 {
		data = binary.LittleEndian.AppendUint32(data, uint32(g*rows/groups))
	}
	return data
}

// noise returns floats in [0, 1) or integers below 256: no denormals, and no index far out of range.
func noise(t graph.Type) []byte {
	rng := rand.New(rand.NewPCG(3, 4))
	data := make([]byte, t.Bytes())
	for i := 0; i < len(data); i += 4 {
		r := rng.Uint32()
		switch t.DType { // exponents of [0.5, 1)
		case graph.F32:
			r = r&0x007fffff | 0x3f000000
		case graph.F16:
			r = r&0x03ff03ff | 0x38003800
		case graph.BF16:
			r = r&0x007f007f | 0x3f003f00
		default:
			r &= 0xff
		}
		binary.LittleEndian.PutUint32(data[i:], r)
	}
	return data
}
