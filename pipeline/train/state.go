package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/hooks"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// state is what a checkpoint's state.json holds besides its tensors.
type state struct {
	Step      int           `json:"step"`      // steps finished
	Tokens    int64         `json:"tokens"`    // trained on
	Data      data.Position `json:"data"`      // the batch that comes next
	Tokenizer string        `json:"tokenizer"` // its hash
	Config    string        `json:"config"`    // config.yaml of the run
	Hooks     []hooks.State `json:"hooks,omitempty"`
	LeftOut   int64         `json:"left_out,omitempty"` // batches, for what hooks did wrong
	Untold    *Progress     `json:"untold,omitempty"`   // the last step, where the evaluation after it is still to come
}

func (r *run) state(ctx context.Context) (state, error) {
	next, states := r.feeder.Cursor(r.step)
	modules, err := r.hooks.State(ctx, states)
	return state{Step: r.step, Tokens: r.tokens(r.step), Data: r.data.train.Position(next), Tokenizer: r.data.tok.Hash(),
		Config: string(r.YAML()), Hooks: modules, LeftOut: next - int64(r.step), Untold: r.last}, err
}

// tokens is how many tokens the first steps train on.
func (r *run) tokens(steps int) int64 {
	return int64(steps) * int64(r.Train.BatchSize) * int64(r.Model.SeqLen)
}

func writeFile(path string, data []byte) error {
	return atomicfile.Write(path, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// save writes a checkpoint of the steps so far, all of which have been measured.
func (r *run) save(ctx context.Context) error {
	began := time.Now()
	if err := r.log.Sync(); err != nil {
		return usererror.New(err)
	}
	s, err := r.state(ctx)
	if err != nil {
		return err
	}
	c := checkpoint.Contents{Step: r.step, Config: r.modelConfig(), State: s, Files: map[string][]byte{
		"tokenizer.json": r.data.tok.JSON(), keptConfig: r.YAML()}}
	if m, ok := r.hooks.ModelModule(); ok {
		c.Files[config.ModuleFile] = m.Content()
	}
	if text := r.kernels(); text != nil {
		c.Files[kernelsFile] = text
	}
	for _, p := range r.model.Parameters() {
		read := func(v engine.Version) func() (device.Pending, error) {
			return func() (device.Pending, error) { return r.engine.ReadWeights(p.Name, v) }
		}
		c.Model = append(c.Model, tensor(p.Name, p.Type, read(engine.Current)))
		if r.Pipeline.Delay > 0 {
			c.Optimizer = append(c.Optimizer, tensor(pendingName(p.Name), p.Type, read(engine.Next)))
		}
	}
	for _, v := range r.optimizer.State() {
		c.Optimizer = append(c.Optimizer, tensor(v.ID, v.Type, func() (device.Pending, error) { return r.engine.ReadState(v.ID) }))
	}
	saved, err := r.store.Save(c)
	if saved == nil {
		return r.saveError(err)
	}
	if err != nil {
		r.Report.Note("%v", err)
	}
	r.saved, r.owed, r.skippedThen, r.result.Checkpoint = r.step, s.Untold != nil, r.skipped, saved.Dir
	r.pace.pause(time.Since(began))
	r.trace.Complete(trace.RunTrack, trace.Run, trace.SaveEvent, began, time.Since(began), nil)
	return nil
}

// modelConfig is config.json of a checkpoint.
func (r *run) modelConfig() json.RawMessage {
	if m, ok := r.hooks.ModelModule(); ok {
		return m.JSON(r.model.Size(), "float32")
	}
	return r.Model.HuggingFace()
}

// saveError tells a disk that is full or read-only, which is the user's to mend, from a device that fails.
func (r *run) saveError(err error) error {
	var file *os.PathError
	if errors.As(err, &file) {
		return usererror.Errorf("%w; %s", err, r.kept())
	}
	return &during{fmt.Sprintf("saving the checkpoint of step %d", r.step), err} // whose text says so
}

func tensor(name string, t graph.Type, read func() (device.Pending, error)) checkpoint.Tensor {
	return checkpoint.Tensor{Name: name, DType: safetensors.DType(strings.ToUpper(t.DType.String())), Shape: t.Shape,
		Data: func() ([]byte, error) {
			p, err := read()
			if err != nil {
				return nil, err
			}
			return p.Wait()
		}}
}

// findWeights decides where the run begins: at a checkpoint, at given weights, or at random ones.
func (r *run) findWeights(ctx context.Context) (err error) {
	r.saved = -1
	resumed, err := r.resume(ctx)
	if err != nil || resumed {
		return usererror.New(err)
	}
	if err := r.hooks.Metrics.Open(ctx, nil); err != nil {
		return err
	}
	if r.Init.From != "" {
		r.weights, err = openWeights(r.Init.From, r.model)
		return usererror.New(err)
	}
	r.weights = &weights{params: r.model.Parameters(), seed: r.Init.Seed}
	return nil
}

// resume finds the latest good checkpoint of the run folder and refuses one that another model, other data or another
// optimizer made.
func (r *run) resume(ctx context.Context) (bool, error) {
	dir := r.Run.Dir
	names, err := os.ReadDir(filepath.Join(dir, checkpointsDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	_, logged := os.Stat(filepath.Join(dir, metricsFile))
	if !r.Resume && !r.folder.begun {
		if len(names) > 0 || logged == nil {
			return false, fmt.Errorf("run.dir: %s holds a run already: continue it with --resume, or choose another folder", dir)
		}
		return false, nil
	}
	c, problems, err := checkpoint.Latest(dir)
	for _, p := range problems {
		r.Report.Note("%v: passed over", p)
	}
	if errors.Is(err, checkpoint.ErrNone) && len(problems) == 0 {
		if !r.restarting() {
			r.Report.Note("%s has no checkpoint yet: starting at the beginning", dir)
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, r.resumeFrom(ctx, c)
}

func (r *run) resumeFrom(ctx context.Context, c *checkpoint.Checkpoint) error {
	var s state
	if err := c.State(&s); err != nil {
		return err
	}
	if s.Step != c.Step {
		return fmt.Errorf("%s: state.json is of step %d", c.Dir, s.Step)
	}
	if s.Step > r.Train.Steps {
		return fmt.Errorf("train.steps: found %d, but %s is at step %d already", r.Train.Steps, c.Dir, s.Step)
	}
	if err := r.sameRun(c.Dir, s); err != nil {
		return err
	}
	if s.LeftOut < 0 || s.Data.Step != int64(s.Step)+s.LeftOut {
		return fmt.Errorf("%s: state.json is of step %d with %d batches left out, but goes on with batch %d", c.Dir, s.Step, s.LeftOut, s.Data.Step)
	}
	if s.Untold != nil && s.Untold.Step != s.Step {
		return fmt.Errorf("%s: state.json is of step %d, but its untold one is %d", c.Dir, s.Step, s.Untold.Step)
	}
	r.last, r.owed, r.leftOut, r.states = s.Untold, s.Untold != nil, s.LeftOut, r.hooks.BatchStates(s.Hooks)
	if r.owed && r.last.Steps != r.Train.Steps { // the user has asked for more or fewer since
		r.last.Steps, r.last.Left = r.Train.Steps, timeFor(r.Train.BatchSize*r.Model.SeqLen, r.Train.Steps-s.Step, r.last.TokensPerSec)
	}
	m, err := c.Model()
	if err != nil {
		return err
	}
	r.weights = &weights{params: r.model.Parameters(), model: m}
	if r.weights.state, err = c.Optimizer(); err != nil {
		return err
	}
	want := map[string]graph.Type{}
	for _, v := range r.optimizer.State() {
		want[v.ID] = v.Type
		r.weights.names = append(r.weights.names, v.ID)
	}
	if _, ok := r.weights.state.Lookup(optim.InitializedVariable); !ok && s.Step > 0 { // older ones began with the first step
		r.weights.begun = true
		delete(want, optim.InitializedVariable)
	}
	for _, p := range r.weights.params {
		if r.Pipeline.Delay > 0 {
			want[pendingName(p.Name)] = p.Type
		}
	}
	if err := checkTensors(c.Dir, m, types(r.weights.params), noneRedundant); err != nil {
		return err
	}
	if err := checkTensors(c.Dir, r.weights.state, want, noneRedundant); err != nil {
		return err
	}
	if err := r.pinKernels(c); err != nil {
		return err
	}
	if err := r.hooks.Metrics.Open(ctx, s.Hooks); err != nil {
		return err
	}
	r.step, r.saved, r.result.Checkpoint = s.Step, s.Step, c.Dir
	if !r.restarting() {
		r.Report.Note("resuming at step %d from %s", s.Step, c.Dir)
	}
	return nil
}

// sameRun compares the config of a checkpoint with the present one. Where files lie may change, and how often is looked
// and saved; a new number of steps or schedule is what the user asked for, and is told.
func (r *run) sameRun(dir string, s state) error {
	var differ []string
	if _, err := r.data.train.Resume(s.Data); err != nil {
		differ = append(differ, err.Error())
	}
	if s.Tokenizer != r.data.tok.Hash() {
		differ = append(differ, "data.tokenizer: another vocabulary")
	}
	differ = append(differ, r.hooks.Differences(s.Hooks)...)
	saved, err := config.ParseSaved(filepath.Join(dir, "state.json"), []byte(s.Config))
	if err != nil {
		return err
	}
	old, now := flatten(saved), flatten(r.Config)
	all := maps.Clone(old)
	maps.Copy(all, now)
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if old[k] == now[k] || slices.Contains(movable, k) {
			continue
		}
		change := fmt.Sprintf("%s: the checkpoint has %s, the config %s", k, orNone(old[k]), orNone(now[k]))
		if k == "train.steps" || strings.HasPrefix(k, "lr.") {
			r.Report.Note("%s: the new value is used", change)
			continue
		}
		differ = append(differ, change)
	}
	if len(differ) > 0 {
		return fmt.Errorf("%s is of another run: %s", dir, strings.Join(differ, "; "))
	}
	return nil
}

// movable keys do not change what is computed; data, aligned tensors, tokenizer and hooks are compared by content.
var movable = []string{"run.dir", "data.train", "data.val", "data.aligned", "data.tokenizer", "train.eval_every", "train.eval_batches",
	"train.save_every", "train.keep", "model.preset", "pipeline.devices", "pipeline.schedule", "pipeline.stages", "pipeline.chunks",
	"pipeline.cut", "pipeline.recompute", "pipeline.memory", "pipeline.isolate", "pipeline.restarts",
	"pipeline.watchdog", "hooks"}

// flatten turns a config into dotted keys and their values' texts.
func flatten(c config.Config) map[string]string {
	keys, err := strictyaml.Flatten(c.YAML())
	if err != nil {
		panic(err) // what was just written
	}
	return keys
}

// orNone is what a message has for a value's text in YAML, which writes 1e+07.
func orNone(s string) string {
	if s == "" {
		return "nothing"
	}
	if x, err := strconv.ParseFloat(s, 64); err == nil && strings.Contains(s, "e+") {
		return fielderror.Text(x)
	}
	return s
}
