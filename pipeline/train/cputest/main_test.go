//go:build linux && cgo

// Package cputest tests whole runs on the CPU's native code: neither threads, stages, processes nor kills change a bit.
// It holds tests only. They need a C compiler and no GPU driver.
package cputest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/sidecar"
	"github.com/stretchr/testify/require"
)

const (
	roleVariable = "GPUPIPE_CPU_TEST_ROLE" // what this process is, if it is not the test
	dirVariable  = "GPUPIPE_CPU_TEST_DIR"  // folder of a run in a process of its own
)

// TestMain runs the tests, or serves as a process that one of them starts.
func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "worker":
		if err := sidecar.Work(context.Background(), os.Stdin, os.Args[len(os.Args)-1], testdevice.Open); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		return
	case "trainer":
		trainUntilKilled(os.Getenv(dirVariable))
		return
	}
	os.Exit(m.Run())
}

// openWorker opens the CPU in a worker process.
func openWorker(name string, silence time.Duration) (device.Device, error) {
	dev, err := sidecar.Open(sidecar.Options{Command: []string{os.Args[0]}, Env: []string{roleVariable + "=worker"}, Device: name,
		Silence: silence})
	if err != nil {
		return nil, err
	}
	return dev, nil
}

// small is a run of a few steps in dir.
func small(t *testing.T, dir string, overrides ...string) config.Config {
	return traintest.Demo(t, dir, append([]string{
		"model={vocab_size: 256, d_model: 32, n_layers: 4, n_heads: 2, d_ff: 48, seq_len: 32}",
		"train={steps: 5, batch_size: 10, microbatches: 5, eval_every: 0, save_every: 0, grad_clip: 0.5}",
		"pipeline.devices=[cpu:0]"}, overrides...)...)
}

// filesOf trains and returns the final checkpoint.
func filesOf(t *testing.T, overrides ...string) map[string]string {
	t.Helper()
	res, err := train.Run(t.Context(), small(t, t.TempDir(), overrides...),
		train.Options{Devices: train.DeviceOptions{Open: testdevice.Open, OpenWorker: openWorker}})
	require.NoError(t, err, "%v", overrides)
	return traintest.Files(t, res.Checkpoint)
}
