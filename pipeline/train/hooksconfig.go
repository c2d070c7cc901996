package train

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"go.yaml.in/yaml/v3"
)

// HookConfig is a WebAssembly module that takes part in a run: see docs/HOOKS.md.
type HookConfig struct {
	File     string   `yaml:"file"`
	Hook     string   `yaml:"hook"` // one of hook.Names
	Config   Settings `yaml:"config,omitempty"`
	Seed     uint64   `yaml:"seed,omitempty"`
	MemoryMB int      `yaml:"memory_mb,omitempty"` // 0: 256
	Seconds  float64  `yaml:"seconds,omitempty"`   // a call may take; 0: 30
	OnError  string   `yaml:"on_error,omitempty"`  // of map_document, map_batch, token_weights: stop the run, the default, or skip the document or batch

	module []byte // what File holds, if it is not read from there
}

// Settings are what a user tells a module: a section of any keys.
type Settings struct{ values map[string]any }

// DecodeYAML reads a section.
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

// findAlias finds an anchor or alias in a node.
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

// MarshalYAML writes the section.
func (s Settings) MarshalYAML() (any, error) { return s.values, nil }

// IsZero tells whether there is nothing to write.
func (s Settings) IsZero() bool { return len(s.values) == 0 }

// JSON is the section as the module gets it: the keys of an object are in alphabetic order.
func (s Settings) JSON() []byte {
	if s.values == nil {
		return []byte("{}")
	}
	text, err := json.Marshal(s.values)
	if err != nil {
		panic(err) // was tried in DecodeYAML
	}
	return text
}

// Only one module can have the last word on these.
var exclusiveHooks = []string{hook.BuildLoss, hook.BuildModel, hook.LearningRate}

// What these do wrong need not end the run.
var skippingHooks = []string{hook.MapDocument, hook.MapBatch, hook.TokenWeights}

// companions are exports of modules that are no hooks, and what they are for.
var companions = map[string]string{
	hook.LossGrad:    "for checking only: gpupipe hook check",
	hook.LossScalars: "called where " + hook.BuildLoss + " of its module asks for scalars",
}

func (c Config) validateHooks() error {
	count := map[string]int{}
	for i, h := range c.Hooks {
		key := func(name string) string { return fmt.Sprintf("hooks[%d].%s", i, name) }
		if h.File == "" {
			return bad(key("file"), h.File, "the name of a WebAssembly module")
		}
		if what := companions[h.Hook]; what != "" {
			return bad(key("hook"), h.Hook, "one of %s: %s is %s", strings.Join(hook.Names(), ", "), h.Hook, what)
		}
		if err := oneOf(key("hook"), h.Hook, hook.Names()...); err != nil {
			return err
		}
		count[h.Hook]++
		switch {
		case h.MemoryMB < 0 || h.MemoryMB > 4096:
			return bad(key("memory_mb"), h.MemoryMB, "an integer from 1 to 4096, or 0 for 256")
		case h.Seconds != 0 && !(h.Seconds >= 0.001 && h.Seconds <= 86400):
			return bad(key("seconds"), h.Seconds, "a number from 0.001 to 86400, or 0 for 30")
		case h.OnError != "" && !slices.Contains(skippingHooks, h.Hook):
			return bad(key("on_error"), h.OnError, "nothing: it is of %s only", strings.Join(skippingHooks, ", "))
		case h.OnError != "" && h.OnError != halt && h.OnError != skip:
			return bad(key("on_error"), h.OnError, "%s or %s", halt, skip)
		}
	}
	switch n := count[hook.BuildModel]; {
	case n == 0 && c.Model.written():
		return bad("hooks", "none of "+hook.BuildModel, "one: model.arch is %s, a model that a hook writes", hookArch)
	case n > 0 && !c.Model.written():
		return bad("hooks", fmt.Sprintf("%d of %s", n, hook.BuildModel), "none: model.arch is %s; for a model that a hook writes: model: {arch: %s, vocab_size: …, seq_len: …}",
			c.Model.Arch, hookArch)
	}
	for _, name := range exclusiveHooks {
		if count[name] > 1 {
			return bad("hooks", fmt.Sprintf("%d of %s", count[name], name), "at most one")
		}
	}
	return nil
}
