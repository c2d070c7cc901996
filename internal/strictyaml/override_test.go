package strictyaml

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type lists struct {
	Name  string   `yaml:"name"`
	Texts []string `yaml:"texts"`
	Inner []inner  `yaml:"inner"`
	Shape inner    `yaml:"shape"`
}

// overridden decodes a text with overrides.
func overridden(t *testing.T, text string, overrides ...string) (o lists, err error) {
	t.Helper()
	d := parse(t, text)
	for _, s := range overrides {
		if err := d.Override(s); err != nil {
			return o, err
		}
	}
	return o, d.Decode(&o)
}

// Whatever YAML means by a text, a key that holds one takes it as it is.
func TestTextsAreTakenAsTyped(t *testing.T) {
	for _, text := range []string{"runs/hash #1", "#1", "*.txt", "@a", "!a", "!!str a", "&a b", "%a", "`a`", "010", "1e3", "yes", "null",
		"~/gpt", "~", "true", "2026-01-02", "a: b", "a:", "- a",
		"[a]", "{a: b}", "a, b", "C:\\x", "|", ">", "? a", "it's", "\"", "[", "a\tb"} {
		o, err := overridden(t, "name: old\n", "name="+text)
		require.NoError(t, err, text)
		assert.Equal(t, text, o.Name)
		if text == "[a]" || text == "[" || text == "- a" || text == "null" || text == "~" {
			continue
		}
		for _, key := range []string{"texts", "texts[0]"} {
			o, err = overridden(t, "texts: old\n", key+"="+text)
			require.NoError(t, err, text)
			assert.Equal(t, []string{text}, o.Texts, key)
		}
	}
	for text, want := range map[string]string{`"a b"`: "a b", `'*'`: "*", `"\u00e9"`: "é", " a ": "a", "": ""} {
		o, err := overridden(t, "name: old\n", "name="+text)
		require.NoError(t, err, text)
		assert.Equal(t, want, o.Name)
	}
}

func TestOverriddenElements(t *testing.T) {
	for _, c := range []struct {
		text, set string
		want      []string
	}{
		{"texts: [a, b]\n", "texts[0]=*.txt", []string{"*.txt", "b"}},
		{"texts: [a, b]\n", "texts[2]=c", []string{"a", "b", "c"}},
		{"texts: a\n", "texts[1]=b", []string{"a", "b"}},
		{"texts:\n", "texts[0]=b", []string{"b"}},
		{"", "texts[0]=b", []string{"b"}},
	} {
		o, err := overridden(t, c.text, c.set)
		require.NoError(t, err, c.set)
		assert.Equal(t, c.want, o.Texts, c.set)
	}
	o, err := overridden(t, "inner: [{steps: 1}, {steps: 2, rates: [1, 2]}]\n", "inner[1].steps=7", "inner[1].rates[1]=5",
		"inner[2].steps=9")
	require.NoError(t, err)
	assert.Equal(t, []inner{{Steps: 1}, {7, []float64{1, 5}}, {Steps: 9}}, o.Inner)
	for set, want := range map[string]string{
		"texts[5]=a":       "--set texts[5]=a: texts[5]: the list has 1 elements, expected an index of at most 1",
		"texts[x]=a":       "--set texts[x]=a: found texts[x], expected an element of a list as in texts[0]",
		"texts[-1]=a":      "--set texts[-1]=a: found texts[-1], expected an element of a list as in texts[0]",
		"texts.0=a":        "--set texts.0=a: texts is a list, not a section: texts[0] is its first element",
		"shape[0]=a":       "--set shape[0]=a: shape is a section, not a list",
		"texts=[*.txt]":    "texts: did not find expected alphabetic or numeric character: texts with special characters need quotes",
		"shape.steps=5 #1": "", // a comment of YAML, after a number
	} {
		_, err := overridden(t, "texts: [b]\nshape: {steps: 1}\n", set)
		if want == "" {
			assert.NoError(t, err)
			continue
		}
		assert.ErrorContains(t, err, want)
	}
}

func TestReplacedSections(t *testing.T) {
	d := parse(t, "shape: {steps: 1, rates: [2]}\n")
	require.NoError(t, d.Override("shape.steps=2"))
	assert.Empty(t, d.Replaced())
	require.NoError(t, d.Override("shape={steps: 3}"))
	require.NoError(t, d.Override("shape={steps: 3, rates: [1]}"))
	assert.Equal(t, []string{"--set shape={steps: 3}: it replaces the whole section shape, without its rates"}, d.Replaced())
}
