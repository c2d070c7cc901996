package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/runtime/tune"
)

// kernelsFile, in the run folder and in every checkpoint, holds the kernels that compute the steps from there on:
// others would change the last bits. It is absent with the static choice, also if that was used for lack of memory: a
// resumed run then keeps the static choice, however much memory there is.
const kernelsFile = "kernels.json"

// kernels is the content of kernelsFile, or nil.
func (d *deployment) kernels() []byte {
	if d.tune == nil || d.layout.Static {
		return nil
	}
	out, err := json.MarshalIndent(d.tune.Used(), "", " ")
	if err != nil {
		panic(err) // names and finite times
	}
	return append(out, '\n')
}

// writeKernels writes the choices for this run, and for other runs on this machine.
func (d *deployment) writeKernels() error {
	if d.tune == nil {
		return nil
	}
	note := d.job.options.Report.Note
	if n := d.tune.Strays(); n > 0 && !d.layout.Static {
		note("%d kernels are not those that the run began with, since the device, its driver or gpupipe has changed: it goes on, but not to the same bits", n)
	}
	path := filepath.Join(d.job.config.Run.Dir, kernelsFile)
	if text := d.kernels(); text != nil {
		if err := atomicfile.WriteBytes(path, text); err != nil {
			return err
		}
	} else if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // it is from before the run was resumed
		return err
	}
	if err := d.tune.Save(); err != nil {
		note("the choices of kernels are not kept for the next run: %v", err)
	}
	return nil
}

// pinKernels uses the kernels of a checkpoint.
func (d *deployment) pinKernels(c *checkpoint.Checkpoint) error {
	if !c.Has(kernelsFile) {
		d.tune = nil
		return nil
	}
	text, err := c.File(kernelsFile)
	if err != nil {
		return err
	}
	var choices map[string]tune.Choice
	if err := json.Unmarshal(text, &choices); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(c.Dir, kernelsFile), err)
	}
	if d.tune == nil {
		if d.tune, err = tune.Open("", nil); err != nil {
			return err
		}
		d.tune.Postpone() // kernels without a choice in the checkpoint are not timed
	}
	d.tune.Pin(choices)
	return nil
}

// timingShare is the share of a run's time that timing kernels takes at most, unless Options have one.
const timingShare = 0.02

// tuning times the kernels of a run between its steps.
type tuning struct {
	cache   *tune.Cache // nil: kernels are not timed
	share   float64     // of the time, at most
	began   time.Time   // when the first step began
	spent   time.Duration
	adopted int // kernels that the next checkpoint changes
}

// left is the time that may be spent now.
func (t *tuning) left() time.Duration {
	return time.Duration(t.share*float64(time.Since(t.began))) - t.spent
}

// due reports whether a kernel may be timed now.
func (t *tuning) due() bool { return t.cache != nil && t.cache.Due(t.left()) }

// start lets the run time kernels from its first step on, unless the static choice is used.
func (t *tuning) start(s *deployment) {
	o := s.job.options
	t.share = cmp.Or(o.Devices.TimingShare, timingShare)
	if t.cache = o.Devices.Tune; s.tune == nil || s.layout == nil || s.layout.Static {
		t.cache = nil
	}
	if t.began.IsZero() {
		t.began = time.Now()
	}
}

// timeKernels times kernels while the pipeline is empty. Their choices are kept for other runs; see adoptKernels for
// this one.
func (t *trainer) timeKernels(ctx context.Context) error {
	if ctx.Err() != nil || !t.tuning.due() {
		return nil
	}
	began := time.Now()
	spent, err := t.tuning.cache.TimeFor(t.tuning.left())
	t.tuning.spent += spent
	t.recorder.paused(trace.TuneEvent, began)
	if err != nil {
		return &during{"timing kernels", err}
	}
	_ = t.tuning.cache.Save() // writeKernels has reported that it cannot
	return nil
}

// adoptKernels adopts the timed choices of kernels once all kernels are timed, and reports whether some kernels change.
// A checkpoint that is saved then names them, so that the bits of each step follow from the checkpoint before it.
func (t *trainer) adoptKernels() bool {
	if t.tuning.cache == nil || t.job.options.Unsaved {
		return false
	}
	t.tuning.adopted = t.tuning.cache.Adopt()
	return t.tuning.adopted > 0
}

// switchKernels saves a checkpoint and goes on from there with the kernels that were adopted.
func (t *trainer) switchKernels(ctx context.Context) error {
	began := time.Now()
	if err := t.reopen(ctx); err != nil {
		return err
	}
	t.job.journal.noteEvent(eventNote, t.step, "%d kernels have faster variants on this device, which compute the steps after %d: rounding may differ", t.tuning.adopted, t.step)
	t.recorder.trace.Complete(trace.RunTrack, trace.Run, trace.RestartEvent, began, time.Since(began),
		map[string]any{"kernels": t.tuning.adopted, "step": t.step})
	return t.deployment.writeKernels()
}
