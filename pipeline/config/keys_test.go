package config

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/optim"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func TestEveryKeyIsExplained(t *testing.T) {
	names := map[string]bool{}
	for _, k := range Keys() {
		assert.False(t, names[k.Name], "%s is listed twice", k.Name)
		names[k.Name] = true
		assert.NotEmpty(t, k.Type, k.Name)
		assert.True(t, strings.HasSuffix(k.Help, "."), "%s has the help %q, expected a sentence in the field's tag", k.Name, k.Help)
	}
	for name := range values() {
		assert.True(t, names[name], "%s has values, but is no key", name)
	}
	for name, want := range map[string]string{"train.steps": "500", "model.d_model": "", "pipeline.watchdog": "5m", "lr.decay": "0",
		"data.shuffle": "true"} {
		k, ok := FindKey(name)
		require.True(t, ok, name)
		assert.Equal(t, want, k.Default, name)
	}
	lr, _ := FindKey("optimizer.lr")
	assert.Contains(t, lr.Default, "sgd 0.1, normuon 0.02")
}

// check validates a YAML text by the schema.
func check(t *testing.T, text []byte) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(JSONSchema()))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("config.json", doc))
	s, err := c.Compile("config.json")
	require.NoError(t, err, "the schema itself is valid")
	var v any
	require.NoError(t, yaml.Unmarshal(text, &v))
	asJSON, err := json.Marshal(v)
	require.NoError(t, err)
	doc, err = jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	require.NoError(t, err)
	return s.Validate(doc)
}

func TestTheSchemaAcceptsConfigs(t *testing.T) {
	for _, pattern := range []string{"../../examples/*/config.yaml", "../train/testdata/golden/*/*.yaml",
		"../train/testdata/golden/*/stale/*.yaml"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, f := range files {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			assert.NoError(t, check(t, text), f)
		}
	}
	for _, name := range optim.OptimizerNames() {
		assert.NoError(t, check(t, parsed(t, "model.preset=tiny", "optimizer.name="+name).YAML()), name)
	}
	assert.NoError(t, check(t, parsed(t, "model.preset=tiny", "train.precision=f16",
		"hooks=[{file: a.wasm, hook: map_document, config: {a: [1, {b: 2}]}, on_error: skip}]").YAML()))
	assert.NoError(t, check(t, []byte("data: {train: a.txt}")), "a text is a list of one")
}

func TestTheSchemaRefusesMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"trian: {}": "trian", "train: {stepz: 5}": "stepz", "train: {steps: many}": "/train/steps",
		"optimizer: {name: adam}":            "/optimizer/name",
		"optimizer: {adamw: {betas: [0.9]}}": "/optimizer/adamw/betas", "hooks: [{fil: a}]": "fil", "data: {train: [5]}": "/data/train/0",
		"pipeline: {stale_microbatches: 1.5}": "/pipeline/stale_microbatches",
		"pipeline: {depth: [2]}":              "/pipeline/depth",
	} {
		assert.ErrorContains(t, check(t, []byte(text)), want, text)
	}
}

func TestTemplatesAreConfigs(t *testing.T) {
	require.Len(t, Targets(), 3)
	for _, target := range Targets() {
		text := target.Template([]string{"a b.txt", "#c.txt"}, "runs/x: y")
		c, err := Parse("t.yaml", text, nil)
		require.NoError(t, err, "%s", text)
		assert.Equal(t, []string{"a b.txt", "#c.txt"}, c.Data.Train)
		assert.Equal(t, "runs/x: y", c.Run.Dir)
		for _, s := range target.set {
			k, ok := FindKey(s.key)
			require.True(t, ok, s.key)
			assert.Contains(t, string(text), "  # "+strings.Fields(k.Help)[0], "the help of %s", s.key)
		}
		assert.NoError(t, check(t, text), target.Name)
	}
}

func TestChangedListsWhatDiffersFromTheDefaults(t *testing.T) {
	changed := func(overrides ...string) []string { return parsed(t, overrides...).Changed() }
	assert.Equal(t, []string{"model.preset: tiny", "data.train: [a.txt]", "run.dir: r"}, changed("model.preset=tiny"))
	assert.Equal(t, []string{"model.preset: tiny", "data.train: [a.txt]", "train.microbatches: 4", "train.precision: f16",
		"optimizer.name: lion", "optimizer.lr: 0.5", "pipeline.schedule: 2bw", "pipeline.stages: 2", "run.dir: r"},
		changed("model.preset=tiny", "train.microbatches=4", "train.precision=f16", "optimizer={name: lion, lr: 0.5}",
			"pipeline={schedule: 2bw, stages: 2}"))
	assert.Contains(t, changed(sizes, "data.tokenizer=gpt2"), "model.vocab_size: 50257")
	saved, err := Parse("kept.yaml", parsed(t, "model.preset=tiny").YAML(), nil)
	require.NoError(t, err)
	assert.Equal(t, changed("model.preset=tiny"), saved.Changed(), "a saved config has all keys")
}
