package faulttest

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/faulty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stuck is a device whose allocation blocks until the device is closed.
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

// Ctrl-C during a restart ends the run at once, at its newest checkpoint. So does a fault after Ctrl-C.
func TestInterruptedRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, where := range []string{"while it waits", "while it loads", "before the fault"} {
			ctx, cancel := context.WithCancel(t.Context())
			c := pipelined(t, t.TempDir(), "pipeline.isolate=process", "pipeline.stages=1", "pipeline.delay=0", "pipeline.schedule=sync")
			var runs, opened atomic.Int64
			open := func(name string) (device.Device, error) {
				dev, err := traintest.OpenNull(name)
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
			n := &runtest.Notes{}
			res, err := train.Run(ctx, c, train.Options{Devices: train.DeviceOptions{OpenWorker: worker(open)}, Report: n})
			require.NoError(t, err, where)
			assert.True(t, res.Interrupted, where)
			assert.Positive(t, res.Step, where)
			assert.Equal(t, filepath.Join(c.Run.Dir, checkpoint.Folder, fmt.Sprintf("step-%d", res.Step)), res.Checkpoint, where)
			assert.Contains(t, n.Text[len(n.Text)-1], "was killed by SIGKILL: device lost; it is not started again", where)
			o := train.Options{Devices: train.DeviceOptions{OpenWorker: worker(traintest.OpenNull)}, Resume: true}
			res, err = train.Run(t.Context(), c, o)
			require.NoError(t, err, where)
			assert.Equal(t, 8, res.Step, where)
			assert.Len(t, traintest.Measurements(t, c.Run.Dir), 8, where)
			cancel()
		}
	})
}

// Ctrl-C during the restart of a run that has not written anything leaves no files.
func TestInterruptedBeforeFirstStepAfterFault(t *testing.T) {
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
		res, err := train.Run(ctx, c, train.Options{Devices: train.DeviceOptions{OpenWorker: worker(open)}})
		require.EqualError(t, err, context.Canceled.Error())
		assert.False(t, res.Interrupted, "there is nothing to resume")
		assert.Equal(t, int64(2), opened.Load())
		assert.NoDirExists(t, c.Run.Dir)
	})
}
