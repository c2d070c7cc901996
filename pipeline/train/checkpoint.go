package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/pipeline/train/hooks"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// state is the content of a checkpoint's state.json.
type state struct {
	Step       int               `json:"step"`      // steps finished
	Tokens     int64             `json:"tokens"`    // trained on, without padding
	Data       data.Position     `json:"data"`      // the next batch
	Tokenizer  string            `json:"tokenizer"` // its hash
	Config     string            `json:"config"`    // config.yaml of the run
	Hooks      []hooks.State     `json:"hooks,omitempty"`
	Omitted    int64             `json:"left_out,omitempty"` // batches that hooks failed on
	Unreported *Progress         `json:"untold,omitempty"`   // the last step, if its evaluation is still to come
	Cut        []config.CutPoint `json:"cut,omitempty"`      // of the model, if the bits depend on it: see config.Wire

	Replicas *replicas.Position `json:"replicas,omitempty"` // that train on their own
}

// checkpoints manages the checkpoints of the run folder.
type checkpoints struct {
	dir        string // of the run
	keepBest   bool   // train.keep_best
	store      *checkpoint.Store
	saved      int    // step of the newest, or noCheckpoint
	newest     string // its folder
	unreported bool   // the newest was saved before its step was reported
	skipped    int    // batches skipped in a row, at the newest
	best       *Best  // see train.keep_best; nil: there is none
	measured   *Best  // the last evaluation; its step may have no checkpoint; nil: there is none
	writing    *writing
}

// writing is a checkpoint that is written while training goes on.
type writing struct {
	state   state
	skipped int
	done    chan struct{} // closed when the rest is known
	saved   *checkpoint.Checkpoint
	err     error
}

// noCheckpoint is the step of the newest checkpoint if there is none.
const noCheckpoint = -1

// open prepares for saving.
func (c *checkpoints) open(keep int) (err error) {
	c.store, err = checkpoint.NewStore(c.dir, checkpoint.Options{Keep: keep})
	return err
}

// any reports whether there is a checkpoint.
func (c *checkpoints) any() bool { return c.saved != noCheckpoint }

// forget prepares for another search of the newest checkpoint. It keeps the count of skipped batches, which belongs to
// the checkpoint that the search will find.
func (c *checkpoints) forget() { c.saved, c.newest, c.unreported = noCheckpoint, "", false }

// found takes the checkpoint that a run starts from as the newest.
func (c *checkpoints) found(s start) {
	c.saved, c.newest, c.unreported = s.step, s.checkpoint, s.pending != nil
}

// write begins to write a checkpoint.
func (c *checkpoints) write(contents checkpoint.Contents, s state, skipped int) {
	contents.Step, contents.State = s.Step, s
	if c.best != nil && !c.improves(s.Step) {
		contents.Spared = []int{c.best.Step}
	}
	w := &writing{state: s, skipped: skipped, done: make(chan struct{})}
	c.writing = w
	go func() {
		defer close(w.done)
		w.saved, w.err = c.store.Save(contents)
	}()
}

// failed reports whether a checkpoint could not be written, which await has not returned yet.
func (c *checkpoints) failed() bool {
	if c.writing == nil {
		return false
	}
	select {
	case <-c.writing.done:
		return c.writing.saved == nil
	default:
		return false
	}
}

// await waits for the checkpoint that is being written. It returns nil if there is none. If the checkpoint was written,
// it is the newest from then on; the error then is about older ones. Otherwise the result's saved is nil.
func (c *checkpoints) await() *writing {
	w := c.writing
	if w == nil {
		return nil
	}
	<-w.done
	c.writing = nil
	if w.saved != nil {
		if c.improves(w.state.Step) {
			c.best = c.measured
		}
		c.saved, c.newest, c.unreported, c.skipped = w.state.Step, w.saved.Dir, w.state.Unreported != nil, w.skipped
	}
	return w
}

// kept describes where a run that stops too early can continue.
func (c *checkpoints) kept() string {
	if !c.any() {
		return "there is no checkpoint yet"
	}
	return fmt.Sprintf("the checkpoint of step %d is kept", c.saved)
}

// state returns the run's state after its last step. All measurements of the step have arrived.
func (t *trainer) state(ctx context.Context) (state, error) {
	j := t.job
	next, batches := t.loader.feeder.Cursor(t.step)
	modules, err := j.hooks.State(ctx, batches)
	s := state{Step: t.step, Tokens: j.tokens, Data: j.corpus.train.Position(next), Tokenizer: j.corpus.texts.tok.Hash(),
		Config: string(j.config.SavedYAML()), Hooks: modules, Omitted: next - int64(t.step), Unreported: t.recorder.pending.report(),
		Replicas: t.deployment.position()}
	if !j.config.Pipeline.Wire.Exact() {
		s.Cut = t.deployment.cut()
	}
	return s, err
}

// save writes a checkpoint of the steps so far.
func (t *trainer) save(ctx context.Context) error {
	began, variables := time.Now(), func() Variables { return t.deployment.engine }
	if s, ok := t.deployment.engine.(restoring); ok {
		if s, ok := s.(Snapshotter); ok { // of the replicas that there are now
			variables = s.Snapshot
		}
	}
	if err := t.beginSave(ctx, variables); err != nil {
		return err
	}
	if err := t.awaitSave(); err != nil {
		return err
	}
	t.recorder.paused(trace.SaveEvent, began)
	return nil
}

// saveMeanwhile writes a checkpoint of the steps so far while training goes on, if the pipeline keeps a copy of its
// variables.
func (t *trainer) saveMeanwhile(ctx context.Context) error {
	s, ok := t.deployment.engine.(Snapshotter)
	if !ok {
		return t.save(ctx)
	}
	return t.beginSave(ctx, s.Snapshot)
}

// beginSave begins to write a checkpoint, unless Options.Unsaved is set. It waits for the one before, so that there is
// one copy of the variables at a time.
func (t *trainer) beginSave(ctx context.Context, variables func() Variables) error {
	if err := t.awaitSave(); err != nil || t.job.options.Unsaved {
		return err
	}
	if err := t.recorder.logs.steps.Sync(); err != nil {
		return usererror.New(err)
	}
	s, err := t.state(ctx)
	if err != nil {
		return err
	}
	from := variables()
	if p, ok := from.(exchanging); ok {
		s.Replicas = p.Position()
	}
	c := t.job.contents(from)
	if text := t.deployment.kernels(); text != nil {
		c.Files[kernelsFile] = text
	}
	t.checkpoints.write(c, s, t.skipped)
	return nil
}

// awaitSave waits for the checkpoint that is being written, if there is one.
func (t *trainer) awaitSave() error {
	w := t.checkpoints.await()
	if w == nil {
		return nil
	}
	t.deployment.record()
	switch {
	case w.saved == nil:
		return t.saveError(w.state.Step, w.err)
	case w.err != nil:
		t.job.options.Report.Note("%v", w.err)
	}
	t.job.journal.write(journalEvent{Kind: eventCheckpoint, Step: w.state.Step, Text: w.saved.Dir})
	return nil
}

// endSave waits for the checkpoint that is being written when the run fails for another reason.
func (t *trainer) endSave() {
	if err := t.awaitSave(); err != nil {
		t.job.options.Report.Note("%v", err)
	}
}

// contents is a checkpoint's model, its tokenizer, and its tensors, which are read from the devices when they are
// written.
func (j *job) contents(e Variables) checkpoint.Contents {
	c := checkpoint.Contents{Config: j.modelJSON(), Files: tokenizer.Files(j.corpus.texts.tok, j.model.Size().SeqLen)}
	c.Files[config.SavedFile] = j.config.SavedYAML()
	if m, ok := j.hooks.ModelModule(); ok {
		c.Files[config.ModuleFile] = m.Content()
	}
	second := j.secondVersion()
	for _, p := range j.model.Parameters() {
		read := func(v engine.Version) func() (device.Pending, error) {
			return func() (device.Pending, error) { return e.ReadWeights(p.Name, v) }
		}
		c.Model = append(c.Model, tensor(p.Name, p.Type, read(e.Evaluated())))
		if second != weights.OneVersion && !j.config.Pipeline.Independent() {
			c.Optimizer = append(c.Optimizer, tensor(second.Tensor(p.Name), p.Type, read(second.Version())))
		}
	}
	if p, ok := e.(exchanging); ok {
		addReplicas(&c, p)
		return c
	}
	for _, v := range j.optimizer.State() {
		c.Optimizer = append(c.Optimizer, tensor(v.ID, v.Type, func() (device.Pending, error) { return e.ReadState(v.ID) }))
	}
	return c
}

func tensor(name string, t graph.Type, read func() (device.Pending, error)) checkpoint.Tensor {
	return checkpoint.Tensor{Name: name, DType: safetensors.DType(strings.ToUpper(t.DType.String())), Shape: t.Shape,
		Data: func() ([]byte, error) {
			p, err := read()
			if err != nil {
				return nil, err
			}
			data, err := p.Wait()
			if n := t.Shape.Len() * t.DType.Size(); len(data) > n { // devices hold whole words
				data = data[:n]
			}
			return data, err
		}}
}

// saveError marks the error of a full or read-only disk, which the user can fix. Errors of failing devices stay as they
// are.
func (t *trainer) saveError(step int, err error) error {
	var file *os.PathError
	if errors.As(err, &file) {
		return usererror.Errorf("%w; %s", err, t.checkpoints.kept())
	}
	return &during{fmt.Sprintf("saving the checkpoint of step %d", step), err} // the text says so already
}

// findCheckpoint finds the latest good checkpoint of the run folder. Without one it returns a start without weights. It
// refuses a folder that holds a run, unless the run is resumed or restarted.
func (t *trainer) findCheckpoint(ctx context.Context) (start, error) {
	dir, note := t.folder.path, t.job.options.Report.Note
	if !t.job.options.Resume && !t.folder.begun {
		return start{}, t.folder.refuseRun()
	}
	if !t.folder.begun && t.job.options.From != nil {
		return t.startFrom(ctx, *t.job.options.From)
	}
	if t.folder.unfinishedBranch() {
		return start{}, fmt.Errorf("run.dir: %s is a branch of another run that was interrupted while it was made: give the command with --from again", dir)
	}
	c, problems, err := checkpoint.Latest(dir)
	for _, p := range problems {
		note("%v: passed over", p)
	}
	if errors.Is(err, checkpoint.ErrNone) && len(problems) == 0 {
		if !t.deployment.faults.any() {
			note("%s has no checkpoint yet: starting at the beginning", dir)
		}
		return start{}, nil
	}
	if err != nil {
		return start{}, err
	}
	return t.resumeAt(ctx, c)
}

// resumeAt starts at a checkpoint.
func (t *trainer) resumeAt(ctx context.Context, c *checkpoint.Checkpoint) (start, error) {
	note := t.job.options.Report.Note
	s, err := t.job.resume(ctx, c)
	if err != nil {
		return s, err
	}
	if err := t.deployment.pinKernels(c); err != nil {
		return s, err
	}
	if !t.deployment.faults.any() && !t.folder.begun {
		note("resuming at step %d from %s", s.step, c.Dir)
	}
	return s, nil
}
