package study

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
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

	doc       *strictyaml.Document // the grid's own file
	base      *strictyaml.Document // the common config of all runs
	set       assignments
	overrides []string // from the command line, section.key=value
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
	LRs     rates       // values of optimizer.lr to choose from
	TimesLR factors     // other keys of the config, as multiples of optimizer.lr
	Set     assignments // keys of the config
}

// gridFile is the YAML of a grid.
type gridFile struct {
	Base       base        `yaml:"base"`
	Set        assignments `yaml:"set"`
	Optimizers optimizers  `yaml:"optimizers"`
	Modes      []string    `yaml:"modes"`
	Seeds      []uint64    `yaml:"seeds"`
	TuneSeeds  []uint64    `yaml:"tune_seeds"`
	Tuning     string      `yaml:"tuning"`
	Stages     []int       `yaml:"stages"`
	Pipelines  pipelines   `yaml:"pipelines"`
	Dir        string      `yaml:"dir"`
}

// base is the path of a config, or a config.
type base struct {
	path   string
	inline *strictyaml.Document
}

func (b *base) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	if n.Kind == yaml.MappingNode {
		b.inline = d.Under(n)
		return nil
	}
	return d.DecodeNode(n, &b.path, key)
}

// assignments are dotted keys of a config with their values.
type assignments []strictyaml.Entry

func (a *assignments) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) (err error) {
	*a, err = d.Entries(n, key)
	return err
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
			LRs     rates       `yaml:"lrs"`
			TimesLR factors     `yaml:"times_lr"`
			Set     assignments `yaml:"set"`
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

// Load reads a grid. overrides, section.key=value, apply to all runs. It checks the grid and the config of every run.
// Its errors are user errors.
func Load(path string, overrides []string) (*Grid, error) {
	d, err := strictyaml.Load(path)
	if err != nil {
		return nil, usererror.New(err)
	}
	g, err := parse(d, filepath.Dir(path), overrides)
	return g, usererror.New(err)
}

// parse reads a grid whose files are named relative to dir.
func parse(d *strictyaml.Document, dir string, overrides []string) (*Grid, error) {
	f := gridFile{Modes: []string{SyncMode, delayMode, delayMode + "+" + optim.CorrectionErrorFeedback}, Seeds: []uint64{1, 2, 3}, Tuning: Synchronous, Stages: []int{1}}
	if err := d.Decode(&f); err != nil {
		return nil, err
	}
	if f.TuneSeeds == nil && len(f.Seeds) > 0 {
		f.TuneSeeds = f.Seeds[:1]
	}
	g := &Grid{Optimizers: f.Optimizers, Seeds: f.Seeds, TuneSeeds: f.TuneSeeds, Tuning: f.Tuning, Stages: f.Stages, Pipelines: f.Pipelines, Dir: f.Dir,
		doc: d, base: f.Base.inline, set: f.Set, overrides: overrides}
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
	if err := g.findBase(f.Base.path, dir); err != nil {
		return nil, err
	}
	return g, g.checkConfigs()
}

func (g *Grid) findBase(path, dir string) error {
	if g.base != nil {
		return nil
	}
	if path == "" {
		return fmt.Errorf("%s: base: not given, expected the path of a config, or a config", g.doc.At("base"))
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	var err error
	if g.base, err = strictyaml.Load(path); err != nil {
		return fmt.Errorf("%s: base: %w", g.doc.At("base"), err)
	}
	return nil
}

func (g *Grid) validate() error {
	bad := func(key, format string, args ...any) error {
		return fmt.Errorf("%s: %s: %s", g.doc.At(key), key, fmt.Sprintf(format, args...))
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
	for _, o := range g.Optimizers {
		for _, a := range slices.Concat(g.set, o.Set) {
			if err := mayBeSet(a.Key); err != nil {
				return fmt.Errorf("%s: %w", a.Where, err)
			}
		}
		for _, f := range o.TimesLR {
			if err := mayBeSet(f.key); err != nil {
				return fmt.Errorf("%s: %w", f.where, err)
			}
		}
	}
	for _, o := range g.overrides {
		key, _, _ := strings.Cut(o, "=")
		if err := mayBeSet(key); err != nil {
			return fmt.Errorf("--set %s: %w", o, err)
		}
	}
	return nil
}

func repeats[T comparable](xs []T) bool {
	for i, x := range xs {
		if slices.Contains(xs[:i], x) {
			return true
		}
	}
	return false
}

// varied are the keys of a run's config that the grid sets, each with the key of the grid that determines it.
var varied = map[string]string{
	"optimizer.lr": "lrs", "init.seed": "seeds", "data.seed": "seeds", "run.dir": "dir", "pipeline.stages": "stages",
	"pipeline.schedule": "modes", "pipeline.delay": "modes", "pipeline.correction": "modes", "pipeline.error_feedback": "modes",
	"pipeline.stale_microbatches": "modes",
}

func mayBeSet(key string) error {
	if by, ok := varied[key]; ok {
		return fmt.Errorf("%s is varied by the study: set %s in the grid instead", key, by)
	}
	if !strings.Contains(key, ".") {
		return fmt.Errorf("%s: expected a key with its section, as in train.steps", key)
	}
	return nil
}

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
	d, err := g.compose(r)
	if err != nil {
		return err
	}
	c, err := config.Resolve(d)
	if err != nil {
		return err
	}
	const needed = "a study compares the validation loss at the end"
	switch {
	case c.Train.Steps == 0:
		return fmt.Errorf("%s: train.steps: found 0, expected more: %s", d.At("train.steps"), needed)
	case c.Train.EvalEvery == 0:
		return fmt.Errorf("%s: train.eval_every: found 0, expected a number of steps (train.steps evaluates at the end only): %s",
			d.At("train.eval_every"), needed)
	case len(c.Data.Val) == 0 && c.Data.ValFraction == 0:
		return fmt.Errorf("%s: data.val_fraction: found 0, expected more, or files in data.val: %s", d.At("data.val_fraction"), needed)
	}
	return nil
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
func (g *Grid) Config(r Run) (config.Config, error) {
	d, err := g.compose(r)
	if err != nil {
		return config.Config{}, err
	}
	return config.Resolve(d)
}

// compose returns the config of a run: the common config with the run's own keys.
func (g *Grid) compose(r Run) (*strictyaml.Document, error) {
	o := g.Optimizers[slices.IndexFunc(g.Optimizers, func(o Optimizer) bool { return o.Label == r.Optimizer })]
	m := g.Modes[slices.IndexFunc(g.Modes, func(m Mode) bool { return m.Name == r.Mode })]
	c := composer{d: g.base.Clone()}
	c.put("optimizer.name", o.Label, g.doc.At("optimizers."+o.Label))
	c.assign(g.set)
	c.assign(o.Set)
	for _, override := range g.overrides {
		if c.err == nil {
			c.err = c.d.Override(override)
		}
	}
	c.put("optimizer.lr", r.LR, g.doc.At("optimizers."+o.Label+".lrs"))
	for _, f := range o.TimesLR {
		c.put(f.key, f.times*r.LR, f.where)
	}
	c.put("init.seed", r.Seed, g.doc.At("seeds"))
	c.put("data.seed", r.Seed, g.doc.At("seeds"))
	c.put("pipeline.stages", r.Stages, g.doc.At("stages"))
	c.put("pipeline.schedule", "sync", g.doc.At("modes")) // 2bw where there is a delay
	c.put("pipeline.delay", m.Delay, g.doc.At("modes"))
	c.put("pipeline.correction", m.Correction, g.doc.At("modes"))
	c.put("pipeline.error_feedback", m.Correction == optim.CorrectionErrorFeedback, g.doc.At("modes"))
	if m.Wire != "" {
		c.put("pipeline.wire", m.Wire, g.doc.At("modes"))
	}
	if m.Exchange != "" {
		c.put("pipeline.wire_exchange", m.Exchange, g.doc.At("modes"))
	}
	c.put("run.dir", g.Folder(r), g.doc.At("dir"))
	c.stale(m, g.doc.At("modes"))
	return c.d, c.err
}

// composer sets keys of a config. After an error it does nothing.
type composer struct {
	d   *strictyaml.Document
	err error
}

func (c *composer) put(key string, value any, where string) {
	var n yaml.Node
	if err := n.Encode(value); err != nil {
		panic(err) // a number, a truth value or text
	}
	if c.err == nil {
		c.err = c.d.Put(key, &n, where)
	}
}

// stale sets how many microbatches are stale in a mode with a delay: a share of those of the config so far.
func (c *composer) stale(m Mode, where string) {
	const key = "pipeline.stale_microbatches"
	if m.Delay > 0 {
		c.put(key, config.StaleAll, where)
	}
	if !m.partly() || c.err != nil {
		return
	}
	resolved, err := config.Resolve(c.d.Clone())
	if err != nil {
		c.err = err
		return
	}
	n, err := m.stale(resolved.MicrobatchesPerReplica())
	if err != nil {
		c.err = fmt.Errorf("%s: modes: %w", where, err)
		return
	}
	c.put(key, n, where)
}

func (c *composer) assign(as assignments) {
	for _, a := range as {
		if c.err == nil {
			c.err = c.d.Put(a.Key, a.Value, a.Where)
		}
	}
}
