package model

import (
	"fmt"
	"slices"
	"strings"
)

// preset is a config by name.
type preset struct {
	name string
	Config
}

// Presets lists the names of the presets.
func Presets() (names []string) {
	for _, p := range presets() {
		names = append(names, p.name)
	}
	slices.Sort(names)
	return names
}

// Preset returns the config of a preset.
func Preset(name string) (Config, error) {
	all := presets()
	i := slices.IndexFunc(all, func(p preset) bool { return p.name == name })
	if i < 0 {
		return Config{}, fmt.Errorf("unknown preset %q, expected one of %s", name, strings.Join(Presets(), ", "))
	}
	return all[i].Config, nil
}
