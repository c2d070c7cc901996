package tune_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/runtime/tune"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func graphs(t *testing.T) map[string]*graph.Graph {
	g, err := graph.Build(func(b *graph.Builder) {
		b.Output("y", op.Sum(b.Input("x", graph.T(graph.F32, 100, 300)), []int{1}, false))
	})
	require.NoError(t, err)
	return map[string]*graph.Graph{"sum": g}
}

func TestChoicesAreTimedOnceAndKept(t *testing.T) {
	dev, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer dev.Close()
	path := filepath.Join(t.TempDir(), "sub", "kernels.json")
	timed := 0
	open := func() *tune.Cache {
		c, err := tune.Open(path, func(tune.Timing) { timed++ })
		require.NoError(t, err)
		return c
	}
	c := open()
	first, err := exec.NewPlan(dev, graphs(t), exec.Options{Tune: c})
	require.NoError(t, err)
	assert.Equal(t, 1, timed)
	require.NoError(t, c.Save())
	before, _ := dev.Allocated()
	assert.Zero(t, before, "timing leaves nothing behind")

	again := open()
	second, err := exec.NewPlan(dev, graphs(t), exec.Options{Tune: again})
	require.NoError(t, err)
	assert.Equal(t, 1, timed, "the choice is known")
	assert.Equal(t, first.Kernels("sum"), second.Kernels("sum"))

	pinned := again.Used()
	require.Len(t, pinned, 1)
	for key, choice := range pinned {
		choice.Candidate = "serial"
		pinned[key] = choice
	}
	again.Pin(pinned)
	third, err := exec.NewPlan(dev, graphs(t), exec.Options{Tune: again})
	require.NoError(t, err)
	assert.Zero(t, again.Strays())
	again.Pin(nil)
	_, err = exec.NewPlan(dev, graphs(t), exec.Options{Tune: again})
	require.NoError(t, err)
	assert.Equal(t, 1, again.Strays(), "the kernel is not among the pinned ones")
	assert.Equal(t, "serial", third.Kernels("sum")[0].Candidate)
}

// Timings are counted: which it is, of how many that are known to be needed. Equal kernels are timed once, known ones
// not at all.
func TestTimingsAreCounted(t *testing.T) {
	dev, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer dev.Close()
	sums := func(widths ...int) map[string]*graph.Graph {
		g, err := graph.Build(func(b *graph.Builder) {
			for i, n := range widths {
				b.Output(fmt.Sprint("y", i), op.Sum(b.Input(fmt.Sprint("x", i), graph.T(graph.F32, 64, n)), []int{1}, false))
			}
		})
		require.NoError(t, err)
		return map[string]*graph.Graph{"sums": g}
	}
	var found [][2]int
	c, err := tune.Open("", func(x tune.Timing) {
		found = append(found, [2]int{x.Kernel, x.Kernels})
		assert.Contains(t, x.Label, "sum")
		assert.Greater(t, x.Candidates, 1)
	})
	require.NoError(t, err)
	plan := func(widths ...int) {
		_, err := exec.NewPlan(dev, sums(widths...), exec.Options{Tune: c})
		require.NoError(t, err)
	}
	plan(300, 301, 300)
	assert.Equal(t, [][2]int{{1, 2}, {2, 2}}, found)
	plan(300, 302)
	assert.Equal(t, [][2]int{{1, 2}, {2, 2}, {3, 3}}, found)
}

// declining is a device whose driver cannot compile the kernels of some label, for a reason.
type declining struct {
	device.Device
	text  string
	cause error
}

func (d declining) Load(p *device.Program) (device.Loaded, error) {
	for _, s := range p.Shaders {
		if strings.Contains(s.Source, d.text) {
			return nil, &device.Error{Op: "compile", Object: s.Label, Device: d.Info().Name, Cause: d.cause}
		}
	}
	return d.Device.Load(p)
}

func TestAKernelThatTheDriverDeclinesIsPassedOver(t *testing.T) {
	dev, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer dev.Close()
	choose := func(text string, cause error) (*exec.Plan, error) {
		c, err := tune.Open("", nil)
		require.NoError(t, err)
		return exec.NewPlan(declining{dev, text, cause}, graphs(t), exec.Options{Tune: c})
	}
	plan, err := choose("var part = 0u", errors.New("too few registers"))
	require.NoError(t, err)
	assert.NotContains(t, plan.Kernels("sum")[0].Candidate, "split", "its second pass has the text that is declined")
	for _, cause := range []error{device.ErrValidation, device.ErrLost} {
		_, err = choose("var part = 0u", cause)
		assert.ErrorIs(t, err, cause)
	}
	_, err = choose("fn main", errors.New("too few registers"))
	assert.ErrorContains(t, err, "too few registers")
}

// small is a GPU without memory for the parts of a sum.
type small struct{ device.Device }

func (d small) Info() device.Info { return device.Info{Name: "small", Kind: device.Discrete} }

func (d small) Alloc(label string, size int64) (device.Buffer, error) {
	if strings.Contains(label, "scratch") {
		return nil, &device.Error{Op: "alloc", Object: label, Device: "small", Cause: device.ErrOutOfMemory}
	}
	return d.Device.Alloc(label, size)
}

func TestAKernelWhoseScratchFindsNoMemoryIsPassedOver(t *testing.T) {
	c, err := tune.Open("", nil)
	require.NoError(t, err)
	plan, err := exec.NewPlan(small{null.New(null.Options{})}, graphs(t), exec.Options{Tune: c})
	require.NoError(t, err)
	assert.NotContains(t, plan.Kernels("sum")[0].Candidate, "split")
}

func TestADamagedCacheIsStartedAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kernels.json")
	for _, text := range []string{"{torn", "", "null", "[]", `{"x": 3}`} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		c, err := tune.Open(path, nil)
		require.NoError(t, err)
		assert.Empty(t, c.Used())
		c.Pin(map[string]tune.Choice{"key": {Candidate: "serial"}})
		require.NoError(t, c.Save())
	}
}

// A choice that names no candidate is made again, and kept.
func TestADamagedChoiceIsReplaced(t *testing.T) {
	dev, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer dev.Close()
	path := filepath.Join(t.TempDir(), "kernels.json")
	timed := 0
	used := func() map[string]tune.Choice {
		c, err := tune.Open(path, func(tune.Timing) { timed++ })
		require.NoError(t, err)
		_, err = exec.NewPlan(dev, graphs(t), exec.Options{Tune: c})
		require.NoError(t, err)
		require.NoError(t, c.Save())
		return c.Used()
	}
	for key := range used() {
		require.NoError(t, os.WriteFile(path, []byte(`{"`+key+`": {"candidate": "none such"}, "another": {"candidate": "none such"}}`),
			0o600))
	}
	anew := used()
	assert.Equal(t, anew, used())
	assert.Equal(t, 2, timed, "at first, and once the file was damaged")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Contains(t, string(text), "another", "a choice that was not used")
}

// Processes that tune at the same time find their own choices again. None is lost, and the first to save wins. What was
// not timed is not saved.
func TestCachesAreSavedTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kernels.json")
	var caches [2]*tune.Cache
	for i := range caches {
		c, err := tune.Open(path, nil)
		require.NoError(t, err)
		caches[i] = c
	}
	for i, name := range []string{"first", "second"} {
		caches[i].Pin(map[string]tune.Choice{name: timed(name), "both": timed(name), "guessed": {Candidate: name}})
		require.NoError(t, caches[i].Save())
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var saved map[string]tune.Choice
	require.NoError(t, json.Unmarshal(text, &saved))
	assert.Equal(t, map[string]tune.Choice{"first": timed("first"), "second": timed("second"), "both": timed("first")}, saved)
}

func timed(candidate string) tune.Choice {
	return tune.Choice{Candidate: candidate, DurationMicros: map[string]float64{candidate: 1}}
}

func TestWithoutAPathNothingIsWritten(t *testing.T) {
	t.Chdir(t.TempDir())
	c, err := tune.Open("", nil)
	require.NoError(t, err)
	require.NoError(t, c.Save())
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	assert.Empty(t, files)
}

// A plan that is too large is refused before timing allocates memory for it.
func TestNothingIsTimedForWhatCannotFit(t *testing.T) {
	dev, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(t, err)
	defer dev.Close()
	c, err := tune.Open("", func(tune.Timing) { t.Error("timed") })
	require.NoError(t, err)
	_, err = exec.NewPlan(dev, graphs(t), exec.Options{Tune: c, Budget: 1000})
	assert.ErrorIs(t, err, exec.ErrTooLarge)
}

func TestTheNullDeviceIsNotTimed(t *testing.T) {
	c, err := tune.Open(filepath.Join(t.TempDir(), "kernels.json"), func(tune.Timing) { t.Error("timed") })
	require.NoError(t, err)
	_, err = exec.NewPlan(null.New(null.Options{}), graphs(t), exec.Options{Tune: c})
	require.NoError(t, err)
}

// busy is a GPU that takes some time for everything, and notes which kernels it got.
type busy struct {
	device.Device
	takes  time.Duration
	loaded *[]string
}

func (d busy) Info() device.Info { return device.Info{Name: "busy", Kind: device.Discrete} }

func (d busy) Load(p *device.Program) (device.Loaded, error) {
	*d.loaded = append(*d.loaded, p.Label)
	return d.Device.Load(p)
}

func (d busy) Run(l device.Loaded) error {
	time.Sleep(d.takes)
	return d.Device.Run(l)
}

// A naive kernel is not timed where good kernels take long, because the driver could reset the device.
func TestNaiveKernelsAreNotTriedWhereOthersTakeLong(t *testing.T) {
	g, err := graph.Build(func(b *graph.Builder) {
		b.Output("y", op.MatMul(b.Input("x", graph.T(graph.F32, 64, 64)), b.Input("w", graph.T(graph.F32, 64, 64)), false, false))
	})
	require.NoError(t, err)
	for takes, tried := range map[time.Duration]bool{0: true, 25 * time.Millisecond: false} {
		c, err := tune.Open("", nil)
		require.NoError(t, err)
		var loaded []string
		_, err = exec.NewPlan(busy{null.New(null.Options{}), takes, &loaded}, map[string]*graph.Graph{"g": g}, exec.Options{Tune: c})
		require.NoError(t, err)
		assert.NotEmpty(t, loaded)
		assert.Equal(t, tried, slices.Contains(loaded, "naive"), takes)
	}
}
