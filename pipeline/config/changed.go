package config

import (
	"reflect"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Changed lists the values that differ from the defaults, as "key: value" in the order of the file. The defaults depend
// on the preset, the optimizer, the schedule and the precision.
func (c Config) Changed() []string {
	base := c.baseline()
	var changed []string
	entries(reflect.ValueOf(c), "", func(e entry) {
		if isSection(e.value.Type()) {
			return
		}
		if text := inYAML(e.value.Interface()); text != base[e.name] {
			changed = append(changed, e.name+": "+text)
		}
	})
	return changed
}

// baseline returns the defaults by key.
func (c Config) baseline() map[string]string {
	d, err := strictyaml.Parse("", nil)
	must(err)
	chosen := map[string]string{"model.arch": c.Model.Arch, "model.preset": c.Model.Preset, "optimizer.name": c.Optimizer.Name(),
		"pipeline.schedule": c.Pipeline.Schedule, "train.precision": c.Train.Precision}
	for key, value := range chosen {
		if value != "" && !(key == "model.arch" && c.Model.Preset != "") {
			must(d.Override(key + "=" + inYAML(value)))
		}
	}
	must(useCurrentKeys(d))
	b := defaults()
	must(d.Decode(&b))
	must(b.complete(d))
	b.Model.Preset, b.Train.Precision = "", defaults().Train.Precision
	b.Pipeline.Schedule = schedule.ForDelay(0)
	texts := map[string]string{}
	entries(reflect.ValueOf(b), "", func(e entry) { texts[e.name] = inYAML(e.value.Interface()) })
	texts["optimizer.name"] = inYAML(defaultOptimizer().Name())
	return texts
}

// must panics on an error that a validated config cannot have.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
