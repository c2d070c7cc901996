package faulttest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/faulty"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// errKilled is the error of a device whose process was killed.
var errKilled = fmt.Errorf("worker null:0 (pid 7) was killed by SIGKILL: %w", device.ErrLost)

// killed is errKilled of a device.
func killed(op string) error {
	return &device.Error{Op: op, Object: "F", Device: "null:0", Cause: errKilled}
}

// worker opens devices that behave like worker processes.
func worker(open layout.OpenDevice) train.OpenWorker {
	return func(name string, _ time.Duration) (device.Device, error) { return open(name) }
}

// isolated are options of a run whose devices behave like worker processes.
func isolated(x *traintest.Reference, n *runtest.Notes) train.Options {
	return train.Options{Devices: train.DeviceOptions{OpenWorker: worker(traintest.OpenNull), Execute: x.Execute}, Report: n}
}

// output is the result of a run that depends neither on the clock nor on its folder.
type output struct {
	checkpoints map[string]map[string]string
	metrics     any
	events      []string
	loss, val   *float64
}

func outputOf(t *testing.T, c config.Config, res train.Result) output {
	t.Helper()
	l := output{checkpoints: map[string]map[string]string{}, metrics: traintest.Measurements(t, c.Run.Dir), events: events(t, c.Run.Dir),
		loss: res.Loss, val: res.ValLoss}
	names, err := os.ReadDir(filepath.Join(c.Run.Dir, checkpoint.Folder))
	require.NoError(t, err)
	for _, n := range names {
		dir := filepath.Join(c.Run.Dir, checkpoint.Folder, n.Name())
		fs := traintest.Files(t, dir)
		state, err := os.ReadFile(filepath.Join(dir, "state.json"))
		require.NoError(t, err)
		fs["state.json"] = strings.ReplaceAll(string(state), filepath.Dir(c.Run.Dir), "")
		l.checkpoints[n.Name()] = fs
	}
	return l
}

// events are those of TensorBoard, in order, without what depends on the clock.
func events(t *testing.T, dir string) (out []string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "tensorboard", "*"))
	require.NoError(t, err)
	require.Len(t, names, 1)
	b, err := os.ReadFile(names[0])
	require.NoError(t, err)
	const clock = 9 // bytes of the time
	for len(b) > 0 {
		n := binary.LittleEndian.Uint64(b)
		e := b[12+clock : 12+n]
		if _, speed, is := bytes.Cut(e, []byte("tokens_per_s")); is {
			clear(speed[1:5])
		}
		if b = b[16+n:]; !bytes.Contains(e, []byte("system/")) {
			out = append(out, string(e))
		}
	}
	return out
}

// assertSame compares the output of two runs file by file, so that a failure prints only the difference.
func assertSame(t *testing.T, want, got output) {
	t.Helper()
	require.Equal(t, len(want.checkpoints), len(got.checkpoints))
	for step, fs := range want.checkpoints {
		for name := range fs {
			assert.True(t, fs[name] == got.checkpoints[step][name], "%s of %s", name, step)
		}
	}
	assert.Equal(t, want.metrics, got.metrics)
	assert.Equal(t, want.events, got.events)
	assert.Equal(t, []*float64{want.loss, want.val}, []*float64{got.loss, got.val})
}

// A run whose devices are lost anywhere, any number of times, with any hooks, ends with the output of a run without
// faults.
func TestRestartsGiveTheSameRun(t *testing.T) {
	remembers := traintest.WithHooks(traintest.Mixer(t, true)+", hook: map_batch", traintest.Weigher(t)+", hook: token_weights",
		traintest.ScaledLoss(t)+", hook: build_loss", traintest.HooksDir+traintest.RateHook, traintest.HooksDir+traintest.StopHook)
	for name, layout := range map[string][]string{
		"one device":   {"pipeline.stages=1", "pipeline.schedule=sync", "pipeline.delay=0"},
		"sync":         {"pipeline.stages=2", "pipeline.schedule=1f1b", "pipeline.delay=0"},
		"2bw":          {"pipeline.error_feedback=true"},
		"four stages":  {"pipeline.stages=4", "model.n_layers=3", "pipeline.error_feedback=true"},
		"replicas":     {"pipeline.stages=2", "pipeline.replicas=2"},
		"independent":  {"pipeline.stages=2", "pipeline.replicas=2", "pipeline.local_steps=2", "pipeline.outer={wire: int4, late: 1}"},
		"never saved":  {"train.save_every=0"},
		"hooks":        {remembers, "pipeline.stages=2", "train.eval_every=2"},
		"saved rarely": {"train.save_every=5", "train.keep=1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(3, uint64(len(name))))
			configure := func() config.Config {
				return pipelined(t, t.TempDir(), append([]string{"pipeline.isolate=process", "train.steps=6", "train.batch_size=4"},
					layout...)...)
			}
			clean := &traintest.Reference{}
			c := configure()
			res, err := train.Run(t.Context(), c, isolated(clean, &runtest.Notes{}))
			require.NoError(t, err)
			want, total := outputOf(t, c, res), clean.Runs.Load()
			for range 2 {
				first := 1 + rng.Int64N(total)
				second := first + 1 + rng.Int64N(20) // while what was lost is done again, or later
				n := &runtest.Notes{}
				c := configure()
				res, err := train.Run(t.Context(), c, isolated(&traintest.Reference{Fault: func(n int64) error {
					if n == first || n == second {
						return killed("run")
					}
					return nil
				}}, n))
				require.NoError(t, err, "%d, %d", first, second)
				assertSame(t, want, outputOf(t, c, res))
				for i, p := range n.Steps {
					require.Equal(t, i+1, p.Step, "each step is reported once")
				}
				assert.Len(t, n.Steps, res.Step)
				assert.Regexp(t, `stage \d \(null:0\): worker null:0 \(pid 7\) was killed by SIGKILL: device lost; restarting from the (beginning|checkpoint of step \d), attempt [12] of 3(?s:.*)restarted, going on from step \d`, strings.Join(n.Text, "\n"))
				s, err := trace.Summarize(filepath.Join(c.Run.Dir, trace.FileName))
				require.NoError(t, err)
				assert.Positive(t, s.Restarts)
				assert.Equal(t, res.Step, s.Batches)
			}
		})
	}
}

// fragile opens null devices. It calls a function with the number of each of their operations for an error to inject.
func fragile(inject func(n int64, op faulty.Op) error) train.OpenWorker {
	var n atomic.Int64
	return func(name string, _ time.Duration) (device.Device, error) {
		dev, err := traintest.OpenNull(name)
		return &faulty.Device{Device: dev, Before: func(op faulty.Op, _ string) error { return inject(n.Add(1), op) }}, err
	}
}

// A device may be lost at any operation: at start-up, in an evaluation, while saving, at the end.
func TestDevicesLostAnywhere(t *testing.T) {
	configure := func() config.Config {
		return traintest.Demo(t, t.TempDir(), "train.steps=4", "pipeline={schedule: 2bw, stages: 2, isolate: process}")
	}
	var total int64
	ops := map[faulty.Op][]int64{}
	var mu sync.Mutex
	count := func(n int64, op faulty.Op) error {
		mu.Lock()
		defer mu.Unlock()
		total = max(total, n)
		ops[op] = append(ops[op], n)
		return nil
	}
	c := configure()
	res, err := train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{OpenWorker: fragile(count)}})
	require.NoError(t, err)
	want := outputOf(t, c, res)
	rng := rand.New(rand.NewPCG(5, 6))
	at := []int64{1, total}
	for _, of := range ops {
		at = append(at, of[rng.IntN(len(of))])
	}
	for _, at := range at {
		c := configure()
		res, err := train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{OpenWorker: fragile(func(n int64,
			op faulty.Op) error {
			if n == at {
				return errKilled
			}
			return nil
		})}})
		require.NoError(t, err, "operation %d of %d", at, total)
		assertSame(t, want, outputOf(t, c, res))
	}
}

// A lost null device fails all work in progress.
func TestLostNullDevices(t *testing.T) {
	var opened atomic.Int64
	open := func(_ string, silence time.Duration) (device.Device, error) {
		assert.Equal(t, 90*time.Second, silence)
		o := null.Options{}
		if n := opened.Add(1); n <= 4 {
			o.LoseAfter = int(30 * n)
		}
		return null.New(o), nil
	}
	c := pipelined(t, t.TempDir(), "pipeline.isolate=process", "pipeline.stages=2", "pipeline.watchdog=1m30s")
	synctest.Test(t, func(t *testing.T) {
		n := &runtest.Notes{}
		res, err := train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{OpenWorker: open}, Report: n})
		require.NoError(t, err)
		assert.Equal(t, 8, res.Step)
		assert.Len(t, n.Steps, 8)
		assert.GreaterOrEqual(t, opened.Load(), int64(6))
	})
}

// A device that is lost during planning does not change the plan: recomputation is still chosen if memory is short.
func TestLostWhilePlanning(t *testing.T) {
	large := fmt.Errorf("%w: activations", exec.ErrTooLarge)
	for name, inject := range map[string][]error{"at first": {killed("run"), large}, "at the second try": {large, killed("run"), large}} {
		t.Run(name, func(t *testing.T) {
			x, n := &traintest.Reference{}, &runtest.Notes{}
			o := isolated(x, n)
			tries := 0
			o.Devices.Execute = func(dev device.Device, graphs map[string]*graph.Graph,
				pools map[string]exec.Pool) (engine.Planned, error) {
				if tries++; tries <= len(inject) {
					return engine.Planned{}, inject[tries-1]
				}
				return x.Execute(dev, graphs, pools)
			}
			_, err := train.Run(t.Context(), pipelined(t, t.TempDir(), "pipeline.isolate=process", "pipeline.stages=1",
				"pipeline.schedule=sync", "pipeline.delay=0"), o)
			require.NoError(t, err)
			assert.Equal(t, len(inject)+1, tries)
			said := strings.Join(n.Text, "\n")
			assert.Contains(t, said, "computed a second time in the backward pass")
			assert.Contains(t, said, "attempt 1 of 3")
		})
	}
}

// hanging is a device that hangs in a run until it is closed.
type hanging struct {
	device.Device
	run   func() (hangs bool, err error)
	once  sync.Once
	ended chan struct{}
}

func (d *hanging) Run(l device.Loaded) error {
	hangs, err := d.run()
	if err != nil {
		return err
	}
	if hangs {
		<-d.ended
	}
	return d.Device.Run(l)
}

func (d *hanging) Close() error {
	d.once.Do(func() { close(d.ended) })
	return d.Device.Close()
}

// A stage that hangs while another device is lost does not delay the restart: its process is killed.
func TestHangingDeviceIsRestarted(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := pipelined(t, dir, "pipeline.isolate=process")
		var opened, runs atomic.Int64
		var hung atomic.Bool
		open := func(string) (device.Device, error) {
			stage := opened.Add(1) - 1
			return &hanging{ended: make(chan struct{}),
				Device: null.New(null.Options{Latency: func(string) time.Duration { return time.Millisecond }}),
				run: func() (bool, error) {
					switch {
					case stage == 1 && runs.Add(1) == 50:
						hung.Store(true)
						return true, nil
					case stage == 2 && hung.Load():
						return false, killed("run")
					}
					return false, nil
				}}, nil
		}
		began := time.Now()
		res, err := train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{OpenWorker: worker(open)}})
		require.NoError(t, err)
		assert.Equal(t, 8, res.Step)
		assert.Equal(t, int64(6), opened.Load())
		assert.Less(t, time.Since(began), 2*time.Second)
	})
}
