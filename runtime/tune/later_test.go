package tune_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/runtime/tune"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// gpu is a GPU of the null device on which kernels of one name are the fastest. It counts what it runs.
type gpu struct {
	device.Device
	info    device.Info
	limits  target.Limits
	budget  int64
	fastest string
	runs    *int
	fails   error // of each run; nil: none
}

func newGPU(fastest string) gpu {
	dev := null.New(null.Options{})
	return gpu{Device: dev, info: device.Info{Name: "gpu:0", Adapter: "a card", Driver: "1", API: "api", Kind: device.Discrete},
		limits: dev.Limits(), fastest: fastest, runs: new(int)}
}

func (d gpu) Info() device.Info     { return d.info }
func (d gpu) Limits() target.Limits { return d.limits }
func (d gpu) Budget() int64         { return d.budget }

// loadedSlowly is a program of a kernel that takes some time.
type loadedSlowly struct {
	device.Loaded
	takes time.Duration
}

// native is a program of C, which the null device does not take.
type native struct{}

func (native) Release() {}

func (d gpu) Load(p *device.Program) (device.Loaded, error) {
	var l device.Loaded = native{}
	var err error
	if !p.Shaders[0].C() {
		l, err = d.Device.Load(p)
	}
	s := loadedSlowly{Loaded: l}
	if p.Label != d.fastest {
		s.takes = time.Millisecond
	}
	return s, err
}

func (d gpu) Run(l device.Loaded) error {
	*d.runs++
	s := l.(loadedSlowly)
	time.Sleep(s.takes)
	if _, ok := s.Loaded.(native); ok || d.fails != nil {
		return d.fails
	}
	return d.Device.Run(s.Loaded)
}

// postponed opens a cache that times nothing before its plans are made.
func postponed(t *testing.T, path string) *tune.Cache {
	c, err := tune.Open(path, nil)
	require.NoError(t, err)
	c.Postpone()
	return c
}

// candidate is the chosen variant of a product of square matrices.
func candidate(t *testing.T, dev device.Device, c exec.Chooser, side int) string {
	g, err := graph.Build(func(b *graph.Builder) {
		x := graph.T(graph.F32, side, side)
		b.Output("y", op.MatMul(b.Input("x", x), b.Input("w", x), false, false))
	})
	require.NoError(t, err)
	p, err := exec.NewPlan(dev, map[string]*graph.Graph{"g": g}, exec.Options{Tune: c})
	require.NoError(t, err)
	return p.Kernels("g")[0].Candidate
}

// A plan uses the static choice and times nothing. Kernels are timed later, within a limit, and are used when they were
// all timed and adopted. Pinned choices stay those that were not timed.
func TestKernelsAreTimedLater(t *testing.T) {
	dev, path := newGPU("naive"), filepath.Join(t.TempDir(), "kernels.json")
	static := candidate(t, dev, nil, 64)
	require.NotEqual(t, "naive", static)
	c := postponed(t, path)
	assert.Equal(t, static, candidate(t, dev, c, 64))
	assert.Equal(t, static, candidate(t, dev, c, 65))
	assert.Equal(t, static, candidate(t, dev, c, 64), "it is queued once")
	assert.Zero(t, *dev.runs)
	before := c.Used()

	assert.False(t, c.Due(tune.FirstTiming-1))
	spent, err := c.TimeFor(tune.FirstTiming - 1)
	require.NoError(t, err)
	assert.Zero(t, spent)
	assert.Zero(t, *dev.runs)
	assert.True(t, c.Due(tune.FirstTiming))
	spent, err = c.TimeFor(tune.FirstTiming) // the first one takes milliseconds, and half of the limit is expected for the second
	require.NoError(t, err)
	assert.Positive(t, spent)
	assert.Equal(t, static, candidate(t, dev, c, 64), "until the choice is adopted")
	_, err = c.TimeFor(time.Hour)
	require.NoError(t, err)
	assert.False(t, c.Due(time.Hour), "all are timed")
	assert.Equal(t, 2, c.Adopt())
	assert.Zero(t, c.Adopt())
	assert.Equal(t, "naive", candidate(t, dev, c, 64))
	assert.Equal(t, "naive", candidate(t, dev, c, 65))
	after := c.Used()
	require.NoError(t, c.Save())

	resumed := postponed(t, path)
	resumed.Pin(before)
	assert.Equal(t, static, candidate(t, dev, resumed, 64), "the kernels of an earlier checkpoint")
	assert.Zero(t, resumed.Strays())
	assert.False(t, resumed.Due(time.Hour), "they are known")
	assert.Equal(t, 1, resumed.Adopt())
	assert.Equal(t, "naive", candidate(t, dev, resumed, 64))
	resumed.Pin(after)
	assert.Equal(t, "naive", candidate(t, dev, resumed, 65))
	assert.Zero(t, resumed.Strays())
	resumed.Pin(before)
	assert.Equal(t, static, candidate(t, dev, resumed, 65), "after a fault, from the earlier checkpoint")

	*dev.runs = 0
	assert.Equal(t, "naive", candidate(t, dev, postponed(t, path), 65), "the next run begins with them")
	assert.Zero(t, *dev.runs)
}

// Some kernels must wait until all are timed: a run changes its kernels once.
func TestChoicesAreAdoptedTogether(t *testing.T) {
	dev, c := newGPU("naive"), postponed(t, "")
	static := candidate(t, dev, c, 64)
	_, err := c.TimeFor(time.Hour)
	require.NoError(t, err)
	candidate(t, dev, c, 65)
	assert.Zero(t, c.Adopt())
	assert.Equal(t, static, candidate(t, dev, c, 64))
}

// Without a choice for its size a kernel has the one for another size, or another driver, but not for a size that is
// far off, nor for another card. It is timed all the same.
func TestChoicesOfOtherSizes(t *testing.T) {
	dev, path := newGPU("naive"), filepath.Join(t.TempDir(), "kernels.json")
	c, err := tune.Open(path, nil)
	require.NoError(t, err)
	require.Equal(t, "naive", candidate(t, dev, c, 64))
	require.NoError(t, c.Save())
	static := candidate(t, dev, nil, 64)

	known := postponed(t, path)
	*dev.runs = 0
	assert.Equal(t, "naive", candidate(t, dev, known, 80))
	assert.Zero(t, *dev.runs)
	assert.True(t, known.Due(time.Hour))
	assert.Equal(t, static, candidate(t, dev, known, 160))
	dev.info.Driver = "2"
	assert.Equal(t, "naive", candidate(t, dev, known, 64))
	dev.info.Adapter = "another card"
	assert.Equal(t, static, candidate(t, dev, known, 64))
}

// Native code is timed only if that is asked for.
func TestNativeKernelsAreNotTimedLater(t *testing.T) {
	dev, c := newGPU("naive"), postponed(t, "")
	dev.limits.Native = true
	candidate(t, dev, c, 64)
	assert.False(t, c.Due(time.Hour))
	assert.Zero(t, *dev.runs)

	first, err := tune.Open("", nil)
	require.NoError(t, err)
	assert.NotEqual(t, "naive", candidate(t, dev, first, 64), "naive native kernels are not timed")
	assert.NotZero(t, *dev.runs)
}

// A kernel that cannot be timed keeps its choice, and the run goes on. A lost device ends it.
func TestKernelsThatCannotBeTimedLater(t *testing.T) {
	for _, fails := range []error{errors.New("no"), device.ErrLost} {
		dev, c := newGPU("naive"), postponed(t, "")
		dev.fails = fails
		candidate(t, dev, c, 64)
		_, err := c.TimeFor(time.Hour)
		if errors.Is(fails, device.ErrLost) {
			assert.ErrorIs(t, err, device.ErrLost)
		} else {
			require.NoError(t, err)
		}
		assert.False(t, c.Due(time.Hour))
		assert.Zero(t, c.Adopt())
		for _, choice := range c.Used() {
			assert.NotEqual(t, "naive", choice.Candidate)
		}
	}
}

// A damaged choice in the file is timed again, like one that is missing.
func TestADamagedChoiceIsTimedLater(t *testing.T) {
	dev, path := newGPU("naive"), filepath.Join(t.TempDir(), "kernels.json")
	c := postponed(t, path)
	static := candidate(t, dev, c, 64)
	before := c.Used()
	for key := range before {
		require.NoError(t, os.WriteFile(path, []byte(`{"`+key+`": {"candidate": "none such", "micros": {"none such": 1}}}`), 0o600))
	}
	c = postponed(t, path)
	c.Pin(before)
	require.Equal(t, static, candidate(t, dev, c, 64))
	assert.Zero(t, c.Adopt(), "it waits to be timed")
	_, err := c.TimeFor(time.Hour)
	require.NoError(t, err)
	assert.Equal(t, 1, c.Adopt())
	assert.Equal(t, "naive", candidate(t, dev, c, 64))
	require.NoError(t, c.Save())
	assert.Equal(t, "naive", candidate(t, dev, postponed(t, path), 64))
}

// Beside a run that fills the memory nothing is timed.
func TestKernelsAreTimedLaterWithinTheMemory(t *testing.T) {
	dev, c := newGPU("naive"), postponed(t, "")
	dev.budget = 3*64*64*4 + 100
	candidate(t, dev, c, 64)
	buffer, err := dev.Alloc("of the run", 104)
	require.NoError(t, err)
	defer buffer.Release()
	_, err = c.TimeFor(time.Hour)
	require.NoError(t, err)
	assert.Zero(t, *dev.runs)
	assert.Zero(t, c.Adopt())
}
