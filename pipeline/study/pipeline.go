package study

import (
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"go.yaml.in/yaml/v3"
)

// Pipeline is a pipeline that computes what a mode does, and the time that it takes for a batch: for plots of the loss
// over time. Several pipelines may compute the same.
type Pipeline struct {
	Name    string
	Mode    string
	Seconds float64
}

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
