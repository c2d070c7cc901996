package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// process is a process of this program, which the test ends at the latest.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended

	mu    sync.Mutex
	line  []byte       // not yet complete
	text  bytes.Buffer // standard output and standard error, without the events of steps
	step  int          // of the newest event
	grown chan struct{}
}

// Write implements io.Writer for the process.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line = append(p.line, b...)
	for {
		end := bytes.IndexByte(p.line, '\n')
		if end < 0 {
			break
		}
		var e struct {
			Event string
			Step  struct{ Step int }
		}
		if err := json.Unmarshal(p.line[:end], &e); err == nil && e.Event == "step" {
			p.step = e.Step.Step
		} else {
			p.text.Write(p.line[:end+1])
		}
		p.line = p.line[end+1:]
	}
	close(p.grown)
	p.grown = make(chan struct{})
	return len(b), nil
}

// launch starts this program.
func launch(t *testing.T, environment []string, args ...string) *process {
	t.Helper()
	return launchBy(t, (*exec.Cmd).Start, environment, args...)
}

// launchBy starts this program by a function.
func launchBy(t *testing.T, start func(*exec.Cmd) error, environment []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0], args...), done: make(chan struct{}), grown: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), "GPUPIPE_TEST_COMMAND=1"), environment...) // see TestMain
	p.cmd.Stdout, p.cmd.Stderr = p, p
	require.NoError(t, start(p.cmd))
	go func() {
		_ = p.cmd.Wait() // the exit code is in ProcessState
		close(p.done)
	}()
	t.Cleanup(func() { p.kill() })
	return p
}

// kill ends the process with SIGKILL and waits for that.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// output is what the process has written so far, without the events of steps, and the newest of these.
func (p *process) output() (text string, step int, grown <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String(), p.step, p.grown
}

// hanging is how long a process may take for what has no limit of its own: a guard against hanging alone, for machines
// that have much else to do.
const hanging = 4 * time.Minute

// await waits until the output matches a pattern, and returns the match with its groups.
func (p *process) await(pattern string) []string {
	p.t.Helper()
	return p.awaitWithin(hanging, pattern)
}

func (p *process) awaitWithin(limit time.Duration, pattern string) (match []string) {
	p.t.Helper()
	expression := regexp.MustCompile(pattern)
	p.until(limit, pattern, func(text string, _ int) bool {
		match = expression.FindStringSubmatch(text)
		return match != nil
	})
	return match
}

// awaitStep waits until a step is done.
func (p *process) awaitStep(step int) {
	p.t.Helper()
	p.until(hanging, fmt.Sprint("step ", step), func(_ string, newest int) bool { return newest >= step })
}

// until waits until the output has something.
func (p *process) until(limit time.Duration, what string, has func(text string, step int) bool) {
	p.t.Helper()
	for timeout, ended := time.After(limit), false; ; {
		text, step, grown := p.output()
		if has(text, step) {
			return
		}
		if ended {
			require.FailNow(p.t, "the process has ended", "%v without %q:\n%s", p.cmd, what, tail(text))
		}
		select {
		case <-grown:
		case <-p.done:
			ended = true
		case <-timeout:
			require.FailNow(p.t, "timeout", "%v has not written %q within %v, at step %d:\n%s", p.cmd, what, limit, step, tail(text))
		}
	}
}

// tail is the end of a text.
func tail(text string) string { return text[max(0, len(text)-6000):] }

// exit waits until the process ends and checks its exit code.
func (p *process) exit(code int) string {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(hanging):
		text, _, _ := p.output()
		require.FailNow(p.t, "timeout", "%v has not ended:\n%s", p.cmd, tail(text))
	}
	text, _, _ := p.output()
	require.Equal(p.t, code, p.cmd.ProcessState.ExitCode(), "%v:\n%s", p.cmd, tail(text))
	return text
}

// signal sends a signal to the process.
func (p *process) signal(s os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// testRun is a run on several processes.
type testRun struct {
	t      *testing.T
	config string // file
	dir    string // run folder
	port   int    // where members join
	set    []string
}

// newTestRun writes a config, of which set overrides keys.
func newTestRun(t *testing.T, steps int, set ...string) *testRun {
	t.Helper()
	dir := t.TempDir()
	text := filepath.Join(dir, "text.txt")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("the cat sat on the mat. a dog ran to the cat. ", 60)), 0o666))
	r := &testRun{t: t, config: filepath.Join(dir, "c.yaml"), dir: filepath.Join(dir, "run"), port: freePorts(t), set: set}
	lines := []string{
		"model: {vocab_size: 256, d_model: 16, n_layers: 1, n_heads: 2, d_ff: 24, seq_len: 16}",
		"data: {train: [" + quoted(text) + "], val_fraction: 0.1}",
		fmt.Sprintf("train: {steps: %d, batch_size: 4, microbatches: 4, eval_every: 0, save_every: 20, keep: 3}", steps),
		"lr: {warmup: 2}",
		"pipeline: {depth: 0}", // auto depends on measured links, and bits on the depth
		"run: {dir: " + quoted(r.dir) + "}",
	}
	require.NoError(t, os.WriteFile(r.config, []byte(strings.Join(lines, "\n")+"\n"), 0o666))
	return r
}

// testPorts counts the ports that freePorts has tried.
var testPorts atomic.Int64

// freePorts returns the first of three consecutive ports that no other test and no other process uses. They are below
// those that the system chooses.
func freePorts(t *testing.T) int {
	t.Helper()
	for range 1000 {
		port := 16_000 + (os.Getpid()*40+int(testPorts.Add(4)))%16_000
		free := true
		for i := range 3 {
			l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port+i)))
			if free = free && err == nil; err == nil {
				require.NoError(t, l.Close())
			}
		}
		if free {
			return port
		}
	}
	require.Fail(t, "no free ports")
	return 0
}

// host starts the coordinator.
func (r *testRun) host(args ...string) *process {
	r.t.Helper()
	return launch(r.t, nil, append(r.overridden("host", r.config, "--json", "--listen", "127.0.0.1:"+strconv.Itoa(r.port)), args...)...)
}

// overridden adds the overridden keys to a command.
func (r *testRun) overridden(args ...string) []string {
	for _, s := range r.set {
		args = append(args, "--set", s)
	}
	return args
}

// token is the one that the coordinator prints.
func (p *process) token() string {
	p.t.Helper()
	return p.await(`"token":"(gp1\.[^"]+)"`)[1]
}

// join starts a member.
func (r *testRun) join(token, name string, args ...string) *process {
	r.t.Helper()
	return launch(r.t, []string{"GPUPIPE_TOKEN=" + token}, append([]string{"join", "--name", name, "--device", "cpu:0/1"}, args...)...)
}

// alone trains the same in one process.
func (r *testRun) alone(stages int) (dir string) {
	r.t.Helper()
	dir = filepath.Join(r.t.TempDir(), "alone")
	args := append(r.overridden("train", r.config, "--device", "cpu:0/1", "--no-tune"), "--set", "run.dir="+quoted(dir))
	code, _, errs := command(append(args, "--set", fmt.Sprint("pipeline.stages=", stages))...)
	require.Equal(r.t, exitOK, code, errs)
	return dir
}

// equalBits checks that two runs have the same weights and the same state of the optimizer after a step.
func equalBits(t *testing.T, want, got string, step int) {
	t.Helper()
	for _, name := range []string{"model.safetensors", "optimizer.safetensors"} {
		file := filepath.Join("checkpoints", fmt.Sprint("step-", step), name)
		a, err := os.ReadFile(filepath.Join(want, file))
		require.NoError(t, err)
		b, err := os.ReadFile(filepath.Join(got, file))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(a, b), "%s differs", file)
	}
}

// eachStepOnce checks that the log of a run has each step once.
func eachStepOnce(t *testing.T, dir string, steps int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "metrics.jsonl"))
	require.NoError(t, err)
	next := 1
	for line := range strings.Lines(string(text)) {
		var l struct{ Step int }
		require.NoError(t, json.Unmarshal([]byte(line), &l))
		require.Equal(t, next, l.Step)
		next++
	}
	assert.Equal(t, steps+1, next)
}

// Members in processes of their own train to the bits of one process.
func TestClusterHasTheBitsOfOneProcess(t *testing.T) {
	type layout struct {
		name    string
		members int // besides the coordinator
		set     []string
	}
	for _, c := range tier.Divide(t, []layout{
		{"2 members, 2bw, muon, untied", 1, []string{"pipeline.schedule=2bw", "optimizer.name=muon"}},
		{"3 members, 1f1b, adamw, tied", 2, []string{"pipeline.schedule=1f1b", "optimizer.name=adamw", "model.tie_embeddings=true"}},
		{"4 members, 2bw, error feedback, tied", 3, []string{"pipeline.schedule=2bw", "pipeline.stale_microbatches=all",
			"pipeline.error_feedback=true", "optimizer.name=muon", "model.tie_embeddings=true"}},
		{"5 members, 2bw, half stale, muon, tied", 4, []string{"train.batch_size=10", "train.microbatches=10", "pipeline.schedule=2bw",
			"pipeline.stale_microbatches=5", "optimizer.name=muon", "model.tie_embeddings=true"}},
		{"2 members, 2bw, depth, adamw", 1, []string{"pipeline.schedule=2bw", "pipeline.depth=1", "optimizer.name=adamw"}},
	}, func(i int, _ layout) bool { return i == 4 }) {
		t.Run(c.name, func(t *testing.T) {
			const steps = 8
			r := newTestRun(t, steps, append(c.set, "model.n_layers=3")...)
			host := r.host("--device", "cpu:0/1", "--members", strconv.Itoa(c.members))
			token := host.token()
			var members []*process
			for i := range c.members {
				members = append(members, r.join(token, fmt.Sprint("m", i)))
			}
			want := r.alone(c.members + 1)
			host.exit(exitOK)
			for _, m := range members {
				m.exit(exitOK)
			}
			equalBits(t, want, r.dir, steps)
			eachStepOnce(t, r.dir, steps)
		})
	}
}
