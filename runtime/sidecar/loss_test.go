//go:build unix

package sidecar

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// prompt bounds the time of what must happen immediately. It is long because the machine may be busy, and shorter than
// the minute of the watchdog's default.
const prompt = 30 * time.Second

// rig is a device with a buffer and a program.
type rig struct {
	*Device
	b device.Buffer
	l device.Loaded
}

func newRig(t *testing.T, o Options) rig {
	t.Helper()
	r := rig{Device: opened(t, o)}
	var err error
	r.b, err = r.Alloc("b", 1024)
	require.NoError(t, err)
	r.l = contract.Load(t, r, contract.Increments(r.b, 1))
	return r
}

// lost asserts that every call fails at once, and that nothing is left when the device is closed.
func (r rig) lost(t *testing.T, words ...string) {
	t.Helper()
	began := time.Now()
	_, alloc := r.Alloc("c", 4)
	_, load := r.Load(contract.Increments(r.b, 2))
	_, read := r.Read(r.b, 0, 4)
	_, timed := r.RunTimed(r.l)
	for _, err := range []error{alloc, load, read, timed, r.Run(r.l), r.Write(r.b, 0, make([]byte, 4)), r.Sync()} {
		require.ErrorIs(t, err, device.ErrLost)
		var named *device.Error
		require.ErrorAs(t, err, &named)
		assert.Contains(t, err.Error(), fmt.Sprintf("(pid %d)", r.Process().Pid))
		for _, w := range words {
			assert.Contains(t, err.Error(), w)
		}
	}
	t.Log(r.Sync())
	r.b.Release()
	r.l.Release()
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	assert.ErrorIs(t, r.Sync(), device.ErrClosed)
	assert.Less(t, time.Since(began), prompt)
	assert.ErrorIs(t, syscall.Kill(r.Process().Pid, 0), syscall.ESRCH, "no zombie")
}

// waiters starts two waits for a read and one for a sync, and returns their errors.
func (r rig) waiters(t *testing.T) chan error {
	t.Helper()
	require.NoError(t, r.Run(r.l))
	read, err := r.Read(r.b, 0, 4)
	require.NoError(t, err)
	out := make(chan error, 3)
	go func() { out <- r.Sync() }()
	for range 2 {
		go func() { _, err := read.Wait(); out <- err }()
	}
	return out
}

func allLost(t *testing.T, errs chan error, n int) {
	t.Helper()
	timeout := time.After(2 * prompt)
	for range n {
		select {
		case err := <-errs:
			require.ErrorIs(t, err, device.ErrLost)
		case <-timeout:
			t.Fatal("a wait did not end")
		}
	}
}

func TestKilled(t *testing.T) {
	r := newRig(t, options("slow 1h"))
	errs := r.waiters(t)
	time.Sleep(50 * time.Millisecond)
	require.NoError(t, r.Process().Kill())
	allLost(t, errs, 3)
	r.lost(t, `null:0: `, "worker slow 1h (pid ", ") was killed by SIGKILL")
}

// Commands that wait for room fail when the worker is lost.
func TestKilledWhileFull(t *testing.T) {
	r := newRig(t, options("hangs run"))
	errs := make(chan error, 2)
	go func() {
		for {
			if err := r.Run(r.l); err != nil {
				errs <- err
				return
			}
		}
	}()
	time.Sleep(100 * time.Millisecond)
	go func() { _, err := r.Alloc("c", 4); errs <- err }()
	require.NoError(t, r.Process().Kill())
	allLost(t, errs, 2)
	r.lost(t, "SIGKILL")
}

func TestKilledWhileWriting(t *testing.T) {
	r := newRig(t, options("hangs write"))
	big, err := r.Alloc("big", 64<<20)
	require.NoError(t, err)
	errs := make(chan error, 1)
	go func() { errs <- r.Write(big, 0, make([]byte, 64<<20)) }()
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, r.Process().Kill())
	allLost(t, errs, 1)
	r.lost(t, "SIGKILL")
}

func TestCrashes(t *testing.T) {
	for name, words := range map[string][]string{
		"panics run":  {"ended with exit status 2; it wrote last: ", "panic: boom"},
		"exits run":   {"ended with exit status 3; it wrote last: ", "out of luck"},
		"lost run":    {"it fell off the bus"},
		"lost read":   {"it fell off the bus"},
		"lost wait":   {"it fell off the bus"},
		"panics wait": {"panic: boom"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, options(name))
			if err := r.Run(r.l); err == nil {
				if read, err := r.Read(r.b, 0, 4); err == nil {
					_, err = read.Wait()
					require.ErrorIs(t, err, device.ErrLost)
				}
			}
			require.ErrorIs(t, r.Sync(), device.ErrLost)
			r.lost(t, words...)
		})
	}
}

// A stopped process sends no state. A worker whose device hangs still sends it.
func TestHung(t *testing.T) {
	for name, word := range map[string]string{"slow 1h": "made no progress for ", "hangs run": "made no progress for "} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(name)
			o.Silence, o.Setting = 600*time.Millisecond, "some.key"
			r := newRig(t, o)
			began := time.Now()
			allLost(t, r.waiters(t), 3)
			assert.Greater(t, time.Since(began), o.Silence-100*time.Millisecond)
			r.lost(t, word, "and was killed (some.key: 600ms; if the device is only slow, set a longer one)")
		})
	}
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		o := options("null")
		o.Silence = 600 * time.Millisecond
		r := newRig(t, o)
		stop(t, r)
		require.ErrorIs(t, r.Sync(), device.ErrLost)
		assert.NotContains(t, r.Sync().Error(), "set a longer one", "there is no setting")
		r.lost(t, "sent nothing for ")
	})
	t.Run("closing", func(t *testing.T) {
		t.Parallel()
		o := options("closes-never")
		o.Silence = 600 * time.Millisecond
		r := newRig(t, o)
		require.NoError(t, r.Close())
		assert.ErrorIs(t, syscall.Kill(r.Process().Pid, 0), syscall.ESRCH)
	})
}

// Work may take longer than the watchdog's limit if each piece of it ends in time.
func TestSlowIsNotHung(t *testing.T) {
	t.Parallel()
	o := options("slow 1500ms")
	o.Silence = 5 * time.Second // far more than one part takes: the machine may be busy
	r := newRig(t, o)
	for range 8 {
		require.NoError(t, r.Run(r.l))
	}
	began := time.Now()
	require.NoError(t, r.Sync())
	assert.Greater(t, time.Since(began), 2*o.Silence)
	require.NoError(t, r.Close())
}

// Nor is a driver that compiles each kernel in time: 1.2 s, for six kernels.
func TestCompilingIsNotHung(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"tarries load", "tarries run", "tarries wait"} {
		o := options(name)
		o.Silence = 800 * time.Millisecond
		d := opened(t, o)
		b, err := d.Alloc("b", 1024)
		require.NoError(t, err)
		l := contract.Load(t, d, kernels(b, 6))
		require.NoError(t, d.Run(l))
		require.NoError(t, d.Sync())
		require.NoError(t, d.Close())
	}
}

// kernels is a program of n kernels.
func kernels(b device.Buffer, n int) *device.Program {
	p := contract.Increments(b, n)
	p.Shaders = nil
	for i := range n {
		p.Shaders = append(p.Shaders, contract.Increment(1))
		p.Shaders[i].Source += fmt.Sprintf("// %d", i)
		p.Commands[i].Shader = i
	}
	return p
}

// stop stops a worker and waits until it has stopped.
func stop(t *testing.T, r rig) {
	require.NoError(t, r.Process().Signal(syscall.SIGSTOP))
	time.Sleep(50 * time.Millisecond)
}

// An idle worker need not show progress.
func TestIdleIsNotHung(t *testing.T) {
	t.Parallel()
	o := options("null")
	o.Silence = 200 * time.Millisecond
	r := newRig(t, o)
	require.NoError(t, r.Sync())
	time.Sleep(2 * beat(o.Silence)) // the host has heard that all is done
	stop(t, r)
	time.Sleep(600 * time.Millisecond)
	require.NoError(t, r.Process().Signal(syscall.SIGCONT))
	time.Sleep(50 * time.Millisecond)
	require.NoError(t, r.Sync())
}

// An error of enqueued work fails the calls that follow, until Sync returns it.
func TestErrorsOfEnqueuedWork(t *testing.T) {
	r := newRig(t, options("wrong run"))
	require.NoError(t, r.Run(r.l))
	read, err := r.Read(r.b, 0, 4)
	require.NoError(t, err)
	_, err = read.Wait()
	require.ErrorIs(t, err, device.ErrValidation, "what it read is not what the run would have left")
	require.ErrorIs(t, r.Run(r.l), device.ErrValidation)
	require.ErrorIs(t, r.Write(r.b, 0, make([]byte, 4)), device.ErrValidation)
	require.EqualError(t, r.Sync(), `null:0: run "increments": validation failed: boom`)
	require.NoError(t, r.Sync())
	contract.Read(t, r, r.b, 0, 4)
	require.NoError(t, r.Run(r.l))
	require.ErrorIs(t, r.Close(), device.ErrValidation)
}

// Ctrl-C reaches the whole process group, and the host decides.
func TestSignalsThatTheHostDecidesOn(t *testing.T) {
	r := newRig(t, options("null"))
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
		require.NoError(t, r.Process().Signal(s))
	}
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, r.Sync())
}

func TestOpenFails(t *testing.T) {
	o := options("nothing")
	_, err := Open(o)
	require.ErrorIs(t, err, device.ErrValidation)
	assert.EqualError(t, err, `worker process for device "nothing": nothing: open "card": validation failed: no such device`)

	_, err = Open(options("opens-crashing"))
	require.ErrorIs(t, err, device.ErrLost)
	assert.ErrorContains(t, err, "panic: no such luck")

	o = options("opens-never")
	o.Silence = 300 * time.Millisecond
	_, err = Open(o)
	require.ErrorIs(t, err, device.ErrLost)
	assert.ErrorContains(t, err, "made no progress")

	_, err = Open(Options{})
	require.EqualError(t, err, "worker process for the default device: the worker's command line is empty")
	_, err = Open(Options{Command: []string{"/no/such/worker"}, Device: "vulkan:0"})
	require.ErrorContains(t, err, `worker process for device "vulkan:0": fork/exec /no/such/worker: no such file`)
	_, err = Open(Options{Command: []string{"/bin/sh", "-c", "echo no luck >&2; exit 7"}})
	require.ErrorContains(t, err, "ended with exit status 7; it wrote last: no luck")
	p, err := start(Options{Command: []string{"/bin/sh", "-c", "exec sleep 100"}}, "/no/such/folder/socket", "token")
	require.NoError(t, err)
	_, err = p.connect("/no/such/folder/socket", 100*time.Millisecond)
	require.ErrorContains(t, err, "did not listen within 100ms")

	t.Setenv("XDG_RUNTIME_DIR", "/no/such/folder")
	d, err := Open(options("null")) // goes elsewhere
	require.NoError(t, err)
	require.NoError(t, d.Close())
}

// A process may end before it gets its token. The error then says how it ended.
func TestProcessThatEndsAtOnce(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.NoError(t, hand(w, "token"), "it has ended")
	require.NoError(t, w.Close())
	require.NoError(t, hand(w, "token"), "and that was noticed")
	_, err = Open(Options{Command: []string{"/bin/sh", "-c", "kill -9 $$"}})
	require.ErrorIs(t, err, device.ErrLost)
	assert.ErrorContains(t, err, "was killed by SIGKILL")
}

// A process that hangs in a system call does not end when it is killed. Closing does not wait for it forever.
func TestProcessThatCannotBeKilled(t *testing.T) {
	t.Parallel()
	p, err := start(options("null"), "/no/such/folder/socket", "0123456789abcdef")
	require.NoError(t, err)
	defer p.stop(0)
	stuck := &process{name: "worker", cmd: p.cmd, ended: make(chan struct{})}
	assert.True(t, stuck.stop(0))
	assert.Equal(t, "cannot be killed", stuck.fate())
}
