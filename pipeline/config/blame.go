package config

import (
	"reflect"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
)

// blame returns the error of a key that does not fit another as one of the other key, if the user has set that one: a
// value that comes from a preset is not the mistake. Overrides count more than the file.
func (c Config) blame(d *strictyaml.Document, err error) error {
	e, ok := err.(*fielderror.Error)
	if !ok {
		return err
	}
	others := map[string]string{
		"model.n_heads": "model.n_kv_heads", "model.d_model": "model.n_heads", "train.batch_size": "train.microbatches",
	}
	other, ok := others[e.Field]
	if !ok || weight(d, other) <= weight(d, e.Field) {
		return err
	}
	return Invalid(other, c.value(other), "one that fits %s: found %s, expected %s", e.Field, fielderror.Text(e.Found), e.Expected)
}

// weight says how much a key is the user's choice.
func weight(d *strictyaml.Document, key string) int {
	switch {
	case d.Overridden(key):
		return 2
	case d.Given(key):
		return 1
	}
	return 0
}

// value returns the value of a key.
func (c Config) value(key string) (found any) {
	entries(reflect.ValueOf(c), "", func(e entry) {
		if e.name == key {
			found = e.value.Interface()
		}
	})
	return found
}
