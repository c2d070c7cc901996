package study

import (
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"go.yaml.in/yaml/v3"
)

// Pipeline is a pipeline that trains as a mode does. Plots of the loss over time multiply the steps of the mode's runs
// by the seconds that the pipeline takes for a batch. Several pipelines may have the same mode.
type Pipeline struct {
	Name    string
	Mode    string  // a name of Study.Modes
	Seconds float64 // a batch
}

// pipelines are the Pipelines of a grid in YAML, by name.
type pipelines []Pipeline

func (ps *pipelines) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	entries, err := d.Entries(n, key)
	if err != nil {
		return err
	}
	for _, e := range entries {
		var f struct {
			Mode    string  `yaml:"mode"`
			Seconds float64 `yaml:"seconds"`
		}
		at := key + "." + e.Key
		if err := d.DecodeNode(e.Value, &f, at); err != nil {
			return err
		}
		if f.Seconds <= 0 {
			return d.Errorf(e.Value, at+".seconds", "found %v, expected the seconds of a batch", f.Seconds)
		}
		*ps = append(*ps, Pipeline{e.Key, f.Mode, f.Seconds})
	}
	return nil
}
