package runtest

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

// Fake replaces training in tests of many runs: its method Train writes config.yaml and metrics.jsonl with losses of
// the test's choice. A run resumes after the last step in metrics.jsonl.
type Fake struct {
	Loss  func(c config.Config, step int) float64 // validation loss after a step; infinite: the run diverges
	Fail  func(config.Config) error               // before the first step; nil: no run fails
	Begin func(running int)                       // is called with the number of runs in progress; nil: nothing is
	Step  func(c config.Config, step int)         // is called after each step; nil: nothing is
	Hook  func(c config.Config, step int) string  // names what ends the run after a step, or ""; nil: nothing does

	mu      sync.Mutex
	Begun   []config.Config // runs, in the order in which they began or resumed
	Saves   []*atomic.Int64 // of their options
	Steps   int             // trained in all
	Most    map[string]int  // runs in progress at a time, by device
	running map[string]int
}

// enter counts a run in progress until leave is called. n is the number of runs in progress.
func (f *Fake) enter(c config.Config) (n int, leave func()) {
	device := strings.Join(c.Pipeline.Devices, "+")
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running == nil {
		f.running, f.Most = map[string]int{}, map[string]int{}
	}
	f.Begun = append(f.Begun, c)
	f.running[device]++
	f.Most[device] = max(f.Most[device], f.running[device])
	for _, on := range f.running {
		n += on
	}
	return n, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.running[device]--
	}
}

// On counts the runs that began or resumed on a device.
func (f *Fake) On(device string) (n int) {
	for _, c := range f.Begun {
		if strings.Join(c.Pipeline.Devices, "+") == device {
			n++
		}
	}
	return n
}

// Train is a runs.Train.
func (f *Fake) Train(ctx context.Context, c config.Config, o train.Options) (res train.Result, err error) {
	running, leave := f.enter(c)
	defer leave()
	f.mu.Lock()
	f.Saves = append(f.Saves, o.Saves)
	f.mu.Unlock()
	if f.Begin != nil {
		f.Begin(running)
	}
	if f.Fail != nil {
		if err := f.Fail(c); err != nil {
			return res, err
		}
	}
	log, first, err := openFake(c)
	if err != nil {
		return res, err
	}
	defer log.Close()
	last := c.Train.Steps
	if o.StopAfter > 0 {
		last = min(last, o.StopAfter)
	}
	o.Report.Start(train.Start{FirstStep: first, Steps: c.Train.Steps})
	res.Step = first
	for step := first + 1; step <= last; step++ {
		loss := f.Loss(c, step)
		if math.IsInf(loss, 1) {
			return res, usererror.Errorf("step %d: the loss is NaN: %w", step, train.ErrDiverged)
		}
		values := []metrics.Value{{Name: "loss", Value: loss + 0.5}, {Name: "tokens_per_s", Value: 100 * float64(c.Train.BatchSize)}}
		hook := ""
		if f.Hook != nil {
			hook = f.Hook(c, step)
		}
		if step == last || hook != "" {
			values = append(values, metrics.Value{Name: "val_loss", Value: loss})
			res.ValLoss = &loss
		}
		if err := log.Append(step, values...); err != nil {
			return res, err
		}
		f.mu.Lock()
		f.Steps++
		f.mu.Unlock()
		o.Report.Step(train.Progress{Step: step, Steps: c.Train.Steps})
		if f.Step != nil {
			f.Step(c, step)
		}
		res.Step, res.Stopped = step, hook
		if hook != "" || ctx.Err() != nil {
			break
		}
	}
	res.Interrupted = res.Step < c.Train.Steps && res.Stopped == ""
	return res, nil
}

// openFake writes the config of a run and opens its metrics after the steps that it has.
func openFake(c config.Config) (log *metrics.Log, steps int, err error) {
	if err := os.MkdirAll(c.Run.Dir, 0o777); err != nil {
		return nil, 0, err
	}
	if err := os.WriteFile(filepath.Join(c.Run.Dir, "config.yaml"), c.YAML(), 0o666); err != nil {
		return nil, 0, err
	}
	path := filepath.Join(c.Run.Dir, "metrics.jsonl")
	records, err := metrics.Read(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, 0, err
	}
	log, err = metrics.Resume(path, len(records))
	return log, len(records), err
}
