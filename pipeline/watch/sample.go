package watch

import (
	"context"
	"strconv"
	"strings"
	"time"
)

// checkpointFolder holds the checkpoints of a run, each in a folder step-N.
const checkpointFolder = "checkpoints"

// Sample has the newest checkpoint of each run that a page shows continued by generate, one at a time, until the
// context ends. generate gets the run's folder and the checkpoint's step. A checkpoint that it returns an error for is
// passed over: it may have been removed meanwhile.
func (w *Watcher) Sample(ctx context.Context, generate func(ctx context.Context, dir string, step int) (string, error)) {
	ticker := time.NewTicker(searchEvery * pollEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if w.sampleOne(ctx, generate) {
			continue
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// sampleOne samples one checkpoint, and reports whether there was one.
func (w *Watcher) sampleOne(ctx context.Context, generate func(ctx context.Context, dir string, step int) (string, error)) bool {
	r, dir, step := w.unsampled()
	if r == nil {
		return false
	}
	text, err := generate(ctx, dir, step)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		r.samples = lastOf(append(r.samples, Event{Time: float64(time.Now().UnixMilli()) / 1e3, Step: float64(step), Kind: "sample",
			Text: shortened(text)}), keptSamples)
		r.contents.revision++
		w.wake()
	}
	return true
}

// unsampled is a run that is watched, with its folder and its newest checkpoint, which is sampled from now on; nil:
// there is none.
func (w *Watcher) unsampled() (r *run, dir string, step int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range w.newest(0) {
		r := w.runs[name]
		if r.streams == 0 {
			continue
		}
		if step := r.checkpoint(); step > 0 && step != r.sampled { // a run that went back has lower steps again
			r.sampled = step
			return r.run, r.at, step
		}
	}
	return nil, "", 0
}

// checkpoint is the step of the newest checkpoint; 0: there is none.
func (r *run) checkpoint() (newest int) {
	folder, err := r.root.Open(r.path(checkpointFolder))
	if err != nil {
		return 0
	}
	defer folder.Close()
	names, err := folder.Readdirnames(maxEntries)
	if err != nil {
		return 0
	}
	for _, name := range names {
		if text, ok := strings.CutPrefix(name, "step-"); ok {
			if step, err := strconv.Atoi(text); err == nil {
				newest = max(newest, step)
			}
		}
	}
	return newest
}
