package faulttest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/gputest"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/faulty"
	"github.com/gpupipe/gpupipe/runtime/sidecar"
)

const workerVariable = "GPUPIPE_TRAIN_TEST_WORKER"

// serveAsWorker makes this process a worker, if it was started as one.
func serveAsWorker() {
	if os.Getenv(workerVariable) == "" {
		return
	}
	if err := sidecar.Work(context.Background(), os.Stdin, os.Args[len(os.Args)-1], openInWorker); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// openInWorker opens a device; "webgpu:0 lost 1s" is lost after that time.
func openInWorker(name string) (device.Device, error) {
	name, after, doomed := strings.Cut(name, " lost ")
	dev, err := gputest.Open(name)
	if err != nil {
		return nil, err
	}
	if !doomed {
		return dev, nil
	}
	lifetime, err := time.ParseDuration(after)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(lifetime)
	return &faulty.Device{Device: dev, Before: func(faulty.Op, string) error {
		if time.Now().After(end) {
			return device.ErrLost
		}
		return nil
	}}, nil
}

// openTestWorker opens a device in a worker process, which runs this test binary.
func openTestWorker(name string, silence time.Duration) (device.Device, error) {
	dev, err := sidecar.Open(sidecar.Options{Command: []string{os.Args[0]}, Env: []string{workerVariable + "=1"}, Device: name,
		Silence: silence})
	if err != nil {
		return nil, err
	}
	return dev, nil
}
