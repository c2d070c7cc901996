package faulttest

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	faults    = flag.Int("faults", 4, "how many runs to disturb")
	faultSeed = flag.Uint64("fault-seed", 8, "what the disturbances are drawn from")
)

// kinds lists the faults, which the test injects in turn.
var kinds = []string{"killed", "stopped", "device lost", "socket cut"}

// disturbance is a fault that is injected into a run.
type disturbance struct {
	kind   string
	after  time.Duration
	all    bool          // of its workers, or one
	again  time.Duration // after which it comes once more; 0: it does not
	choose int
}

func (d disturbance) String() string {
	return fmt.Sprintf("%s after %v, all %v, again after %v", d.kind, d.after, d.all, d.again)
}

// After any fault of its worker processes, at any time, a run ends with the right bits, or with an error after which it
// can be resumed. It leaves no process or file behind.
func TestFaultsOfWorkers(t *testing.T) {
	tier.Rest(t)
	dir, err := os.MkdirTemp("/tmp", "w") // paths of sockets are short
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Setenv("TMPDIR", dir)
	layouts := [][]string{
		{"pipeline={schedule: 2bw, stages: 2, error_feedback: true, isolate: process, restarts: 8, devices: [webgpu:0]}"},
		{"pipeline={schedule: 2bw, stages: 2, error_feedback: true, isolate: process, restarts: 8, devices: [cpu:0/1]}"},
		{"pipeline={isolate: process, restarts: 8, devices: [cpu:0]}"},
	}
	var want []output
	var took []time.Duration
	for _, layout := range layouts {
		for range 2 { // the first fills the driver's cache
			began := time.Now()
			got, err := disturbed(t, layout, nil)
			require.NoError(t, err)
			if len(want) > len(took) {
				assertSame(t, want[len(want)-1], got)
				took = append(took, time.Since(began))
			} else {
				want = append(want, got)
			}
		}
	}
	rng := rand.New(rand.NewPCG(7, *faultSeed))
	stopped := 0
	for i := range *faults {
		at := i % len(layouts) // coprime to the kinds
		d := &disturbance{kind: kinds[i%len(kinds)], after: time.Duration(rng.Float64() * 1.1 * float64(took[at])), all: rng.IntN(4) == 0,
			choose: rng.IntN(100)}
		if rng.IntN(4) == 0 {
			d.again = time.Duration(rng.Float64() * float64(took[at]))
		}
		got, err := disturbed(t, layouts[at], d)
		if err != nil {
			stopped++
			t.Logf("%v: %v", d, err)
			require.ErrorIs(t, err, device.ErrLost)
			continue
		}
		assertSame(t, want[at], got)
		if t.Failed() {
			t.Fatalf("run %d, %v", i, d)
		}
		assertNothingLeft(t, dir)
	}
	t.Logf("%d runs, of which %d gave up", *faults, stopped)
}

// disturbed runs with a disturbance.
func disturbed(t *testing.T, layout []string, d *disturbance) (output, error) {
	dir := t.TempDir()
	c := traintest.Demo(t, dir, layout...)
	silence := time.Minute // a driver may be compiling
	if d != nil {
		silence = 4 * time.Second
	}
	open := func(name string) (device.Device, error) { return openTestWorker(name, silence) }
	n := &runtest.Notes{}
	over := make(chan struct{})
	struck := make(chan struct{})
	switch {
	case d == nil:
		close(struck)
	case d.kind == "device lost":
		close(struck)
		var opened atomic.Int64
		open = func(name string) (device.Device, error) {
			nth := int(opened.Add(1)) - 1
			switch stages := c.Pipeline.Stages; {
			case nth < stages && (d.all || nth == d.choose%stages):
				name += fmt.Sprintf(" lost %v", d.after)
			case nth >= stages && nth < 2*stages && d.again > 0:
				name += fmt.Sprintf(" lost %v", d.again)
			}
			return openTestWorker(name, silence)
		}
	default:
		go func() {
			defer close(struck)
			for _, wait := range []time.Duration{d.after, d.again} {
				if wait == 0 {
					return
				}
				select {
				case <-time.After(wait):
				case <-over:
					return
				}
				d.strike(over)
			}
		}()
	}
	res, err := train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{OpenWorker: worker(open)}, Report: n})
	close(over)
	<-struck
	if d != nil {
		t.Logf("%v: %s", d, strings.Join(n.Text, "\n"))
	}
	if err != nil { // it can be gone on with
		o := train.Options{Devices: train.DeviceOptions{OpenWorker: openTestWorker}, Resume: true}
		_, again := train.Run(t.Context(), c, o)
		require.NoError(t, again)
		return output{}, err
	}
	for i, p := range n.Steps {
		require.Equal(t, i+1, p.Step, "each step is reported once")
	}
	return outputOf(t, c, res), nil
}

// strike waits for a worker and injects the fault into it, or into all workers.
func (d *disturbance) strike(over <-chan struct{}) {
	workers, do := children, map[string]func(int) error{
		"killed":     func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) },
		"stopped":    func(pid int) error { return syscall.Kill(pid, syscall.SIGSTOP) },
		"socket cut": func(fd int) error { return syscall.Shutdown(fd, syscall.SHUT_RDWR) },
	}[d.kind]
	if d.kind == "socket cut" {
		workers = connections
	}
	for {
		all := workers()
		if len(all) > 0 && !d.all {
			all = all[d.choose%len(all):][:1]
		}
		for _, one := range all {
			_ = do(one) // it may have ended just now
		}
		select {
		case <-over:
			return
		case <-time.After(time.Millisecond):
		}
		if len(all) > 0 {
			return
		}
	}
}

// children are the processes of this one's workers.
func children() (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		stat, err := os.ReadFile(filepath.Join(name, "stat"))
		_, after, ok := strings.Cut(string(stat), ") ")
		fields := strings.Fields(after)
		if err != nil || !ok || len(fields) < 2 || fields[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		if command, err := os.ReadFile(filepath.Join(name, "cmdline")); err != nil || len(command) > 0 &&
			!strings.Contains(string(command), "--socket") {
			continue // another child: the driver's, say
		}
		pid, _ := strconv.Atoi(filepath.Base(name))
		pids = append(pids, pid)
	}
	return pids
}

// connections are this process's sockets whose other end is a worker's.
func connections() (fds []int) {
	for _, fd := range descriptors() {
		peer, err := syscall.Getpeername(fd)
		if a, ok := peer.(*syscall.SockaddrUnix); err == nil && ok && strings.Contains(a.Name, "gpupipe-") {
			fds = append(fds, fd)
		}
	}
	return fds
}

// descriptors are this process's open files.
func descriptors() (fds []int) {
	names, _ := os.ReadDir("/proc/self/fd")
	for _, n := range names {
		fd, err := strconv.Atoi(n.Name())
		if _, gone := os.Readlink(filepath.Join("/proc/self/fd", n.Name())); err == nil && gone == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}

// assertNothingLeft looks for processes, zombies, sockets, folders and shared memory.
func assertNothingLeft(t *testing.T, dir string) {
	t.Helper()
	assert.Empty(t, children(), "processes")
	assert.Empty(t, connections(), "sockets")
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	names = slices.DeleteFunc(names, func(e os.DirEntry) bool { return e.Name() == filepath.Base(filepath.Dir(t.TempDir())) })
	assert.Empty(t, names, "folders")
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	assert.NotContains(t, string(maps), "memfd:gpupipe")
	for _, fd := range descriptors() {
		if to, err := os.Readlink(fmt.Sprint("/proc/self/fd/", fd)); err == nil {
			assert.NotContains(t, to, "memfd:gpupipe")
		}
	}
	shared, err := os.ReadDir("/dev/shm")
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(t, err)
	}
	for _, s := range shared {
		assert.NotContains(t, s.Name(), "gpupipe")
	}
}
