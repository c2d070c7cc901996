package runs

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/userpath"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"go.yaml.in/yaml/v3"
)

// Base is the key base of a file of runs: the path of a config, or a config.
type Base struct {
	path   string
	inline *strictyaml.Document
}

// DecodeYAML reads a path or a section.
func (b *Base) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	if n.Kind == yaml.MappingNode {
		b.inline = d.Under(n)
		return nil
	}
	return d.DecodeNode(n, &b.path, key)
}

// open returns the config, whose path is relative to dir. d is the file that has the key.
func (b *Base) open(d *strictyaml.Document, dir string) (*strictyaml.Document, error) {
	if b.inline != nil {
		return b.inline, nil
	}
	path := b.path
	if path == "" {
		return nil, fmt.Errorf("%s: base: not given, expected the path of a config, or a config", d.At("base"))
	}
	path, err := userpath.Expand(path)
	if err != nil {
		return nil, fmt.Errorf("%s: base: %w", d.At("base"), err)
	}
	path = within(dir, path)
	base, err := strictyaml.Load(path)
	if err != nil {
		return nil, fmt.Errorf("%s: base: %w", d.At("base"), err)
	}
	return base, nil
}

// Assignments are dotted keys of a config with their values.
type Assignments []strictyaml.Entry

// DecodeYAML reads a section of dotted keys.
func (a *Assignments) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) (err error) {
	*a, err = d.Entries(n, key)
	return err
}

// Reserved are the keys of a run's config that a file of runs sets itself.
type Reserved struct {
	Noun string            // what varies them, as in "study"
	File string            // what has the keys instead, as in "grid"
	Keys map[string]string // the key of that file, by the config's
}

// Check refuses a reserved key, a key of a reserved section, and one without a section.
func (r Reserved) Check(key string) error {
	for name := key; name != ""; name = name[:max(0, strings.LastIndex(name, "."))] {
		if by, ok := r.Keys[name]; ok {
			return fmt.Errorf("%s is varied by the %s: set %s in the %s instead", key, r.Noun, by, r.File)
		}
	}
	if !strings.Contains(key, ".") {
		return fmt.Errorf("%s: expected a key with its section, as in train.steps", key)
	}
	return nil
}

// CheckAssignments checks the keys of assignments.
func (r Reserved) CheckAssignments(as Assignments) error {
	for _, a := range as {
		if err := r.Check(a.Key); err != nil {
			return fmt.Errorf("%s: %w", a.Where, err)
		}
	}
	return nil
}

// CheckOverrides checks the keys of overrides.
func (r Reserved) CheckOverrides(overrides []Override) error {
	for _, o := range overrides {
		key, _, _ := strings.Cut(o.Assignment, "=")
		if err := r.Check(key); err != nil {
			return fmt.Errorf("%s: %w", o.name(), err)
		}
	}
	return nil
}

// Composer makes the config of a run out of the common one. After an error it does nothing.
type Composer struct {
	doc   *strictyaml.Document
	start string   // folder that relative paths begin at; "": the working directory
	pins  hub.Pins // of the set; composed configs add to them
	err   error
}

// Put sets a key to a number, a truth value or text. where is the place that complaints name.
func (c *Composer) Put(key string, value any, where string) {
	var n yaml.Node
	if err := n.Encode(value); err != nil {
		panic(err) // no other type of value
	}
	if c.err == nil {
		c.err = c.doc.Put(key, &n, where)
	}
}

// Assign sets keys.
func (c *Composer) Assign(as Assignments) {
	for _, a := range as {
		if c.err == nil {
			c.err = c.doc.Put(a.Key, a.Value, a.Where)
		}
	}
}

// Override sets keys. Relative paths of an earlier command line begin where the file's relative paths begin.
func (c *Composer) Override(overrides []Override) {
	for _, o := range overrides {
		switch {
		case c.err != nil:
		case o.Origin == "":
			c.err = c.doc.Override(o.Assignment)
		default:
			c.err = c.doc.OverrideFrom(o.Assignment, o.name())
		}
	}
}

// Fail makes err the composer's error, unless it has one.
func (c *Composer) Fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// Config is the config composed so far.
func (c *Composer) Config() (config.Config, error) {
	if c.err != nil {
		return config.Config{}, c.err
	}
	d := c.doc.Clone()
	d.Change(c.pins.Pin)
	return config.ResolveFrom(d, c.start)
}

// Evaluated is Config. It refuses one that does not measure the validation loss at the end; why says what needs that.
func (c *Composer) Evaluated(why string) (config.Config, error) {
	r, err := c.Config()
	if err != nil {
		return r, err
	}
	switch {
	case r.Train.Steps == 0:
		err = fmt.Errorf("%s: train.steps: found 0, expected more: %s", c.doc.At("train.steps"), why)
	case len(r.Data.Val) == 0 && r.Data.ValFraction == 0:
		err = fmt.Errorf("%s: data.val_fraction: found 0, expected more, or files in data.val: %s", c.doc.At("data.val_fraction"), why)
	}
	return r, err
}
