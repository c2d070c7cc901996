//go:build unix

package sidecar

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/translate"
	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/faulty"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/stretchr/testify/require"
)

// role says what the test binary is to be: a worker, a worker that breaks the rules, or a host of its own.
const role = "SIDECAR_TEST_ROLE"

func TestMain(m *testing.M) {
	socket := os.Args[len(os.Args)-1] // after --socket
	switch os.Getenv(role) {
	case "worker":
		if err := Work(context.Background(), os.Stdin, socket, openTest); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
	case "hostile":
		beHostile(socket)
	case "host":
		beHost()
	default:
		os.Exit(checked(m))
	}
}

// checked runs the tests, with a folder for sockets of their own, and looks what they leave behind.
func checked(m *testing.M) int {
	dir, err := os.MkdirTemp("", "s-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Setenv("XDG_RUNTIME_DIR", dir); err != nil {
		panic(err)
	}
	if r, w, err := os.Pipe(); err == nil { // Go's own files for waiting
		r.Close()
		w.Close()
	}
	before := openFiles()
	if err := flag.Set("test.parallel", "4"); err != nil { // tests that are parallel mostly wait
		panic(err)
	}
	code := m.Run()
	if left := leftovers(dir, before); left != "" {
		fmt.Println("FAIL: the tests leave behind:", left)
		return 1
	}
	return code
}

// leftovers lists what is still there of workers, after a moment.
func leftovers(dir string, filesBefore int) string {
	var found []string
	for range 50 {
		found = children()
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "gpupipe-") {
				found = append(found, e.Name())
			}
		}
		if n := openFiles(); n > filesBefore {
			found = append(found, fmt.Sprintf("%d open files instead of %d", n, filesBefore))
		}
		if len(found) == 0 {
			return ""
		}
		time.Sleep(20 * time.Millisecond)
	}
	return strings.Join(found, ", ")
}

func openFiles() int {
	entries, _ := os.ReadDir("/proc/self/fd")
	return len(entries)
}

// children returns the child processes of this process, with zombies, if the system reports them.
func children() (found []string) {
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, task := range tasks {
		b, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		for _, pid := range strings.Fields(string(b)) {
			found = append(found, "process "+pid)
		}
	}
	return found
}

// backends lists the devices of this system that compute.
func backends() []string {
	if runtime.GOOS == "linux" {
		return []string{"cpu", "webgpu"}
	}
	return []string{"webgpu"}
}

// hung is a device whose Close does not end.
type hung struct{ device.Device }

func (hung) Close() error { select {} }

// untimed is a device without a clock, which the null device has.
type untimed struct{ device.Device }

// openTest opens what tests ask a worker for: a name, and an argument.
func openTest(name string) (device.Device, error) {
	name, argument, _ := strings.Cut(name, " ")
	broken := func(run func() error) (device.Device, error) {
		return &faulty.Device{Device: null.New(null.Options{}), Before: func(op faulty.Op, _ string) error {
			if string(op) == argument {
				return run()
			}
			return nil
		}}, nil
	}
	switch name {
	case "webgpu":
		return webgpu.Open(0, webgpu.Options{MemoryBudget: budget(argument)})
	case "cpu":
		dir, err := testdevice.Cache("cpu")
		if err != nil {
			return nil, err
		}
		d, err := cpu.Open(cpu.Options{MemoryBudget: budget(argument), Threads: 2, CacheDir: dir})
		if err != nil {
			return nil, err
		}
		return translate.Device{Native: any(d).(translate.Native)}, nil
	case "null":
		return null.New(null.Options{MemoryBudget: budget(argument)}), nil
	case "untimed":
		return untimed{null.New(null.Options{})}, nil
	case "slow": // each run takes that long
		took, err := time.ParseDuration(argument)
		return null.New(null.Options{Latency: func(string) time.Duration { return took }}), err
	case "lost":
		return broken(func() error { return fmt.Errorf("%w: it fell off the bus", device.ErrLost) })
	case "wrong":
		return broken(func() error { return device.Invalid("boom") })
	case "panics":
		return broken(func() error { panic("boom") })
	case "exits":
		return broken(func() error { fmt.Fprintln(os.Stderr, "out of luck"); os.Exit(3); return nil })
	case "hangs":
		return broken(func() error { select {} })
	case "tarries":
		return broken(func() error { time.Sleep(1200 * time.Millisecond); return nil })
	case "closes-never":
		return hung{null.New(null.Options{})}, nil
	case "opens-never":
		select {}
	case "opens-crashing":
		panic("no such luck")
	}
	return nil, &device.Error{Op: "open", Object: "card", Device: name, Cause: device.Invalid("no such device")}
}

func budget(argument string) (n int64) {
	fmt.Sscan(argument, &n)
	return n
}

// options are those of a worker that is this binary.
func options(name string) Options {
	return Options{Command: []string{os.Args[0]}, Env: []string{role + "=worker"}, Device: name}
}

// opened is a device in a worker; the test may close it, or not.
func opened(t testing.TB, o Options) *Device {
	t.Helper()
	d, err := Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}
