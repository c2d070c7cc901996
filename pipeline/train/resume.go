package train

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/weights"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/pipeline/train/hooks"
)

// start is where a run starts.
type start struct {
	step       int
	checkpoint string             // its folder; "": none
	weights    *weights.Source    // and the optimizer's state
	omitted    int64              // batches before, that hooks failed on
	states     hooks.BatchStates  // of hooks that change batches
	pending    *Progress          // the last step, if its evaluation is still to come
	replicas   *replicas.Position // that train on their own; nil: none, or a start without a checkpoint
}

// resume reads a checkpoint. It refuses one of another model, other data or another optimizer.
func (j *job) resume(ctx context.Context, c *checkpoint.Checkpoint) (start, error) {
	var s state
	if err := c.State(&s); err != nil {
		return start{}, err
	}
	if err := s.check(c, j.config.Train.Steps); err != nil {
		return start{}, err
	}
	saved, err := config.ParseSaved(filepath.Join(c.Dir, "state.json"), []byte(s.Config))
	if err != nil {
		return start{}, err
	}
	if err := j.takePosition(ctx, s); err != nil {
		return start{}, err
	}
	saved = saved.At(s.Step)
	if err := j.keepStaleness(ctx, c.Dir, saved); err != nil {
		return start{}, err
	}
	err = j.await(func(each func(data.Waiting) error) error { return j.corpus.train.AwaitPosition(ctx, s.Data, each) }, nil)
	if err != nil {
		return start{}, err
	}
	if err := j.checkSameRun(c.Dir, s, saved); err != nil {
		return start{}, err
	}
	j.keepCut(c.Dir, s)
	if s.Omitted < 0 || s.Data.Step != int64(s.Step)+s.Omitted {
		return start{}, fmt.Errorf("%s: state.json is of step %d with %d batches left out, but goes on with batch %d", c.Dir, s.Step,
			s.Omitted, s.Data.Step)
	}
	if s.Unreported != nil && s.Unreported.Step != s.Step {
		return start{}, fmt.Errorf("%s: state.json is of step %d, but its unreported step (untold) is %d", c.Dir, s.Step, s.Unreported.Step)
	}
	at := start{step: s.Step, checkpoint: c.Dir, omitted: s.Omitted, states: j.hooks.BatchStates(s.Hooks), pending: s.Unreported,
		replicas: s.Replicas}
	if t := j.config.Train; at.pending != nil && at.pending.Steps != t.Steps { // the user has changed the number of steps
		at.pending.Steps, at.pending.Left = t.Steps, timeFor(j.tokensLeft(s.Step), at.pending.TokensPerSec)
	}
	if at.weights, err = j.openWeights(c, s.Replicas); err != nil {
		return at, err
	}
	return at, j.hooks.Metrics.Open(ctx, s.Hooks)
}

// secondVersion is the version of the weights that the run's checkpoints hold besides the evaluated one.
func (j *job) secondVersion() weights.Second {
	return weights.SecondOf(j.config.Pipeline.Delay, j.config.PartlyStale())
}

// keepStaleness gives the run as many stale microbatches as the checkpoint's run has, if the config says auto.
func (j *job) keepStaleness(ctx context.Context, dir string, saved config.Config) error {
	c, err := j.config.KeepStale(saved)
	if err != nil {
		return fmt.Errorf("%s cannot be continued: %w", dir, err)
	}
	if c.Stale() == j.config.Stale() {
		return nil
	}
	j.options.Report.Note("pipeline.stale_microbatches: %d, as in %s", c.Stale(), dir)
	j.config = c
	return j.makeOptimizer(ctx)
}

// check refuses a state of another step than its checkpoint's, or of one after the last.
func (s state) check(c *checkpoint.Checkpoint, steps int) error {
	if s.Step != c.Step {
		return fmt.Errorf("%s: state.json is of step %d", c.Dir, s.Step)
	}
	if s.Step > steps {
		return fmt.Errorf("train.steps: found %d, but %s is at step %d already", steps, c.Dir, s.Step)
	}
	return nil
}

// keepCut cuts the model as the checkpoint's run does, if bits depend on the cut, the config leaves it to the planner,
// and there are as many virtual stages.
func (j *job) keepCut(dir string, s state) {
	p := j.config.Pipeline
	if p.Wire.Exact() || len(p.Cut) > 0 || len(s.Cut) == 0 || len(s.Cut) != p.Stages*p.Chunks-1 {
		return
	}
	j.cut = s.Cut
	j.options.Report.Note("pipeline.cut: %v, as in %s: with pipeline.wire the bits depend on it", s.Cut, dir)
}

// checkSameRun compares the config of a checkpoint with the current one. Paths and intervals may change. New values of
// keys that enter a step as numbers are used, and reported.
func (j *job) checkSameRun(dir string, s state, saved config.Config) error {
	var differ []string
	if _, err := j.corpus.train.Resume(s.Data, j.config.Train.BatchSize); err != nil {
		differ = append(differ, err.Error())
	}
	if !tokenizer.Is(j.corpus.texts.tok, s.Tokenizer) {
		differ = append(differ, "data.tokenizer: another vocabulary")
	}
	differ = append(differ, j.hooks.Differences(s.Hooks)...)
	current := j.config
	for _, c := range []*config.Config{&saved, &current} { // auto is another number on other stages
		c.Pipeline.StaleMicrobatches = config.StaleMicrobatches(c.Stale())
	}
	old, now := flatten(saved), flatten(current)
	all := maps.Clone(old)
	maps.Copy(all, now)
	numbers := j.optimizerNumbers(saved)
	independent := saved.Pipeline.Independent() && current.Pipeline.Independent()
	noReplicas := !saved.Pipeline.Independent() && !current.Pipeline.Independent()
	resized := old["train.batch_size"] != now["train.batch_size"] || old["train.batch_schedule"] != now["train.batch_schedule"] ||
		independent && old["pipeline.replicas"] != now["pipeline.replicas"]
	for _, k := range slices.Sorted(maps.Keys(all)) {
		unused := noReplicas && strings.HasPrefix(k, "pipeline.outer.")
		if old[k] == now[k] || slices.Contains(movable, k) || unused {
			continue
		}
		change := fmt.Sprintf("%s: the checkpoint has %s, the config %s", k, orNothing(old[k]), orNothing(now[k]))
		if replaceable(k) || numbers[k] || independent && replicaKeys(k) || resized && slices.Contains(dividing, k) {
			j.options.Report.Note("%s: the new value is used", change)
			continue
		}
		differ = append(differ, change)
	}
	if len(differ) > 0 {
		return fmt.Errorf("%s is of another run: %s", dir, strings.Join(differ, "; "))
	}
	return nil
}

// replaceable reports whether a run goes on with a new value of a key.
func replaceable(key string) bool {
	keys := []string{"train.steps", "train.grad_clip", "train.nonfinite", "train.batch_size", "train.batch_schedule"}
	return slices.Contains(keys, key) || strings.HasPrefix(key, "lr.") || strings.HasPrefix(key, "pipeline.wire")
}

// optimizerNumbers are the keys of the optimizer that enter a step as numbers. Keys that may shape its state are among
// them if it has the same state with the values of both configs.
func (j *job) optimizerNumbers(saved config.Config) map[string]bool {
	keys := map[string]bool{}
	if saved.Optimizer.Name() != j.config.Optimizer.Name() {
		return keys
	}
	saved.Train.Nonfinite = j.config.Train.Nonfinite // its variable does not matter: see weights.FromCheckpoint
	was, err := layout.NewOptimizer(saved, j.model, nil)
	same := err == nil && slices.EqualFunc(was.State(), j.optimizer.State(), func(a, b graph.Named) bool {
		return a.ID == b.ID &&
			a.Type.Equal(b.Type)
	})
	for _, f := range j.config.Optimizer.Fields() {
		keys["optimizer."+f.Key] = same || !f.Shapes
	}
	return keys
}

// dividing keys may change with the size of the batches, which they divide.
var dividing = []string{"train.microbatches", "pipeline.stale_microbatches"}

// movable keys do not change the results of a run. Data, whether they are a stream, aligned tensors, tokenizer, ends of
// documents and hooks are compared by content.
var movable = []string{"run.dir", "run.started_in", "data.train", "data.val", "data.aligned", "data.tokenizer", "data.separator",
	"data.stream", "train.eval_every", "train.eval_batches", "train.eval_tasks", "train.eval_questions", "train.save_every", "train.keep",
	"train.keep_best", "model.preset", "pipeline.devices", "pipeline.schedule", "pipeline.stages", "pipeline.chunks",
	"pipeline.cut", "pipeline.depth", "pipeline.recompute", "pipeline.memory", "pipeline.isolate", "pipeline.restarts",
	"pipeline.watchdog", "hooks"}

// flatten turns a config into dotted keys and the texts of their values.
func flatten(c config.Config) map[string]string {
	keys, err := strictyaml.Flatten(c.YAML())
	if err != nil {
		panic(err) // YAML is valid
	}
	return keys
}

// orNothing formats a value's text in YAML, which writes 1e+07, for a message.
func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	if x, err := strconv.ParseFloat(s, 64); err == nil && strings.Contains(s, "e+") {
		return fielderror.Text(x)
	}
	return s
}
