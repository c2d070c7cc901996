//go:build unix

package sidecar

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"golang.org/x/sys/unix"
)

const (
	grace       = 5 * time.Second // for a process that ends by itself
	moment      = time.Second     // for a process whose connection has ended
	listening   = time.Minute     // until a process listens at its socket
	longestPath = 103             // bytes of a socket's path that every system accepts
)

// process is the process of a worker.
type process struct {
	name   string // of its device
	cmd    *exec.Cmd
	output tail
	ended  chan struct{} // closed when it has ended and has been waited for
}

// start starts a worker, and passes it a token that other processes cannot see.
func start(o Options, socket, token string) (*process, error) {
	if len(o.Command) == 0 {
		return nil, errors.New("the worker's command line is empty")
	}
	args := o.Command[1:len(o.Command):len(o.Command)]
	if o.Device != "" {
		args = append(args, "--device="+o.Device) // one argument, because names may begin with a dash
	}
	p := &process{name: strings.TrimSpace("worker " + o.Device), ended: make(chan struct{})}
	p.cmd = exec.Command(o.Command[0], append(args, "--socket", socket)...)
	p.cmd.Env = append(os.Environ(), o.Env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.WaitDelay = grace
	stdin, err := p.cmd.StdinPipe() // closed by Wait; open as long as the host lives
	if err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	go func() { // the thread that starts it must live as long: see endWithHost
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // p.fate reports the error
		}
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	if err := hand(stdin, token); err != nil {
		p.stop(0)
		return nil, err
	}
	return p, nil
}

// hand passes the token to a process. A process that has ended already is no error here: connect reports it with its
// cause.
func hand(stdin io.Writer, token string) error {
	_, err := io.WriteString(stdin, token+"\n")
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) { // as Wait closes it
		return nil
	}
	return err
}

func (p *process) String() string { return fmt.Sprintf("%s (pid %d)", p.name, p.cmd.Process.Pid) }

// stop waits for the process to end, and kills it after that time. A process that hangs in a system call of a driver
// cannot be killed, and is left behind.
func (p *process) stop(wait time.Duration) (killed bool) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-p.ended:
		return false
	case <-timer.C:
	}
	_ = p.cmd.Process.Kill() // it may have ended just now
	select {
	case <-p.ended:
	case <-time.After(2 * grace):
	}
	return true
}

// early returns the error of a process that ended before it was of use. It is a loss if a signal ended the process;
// otherwise another attempt would end the same way.
func (p *process) early() error {
	err := fmt.Errorf("%v %s", p, p.fate())
	if p.cmd.ProcessState.ExitCode() < 0 { // by a signal
		err = fmt.Errorf("%w: %w", device.ErrLost, err)
	}
	return err
}

// fate describes how a process ended, and its last output.
func (p *process) fate() string {
	select {
	case <-p.ended:
	default:
		return "cannot be killed" + p.output.last()
	}
	how := "ended"
	if st := p.cmd.ProcessState; st != nil {
		if status, ok := st.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			how = "was killed by " + unix.SignalName(status.Signal())
		} else {
			how = fmt.Sprintf("ended with exit status %d", st.ExitCode())
		}
	}
	return how + p.output.last()
}

// connect connects to the socket as soon as it exists.
func (p *process) connect(socket string, timeout time.Duration) (*net.UnixConn, error) {
	until := time.Now().Add(timeout)
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
		if err == nil {
			return conn, nil
		}
		if time.Now().After(until) {
			p.stop(0)
			return nil, fmt.Errorf("%w: %v did not listen within %v and was killed%s", device.ErrLost, p, timeout, p.output.last())
		}
		select {
		case <-p.ended:
			return nil, p.early()
		case <-time.After(pause):
		}
	}
}

// newSocket returns the path of a socket that does not exist, in a folder that does not exist either. The worker makes
// both, and removes them if the host is killed. newSocket tries several places for the folder.
func newSocket() (string, error) {
	var tried []string
	for _, dir := range []string{os.Getenv("XDG_RUNTIME_DIR"), os.TempDir(), "/tmp"} {
		path := filepath.Join(dir, "gpupipe-"+rand.Text()[:16], "socket")
		if dir != "" && len(path) <= longestPath && folderCanBeMade(filepath.Dir(path)) {
			return path, nil
		}
		tried = append(tried, fmt.Sprintf("%q", dir))
	}
	return "", fmt.Errorf("no folder for a socket: tried %s; set XDG_RUNTIME_DIR to one that can be written to, with a short name",
		strings.Join(tried, ", "))
}

// removeSocket removes what a killed worker left.
func removeSocket(path string) {
	_ = os.Remove(path)
	_ = os.Remove(filepath.Dir(path))
}

// tail keeps the last lines of a process's output, without Go's list of goroutines that follows the cause of a crash.
type tail struct {
	mu    sync.Mutex
	lines []string
	line  []byte
	over  bool // the list of goroutines has begun
}

const (
	maxLines = 8
	maxLine  = 400 // bytes
)

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range b {
		if c == '\n' || c == '\r' {
			t.flush()
		} else if len(t.line) < maxLine {
			t.line = append(t.line, c)
		}
	}
	return len(b), nil
}

func (t *tail) flush() {
	s := strings.ToValidUTF8(strings.TrimSpace(string(t.line)), "?")
	t.line = t.line[:0]
	t.over = t.over || strings.HasPrefix(s, "goroutine ") || strings.HasPrefix(s, "runtime stack:")
	if s != "" && !t.over {
		t.lines = append(t.lines, s)
		t.lines = t.lines[max(0, len(t.lines)-maxLines):]
	}
}

// last returns the suffix of an error that quotes the output, "" if there was none.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.flush(); len(t.lines) == 0 {
		return ""
	}
	return "; it wrote last: " + strings.Join(t.lines, " | ")
}
