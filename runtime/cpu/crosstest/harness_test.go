//go:build linux && cgo

package crosstest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/runtime/device"
)

// harness is the process that runs kernels. One that has died is started again for the next command.
type harness struct {
	command []string
	env     []string
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	errors  *bytes.Buffer
}

// newHarness compiles the harness into dir.
func newHarness(dir string, b build) (harness, error) {
	program := filepath.Join(dir, "harness")
	words := strings.Fields(b.compiler)
	args := slices.Concat(words[1:], []string{"-O1", "-g", "-o", program, "testdata/harness.c"}, b.harness, []string{"-ldl", "-lm"})
	if out, err := exec.Command(words[0], args...).CombinedOutput(); err != nil {
		return harness{}, fmt.Errorf("%s: %w: %s", b.compiler, err, out)
	}
	return harness{command: append(slices.Clone(b.runner), program), env: b.env}, nil
}

func (h *harness) start() (err error) {
	h.process, h.errors = exec.Command(h.command[0], h.command[1:]...), new(bytes.Buffer)
	h.process.Stderr, h.process.Env = h.errors, append(os.Environ(), h.env...)
	if h.in, err = h.process.StdinPipe(); err != nil {
		return err
	}
	out, err := h.process.StdoutPipe()
	if err != nil {
		return err
	}
	h.out = bufio.NewScanner(out)
	return h.process.Start()
}

// stop ends the process and waits for it.
func (h *harness) stop() error {
	if h.process == nil {
		return nil
	}
	h.in.Close()
	err := h.process.Wait()
	h.process = nil
	return err
}

// dispatch runs one command. What the process prints before it dies is the error.
func (h *harness) dispatch(k *compiled, c *device.Command) error {
	if h.process == nil {
		if err := h.start(); err != nil {
			return err
		}
	}
	line := fmt.Sprintf("%s %s %d %d %d %d", k.library, k.symbol, c.Groups[0], c.Groups[1], c.Groups[2], len(c.Args))
	for _, a := range c.Args {
		line += fmt.Sprintf(" %s %d %d", a.Buffer.(*buffer).path, a.Offset, a.Size)
	}
	if _, err := fmt.Fprintln(h.in, line); err == nil && h.out.Scan() && h.out.Text() == "done" {
		return nil
	}
	err, errors := h.stop(), h.errors.String()
	return fmt.Errorf("the process that runs kernels ended: %v\n%s", err, errors[:min(len(errors), 2000)])
}
