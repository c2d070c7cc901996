package sweep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/runs"
	"go.yaml.in/yaml/v3"
)

// Ended is a run that has ended, for JSON.
type Ended struct {
	Trial    int            `json:"trial"` // from 1
	Values   map[string]any `json:"values"`
	Seed     uint64         `json:"seed"`
	Step     int            `json:"step,omitempty"` // of the rung, with search: halving
	Score    *float64       `json:"score"`          // the metric; nil: the run has none
	Diverged string         `json:"diverged,omitempty"`
	Failed   string         `json:"failed,omitempty"`
	Stopped  string         `json:"stopped,omitempty"` // the hook that ended the run
	Dir      string         `json:"dir"`
}

// NewEnded is a run that has ended, for JSON.
func (s *Sweep) NewEnded(e runs.Ended[Run]) Ended {
	out := Ended{Trial: e.Run.Trial, Values: s.valuesOf(e.Run.Trial - 1), Seed: e.Run.Seed, Diverged: e.Outcome.Diverged,
		Failed: e.Outcome.Failed, Stopped: e.Outcome.Stopped, Dir: e.Outcome.Dir}
	if len(s.Rungs) > 0 {
		out.Step = s.Rungs[e.Run.Rung]
	}
	if score, ok := s.Metric.score(e.Outcome); ok {
		out.Score = runs.Number(score)
	}
	return out
}

// valuesOf are the values of a trial by key.
func (s *Sweep) valuesOf(trial int) map[string]any {
	out := map[string]any{}
	for i, v := range s.Trials[trial].values {
		var x any
		if err := v.node.Decode(&x); err != nil {
			x = v.text // what the config accepts decodes
		}
		out[s.Keys[i].Name] = x
	}
	return out
}

// Planned is the remaining work of a sweep, for JSON.
type Planned struct {
	Ended   []Ended  `json:"ended"`
	Waiting []string `json:"waiting"`
	Later   int      `json:"later"` // an upper bound of the runs of later rungs
}

// NewPlanned is the remaining work of a sweep, for JSON.
func (s *Sweep) NewPlanned(p runs.Planned[Run]) Planned {
	out := Planned{Ended: []Ended{}, Waiting: []string{}, Later: p.Later}
	for _, e := range p.Ended {
		out.Ended = append(out.Ended, s.NewEnded(e))
	}
	for _, r := range p.Waiting {
		out.Waiting = append(out.Waiting, r.String())
	}
	return out
}

// Ending describes how a run ended.
func (s *Sweep) Ending(e runs.Ended[Run]) string {
	switch score, ok := s.Metric.score(e.Outcome); {
	case e.Outcome.Failed != "":
		return "failed: " + e.Outcome.Failed
	case ok && e.Outcome.Stopped != "":
		return fmt.Sprintf("%s, stopped at step %d by %s", s.Metric.text(score), e.Outcome.Step, e.Outcome.Stopped)
	case ok:
		return s.Metric.text(score)
	}
	return "diverged"
}

// Best describes the best trial so far: of the last rung that has one. It is empty without any.
func (s *Sweep) Best(outcomes map[Run]runs.Outcome) string {
	for rung := s.levels() - 1; rung >= 0; rung-- {
		best, cost := -1, 0.0
		for t := range s.Trials {
			if c := s.Metric.cost(s.scored(t, rung, outcomes).Mean); runs.Number(c) != nil && (best < 0 || c < cost) {
				best, cost = t, c
			}
		}
		if best >= 0 {
			return fmt.Sprintf("best %s: %s", s.Metric.text(s.scored(best, rung, outcomes).Mean), s.Trials[best].name)
		}
	}
	return ""
}

// Config is the config of a run.
func (s *Sweep) Config(r Run) (config.Config, error) { return s.compose(r).Config() }

// Plan returns what Execute would do. It trains nothing and writes nothing.
func Plan(s *Sweep) (runs.Planned[Run], error) {
	if err := s.checkSearch(); err != nil {
		return runs.Planned[Run]{}, err
	}
	return runs.Plan(s.runSet())
}

// Execute trains all runs that have not ended yet, and then writes the report into the sweep's folder. A run that
// diverges or fails is a trial without a score; the next Execute tries failed runs again. It is an error if no trial
// has a score. See runs.Execute.
func Execute(ctx context.Context, s *Sweep, o runs.Options, progress func(runs.Progress[Run])) (*Report, error) {
	if slices.ContainsFunc(s.Keys, func(k Key) bool { return k.sets("pipeline.devices") }) && len(o.Devices) > 0 {
		return nil, usererror.Errorf("--device: found %s, expected none with values of pipeline.devices", strings.Join(o.Devices, ", "))
	}
	if err := s.checkSearch(); err != nil {
		return nil, err
	}
	release, err := runs.TakeFolder(s.Dir, o.Note)
	if err != nil {
		return nil, err
	}
	defer release()
	s.source.File.Note(noun, s.Dir, o.Note)
	if err := s.keepSearch(ctx); err != nil {
		return nil, err
	}
	outcomes, err := runs.Execute(ctx, s.runSet(), o, progress)
	if err != nil {
		return nil, err
	}
	rep := s.report(outcomes)
	if err := rep.write(s); err != nil {
		return nil, err
	}
	if rep.Best == nil {
		first := rep.Trials[slices.IndexFunc(rep.Trials, func(t TrialReport) bool { return t.Reason != "" })]
		return nil, usererror.Errorf("no trial has a score; the first (%s): %s", first.Dirs[0], first.Reason)
	}
	return rep, nil
}

// searchFile is the file, in a sweep's folder, of the search that drew the trials.
const searchFile = "search.yaml"

// search encodes the settings that decide which trials are drawn and which are promoted. The numbers of runs and seeds
// are not part of it, nor are a grid's keys: more may be added.
func (s *Sweep) search() ([]byte, error) {
	if s.Search == Grid {
		return yaml.Marshal(map[string]string{"search": Grid})
	}
	keys := yaml.Node{Kind: yaml.MappingNode}
	for _, k := range s.Keys {
		var n yaml.Node
		if k.values == nil {
			if err := n.Encode(k.interval); err != nil {
				return nil, err
			}
		} else {
			n.Kind, n.Style = yaml.SequenceNode, yaml.FlowStyle
			for _, v := range k.values {
				n.Content = append(n.Content, v.node)
			}
		}
		keys.Content = append(keys.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: k.Name}, &n)
	}
	type promotion struct {
		Metric string `yaml:"metric"`
		Goal   string `yaml:"goal"`
		Factor int    `yaml:"factor"`
		Steps  []int  `yaml:"steps,flow"`
	}
	all := struct {
		Search  string     `yaml:"search"`
		Seed    uint64     `yaml:"seed"`
		Keys    *yaml.Node `yaml:"keys"`
		Halving *promotion `yaml:"halving,omitempty"`
	}{s.Search, s.seed, &keys, nil}
	if s.Search == Halving {
		all.Halving = &promotion{s.Metric.Name, s.Metric.Goal, s.factor, s.Rungs}
	}
	return yaml.Marshal(all)
}

// checkSearch refuses a folder whose trials were drawn by another search. A grid may change: its earlier runs stay in
// the folder, and the runs that are in the new grid are used.
func (s *Sweep) checkSearch() error {
	path := filepath.Join(s.Dir, searchFile)
	old, err := strictyaml.ReadSmall(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return usererror.New(err)
	}
	now, err := s.search()
	if err != nil {
		return err
	}
	return usererror.New(runs.SameYAML(path, old, now, noun, "the folder"))
}

// keepSearch writes the file that checkSearch reads, unless ctx has ended.
func (s *Sweep) keepSearch(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	text, err := s.search()
	if err != nil {
		return err
	}
	return runs.WriteFile(filepath.Join(s.Dir, searchFile), text)
}
