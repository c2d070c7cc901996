package faulttest

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/faulty"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pipelined is a run of three stages that saves every second step.
func pipelined(t *testing.T, dir string, overrides ...string) config.Config {
	t.Helper()
	return traintest.Demo(t, dir, append([]string{
		"model={vocab_size: 256, d_model: 8, n_layers: 2, n_heads: 2, d_ff: 12, seq_len: 8}",
		"train={steps: 8, batch_size: 8, microbatches: 4, eval_every: 4, save_every: 2}",
		"pipeline={schedule: 2bw, stages: 3}", "run.dir=" + dir + "/run"}, overrides...)...)
}

// Wherever a stage fails, the last checkpoint is good, and resuming from it gives the bits of a run without a failure.
func TestFailedRunsResume(t *testing.T) {
	c := pipelined(t, t.TempDir())
	clean := &traintest.Reference{}
	whole, err := train.Run(t.Context(), c, runtest.Options(clean, &runtest.Notes{}))
	require.NoError(t, err)
	want, total := traintest.Files(t, whole.Checkpoint), clean.Runs.Load()
	for _, part := range []int64{10, 35, 60, 95} {
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			c := pipelined(t, t.TempDir())
			_, err := train.Run(t.Context(), c, runtest.Options(&traintest.Reference{Fault: traintest.FailAt(total * part / 100)},
				&runtest.Notes{}))
			require.ErrorIs(t, err, traintest.ErrInjected)
			assert.Regexp(t, `^stage \d: [A-Z]\d+(\.\d+)?: injected$`, err.Error())
			saved, problems, err := checkpoint.Latest(c.Run.Dir)
			assert.Empty(t, problems)
			if part > 35 {
				require.NoError(t, err)
				assert.Positive(t, saved.Step)
			}
			o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
			o.Resume = true
			res, err := train.Run(t.Context(), c, o)
			require.NoError(t, err)
			got := traintest.Files(t, res.Checkpoint)
			for name := range want {
				assert.True(t, want[name] == got[name], name)
			}
		})
	}
}

// An interrupted pipeline finishes the batches in progress and saves. Resumed, it gives the same bits. Without
// validation text no run is interrupted in its last evaluation, after the last step.
func TestInterruptedPipeline(t *testing.T) {
	whole, err := train.Run(t.Context(), pipelined(t, t.TempDir(), "data.val_fraction=0"),
		runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	want := traintest.Files(t, whole.Checkpoint)
	for at := 1; at < 8; at += 2 {
		c := pipelined(t, t.TempDir(), "data.val_fraction=0", "train.save_every=0", "train.eval_every=0")
		ctx, cancel := context.WithCancel(t.Context())
		res, err := train.Run(ctx, c, runtest.Options(&traintest.Reference{}, &runtest.Notes{OnStep: func(p train.Progress) {
			if p.Step == at {
				cancel()
			}
		}}))
		require.NoError(t, err)
		if res.Interrupted {
			assert.Less(t, res.Step, 8)
			assert.DirExists(t, filepath.Join(c.Run.Dir, "checkpoints", fmt.Sprintf("step-%d", res.Step)))
		}
		o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
		o.Resume = true
		res, err = train.Run(t.Context(), c, o)
		require.NoError(t, err)
		got := traintest.Files(t, res.Checkpoint)
		for name := range want {
			assert.True(t, want[name] == got[name], "%s, interrupted at %d", name, at)
		}
		cancel()
	}
}

// A failure is reported although another device hangs.
func TestHangingDeviceDoesNotHideAFailure(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := pipelined(t, dir, "train.eval_every=0")
		var devices, runs atomic.Int64
		var hung atomic.Bool
		open := func(string) (device.Device, error) {
			stage := devices.Add(1) - 1
			name := fmt.Sprint("null:", stage)
			return &faulty.Device{Device: null.New(null.Options{Name: name,
				Latency: func(string) time.Duration { return time.Millisecond }}),
				Before: func(op faulty.Op, object string) error {
					switch {
					case stage == 1 && op == faulty.Run && runs.Add(1) == 50:
						hung.Store(true)
						time.Sleep(time.Hour)
					case stage == 2 && op == faulty.Wait && hung.Load():
						return traintest.ErrInjected
					}
					return nil
				}}, nil
		}
		began := time.Now()
		_, err := train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{Open: open}})
		require.ErrorIs(t, err, traintest.ErrInjected)
		assert.ErrorContains(t, err, "stage 2: ")
		assert.ErrorContains(t, err, "the devices are still busy after 10s")
		assert.Less(t, time.Since(began), time.Minute)
		saved, problems, err := checkpoint.Latest(c.Run.Dir)
		require.NoError(t, err)
		assert.Empty(t, problems)
		assert.Positive(t, saved.Step)
		time.Sleep(2 * time.Hour) // all goroutines that were abandoned end
	})
}
