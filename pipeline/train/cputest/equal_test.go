//go:build linux && cgo

package cputest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device/host"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// requireEqual compares checkpoints bit by bit.
func requireEqual(t *testing.T, want, got map[string]string, what string) {
	t.Helper()
	for file := range want {
		require.True(t, want[file] == got[file], "%s: %s differs", what, file)
	}
}

func TestThreadsChangeNothing(t *testing.T) {
	for _, optimizer := range []string{"muon", "adamw"} {
		one := filesOf(t, "optimizer.name="+optimizer, "pipeline.devices=[cpu:0/1]")
		for _, threads := range []int{2, 3, 8} {
			requireEqual(t, one, filesOf(t, "optimizer.name="+optimizer, fmt.Sprintf("pipeline.devices=[cpu:0/%d]", threads)),
				fmt.Sprint(threads, " threads"))
		}
	}
}

func TestSynchronousPipelinesEqualOneDevice(t *testing.T) {
	one := filesOf(t)
	for _, overrides := range [][]string{{"pipeline.schedule=1f1b", "pipeline.stages=2"}, {"pipeline.schedule=gpipe", "pipeline.stages=3"},
		{"pipeline.schedule=zb-h1", "pipeline.stages=2"}, {"pipeline.recompute=always"}} {
		got := filesOf(t, overrides...)
		require.True(t, one["model.safetensors"] == got["model.safetensors"], "%v", overrides)
	}
}

func Test2BWEqualsADelayOnOneDevice(t *testing.T) {
	common := []string{"pipeline.delay=1", "pipeline.stale_microbatches=all", "pipeline.correction=error_feedback"}
	one := filesOf(t, common...)
	for _, stages := range []int{2, 5} {
		for _, devices := range []string{"[cpu:0]", "[cpu:0/2, cpu:0/1]"} {
			overrides := append(common, "pipeline.schedule=2bw", fmt.Sprint("pipeline.stages=", stages), "pipeline.devices="+devices)
			requireEqual(t, one, filesOf(t, overrides...), strings.Join(overrides, " "))
		}
	}
}

// Devices in worker processes compute the same.
func TestWorkersEqualThisProcess(t *testing.T) {
	for _, format := range []string{"f32", "bf16", "int8"} {
		common := []string{"pipeline.schedule=2bw", "pipeline.stages=2", "pipeline.wire=" + format}
		requireEqual(t, filesOf(t, common...), filesOf(t, append(common, "pipeline.isolate=process")...), "workers, "+format)
	}
}

// Ranks on the CPU divide its cores, unless their names have numbers of threads.
func TestRanksDivideTheCores(t *testing.T) {
	cores := host.ThisProcess().Cores()
	for _, c := range []struct {
		overrides []string
		want      []int
	}{
		{nil, []int{cores}},
		{[]string{"pipeline.stages=2"}, []int{max(1, cores/2), max(1, cores/2)}},
		{[]string{"pipeline.stages=2", "pipeline.devices=[cpu:0/3, cpu:0]"}, []int{3, cores}},
		{[]string{"pipeline.stages=2", "pipeline.isolate=process"}, []int{max(1, cores/2), max(1, cores/2)}},
	} {
		n := &runtest.Notes{}
		_, err := train.Run(t.Context(), small(t, t.TempDir(), append(c.overrides, "train.steps=1")...),
			train.Options{Devices: train.DeviceOptions{Open: testdevice.Open, OpenWorker: openWorker}, Report: n})
		require.NoError(t, err)
		var threads []int
		for _, r := range n.Started.Ranks {
			threads = append(threads, r.Device.Threads)
		}
		assert.Equal(t, c.want, threads, "%v", c.overrides)
	}
}

// killedSteps is long enough that the kill comes first.
const killedSteps = 30

// endless is the run that is killed and goes on.
func endless(dir string) []string {
	return []string{fmt.Sprint("train.steps=", killedSteps), "train.save_every=1", "train.keep=3", "optimizer.name=muon",
		"pipeline.delay=1", "pipeline.stale_microbatches=1",
		"pipeline.correction=error_feedback", "run.dir=" + filepath.Join(dir, "run")}
}

// trainUntilKilled trains in this process.
func trainUntilKilled(dir string) {
	c, err := config.Load(filepath.Join(dir, "config.yaml"), nil)
	if err == nil {
		n := &runtest.Notes{OnStep: func(train.Progress) { time.Sleep(20 * time.Millisecond) }} // the kill comes in time
		_, err = train.Run(context.Background(), c, train.Options{Devices: train.DeviceOptions{Open: testdevice.Open}, Report: n})
	}
	fmt.Fprintln(os.Stderr, "not killed:", err)
	os.Exit(1)
}

// A run that is killed and resumed, on one device and on two stages, gives the bits of a run that was not.
func TestKilledAndResumed(t *testing.T) {
	whole := filesOf(t, endless(t.TempDir())...)
	for _, overrides := range [][]string{nil, {"pipeline.schedule=2bw", "pipeline.stages=2"}} {
		dir := t.TempDir()
		c := small(t, dir, append(endless(dir), overrides...)...)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.yaml"), c.YAML(), 0o600))
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), roleVariable+"=trainer", dirVariable+"="+dir)
		cmd.Stderr = os.Stderr
		require.NoError(t, cmd.Start())
		require.Eventually(t, func() bool {
			_, err := os.Stat(traintest.StepDir(c.Run.Dir, 3))
			return err == nil
		}, time.Minute, 5*time.Millisecond)
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
		require.Equal(t, syscall.SIGKILL, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
		require.NoDirExists(t, traintest.StepDir(c.Run.Dir, killedSteps))

		n := &runtest.Notes{}
		res, err := train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{Open: testdevice.Open}, Resume: true, Report: n})
		require.NoError(t, err)
		assert.Greater(t, n.Steps[0].Step, 3)
		requireEqual(t, whole, traintest.Files(t, res.Checkpoint), fmt.Sprint(overrides))
	}
}
