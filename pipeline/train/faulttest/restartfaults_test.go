package faulttest

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/faulty"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The report of a device that is lost outside training names the run's activity.
func TestLostDeviceReportsTheRunsActivity(t *testing.T) {
	for _, x := range []struct {
		isolate, object, want string
	}{
		{"process", "E output losses", `^evaluating after step 2: stage 1 \(null:0\): worker null:0 \(pid 7\) was killed by SIGKILL: device lost; restarting from the beginning, attempt 1 of 3$`},
		{"process", "exp_avg/lm_head.weight", `^saving the checkpoint of step 2: device null:0: worker null:0 .*; restarting from the beginning, attempt 1 of 3$`},
		{"process", "", `^stage \d \(null:0\): worker null:0 `},
		{"none", "E output losses", `^evaluating after step 2: stage 1: `},
		{"none", "exp_avg/lm_head.weight", `^save checkpoint of step 2: .*; there is no checkpoint yet; with pipeline.isolate`},
	} {
		var fell atomic.Bool
		open := func(name string) (device.Device, error) {
			dev, err := traintest.OpenNull(name)
			return &faulty.Device{Device: dev, Before: func(op faulty.Op, object string) error {
				if op == faulty.Read && strings.Contains(object, x.object) && fell.CompareAndSwap(false, true) {
					return errKilled
				}
				return nil
			}}, err
		}
		n := &runtest.Notes{}
		c := traintest.Demo(t, t.TempDir(), "train.steps=2", "train.eval_every=2",
			"pipeline={schedule: 1f1b, stages: 2, isolate: "+x.isolate+"}")
		_, err := train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{Open: open, OpenWorker: worker(open)}, Report: n})
		if x.isolate == "none" {
			require.ErrorIs(t, err, device.ErrLost)
			assert.Regexp(t, x.want, err.Error())
			continue
		}
		require.NoError(t, err)
		require.NotEmpty(t, n.Text)
		assert.Regexp(t, x.want, n.Text[0])
	}
}

// Faults in a row end the run; a checkpoint in between begins the count again.
func TestFaultsInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clean := &traintest.Reference{}
		c := pipelined(t, t.TempDir(), "train.eval_every=0", "pipeline.isolate=process")
		_, err := train.Run(t.Context(), c, isolated(clean, &runtest.Notes{}))
		require.NoError(t, err)
		total := clean.Runs.Load()

		half := func(n int64) error {
			if n > total/2 {
				return killed("run")
			}
			return nil
		}
		c = pipelined(t, t.TempDir(), "train.eval_every=0", "pipeline.isolate=process", "pipeline.restarts=2")
		n := &runtest.Notes{}
		began := time.Now()
		_, err = train.Run(t.Context(), c, isolated(&traintest.Reference{Fault: half}, n))
		require.ErrorIs(t, err, device.ErrLost)
		assert.False(t, errors.As(err, new(*usererror.Error)), "exit code 1")
		assert.Regexp(t, `^device lost 3 times in a row, and pipeline.restarts is 2: (stage [0-2] \(null:0\): worker null:0 \(pid 7\) was killed by SIGKILL: device lost; ){3}the checkpoint of step [24] is kept: with --resume the same command goes on from there$`, err.Error())
		assert.Equal(t, time.Second, time.Since(began), "the second restart waits")
		assert.Len(t, n.Text, 4, "each restart is reported when it begins and when it is done")
		o := isolated(&traintest.Reference{}, &runtest.Notes{})
		o.Resume = true
		res, err := train.Run(t.Context(), c, o)
		require.NoError(t, err)
		assert.Equal(t, 8, res.Step)

		c = pipelined(t, t.TempDir(), "pipeline.isolate=process", "pipeline.restarts=0")
		o = isolated(&traintest.Reference{Fault: func(int64) error { return killed("run") }}, &runtest.Notes{})
		_, err = train.Run(t.Context(), c, o)
		assert.ErrorContains(t, err, "device lost 1 times in a row, and pipeline.restarts is 0")
		assert.ErrorContains(t, err, "there is no checkpoint yet: with --resume the same command begins again")
		o.Resume = true // given already, or as in a study
		_, err = train.Run(t.Context(), c, o)
		assert.ErrorContains(t, err, "there is no checkpoint yet: the same command begins again")

		var last atomic.Int64 // one fault after each checkpoint: none is in a row with another
		c = pipelined(t, t.TempDir(), "train.eval_every=0", "pipeline.isolate=process", "pipeline.restarts=1")
		_, err = train.Run(t.Context(), c, isolated(&traintest.Reference{Fault: func(n int64) error {
			if before := last.Load(); n-before > total/3 && last.CompareAndSwap(before, n) {
				return killed("run")
			}
			return nil
		}}, &runtest.Notes{}))
		require.NoError(t, err)
	})
}

// Any error of opening or loading a device again counts as one more fault, because it worked before.
func TestFaultDuringRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pipelined(t, t.TempDir(), "pipeline.isolate=process", "pipeline.stages=2")
		var opened atomic.Int64
		x := &traintest.Reference{Fault: func(n int64) error {
			if n == 60 {
				return killed("run")
			}
			return nil
		}}
		open := func(name string) (device.Device, error) {
			if opened.Add(1) == 3 {
				return nil, errors.New("no such device")
			}
			return traintest.OpenNull(name)
		}
		n := &runtest.Notes{}
		o := isolated(x, n)
		o.Devices.OpenWorker = worker(open)
		res, err := train.Run(t.Context(), c, o)
		require.NoError(t, err)
		assert.Equal(t, 8, res.Step)
		require.Len(t, n.Text, 3)
		assert.Regexp(t, `stage \d \(null:0\): .* was killed by SIGKILL: device lost; restarting from .*, attempt 1 of 3`, n.Text[0])
		assert.Regexp(t, `^opening the default device again: no such device \(device lost\); restarting from .*, attempt 2 of 3`, n.Text[1])
		assert.Regexp(t, `^restarted, going on from step \d$`, n.Text[2])
	})
}

// If several devices fail at once, the report names those that were lost, each with its rank.
func TestFaultsOfSeveralDevices(t *testing.T) {
	for want, inject := range map[string][2]error{
		`^stage 0 \(null:0\): worker null:0 .*; stage 1 \(null:1\): worker null:0 .*; restarting from the beginning, attempt 1 of 3$`: {errKilled, errKilled},
		`^stage 1 \(null:1\): worker null:0 .*; restarting from the beginning, attempt 1 of 3$`:                                       {traintest.ErrInjected, errKilled},
		`^stage 0 \(null:0\): worker null:0 .*; restarting from the beginning, attempt 1 of 3$`:                                       {errKilled, traintest.ErrInjected},
	} {
		var failed [2]atomic.Bool
		open := func(name string) (device.Device, error) {
			rank := map[string]int{"null:0": 0, "null:1": 1}[name]
			return &faulty.Device{Device: null.New(null.Options{Name: name}), Before: func(op faulty.Op, _ string) error {
				if op == faulty.Alloc && failed[rank].CompareAndSwap(false, true) {
					return inject[rank]
				}
				return nil
			}}, nil
		}
		n := &runtest.Notes{}
		c := traintest.Demo(t, t.TempDir(), "train.steps=2",
			"pipeline={schedule: 1f1b, stages: 2, devices: [null:0, null:1], isolate: process}")
		_, err := train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{OpenWorker: worker(open)}, Report: n})
		require.NoError(t, err)
		require.Len(t, n.Text, 2)
		assert.Regexp(t, want, n.Text[0])
	}
}

// Errors other than a lost device do not restart a run, nor does the loss of a device in this process.
func TestErrorsThatDoNotRestart(t *testing.T) {
	for want, x := range map[string]struct {
		err      error
		override string
	}{
		"injected":              {traintest.ErrInjected, "pipeline.isolate=process"},
		"out of device memory":  {&device.Error{Op: "run", Cause: device.ErrOutOfMemory}, "pipeline.isolate=process"},
		"validation failed":     {&device.Error{Op: "run", Cause: device.ErrValidation}, "pipeline.isolate=process"},
		"with pipeline.isolate": {killed("run"), "pipeline.isolate=none"},
	} {
		n := &runtest.Notes{}
		o := isolated(&traintest.Reference{Fault: func(n int64) error {
			if n == 60 {
				return x.err
			}
			return nil
		}}, n)
		o.Devices.Open = traintest.OpenNull
		_, err := train.Run(t.Context(), pipelined(t, t.TempDir(), x.override), o)
		assert.ErrorContains(t, err, want)
		assert.Empty(t, n.Text)
	}
	_, err := train.Run(t.Context(), pipelined(t, t.TempDir(), "pipeline.isolate=process"),
		runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	var user *usererror.Error
	require.ErrorAs(t, err, &user)
	assert.ErrorContains(t, err, "pipeline.isolate: found \"process\"")
}
