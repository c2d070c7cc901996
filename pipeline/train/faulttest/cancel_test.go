package faulttest

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/faulty"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// compiling is a device that compiles one of its programs until it is closed.
type compiling struct {
	device.Device
	loads, endless int64
	once           sync.Once
	closed         chan struct{}
}

func (d *compiling) Load(p *device.Program) (device.Loaded, error) {
	if atomic.AddInt64(&d.loads, 1) == d.endless {
		<-d.closed
		return nil, device.ErrClosed
	}
	return d.Device.Load(p)
}

func (d *compiling) Close() error {
	d.once.Do(func() { close(d.closed) })
	return d.Device.Close()
}

// Before the first step is done, Ctrl-C ends the run at once. A new run then leaves no files, and a resumed one can be
// resumed again.
func TestInterruptedBeforeTheFirstStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, begun := range []bool{false, true} {
			for _, isolate := range []string{"none", "process"} {
				open := func(string) (device.Device, error) {
					if !begun {
						return &stuck{Device: null.New(null.Options{}), ended: make(chan struct{})}, nil
					}
					return &compiling{Device: null.New(null.Options{}), endless: 2, closed: make(chan struct{})}, nil
				}
				o := train.Options{Devices: train.DeviceOptions{Open: open, OpenWorker: worker(open)}}
				good := train.Options{Devices: train.DeviceOptions{Open: traintest.OpenNull, OpenWorker: worker(traintest.OpenNull)},
					Resume: true}
				c := pipelined(t, t.TempDir(), "pipeline.isolate="+isolate, "pipeline.stages=2", "train.eval_every=0")
				interrupted := func(o train.Options) (train.Result, error) {
					ctx, cancel := context.WithCancel(t.Context())
					began := time.Now()
					time.AfterFunc(time.Minute, cancel)
					res, err := train.Run(ctx, c, o)
					assert.Equal(t, time.Minute, time.Since(began))
					return res, err
				}
				res, err := interrupted(o)
				assert.Equal(t, begun, res.Interrupted)
				assert.True(t, res.Idle)
				assert.Zero(t, res.Step)
				assert.Empty(t, res.Checkpoint)
				if begun {
					require.NoError(t, err)
				} else {
					assert.EqualError(t, err, context.Canceled.Error())
					assert.NoDirExists(t, c.Run.Dir)
				}
				short := c
				short.Train.Steps = 2
				_, err = train.Run(t.Context(), short, good)
				require.NoError(t, err)
				o.Resume = true
				res, err = interrupted(o)
				require.NoError(t, err)
				assert.True(t, res.Interrupted)
				assert.True(t, res.Idle)
				assert.Equal(t, 2, res.Step)
				assert.Equal(t, filepath.Join(c.Run.Dir, checkpoint.Folder, "step-2"), res.Checkpoint)
				res, err = train.Run(t.Context(), c, good)
				require.NoError(t, err)
				assert.Equal(t, 8, res.Step)
				assert.Len(t, traintest.Measurements(t, c.Run.Dir), 8)
			}
		}
	})
}

// A device that does not finish, because its driver compiles kernels when they first run, does not delay Run: the
// folder is free when Run returns.
func TestInterruptedWhileADeviceIsBusy(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := pipelined(t, dir, "train.eval_every=0")
		open := func(string) (device.Device, error) {
			return &faulty.Device{Device: null.New(null.Options{}), Before: func(op faulty.Op, _ string) error {
				if op == faulty.Run {
					time.Sleep(time.Hour)
				}
				return nil
			}}, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		time.AfterFunc(time.Minute, cancel)
		res, err := train.Run(ctx, c, train.Options{Devices: train.DeviceOptions{Open: open}})
		require.NoError(t, err)
		assert.Less(t, time.Since(began), time.Minute+3*time.Second)
		assert.True(t, res.Interrupted)
		assert.Zero(t, res.Step)
		res, err = train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{Open: traintest.OpenNull}, Resume: true})
		require.NoError(t, err)
		assert.Equal(t, 8, res.Step)
		time.Sleep(24 * time.Hour) // all goroutines that were abandoned end
		assert.Len(t, traintest.Measurements(t, c.Run.Dir), 8)
	})
}

// Ctrl-C while the pipeline is planned interrupts the run, whether or not the plan succeeds.
func TestInterruptedWhilePlanning(t *testing.T) {
	c := pipelined(t, t.TempDir(), "pipeline.stages=1", "pipeline.schedule=sync", "pipeline.delay=0", "train.eval_every=0")
	interrupted := func(said error) (train.Result, error) {
		ctx, cancel := context.WithCancel(t.Context())
		tries := 0
		o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
		o.Resume = true
		o.Devices.Execute = func(device.Device, map[string]*graph.Graph, map[string]exec.Pool) (engine.Planned, error) {
			if tries++; tries == 1 {
				return engine.Planned{}, exec.ErrTooLarge // so that another way is tried
			}
			cancel()
			return engine.Planned{}, said
		}
		return train.Run(ctx, c, o)
	}
	tried := []error{device.ErrClosed, context.Canceled}
	for _, said := range tried {
		_, err := interrupted(said)
		assert.EqualError(t, err, context.Canceled.Error(), "%v", said)
	}
	short := c
	short.Train.Steps = 2
	_, err := train.Run(t.Context(), short, train.Options{Devices: train.DeviceOptions{Open: traintest.OpenNull}})
	require.NoError(t, err)
	for _, said := range tried {
		res, err := interrupted(said)
		require.NoError(t, err, "%v", said)
		assert.True(t, res.Interrupted)
		assert.Equal(t, 2, res.Step)
	}
}
