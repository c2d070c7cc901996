package train

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
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
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/faulty"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// errKilled is what a device in a process says of one that was killed.
var errKilled = fmt.Errorf("worker null:0 (pid 7) was killed by SIGKILL: %w", device.ErrLost)

// killed is errKilled of a device.
func killed(op string) error {
	return &device.Error{Op: op, Object: "F", Device: "null:0", Cause: errKilled}
}

// worker lets a device count as a process.
func worker(open OpenDevice) OpenWorker {
	return func(name string, _ time.Duration) (device.Device, error) { return open(name) }
}

// isolated are options of a run whose devices count as processes.
func isolated(x *reference, n *notes) Options {
	return Options{OpenWorker: worker(openNull), Execute: x.execute, Report: n}
}

// left is what a run leaves behind that does not depend on the clock, nor on where it is.
type left struct {
	checkpoints map[string]map[string]string
	metrics     any
	events      []string
	loss, val   *float64
}

func leftBy(t *testing.T, c Config, res Result) left {
	t.Helper()
	l := left{checkpoints: map[string]map[string]string{}, metrics: measurements(t, c.Run.Dir), events: events(t, c.Run.Dir), loss: res.Loss, val: res.ValLoss}
	names, err := os.ReadDir(filepath.Join(c.Run.Dir, checkpointsDir))
	require.NoError(t, err)
	for _, n := range names {
		dir := filepath.Join(c.Run.Dir, checkpointsDir, n.Name())
		fs := files(t, dir)
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
	names, err := filepath.Glob(filepath.Join(dir, eventsDir, "*"))
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
		out, b = append(out, string(e)), b[16+n:]
	}
	return out
}

// same compares what two runs left, file by file: what differs is long.
func same(t *testing.T, want, got left) {
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

// Wherever and however often devices are lost, and with whatever hooks: the run ends as if they never had been.
func TestARunSurvivesItsDevices(t *testing.T) {
	remembers := withHooks(mixer(t, true)+", hook: map_batch", weigher(t)+", hook: token_weights", scaled(t)+", hook: build_loss",
		hooksDir+rateHook, hooksDir+stopHook)
	for name, layout := range map[string][]string{
		"one device":   {"pipeline.stages=1", "pipeline.schedule=sync", "pipeline.delay=0"},
		"sync":         {"pipeline.stages=2", "pipeline.schedule=1f1b", "pipeline.delay=0"},
		"2bw":          {"pipeline.error_feedback=true"},
		"four stages":  {"pipeline.stages=4", "model.n_layers=3", "pipeline.error_feedback=true"},
		"replicas":     {"pipeline.stages=2", "pipeline.replicas=2"},
		"never saved":  {"train.save_every=0"},
		"hooks":        {remembers, "pipeline.stages=2", "train.eval_every=2"},
		"saved rarely": {"train.save_every=5", "train.keep=1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(3, uint64(len(name))))
			config := func() Config {
				return pipelined(t, t.TempDir(), append([]string{"pipeline.isolate=process", "train.steps=6", "train.batch_size=4"}, layout...)...)
			}
			clean := &reference{}
			c := config()
			res, err := Run(t.Context(), c, isolated(clean, &notes{}))
			require.NoError(t, err)
			want, total := leftBy(t, c, res), clean.runs.Load()
			for range 2 {
				first := 1 + rng.Int64N(total)
				second := first + 1 + rng.Int64N(20) // while what was lost is done again, or later
				n := &notes{}
				c := config()
				res, err := Run(t.Context(), c, isolated(&reference{strikes: func(n int64) error {
					if n == first || n == second {
						return killed("run")
					}
					return nil
				}}, n))
				require.NoError(t, err, "%d, %d", first, second)
				same(t, want, leftBy(t, c, res))
				for i, p := range n.steps {
					require.Equal(t, i+1, p.Step, "each step is told of once")
				}
				assert.Len(t, n.steps, res.Step)
				assert.Regexp(t, `stage \d \(null:0\): worker null:0 \(pid 7\) was killed by SIGKILL: device lost; restarting from the (beginning|checkpoint of step \d), attempt [12] of 3(?s:.*)restarted, going on from step \d`, strings.Join(n.text, "\n"))
				s, err := trace.Summarize(filepath.Join(c.Run.Dir, traceFile))
				require.NoError(t, err)
				assert.Positive(t, s.Restarts)
				assert.Equal(t, res.Step, s.Batches)
			}
		})
	}
}

// fragile opens null devices; what befalls an operation of any of them is asked for, with its number.
func fragile(befalls func(n int64, op faulty.Op) error) OpenWorker {
	var n atomic.Int64
	return func(name string, _ time.Duration) (device.Device, error) {
		dev, err := openNull(name)
		return &faulty.Device{Device: dev, Before: func(op faulty.Op, _ string) error { return befalls(n.Add(1), op) }}, err
	}
}

// Each operation of a device may be the one at which it is lost: at start-up, in an evaluation, while saving, at the end.
func TestDevicesLostAnywhere(t *testing.T) {
	config := func() Config {
		return demo(t, t.TempDir(), "train.steps=4", "pipeline={schedule: 2bw, stages: 2, isolate: process}")
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
	c := config()
	res, err := Run(t.Context(), c, Options{OpenWorker: fragile(count)})
	require.NoError(t, err)
	want := leftBy(t, c, res)
	rng := rand.New(rand.NewPCG(5, 6))
	at := []int64{1, total}
	for _, of := range ops {
		at = append(at, of[rng.IntN(len(of))])
	}
	for _, at := range at {
		c := config()
		res, err := Run(t.Context(), c, Options{OpenWorker: fragile(func(n int64, op faulty.Op) error {
			if n == at {
				return errKilled
			}
			return nil
		})})
		require.NoError(t, err, "operation %d of %d", at, total)
		same(t, want, leftBy(t, c, res))
	}
}

// Where a device is lost while something else is done than training, that is told.
func TestWhatWasDoneWhenADeviceWasLost(t *testing.T) {
	for _, x := range []struct {
		isolate, object, want string
	}{
		{"process", "E output losses", `^evaluating after step 2: stage 1 \(null:0\): worker null:0 \(pid 7\) was killed by SIGKILL: device lost; restarting from the beginning, attempt 1 of 3$`},
		{"process", "exp_avg/lm_head.weight", `^saving the checkpoint of step 2: device null:0: worker null:0 .*; restarting from the beginning, attempt 1 of 3$`},
		{"process", "", `^stage \d \(null:0\): worker null:0 `},
		{"none", "E output losses", `^evaluating after step 2: stage 1: `},
		{"none", "exp_avg/lm_head.weight", `^saving the checkpoint of step 2: `},
	} {
		var fell atomic.Bool
		open := func(name string) (device.Device, error) {
			dev, err := openNull(name)
			return &faulty.Device{Device: dev, Before: func(op faulty.Op, object string) error {
				if op == faulty.Read && strings.Contains(object, x.object) && fell.CompareAndSwap(false, true) {
					return errKilled
				}
				return nil
			}}, err
		}
		n := &notes{}
		c := demo(t, t.TempDir(), "train.steps=2", "train.eval_every=2", "pipeline={schedule: 1f1b, stages: 2, isolate: "+x.isolate+"}")
		_, err := Run(t.Context(), c, Options{OpenDevice: open, OpenWorker: worker(open), Report: n})
		if x.isolate == "none" {
			require.ErrorIs(t, err, device.ErrLost)
			assert.Regexp(t, x.want, err.Error())
			continue
		}
		require.NoError(t, err)
		require.NotEmpty(t, n.text)
		assert.Regexp(t, x.want, n.text[0])
	}
}

// The null device loses itself, and with it all that is under way.
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
		n := &notes{}
		res, err := Run(t.Context(), c, Options{OpenWorker: open, Report: n})
		require.NoError(t, err)
		assert.Equal(t, 8, res.Step)
		assert.Len(t, n.steps, 8)
		assert.GreaterOrEqual(t, opened.Load(), int64(6))
	})
}

// A device that is lost while the pipeline is planned leaves nothing decided: what does not fit is still recomputed.
func TestLostWhilePlanning(t *testing.T) {
	large := fmt.Errorf("%w: activations", exec.ErrTooLarge)
	for name, befalls := range map[string][]error{"at first": {killed("run"), large}, "at the second try": {large, killed("run"), large}} {
		t.Run(name, func(t *testing.T) {
			x, n := &reference{}, &notes{}
			o := isolated(x, n)
			tries := 0
			o.Execute = func(dev device.Device, graphs map[string]*graph.Graph, pools map[string]exec.Pool) (engine.Planned, error) {
				if tries++; tries <= len(befalls) {
					return engine.Planned{}, befalls[tries-1]
				}
				return x.execute(dev, graphs, pools)
			}
			_, err := Run(t.Context(), pipelined(t, t.TempDir(), "pipeline.isolate=process", "pipeline.stages=1", "pipeline.schedule=sync", "pipeline.delay=0"), o)
			require.NoError(t, err)
			assert.Equal(t, len(befalls)+1, tries)
			said := strings.Join(n.text, "\n")
			assert.Contains(t, said, "computed a second time in the backward pass")
			assert.Contains(t, said, "attempt 1 of 3")
		})
	}
}

// Faults in a row end the run; a checkpoint in between begins the count again.
func TestFaultsInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clean := &reference{}
		c := pipelined(t, t.TempDir(), "train.eval_every=0", "pipeline.isolate=process")
		_, err := Run(t.Context(), c, isolated(clean, &notes{}))
		require.NoError(t, err)
		total := clean.runs.Load()

		half := func(n int64) error {
			if n > total/2 {
				return killed("run")
			}
			return nil
		}
		c = pipelined(t, t.TempDir(), "train.eval_every=0", "pipeline.isolate=process", "pipeline.restarts=2")
		n := &notes{}
		began := time.Now()
		_, err = Run(t.Context(), c, isolated(&reference{strikes: half}, n))
		require.ErrorIs(t, err, device.ErrLost)
		assert.False(t, errors.As(err, new(*UserError)), "exit code 1")
		assert.Regexp(t, `^device lost 3 times in a row, and pipeline.restarts is 2: (stage [0-2] \(null:0\): worker null:0 \(pid 7\) was killed by SIGKILL: device lost; ){3}the checkpoint of step [24] is kept: with --resume the same command goes on from there$`, err.Error())
		assert.Equal(t, time.Second, time.Since(began), "the second restart waits")
		assert.Len(t, n.text, 4, "each restart is told of when it begins and when it is done")
		o := isolated(&reference{}, &notes{})
		o.Resume = true
		res, err := Run(t.Context(), c, o)
		require.NoError(t, err)
		assert.Equal(t, 8, res.Step)

		c = pipelined(t, t.TempDir(), "pipeline.isolate=process", "pipeline.restarts=0")
		o = isolated(&reference{strikes: func(int64) error { return killed("run") }}, &notes{})
		_, err = Run(t.Context(), c, o)
		assert.ErrorContains(t, err, "device lost 1 times in a row, and pipeline.restarts is 0")
		assert.ErrorContains(t, err, "there is no checkpoint yet: with --resume the same command begins again")
		o.Resume = true // given already, or as in a study
		_, err = Run(t.Context(), c, o)
		assert.ErrorContains(t, err, "there is no checkpoint yet: the same command begins again")

		var last atomic.Int64 // one fault after each checkpoint: none is in a row with another
		c = pipelined(t, t.TempDir(), "train.eval_every=0", "pipeline.isolate=process", "pipeline.restarts=1")
		_, err = Run(t.Context(), c, isolated(&reference{strikes: func(n int64) error {
			if before := last.Load(); n-before > total/3 && last.CompareAndSwap(before, n) {
				return killed("run")
			}
			return nil
		}}, &notes{}))
		require.NoError(t, err)
	})
}

// What a device says while it is opened or loaded anew is one more fault, whatever it is: it worked before.
func TestAFaultDuringARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pipelined(t, t.TempDir(), "pipeline.isolate=process", "pipeline.stages=2")
		var opened atomic.Int64
		x := &reference{strikes: func(n int64) error {
			if n == 60 {
				return killed("run")
			}
			return nil
		}}
		open := func(name string) (device.Device, error) {
			if opened.Add(1) == 3 {
				return nil, errors.New("no such device")
			}
			return openNull(name)
		}
		n := &notes{}
		o := isolated(x, n)
		o.OpenWorker = worker(open)
		res, err := Run(t.Context(), c, o)
		require.NoError(t, err)
		assert.Equal(t, 8, res.Step)
		require.Len(t, n.text, 3)
		assert.Regexp(t, `stage \d \(null:0\): .* was killed by SIGKILL: device lost; restarting from .*, attempt 1 of 3`, n.text[0])
		assert.Regexp(t, `^opening the default device again: no such device \(device lost\); restarting from .*, attempt 2 of 3`, n.text[1])
		assert.Regexp(t, `^restarted, going on from step \d$`, n.text[2])
	})
}

// Of several devices that fail at once, each is named with its own line, and those that were lost only.
func TestFaultsOfSeveralDevices(t *testing.T) {
	for want, befalls := range map[string][2]error{
		`^stage 0 \(null:0\): worker null:0 .*; stage 1 \(null:1\): worker null:0 .*; restarting from the beginning, attempt 1 of 3$`: {errKilled, errKilled},
		`^stage 1 \(null:1\): worker null:0 .*; restarting from the beginning, attempt 1 of 3$`:                                       {errInjected, errKilled},
		`^stage 0 \(null:0\): worker null:0 .*; restarting from the beginning, attempt 1 of 3$`:                                       {errKilled, errInjected},
	} {
		var failed [2]atomic.Bool
		open := func(name string) (device.Device, error) {
			line := map[string]int{"null:0": 0, "null:1": 1}[name]
			return &faulty.Device{Device: null.New(null.Options{Name: name}), Before: func(op faulty.Op, _ string) error {
				if op == faulty.Alloc && failed[line].CompareAndSwap(false, true) {
					return befalls[line]
				}
				return nil
			}}, nil
		}
		n := &notes{}
		c := demo(t, t.TempDir(), "train.steps=2", "pipeline={schedule: 1f1b, stages: 2, devices: [null:0, null:1], isolate: process}")
		_, err := Run(t.Context(), c, Options{OpenWorker: worker(open), Report: n})
		require.NoError(t, err)
		require.Len(t, n.text, 2)
		assert.Regexp(t, want, n.text[0])
	}
}

// Errors that are no loss of a device are not tried again, nor are devices of this process opened again.
func TestWhatIsNotTriedAgain(t *testing.T) {
	for want, x := range map[string]struct {
		err      error
		override string
	}{
		"injected":              {errInjected, "pipeline.isolate=process"},
		"out of device memory":  {&device.Error{Op: "run", Cause: device.ErrOutOfMemory}, "pipeline.isolate=process"},
		"validation failed":     {&device.Error{Op: "run", Cause: device.ErrValidation}, "pipeline.isolate=process"},
		"with pipeline.isolate": {killed("run"), "pipeline.isolate=none"},
	} {
		n := &notes{}
		o := isolated(&reference{strikes: func(n int64) error {
			if n == 60 {
				return x.err
			}
			return nil
		}}, n)
		o.OpenDevice = openNull
		_, err := Run(t.Context(), pipelined(t, t.TempDir(), x.override), o)
		assert.ErrorContains(t, err, want)
		assert.Empty(t, n.text)
	}
	_, err := Run(t.Context(), pipelined(t, t.TempDir(), "pipeline.isolate=process"), options(&reference{}, &notes{}))
	var user *UserError
	require.ErrorAs(t, err, &user)
	assert.ErrorContains(t, err, "pipeline.isolate: found \"process\"")
}

// stuck is a device whose memory cannot be had before its end.
type stuck struct {
	device.Device
	once  sync.Once
	ended chan struct{}
}

func (d *stuck) Alloc(string, int64) (device.Buffer, error) {
	<-d.ended
	return nil, device.ErrClosed
}

func (d *stuck) Close() error {
	d.once.Do(func() { close(d.ended) })
	return d.Device.Close()
}

// Ctrl-C during a restart ends the run at once, at what is safe; and so does a fault after Ctrl-C.
func TestInterruptedRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, where := range []string{"while it waits", "while it loads", "before the fault"} {
			ctx, cancel := context.WithCancel(t.Context())
			c := pipelined(t, t.TempDir(), "pipeline.isolate=process", "pipeline.stages=1", "pipeline.delay=0", "pipeline.schedule=sync")
			var runs, opened atomic.Int64
			open := func(name string) (device.Device, error) {
				dev, err := openNull(name)
				if opened.Add(1) > 1 && where == "while it loads" {
					time.AfterFunc(time.Minute, cancel)
					return &stuck{Device: dev, ended: make(chan struct{})}, err
				}
				return &faulty.Device{Device: dev, Before: func(op faulty.Op, _ string) error {
					if op == faulty.Run && runs.Add(1) > 50 {
						if where == "before the fault" {
							cancel()
						}
						if opened.Load() == 2 {
							time.AfterFunc(time.Second/2, cancel)
						}
						return errKilled
					}
					return nil
				}}, err
			}
			n := &notes{}
			res, err := Run(ctx, c, Options{OpenWorker: worker(open), Report: n})
			require.NoError(t, err, where)
			assert.True(t, res.Interrupted, where)
			assert.Positive(t, res.Step, where)
			assert.Equal(t, filepath.Join(c.Run.Dir, checkpointsDir, fmt.Sprintf("step-%d", res.Step)), res.Checkpoint, where)
			assert.Contains(t, n.text[len(n.text)-1], "was killed by SIGKILL: device lost; it is not started again", where)
			o := Options{OpenWorker: worker(openNull), Resume: true}
			res, err = Run(t.Context(), c, o)
			require.NoError(t, err, where)
			assert.Equal(t, 8, res.Step, where)
			assert.Len(t, measurements(t, c.Run.Dir), 8, where)
			cancel()
		}
	})
}

// So does it where devices were lost before the run began, which then leaves nothing.
func TestInterruptedBeforeItBegan(t *testing.T) {
	c := pipelined(t, t.TempDir(), "pipeline.isolate=process", "pipeline.stages=1", "pipeline.delay=0", "pipeline.schedule=sync")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var opened atomic.Int64
		open := func(name string) (device.Device, error) {
			if opened.Add(1) == 2 { // a second passes before the next is opened
				time.AfterFunc(time.Second/2, cancel)
			}
			return nil, errKilled
		}
		res, err := Run(ctx, c, Options{OpenWorker: worker(open)})
		require.EqualError(t, err, context.Canceled.Error())
		assert.False(t, res.Interrupted, "there is nothing to resume")
		assert.Equal(t, int64(2), opened.Load())
		assert.NoDirExists(t, c.Run.Dir)
	})
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

// A stage that hangs while another is lost holds nothing up: its process is ended, and with it what waits for it.
func TestAHangingDeviceIsStartedAgain(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := pipelined(t, dir, "pipeline.isolate=process")
		var opened, runs atomic.Int64
		var hung atomic.Bool
		open := func(string) (device.Device, error) {
			stage := opened.Add(1) - 1
			return &hanging{ended: make(chan struct{}), Device: null.New(null.Options{Latency: func(string) time.Duration { return time.Millisecond }}),
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
		res, err := Run(t.Context(), c, Options{OpenWorker: worker(open)})
		require.NoError(t, err)
		assert.Equal(t, 8, res.Step)
		assert.Equal(t, int64(6), opened.Load())
		assert.Less(t, time.Since(began), 2*time.Second)
	})
}
