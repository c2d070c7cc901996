package study

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/userpath"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/runs"
	"go.yaml.in/yaml/v3"
)

// Grid is what a study compares: every optimizer in every mode, over all seeds.
type Grid struct {
	Optimizers []Optimizer
	Modes      []Mode
	Seeds      []uint64   // of the initial weights and the order of the data
	TuneSeeds  []uint64   // of the runs that choose learning rates
	Tuning     string     // Synchronous, Each or Both
	Stages     []int      // of the pipeline; 1 simulates the delay on one device
	Pipelines  []Pipeline // of plots of the loss over time
	Dir        string
	Summaries  string // a folder with a summary of each run that has ended, by which it is known to others; "": none

	source runs.Source
}

// Values of Grid.Tuning: how the learning rate of a delayed mode is chosen.
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

// gridFile is the YAML of a grid.
type gridFile struct {
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
	Summaries  string           `yaml:"summaries"` // relative to the grid
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

// Load reads the grid of a file, or of the folder of a study that has begun. It checks the grid and the config of every
// run. See runs.Load.
func Load(path string, overrides []string) (*Grid, error) { return runs.Load(path, overrides, parse) }

// parse reads the grid of a file, which other files are relative to.
func parse(d *strictyaml.Document, file *runs.File, overrides []runs.Override) (*Grid, error) {
	f := gridFile{Modes: []string{SyncMode, delayMode, delayMode + "+" + optim.CorrectionErrorFeedback}, Seeds: []uint64{1, 2, 3},
		Tuning: Synchronous, Stages: []int{1}}
	if err := d.Decode(&f); err != nil {
		return nil, err
	}
	if f.TuneSeeds == nil && len(f.Seeds) > 0 {
		f.TuneSeeds = f.Seeds[:1]
	}
	g := &Grid{Optimizers: f.Optimizers, Seeds: f.Seeds, TuneSeeds: f.TuneSeeds, Tuning: f.Tuning, Stages: f.Stages,
		Pipelines: f.Pipelines, Dir: f.Dir, source: runs.Source{File: file, Doc: d, Set: f.Set, Overrides: overrides}}
	for _, name := range f.Modes {
		m, err := parseMode(name)
		if err != nil {
			return nil, fmt.Errorf("%s: modes: %w", d.At("modes"), err)
		}
		g.Modes = append(g.Modes, m)
	}
	if err := g.validate(); err != nil {
		return nil, err
	}
	if err := g.findFolders(f); err != nil {
		return nil, err
	}
	var err error
	if g.source.Base, err = f.Base.Open(d, filepath.Dir(file.Path)); err != nil {
		return nil, err
	}
	return g, g.checkConfigs()
}

// findFolders finds the study's folder and the folder of the summaries, which is relative to the grid.
func (g *Grid) findFolders(f gridFile) (err error) {
	if g.Dir, err = g.source.File.Place(f.Dir); err != nil {
		return fmt.Errorf("%s: dir: %w", g.source.At("dir"), err)
	}
	if f.Summaries == "" {
		return nil
	}
	if g.Summaries, err = userpath.Expand(f.Summaries); err != nil {
		return fmt.Errorf("%s: summaries: %w", g.source.At("summaries"), err)
	}
	if !userpath.Rooted(g.Summaries) {
		g.Summaries = filepath.Join(filepath.Dir(g.source.File.Path), g.Summaries)
	}
	return nil
}

func (g *Grid) validate() error {
	bad := func(key, format string, args ...any) error {
		return fmt.Errorf("%s: %s: %s", g.source.At(key), key, fmt.Sprintf(format, args...))
	}
	switch {
	case len(g.Optimizers) == 0:
		return bad("optimizers", "not given, expected a section such as adamw: {lrs: [0.001, 0.002]}")
	case !slices.ContainsFunc(g.Modes, func(m Mode) bool { return m.Name == SyncMode }):
		return bad("modes", "found none called sync, which the others are compared to")
	case repeats(g.Modes):
		return bad("modes", "one is given twice")
	case len(g.Seeds) == 0 || repeats(g.Seeds):
		return bad("seeds", "found %v, expected at least one, each once", g.Seeds)
	case len(g.TuneSeeds) == 0 || repeats(g.TuneSeeds):
		return bad("tune_seeds", "found %v, expected at least one, each once", g.TuneSeeds)
	case !slices.Contains([]string{Synchronous, Each, Both}, g.Tuning):
		return bad("tuning", "found %q, expected %s, %s or %s", g.Tuning, Synchronous, Each, Both)
	case len(g.Stages) == 0 || repeats(g.Stages) || slices.Min(g.Stages) < 1:
		return bad("stages", "found %v, expected positive numbers, each once", g.Stages)
	case slices.Min(g.Stages) < 2 && slices.ContainsFunc(g.Modes, Mode.rounds):
		return bad("stages", "found %v, expected at least 2 with wire formats in modes: nothing travels within one stage", g.Stages)
	case g.Dir == "":
		return bad("dir", `found "", expected the folder to keep the study in`)
	}
	for _, p := range g.Pipelines {
		if !slices.ContainsFunc(g.Modes, func(m Mode) bool { return m.Name == p.Mode }) {
			return bad("pipelines."+p.Name, "mode: found %q, expected one of modes", p.Mode)
		}
	}
	reserved := g.reserved()
	for _, o := range g.Optimizers {
		if err := reserved.CheckAssignments(slices.Concat(g.source.Set, o.Set)); err != nil {
			return err
		}
		for _, f := range o.TimesLR {
			if err := reserved.Check(f.key); err != nil {
				return fmt.Errorf("%s: %w", f.where, err)
			}
		}
	}
	return reserved.CheckOverrides(g.source.Overrides)
}

func repeats[T comparable](xs []T) bool {
	for i, x := range xs {
		if slices.Contains(xs[:i], x) {
			return true
		}
	}
	return false
}

// reserved are the keys of a run's config that the grid sets, each with the key of the grid that determines it.
func (g *Grid) reserved() runs.Reserved {
	keys := map[string]string{"optimizer.lr": "lrs", "init.seed": "seeds", "data.seed": "seeds", "run.dir": "dir", "pipeline.stages": "stages",
		"pipeline.schedule": "modes", "pipeline.delay": "modes", "pipeline.correction": "modes", "pipeline.error_feedback": "modes",
		"pipeline.stale_microbatches": "modes"}
	if g.seldom() {
		for _, key := range []string{"local_steps", "outer.late", "outer.correction"} {
			keys["pipeline."+key] = "modes"
		}
	}
	return runs.Reserved{Noun: noun, File: "grid", Keys: keys}
}

// noun is what the runs of a grid make up.
const noun = "study"

// checkConfigs resolves the config of every kind of run.
func (g *Grid) checkConfigs() error {
	for _, o := range g.Optimizers {
		for _, m := range g.Modes {
			for _, stages := range g.Stages {
				for _, lr := range o.LRs {
					if err := g.checkConfig(Run{o.Label, m.Name, stages, lr, g.Seeds[0]}); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func (g *Grid) checkConfig(r Run) error {
	_, err := g.compose(r).Evaluated("a study compares the validation loss at the end")
	return err
}

// Run is one training run of a grid.
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
func (g *Grid) Folder(r Run) string {
	return filepath.Join(g.Dir, "runs", fmt.Sprintf("%s-%s-stages%d-lr%s-seed%d", r.Optimizer, r.Mode, r.Stages,
		strconv.FormatFloat(r.LR, 'g', -1, 64), r.Seed))
}

// Config is the config of a run of the grid.
func (g *Grid) Config(r Run) (config.Config, error) { return g.compose(r).Config() }

// compose returns the config of a run: the common config with the run's own keys.
func (g *Grid) compose(r Run) *runs.Composer {
	o := g.Optimizers[slices.IndexFunc(g.Optimizers, func(o Optimizer) bool { return o.Label == r.Optimizer })]
	m := g.Modes[slices.IndexFunc(g.Modes, func(m Mode) bool { return m.Name == r.Mode })]
	c := g.source.Compose()
	c.Put("optimizer.name", o.Label, g.source.At("optimizers."+o.Label))
	c.Assign(g.source.Set)
	c.Assign(o.Set)
	c.Override(g.source.Overrides)
	c.Put("optimizer.lr", r.LR, g.source.At("optimizers."+o.Label+".lrs"))
	for _, f := range o.TimesLR {
		c.Put(f.key, f.times*r.LR, f.where)
	}
	c.Put("init.seed", r.Seed, g.source.At("seeds"))
	c.Put("data.seed", r.Seed, g.source.At("seeds"))
	c.Put("pipeline.stages", r.Stages, g.source.At("stages"))
	c.Put("pipeline.schedule", "sync", g.source.At("modes")) // 2bw where there is a delay
	c.Put("pipeline.delay", m.Delay, g.source.At("modes"))
	c.Put("pipeline.correction", m.Correction, g.source.At("modes"))
	c.Put("pipeline.error_feedback", m.Correction == optim.CorrectionErrorFeedback, g.source.At("modes"))
	if m.Wire != "" {
		c.Put("pipeline.wire", m.Wire, g.source.At("modes"))
	}
	if m.Exchange != "" {
		c.Put("pipeline.wire_exchange", m.Exchange, g.source.At("modes"))
	}
	c.Put("run.dir", g.Folder(r), g.source.At("dir"))
	setStale(c, m, g.source.At("modes"))
	if g.seldom() {
		setReplicas(c, m, g.source.At("modes"))
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
