package config

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"go.yaml.in/yaml/v3"
)

// Hook is a WebAssembly module that extends a run: see docs/HOOKS.md.
type Hook struct {
	File     string   `yaml:"file" help:"Path of the module."`
	Hook     string   `yaml:"hook" help:"Name of the hook."`
	Config   Settings `yaml:"config,omitempty" help:"The module's own configuration."`
	Seed     uint64   `yaml:"seed,omitempty" help:"Seed of the module."`
	MemoryMB int      `yaml:"memory_mb,omitempty" help:"Memory limit in MiB; 0 is 256."`
	Seconds  float64  `yaml:"seconds,omitempty" help:"Time limit of a call in seconds; 0 is 30."`
	OnError  string   `yaml:"on_error,omitempty" help:"For map_document, map_batch and token_weights: stop the run (default), or skip the document or batch."`
}

// Settings are the module's own config: a section with any keys.
type Settings struct{ values map[string]any }

// DecodeYAML implements strictyaml.Custom.
func (s *Settings) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	if _, err := d.Entries(n, key); err != nil {
		return err
	}
	if alias := findAlias(n); alias != nil {
		return d.Errorf(alias, key, "anchors and aliases are not supported: write the value out")
	}
	if err := n.Decode(&s.values); err != nil {
		return d.Errorf(n, key, "%v", err)
	}
	if _, err := json.Marshal(s.values); err != nil {
		return d.Errorf(n, key, "it has no form in JSON: %v", err)
	}
	return nil
}

// findAlias returns the first anchor or alias below a node, or nil.
func findAlias(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return n
	}
	for _, c := range n.Content {
		if a := findAlias(c); a != nil {
			return a
		}
	}
	return nil
}

// MarshalYAML returns the section's keys.
func (s Settings) MarshalYAML() (any, error) { return s.values, nil }

// IsZero reports whether the section is empty.
func (s Settings) IsZero() bool { return len(s.values) == 0 }

// JSON is the section as passed to the module, with the keys of objects in alphabetic order.
func (s Settings) JSON() []byte {
	if s.values == nil {
		return []byte("{}")
	}
	text, err := json.Marshal(s.values)
	if err != nil {
		panic(err) // DecodeYAML has checked it
	}
	return text
}

// skippableHooks are the hooks with an on_error key.
func skippableHooks() (names []string) {
	for _, k := range hook.Kinds() {
		if k.Skippable {
			names = append(names, k.Name)
		}
	}
	return names
}

// checkHookName refuses names that are not hooks.
func checkHookName(key, name string) error {
	for _, k := range hook.Kinds() {
		for _, c := range k.Companions {
			if c.Name == name {
				return Invalid(key, name, "one of %s: %s is %s", strings.Join(hook.Names(), ", "), name, c.Purpose)
			}
		}
	}
	return oneOf(key, name, hook.Names()...)
}

// validate checks one hook. Its errors name the keys of the hook's section.
func (h Hook) validate() error {
	if h.File == "" {
		return Invalid("file", h.File, "the name of a WebAssembly module")
	}
	if err := checkHookName("hook", h.Hook); err != nil {
		return err
	}
	kind, _ := hook.Lookup(h.Hook)
	switch {
	case h.MemoryMB < 0 || h.MemoryMB > 4096:
		return Invalid("memory_mb", h.MemoryMB, "an integer from 1 to 4096, or 0 for 256")
	case h.Seconds != 0 && !(h.Seconds >= 0.001 && h.Seconds <= 86400):
		return Invalid("seconds", h.Seconds, "a number from 0.001 to 86400, or 0 for 30")
	case h.OnError != "" && !kind.Skippable:
		return Invalid("on_error", h.OnError, "nothing: only %s take it", strings.Join(skippableHooks(), ", "))
	case h.OnError != "" && h.OnError != Stop && h.OnError != Skip:
		return Invalid("on_error", h.OnError, "%s or %s", Stop, Skip)
	}
	return nil
}

func (c Config) validateHooks() error {
	count := map[string]int{}
	for i, h := range c.Hooks {
		if err := h.validate(); err != nil {
			return fielderror.In(fmt.Sprintf("hooks[%d]", i), err)
		}
		count[h.Hook]++
	}
	switch n := count[hook.BuildModel]; {
	case n == 0 && c.Model.FromHook():
		return Invalid("hooks", "none of "+hook.BuildModel, "one: model.arch is %s, a model that a hook writes", ArchHook)
	case n > 0 && !c.Model.FromHook():
		return Invalid("hooks", fmt.Sprintf("%d of %s", n, hook.BuildModel),
			"none: model.arch is %s; for a model that a hook writes: model: {arch: %s, vocab_size: …, seq_len: …}",
			c.Model.Arch, ArchHook)
	}
	for _, k := range hook.Kinds() {
		if k.Exclusive && count[k.Name] > 1 {
			return Invalid("hooks", fmt.Sprintf("%d of %s", count[k.Name], k.Name), "at most one")
		}
	}
	return nil
}
