package equaltest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slow is data.Arrivals whose file n comes when the run has done the first steps of need[n], and never if they are
// absent.
type slow struct {
	train.Report
	mu    sync.Mutex
	steps int
	more  chan struct{}
	need  map[string]int
}

func newSlow(need map[string]int) *slow {
	return &slow{Report: &runtest.Notes{}, more: make(chan struct{}), need: need}
}

func (s *slow) Step(p train.Progress) {
	s.Report.Step(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = p.Step
	close(s.more)
	s.more = make(chan struct{})
}

var errBroken = errors.New("the connection is broken")

func (s *slow) Await(ctx context.Context, path string) error {
	steps, ok := s.need[filepath.Base(path)]
	for {
		s.mu.Lock()
		done, more := s.steps, s.more
		s.mu.Unlock()
		switch {
		case !ok && done >= 4:
			return errBroken
		case ok && done >= steps:
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *slow) Progress() (done, total int64) { return 1, 2 }

// A run that streams its text trains while files arrive, and has the bits of a run whose files are all there: also one
// that ends because a file does not come, and is resumed.
func TestStreamedText(t *testing.T) {
	dir := t.TempDir()
	var files []string
	for i, n := range []int{30, 24, 20} {
		files = append(files, filepath.Join(dir, fmt.Sprintf("%d.txt", i)))
		require.NoError(t, os.WriteFile(files[i], []byte(strings.Repeat(fmt.Sprintf("a cat %d. ", i), n)), 0o666))
	}
	for _, layout := range [][]string{nil, {"pipeline={delay: 1, error_feedback: true, stages: 1}"},
		{"train.batch_schedule={0: 4, 5: 2, 11: 6}"}} {
		run := func(dir string, s *slow, resume bool, more ...string) (train.Result, error) {
			c := traintest.Demo(t, dir, slices.Concat([]string{"data.train=[" + strings.Join(files, ", ") + "]", "data.stream=true",
				"train={steps: 26, batch_size: 4, microbatches: 2, eval_every: 7, save_every: 0}"}, layout, more)...)
			o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
			if s != nil {
				o.Report, o.Prepared.Arrivals = s, s
			}
			o.Resume = resume
			return train.Run(t.Context(), c, o)
		}
		all, err := run(t.TempDir(), nil, false)
		require.NoError(t, err)
		want := traintest.Files(t, all.Checkpoint)

		late, err := run(t.TempDir(), newSlow(map[string]int{"0.txt": 0, "1.txt": 3, "2.txt": 9}), false)
		require.NoError(t, err)
		assert.Equal(t, want, traintest.Files(t, late.Checkpoint), "files that come after steps")

		dir := t.TempDir()
		broken, err := run(dir, newSlow(map[string]int{"0.txt": 0, "1.txt": 1}), false)
		require.ErrorContains(t, err, "the connection is broken; the checkpoint of step")
		_, at, _ := strings.Cut(filepath.Base(broken.Checkpoint), "-")
		step, err := strconv.Atoi(at)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, step, 4)
		assert.Less(t, step, 26)
		_, err = run(dir, nil, true, "data.stream=false")
		require.ErrorContains(t, err, "data.stream was true, is false", "what is compared is the order, not the key")
		resumed, err := run(dir, newSlow(map[string]int{"0.txt": 0, "1.txt": 0, "2.txt": 0}), true)
		require.NoError(t, err)
		assert.Equal(t, want, traintest.Files(t, resumed.Checkpoint), "resumed at step %d", step)
	}
}

// waits is a Report that calls a function while a run that has done steps waits for text.
type waits struct {
	*slow
	call func()
}

func (w waits) Reading(int64, int64) {
	if w.steps > 0 {
		w.call()
	}
}

// A run that waits for text saves the checkpoint that it is asked for, and ends if that cannot be written. What it has
// found in the text that was read is reported at its end.
func TestSavesWhileTextIsAwaited(t *testing.T) {
	dir := t.TempDir()
	var files []string
	for i, text := range []string{strings.Repeat("a cat. ", 60), "", strings.Repeat("a dog. ", 60), "never read"} {
		files = append(files, filepath.Join(dir, fmt.Sprintf("%d.txt", i)))
		require.NoError(t, os.WriteFile(files[i], []byte(text), 0o666))
	}
	for name, broken := range map[string]bool{"saved": false, "cannot be written": true} {
		ctx, cancel := context.WithCancel(t.Context())
		run := filepath.Join(t.TempDir(), "run")
		checkpoints := filepath.Join(run, "checkpoints")
		c := traintest.Demo(t, filepath.Dir(run), "data.train=["+strings.Join(files, ", ")+"]", "data.stream=true",
			"train={steps: 26, batch_size: 4, microbatches: 2, eval_every: 0, save_every: 0}")
		notes, s, saves := &runtest.Notes{}, newSlow(map[string]int{"0.txt": 0, "1.txt": 0, "2.txt": 0, "3.txt": 26}), new(atomic.Int64)
		s.Report = notes
		o := runtest.Options(&traintest.Reference{}, nil)
		o.Prepared.Arrivals, o.Saves, o.Report = s, saves, waits{s, func() {
			saved, _ := filepath.Glob(filepath.Join(checkpoints, "step-*"))
			switch {
			case len(saved) > 0:
				cancel()
			case saves.Load() == 0:
				if broken {
					assert.NoError(t, os.RemoveAll(checkpoints))
					assert.NoError(t, os.WriteFile(checkpoints, nil, 0o666))
				}
				saves.Add(1)
			}
		}}
		res, err := train.Run(ctx, c, o)
		cancel()
		if broken {
			require.ErrorContains(t, err, "checkpoint of step", name)
		} else {
			require.NoError(t, err)
			assert.True(t, res.Interrupted)
			assert.NotEmpty(t, res.Checkpoint)
		}
		assert.Contains(t, strings.Join(notes.Text, "\n"), "training text: files without a document are skipped: "+files[1], name)
		assert.Equal(t, []int{1, 4}, []int{notes.Started.FirstFiles, notes.Started.Files})
	}
}
