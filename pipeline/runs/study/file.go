package study

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/runs"
	"go.yaml.in/yaml/v3"
)

// Study compares every optimizer in every mode, over all seeds.
type Study struct {
	runs.Grid
	Optimizers []Optimizer
	Modes      []Mode
	TuneSeeds  []uint64   // of the runs that choose learning rates
	Tuning     string     // Synchronous, Each or Both
	Stages     []int      // of the pipeline; 1 simulates the delay on one device
	Pipelines  []Pipeline // of plots of the loss over time
	Summaries  string     // a folder with a summary of each run that has ended, by which it is known to others; "": none
}

// Values of Study.Tuning: how the learning rate of a delayed mode is chosen.
const (
	Synchronous = "synchronous" // the best one without delay
	Each        = "each"        // the best one in that mode
	Both        = "both"        // the report has both
)

// Optimizer is a row of the grid.
type Optimizer struct {
	Label   string
	LRs     rates            // values of optimizer.lr to choose from
	TimesLR factors          // other keys of the config, as multiples of optimizer.lr
	Set     runs.Assignments // keys of the config
}

// studyFile is the YAML of a study.
type studyFile struct {
	Base       runs.Base        `yaml:"base"`
	Set        runs.Assignments `yaml:"set"`
	Optimizers optimizers       `yaml:"optimizers"`
	Modes      []string         `yaml:"modes"`
	Seeds      []uint64         `yaml:"seeds"`
	TuneSeeds  []uint64         `yaml:"tune_seeds"`
	Tuning     string           `yaml:"tuning"`
	Stages     []int            `yaml:"stages"`
	Pipelines  pipelines        `yaml:"pipelines"`
	Dir        string           `yaml:"dir"`
	Summaries  string           `yaml:"summaries"` // relative to the file
}

// factors are dotted keys of a config, each a multiple of the learning rate.
type factors []factor

type factor struct {
	key   string
	times float64
	where string
}

func (fs *factors) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	entries, err := d.Entries(n, key)
	for _, e := range entries {
		f := factor{key: e.Key, where: e.Where}
		if err := d.DecodeNode(e.Value, &f.times, key+"."+e.Key); err != nil {
			return err
		}
		*fs = append(*fs, f)
	}
	return err
}

// rates are learning rates, positive and ascending.
type rates []float64

func (r *rates) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	if err := d.DecodeNode(n, (*[]float64)(r), key); err != nil {
		return err
	}
	for i, lr := range *r {
		if lr <= 0 || slices.Contains((*r)[:i], lr) {
			return d.Errorf(n, key, "found %v, expected positive numbers, each once", []float64(*r))
		}
	}
	slices.Sort(*r)
	return nil
}

type optimizers []Optimizer

var label = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`) // it becomes part of a folder's name

func (os *optimizers) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	entries, err := d.Entries(n, key)
	if err != nil {
		return err
	}
	for _, e := range entries {
		at := key + "." + e.Key
		var f struct {
			LRs     rates            `yaml:"lrs"`
			TimesLR factors          `yaml:"times_lr"`
			Set     runs.Assignments `yaml:"set"`
		}
		if err := d.DecodeNode(e.Value, &f, at); err != nil {
			return err
		}
		switch {
		case !label.MatchString(e.Key):
			return fmt.Errorf("%s: %s: found %q, expected a name of small letters, digits, _ and -", e.Where, key, e.Key)
		case len(f.LRs) == 0:
			return fmt.Errorf("%s: %s.lrs: found none, expected learning rates, as in {lrs: [0.001, 0.002]}", e.Where, at)
		}
		*os = append(*os, Optimizer{e.Key, f.LRs, f.TimesLR, f.Set})
	}
	return nil
}

// Load reads the study of a file, or of the folder of a study that has begun. It checks the study and the config of
// every run. See runs.Load.
func Load(path string, overrides []string) (*Study, error) { return runs.Load(path, overrides, parse) }

// parse reads the study of a file, which other files are relative to.
func parse(d *strictyaml.Document, file *runs.File, overrides []runs.Override) (*Study, error) {
	f := studyFile{Modes: []string{SyncMode, delayMode, delayMode + "+" + optim.CorrectionErrorFeedback}, Seeds: []uint64{1, 2, 3},
		Tuning: Synchronous, Stages: []int{1}}
	if err := d.Decode(&f); err != nil {
		return nil, err
	}
	if f.TuneSeeds == nil && len(f.Seeds) > 0 {
		f.TuneSeeds = f.Seeds[:1]
	}
	s := &Study{Grid: runs.Grid{Noun: noun, Dir: f.Dir, Seeds: f.Seeds, File: file, Doc: d, Common: f.Set, Overrides: overrides},
		Optimizers: f.Optimizers, TuneSeeds: f.TuneSeeds, Tuning: f.Tuning, Stages: f.Stages, Pipelines: f.Pipelines}
	for _, name := range f.Modes {
		m, err := parseMode(name)
		if err != nil {
			return nil, s.Errorf("modes", "%w", err)
		}
		s.Modes = append(s.Modes, m)
	}
	if err := s.validate(); err != nil {
		return nil, err
	}
	if err := s.findFolders(f); err != nil {
		return nil, err
	}
	if err := s.Open(f.Base); err != nil {
		return nil, err
	}
	return s, s.checkConfigs()
}

// findFolders finds the study's folder and the folder of the summaries, which is relative to the file.
func (s *Study) findFolders(f studyFile) (err error) {
	if err := s.Place(f.Dir); err != nil {
		return err
	}
	if s.Summaries, err = s.File.Summaries(f.Summaries); err != nil {
		return s.Errorf("summaries", "%w", err)
	}
	return nil
}

func (s *Study) validate() error {
	switch {
	case len(s.Optimizers) == 0:
		return s.Errorf("optimizers", "not given, expected a section such as adamw: {lrs: [0.001, 0.002]}")
	case !slices.ContainsFunc(s.Modes, func(m Mode) bool { return m.Name == SyncMode }):
		return s.Errorf("modes", "found none called sync, which the others are compared to")
	case runs.Repeats(s.Modes):
		return s.Errorf("modes", "one is given twice")
	case len(s.Seeds) == 0 || runs.Repeats(s.Seeds):
		return s.Errorf("seeds", "found %v, expected at least one, each once", s.Seeds)
	case len(s.TuneSeeds) == 0 || runs.Repeats(s.TuneSeeds):
		return s.Errorf("tune_seeds", "found %v, expected at least one, each once", s.TuneSeeds)
	case !slices.Contains([]string{Synchronous, Each, Both}, s.Tuning):
		return s.Errorf("tuning", "found %q, expected %s, %s or %s", s.Tuning, Synchronous, Each, Both)
	case len(s.Stages) == 0 || runs.Repeats(s.Stages) || slices.Min(s.Stages) < 1:
		return s.Errorf("stages", "found %v, expected positive numbers, each once", s.Stages)
	case slices.Min(s.Stages) < 2 && slices.ContainsFunc(s.Modes, Mode.rounds):
		return s.Errorf("stages", "found %v, expected at least 2 with wire formats in modes: nothing travels within one stage", s.Stages)
	case s.Dir == "":
		return s.Errorf("dir", `found "", expected the folder to keep the study in`)
	}
	for _, p := range s.Pipelines {
		if !slices.ContainsFunc(s.Modes, func(m Mode) bool { return m.Name == p.Mode }) {
			return s.Errorf("pipelines."+p.Name, "mode: found %q, expected one of modes", p.Mode)
		}
	}
	reserved := s.reserved()
	for _, o := range s.Optimizers {
		if err := reserved.CheckAssignments(slices.Concat(s.Common, o.Set)); err != nil {
			return err
		}
		for _, f := range o.TimesLR {
			if err := reserved.Check(f.key); err != nil {
				return fmt.Errorf("%s: %w", f.where, err)
			}
		}
	}
	return reserved.CheckOverrides(s.Overrides)
}

// reserved are the keys of a run's config that the grid sets, each with the key of the grid that determines it.
func (s *Study) reserved() runs.Reserved {
	keys := map[string]string{"optimizer.lr": "lrs", "init.seed": "seeds", "data.seed": "seeds", "run.dir": "dir", "pipeline.stages": "stages",
		"pipeline.schedule": "modes", "pipeline.delay": "modes", "pipeline.correction": "modes", "pipeline.error_feedback": "modes",
		"pipeline.stale_microbatches": "modes"}
	if s.seldom() {
		for _, key := range []string{"local_steps", "outer.late", "outer.correction"} {
			keys["pipeline."+key] = "modes"
		}
	}
	return runs.Reserved{Noun: noun, File: "grid", Keys: keys}
}

// noun is what the runs make up.
const noun = "study"

// checkConfigs resolves the config of every kind of run.
func (s *Study) checkConfigs() error {
	for _, o := range s.Optimizers {
		for _, m := range s.Modes {
			for _, stages := range s.Stages {
				for _, lr := range o.LRs {
					if err := s.checkConfig(Run{o.Label, m.Name, stages, lr, s.Seeds[0]}); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func (s *Study) checkConfig(r Run) error {
	_, err := s.compose(r).Evaluated("a study compares the validation loss at the end")
	return err
}

// Run is one training run of a study.
type Run struct {
	Optimizer string  `json:"optimizer"`
	Mode      string  `json:"mode"`
	Stages    int     `json:"stages"`
	LR        float64 `json:"lr"`
	Seed      uint64  `json:"seed"`
}

// String describes the run, as in "adamw, sync, lr 0.001, seed 1".
func (r Run) String() string {
	s := fmt.Sprintf("%s, %s, lr %g, seed %d", r.Optimizer, r.Mode, r.LR, r.Seed)
	if r.Stages > 1 {
		s += fmt.Sprintf(", %d stages", r.Stages)
	}
	return s
}

// Folder is the folder of a run.
func (s *Study) Folder(r Run) string {
	return filepath.Join(s.Dir, "runs", fmt.Sprintf("%s-%s-stages%d-lr%s-seed%d", r.Optimizer, r.Mode, r.Stages,
		strconv.FormatFloat(r.LR, 'g', -1, 64), r.Seed))
}

// Config is the config of a run.
func (s *Study) Config(r Run) (config.Config, error) { return s.compose(r).Config() }

// compose returns the config of a run: the common config with the run's own keys.
func (s *Study) compose(r Run) *runs.Composer {
	o := s.Optimizers[slices.IndexFunc(s.Optimizers, func(o Optimizer) bool { return o.Label == r.Optimizer })]
	m := s.Modes[slices.IndexFunc(s.Modes, func(m Mode) bool { return m.Name == r.Mode })]
	c := s.Composer()
	c.Put("optimizer.name", o.Label, s.At("optimizers."+o.Label))
	c.Assign(s.Common)
	c.Assign(o.Set)
	c.Override(s.Overrides)
	c.Put("optimizer.lr", r.LR, s.At("optimizers."+o.Label+".lrs"))
	for _, f := range o.TimesLR {
		c.Put(f.key, f.times*r.LR, f.where)
	}
	c.Put("pipeline.stages", r.Stages, s.At("stages"))
	c.Put("pipeline.schedule", "sync", s.At("modes")) // 2bw where there is a delay
	c.Put("pipeline.delay", m.Delay, s.At("modes"))
	c.Put("pipeline.correction", m.Correction, s.At("modes"))
	c.Put("pipeline.error_feedback", m.Correction == optim.CorrectionErrorFeedback, s.At("modes"))
	if m.Wire != "" {
		c.Put("pipeline.wire", m.Wire, s.At("modes"))
	}
	if m.Exchange != "" {
		c.Put("pipeline.wire_exchange", m.Exchange, s.At("modes"))
	}
	s.SetRun(c, r.Seed, s.Folder(r))
	setStale(c, m, s.At("modes"))
	if s.seldom() {
		setReplicas(c, m, s.At("modes"))
	}
	return c
}

// setStale sets how many microbatches are stale in a mode with a delay: a share of the config's microbatches so far.
func setStale(c *runs.Composer, m Mode, where string) {
	const key = "pipeline.stale_microbatches"
	if m.Delay > 0 {
		c.Put(key, config.StaleAll, where)
	}
	if !m.partly() {
		return
	}
	resolved, err := c.Config()
	if err != nil {
		c.Fail(err)
		return
	}
	n, err := m.stale(resolved.MicrobatchesPerReplica())
	if err != nil {
		c.Fail(fmt.Errorf("%s: modes: %w", where, err))
		return
	}
	c.Put(key, n, where)
}
