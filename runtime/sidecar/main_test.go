package sidecar

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
)

// TestMain lets the test binary stand for a worker.
func TestMain(m *testing.M) {
	if os.Getenv("SIDECAR_TEST_WORKER") == "" {
		os.Exit(m.Run())
	}
	socket := os.Args[len(os.Args)-1] // after --socket
	if err := Work(context.Background(), os.Stdin, socket, openTest); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// openTest opens what tests ask a worker for.
func openTest(name string) (device.Device, error) {
	name, argument, _ := strings.Cut(name, " ")
	switch name {
	case "webgpu":
		var budget int64
		fmt.Sscan(argument, &budget)
		return webgpu.Open(0, webgpu.Options{MemoryBudget: budget})
	case "null":
		var budget int64
		fmt.Sscan(argument, &budget)
		return null.New(null.Options{MemoryBudget: budget}), nil
	case "slow":
		took, err := time.ParseDuration(argument)
		return null.New(null.Options{Latency: func(string) time.Duration { return took }}), err
	}
	return nil, fmt.Errorf("no such device")
}

// options are those of a worker that is this binary.
func options(name string) Options {
	return Options{Command: []string{os.Args[0]}, Env: []string{"SIDECAR_TEST_WORKER=1"}, Device: name}
}
