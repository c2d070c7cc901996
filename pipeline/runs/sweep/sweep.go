package sweep

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/pipeline/runs"
)

// Values of Sweep.Search.
const (
	Grid    = "grid"
	Random  = "random"
	Halving = "halving"
)

// Searches lists the values of Sweep.Search, the default one first.
func Searches() []string { return []string{Grid, Random, Halving} }

// Sweep is what a file of a sweep describes.
type Sweep struct {
	runs.Grid // a trial's score is the mean over the seeds
	Search    string
	Keys      []Key
	Metric    Metric
	Trials    []Trial
	Rungs     []int // steps after which trials are compared, ascending; the last ends the runs. nil: at the end only

	factor int    // of halving
	seed   uint64 // of draws
}

// sweepFile is the YAML of a sweep.
type sweepFile struct {
	Base    runs.Base        `yaml:"base"`
	Set     runs.Assignments `yaml:"set"`
	Search  string           `yaml:"search"`
	Keys    keys             `yaml:"keys"`
	Runs    int              `yaml:"runs"`
	Seed    uint64           `yaml:"seed"`
	Seeds   []uint64         `yaml:"seeds"`
	Metric  string           `yaml:"metric"`
	Goal    string           `yaml:"goal"`
	Halving halving          `yaml:"halving"`
	Dir     string           `yaml:"dir"`
}

const (
	defaultRuns = 20
	maxRuns     = 10000
)

// Load reads the sweep of a file, or of the folder of a sweep that has begun. It checks the sweep and the config of
// every trial. See runs.Load.
func Load(path string, overrides []string) (*Sweep, error) { return runs.Load(path, overrides, parse) }

// parse reads the sweep of a file, which other files are relative to.
func parse(d *strictyaml.Document, file *runs.File, overrides []runs.Override) (*Sweep, error) {
	f := sweepFile{Search: Grid, Seed: 1, Seeds: []uint64{1}, Metric: Metrics()[0].Name, Halving: halving{Factor: 3}}
	if err := d.Decode(&f); err != nil {
		return nil, err
	}
	s := &Sweep{Grid: runs.Grid{Noun: "sweep", Dir: f.Dir, Seeds: f.Seeds, File: file, Doc: d, Common: f.Set, Overrides: overrides},
		Search: f.Search, Keys: f.Keys, factor: f.Halving.Factor, seed: f.Seed}
	if err := s.validate(); err != nil {
		return nil, err
	}
	err := s.Place(f.Dir)
	if err != nil {
		return nil, err
	}
	if s.Metric, err = newMetric(f.Metric, f.Goal); err != nil {
		return nil, fmt.Errorf("%s: %w", d.At("metric"), err)
	}
	if err := s.Open(f.Base); err != nil {
		return nil, err
	}
	if s.Trials, err = s.choose(f.Runs); err != nil {
		return nil, err
	}
	if s.Search == Halving {
		if s.Rungs, err = s.rungs(f.Halving); err != nil {
			return nil, err
		}
	}
	return s, s.checkConfigs()
}

func (s *Sweep) validate() error {
	switch {
	case !slices.Contains(Searches(), s.Search):
		return s.Errorf("search", "found %q, expected %s, %s or %s", s.Search, Grid, Random, Halving)
	case len(s.Keys) == 0:
		return s.Errorf("keys", "not given, expected keys of the config with values, such as optimizer.lr: [0.001, 0.002]")
	case len(s.Seeds) == 0 || runs.Repeats(s.Seeds):
		return s.Errorf("seeds", "found %v, expected at least one, each once", s.Seeds)
	case s.Dir == "":
		return s.Errorf("dir", `found "", expected the folder to keep the sweep in`)
	case s.factor < 2:
		return s.Errorf("halving.factor", "found %d, expected at least 2", s.factor)
	}
	return s.validateKeys()
}

// validateKeys refuses keys that are set twice.
func (s *Sweep) validateKeys() error {
	reserved := runs.Reserved{Noun: s.Noun, File: "sweep's file", Keys: map[string]string{"init.seed": "seeds", "data.seed": "seeds",
		"run.dir": "dir"}}
	for i, k := range s.Keys {
		for _, name := range slices.Sorted(maps.Keys(reserved.Keys)) {
			if k.sets(name) {
				return fmt.Errorf("%s: keys: %s is varied by %s", k.where, name, reserved.Keys[name])
			}
		}
		for _, before := range s.Keys[:i] {
			if strings.HasPrefix(before.Name, k.Name+".") {
				return fmt.Errorf("%s: keys: found %s after %s, expected a section before its keys", k.where, k.Name, before.Name)
			}
		}
	}
	for _, k := range s.Keys {
		reserved.Keys[k.Name] = "keys." + k.Name
	}
	if err := reserved.CheckAssignments(s.Common); err != nil {
		return err
	}
	return reserved.CheckOverrides(s.Overrides)
}

// checkConfigs resolves the config of every trial.
func (s *Sweep) checkConfigs() error {
	for i := range s.Trials {
		composed := s.compose(s.run(i, s.Seeds[0], 0))
		c, err := composed.Config()
		switch {
		case s.Metric.ofValidation():
			_, err = composed.Evaluated("the sweep compares " + s.Metric.Name)
		case err == nil && s.Metric.ofTask() && len(c.Train.EvalTasks) == 0:
			err = s.Errorf("metric", "found %s, expected a metric that runs have: train.eval_tasks names no task", s.Metric.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// compose makes the config of a run.
func (s *Sweep) compose(r Run) *runs.Composer {
	c := s.Composer()
	c.Assign(s.Common)
	c.Override(s.Overrides)
	for i, v := range s.Trials[r.Trial-1].values {
		k := s.Keys[i]
		c.Assign(runs.Assignments{{Key: k.Name, Value: v.node, Where: k.where}})
	}
	s.SetRun(c, r.Seed, s.Folder(r))
	return c
}
