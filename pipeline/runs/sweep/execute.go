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

// Event is a run that has ended, for JSON.
func (s *Sweep) Event(e runs.Ended[Run]) any {
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

// Later describes the runs of later rungs.
func (s *Sweep) Later() string { return "of the best trials to later steps" }

// Set is the set of the sweep's runs. A run that diverges or fails is a trial without a score; failed runs are tried
// again the next time.
func (s *Sweep) Set() (runs.Set[Run], error) {
	set := runs.Set[Run]{Noun: s.Noun, Dir: s.Dir, File: s.File, Folder: s.Folder, Config: s.Config, Needed: s.needed,
		Begin: s.begin, Complete: s.Metric.complete, KeepGoing: true}
	if len(s.Rungs) > 0 {
		set.Span = s.span
	}
	return set, s.checkSearch()
}

// begin refuses devices of the command line if trials have devices. It keeps the search in the sweep's folder unless
// ctx has ended.
func (s *Sweep) begin(ctx context.Context, o runs.Options) error {
	if slices.ContainsFunc(s.Keys, func(k Key) bool { return k.sets("pipeline.devices") }) && len(o.Devices) > 0 {
		return usererror.Errorf("--device: found %s, expected none with values of pipeline.devices", strings.Join(o.Devices, ", "))
	}
	if ctx.Err() != nil {
		return nil
	}
	text, err := s.search()
	if err != nil {
		return err
	}
	return runs.WriteFile(filepath.Join(s.Dir, searchFile), text)
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
	return usererror.New(runs.SameYAML(path, old, now, s.Noun, "the folder"))
}
