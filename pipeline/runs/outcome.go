package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

// Outcome is how a run ended.
type Outcome struct {
	ValLoss  float64 // nats per token; infinite if the run diverged, NaN if it measured none
	Diverged string  // the error of a run that diverged; empty: it did not
	Failed   string  // the error of a run that failed in another way, with Set.KeepGoing; the next Compare tries it again
	Stopped  string  // the hook that ended the run before the last step of its config; no run continues it
	// Metrics are the values of the run's last step by their names in metrics.jsonl. The loss is the mean over the last
	// tenth of the steps.
	Metrics map[string]float64
	Step    int    // of Metrics; 0: there are none
	Dir     string // the folder that holds the outcome: the run's, or its summary's
}

// lossName is the name of the training loss in metrics.jsonl.
const lossName = "loss"

// outcomeFile is the file of a run's outcome, in the run's folder. It exists only if the run has ended. A run that
// others continue has its last step in the name.
const outcomeFile = "outcome.json"

type outcomeJSON struct {
	ValLoss  *float64           `json:"val_loss"`           // nats per token
	Diverged string             `json:"diverged,omitempty"` // the error of a run that diverged; it has no loss
	Stopped  string             `json:"stopped,omitempty"`  // the hook that ended the run
	Version  string             `json:"version,omitempty"`  // of the program; of a summary
	Step     int                `json:"step,omitempty"`     // of the metrics
	Metrics  map[string]float64 `json:"metrics,omitempty"`
}

// configFile is the file of a run's config, in the run's folder.
const configFile = "config.yaml"

// outcomeName is the name of the file of a run's outcome.
func (s *Set[R]) outcomeName(r R, c config.Config) string {
	if _, to := s.span(r); to > 0 && to < c.Train.Steps {
		return fmt.Sprintf("outcome-%d.json", to)
	}
	return outcomeFile
}

// keep writes a run's outcome into its folder.
func (s *Set[R]) keep(r R, o Outcome) error {
	c, err := s.Config(r)
	if err != nil || o.Failed != "" {
		return err
	}
	path := filepath.Join(s.Folder(r), s.outcomeName(r, c))
	if o.Stopped != "" {
		path = filepath.Join(s.Folder(r), outcomeFile)
	}
	if err := WriteJSON(path, o.json()); err != nil || s.Summaries == "" {
		return err
	}
	return s.summarize(r, c, o)
}

func (o Outcome) json() outcomeJSON {
	return outcomeJSON{ValLoss: Number(o.ValLoss), Diverged: o.Diverged, Stopped: o.Stopped, Step: o.Step, Metrics: o.Metrics}
}

// kept returns the outcome of a run in an earlier execution, or of an earlier run of its folder that a hook has
// stopped, or its summary's outcome. It is an error if that run had another config: kept overwrites nothing and does
// not mix results.
func (s *Set[R]) kept(r R) (o Outcome, ended bool, err error) {
	c, err := s.Config(r)
	if err != nil {
		return o, false, err
	}
	o, ended, err = s.keptIn(s.Folder(r), r, c)
	if !ended && err == nil && s.Summaries != "" {
		o, ended, err = s.keptIn(s.summary(r), r, c)
	}
	return o, ended, err
}

// keptIn is the outcome of a run in one folder.
func (s *Set[R]) keptIn(dir string, r R, c config.Config) (o Outcome, ended bool, err error) {
	if err := s.sameConfig(c, filepath.Join(dir, configFile)); err != nil {
		return o, false, usererror.New(err)
	}
	path := filepath.Join(dir, s.outcomeName(r, c))
	if o, ended, err = s.read(path); ended || err != nil {
		return o, ended, err
	}
	if last := filepath.Join(dir, outcomeFile); last != path {
		_, to := s.span(r)
		o, ended, err = s.read(last)
		ended = ended && o.Stopped != "" && o.Step <= to
	}
	return o, ended, err
}

// read reads the file of an outcome. ended is false if there is none.
func (s *Set[R]) read(path string) (o Outcome, ended bool, err error) {
	text, err := strictyaml.ReadSmall(path)
	if errors.Is(err, os.ErrNotExist) {
		return o, false, nil
	}
	var f outcomeJSON
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	switch {
	case err != nil:
		return o, false, usererror.Errorf("%s: %w", path, err)
	case f.Diverged != "":
		return Outcome{ValLoss: math.Inf(1), Diverged: f.Diverged, Metrics: f.Metrics, Step: f.Step, Dir: filepath.Dir(path)}, true, nil
	case f.ValLoss == nil && len(f.Metrics) == 0:
		return o, false, usererror.Errorf("%s: neither val_loss nor diverged: remove the file to train again", path)
	}
	o = Outcome{ValLoss: math.NaN(), Stopped: f.Stopped, Metrics: f.Metrics, Step: f.Step, Dir: filepath.Dir(path)}
	if f.ValLoss != nil {
		o.ValLoss = *f.ValLoss
	}
	if err := s.Complete(o); err != nil {
		return o, false, usererror.Errorf("%s: %w", path, err)
	}
	return o, true, nil
}

// sameConfig compares the config of an earlier run with the present one. Folders, devices and fault handling may
// differ, and without replicas that train on their own so may the keys of their exchanges, which have no effect.
func (s *Set[R]) sameConfig(now config.Config, path string) error {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	old, err := config.Load(path, nil)
	if err != nil {
		return err
	}
	old.Run, now.Run = config.Run{}, config.Run{}
	old.Pipeline.Devices, old.Pipeline.Processes = now.Pipeline.Devices, now.Pipeline.Processes
	if !old.Pipeline.Independent() && !now.Pipeline.Independent() {
		old.Pipeline.Outer = now.Pipeline.Outer
	}
	return SameYAML(path, old.YAML(), now.YAML(), s.Noun, "the run's folder")
}

// SameYAML refuses a file with other values than the present ones. noun is what has the present ones, and removable
// what may be removed instead of choosing another folder.
func SameYAML(path string, old, now []byte, noun, removable string) error {
	was, err := strictyaml.Flatten(old)
	if err != nil {
		return err
	}
	is, err := strictyaml.Flatten(now)
	if err != nil {
		return err
	}
	all := maps.Clone(was)
	maps.Copy(all, is)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if was[key] != is[key] {
			return fmt.Errorf("%s: %s: found %s, but the %s has %s now: choose another dir for the %s, or remove %s",
				path, key, orNothing(was[key]), noun, orNothing(is[key]), noun, removable)
		}
	}
	return nil
}

func orNothing(value string) string {
	if value == "" {
		return "nothing"
	}
	return value
}

// end is the end of a run.
type end struct {
	result train.Result
	err    error
}

// outcome returns how a run ended, or that it was interrupted and continues in the next execution. An error stops the
// set.
func (s *Set[R]) outcome(ctx context.Context, r R, e end) (o Outcome, interrupted bool, err error) {
	defer func() { o.Dir = s.Folder(r) }()
	_, to := s.span(r)
	switch {
	case errors.Is(e.err, train.ErrDiverged):
		o = Outcome{ValLoss: math.Inf(1), Diverged: e.err.Error()}
		o.Metrics, o.Step, _ = s.lastMetrics(r) // the outcome does not depend on its metrics
		return o, false, nil
	case e.err != nil && ctx.Err() != nil:
		if errors.Is(e.err, context.Canceled) {
			return o, true, nil
		}
	case e.err == nil && e.result.Interrupted && (ctx.Err() != nil || to == 0 || e.result.Step < to):
		return o, true, nil
	}
	if err = e.err; err == nil {
		if o, err = s.measured(r, e.result); err == nil {
			err = s.Complete(o)
		}
	}
	if err != nil && s.KeepGoing && ctx.Err() == nil {
		return Outcome{ValLoss: math.Inf(1), Failed: err.Error()}, false, nil
	}
	return o, false, err
}

// measured is the outcome of a run that has ended well.
func (s *Set[R]) measured(r R, res train.Result) (o Outcome, err error) {
	o.ValLoss = math.NaN()
	if res.ValLoss != nil {
		o.ValLoss = *res.ValLoss
	}
	o.Metrics, o.Step, err = s.lastMetrics(r)
	if loss, ok := o.Metrics["val_loss"]; ok && res.ValLoss == nil {
		o.ValLoss = loss
	}
	if err != nil {
		return o, err
	}
	c, err := s.Config(r)
	if res.Step < c.Train.Steps {
		o.Stopped = res.Stopped
	}
	return o, err
}

// lastMetrics are the values of a run's last step, and the step.
func (s *Set[R]) lastMetrics(r R) (map[string]float64, int, error) {
	records, err := metrics.Read(filepath.Join(s.Folder(r), "metrics.jsonl"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, 0, err
	}
	if _, to := s.span(r); to > 0 {
		records = slices.DeleteFunc(records, func(m metrics.Record) bool { return m.Step > to })
	}
	if len(records) == 0 {
		return nil, 0, nil
	}
	return lastValues(records), records[len(records)-1].Step, nil
}

// lastValues are the finite values of the last record. The loss is the mean over the last tenth of the records.
func lastValues(records []metrics.Record) map[string]float64 {
	out := map[string]float64{}
	for name, x := range records[len(records)-1].Values {
		if metrics.Finite(x) {
			out[name] = x
		}
	}
	var losses []float64
	for _, r := range records[len(records)-(len(records)+9)/10:] {
		if loss, ok := r.Values[lossName]; ok {
			losses = append(losses, loss)
		}
	}
	if e := NewEstimate(losses); metrics.Finite(e.Mean) {
		out[lossName] = e.Mean
	}
	return out
}
