package report

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"
)

const (
	maxOutput  = 64 << 20        // bytes of a command's output
	maxWords   = 16 << 10        // bytes at the end of its messages
	afterKill  = 5 * time.Second // for its output to end
	errorLines = 12
)

// run runs one task. Its processes are killed when its time is over.
func (r Runner) run(ctx context.Context, task Task, limit time.Duration) Section {
	s := Section{Name: task.Name, Status: Passed, Limit: limit.Seconds()}
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	args := make([]string, len(task.Args))
	for i, a := range task.Args {
		args[i] = strings.ReplaceAll(a, Limit, (limit * 7 / 10).Round(time.Second).String())
	}
	cmd := exec.CommandContext(timed, r.Program, args...)
	var output, words tail
	output.most, words.most = maxOutput, maxWords
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = r.Dir, &output, &words, afterKill
	isolate(cmd)
	began := time.Now()
	err := cmd.Run()
	s.Seconds = time.Since(began).Round(10 * time.Millisecond).Seconds()
	scrub := newScrubber(r.Dir)
	s.Command = scrub.cleanAll(args)
	text := []byte(scrub.clean(output.String()))
	s.Output = asJSON(text)
	if task.Read != nil {
		if failed := task.Read(text, &s); failed != nil && err == nil {
			err = failed
		}
	}
	switch {
	case err == nil:
		return s
	case ctx.Err() == nil && timed.Err() != nil:
		s.Status = Unfinished
		s.Errors = append(s.Errors, fmt.Sprintf("not finished within %.0f s: the device hangs or is slow", limit.Seconds()))
	default:
		s.Status = Failed
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() < 0 { // it did not start, or a signal ended it
			s.Errors = append(s.Errors, err.Error())
		}
	}
	s.Errors = append(s.Errors, lastLines(scrub.clean(words.String()))...)
	if s.Status == Failed && len(s.Errors) == 0 {
		s.Errors = []string{err.Error()}
	}
	return s
}

// asJSON returns JSON as it is, and of other text an array of the lines that are JSON, without the others. If none is
// JSON, it returns nothing.
func asJSON(text []byte) json.RawMessage {
	if json.Valid(text) {
		return text
	}
	var values []json.RawMessage
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); json.Valid(line) {
			values = append(values, line)
		}
	}
	if values == nil {
		return nil
	}
	array, err := json.Marshal(values)
	if err != nil {
		return nil
	}
	return array
}

// lastLines returns the last lines of a text that are not empty.
func lastLines(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\r\n"); strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-errorLines):]
}

// tail keeps the last bytes that were written to it.
type tail struct {
	mu   sync.Mutex
	most int
	kept bytes.Buffer
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept.Write(b)
	if over := t.kept.Len() - t.most; over > 0 {
		t.kept.Next(over)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kept.String()
}
