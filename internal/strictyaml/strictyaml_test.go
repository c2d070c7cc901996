package strictyaml

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// pairs is a section with keys of the user's choice.
type pairs []Entry

func (p *pairs) DecodeYAML(d *Document, n *yaml.Node, key string) (err error) {
	*p, err = d.Entries(n, key)
	return err
}

type inner struct {
	Steps int       `yaml:"steps"`
	Rates []float64 `yaml:"rates"`
}

type outer struct {
	Inner inner `yaml:"inner"`
	Pairs pairs `yaml:"pairs"`
}

const text = `inner:
  steps: 3
pairs:
  b.c: 5
  a: [1, 2]
`

func parse(t *testing.T, text string) *Document {
	t.Helper()
	d, err := Parse("f.yaml", []byte(text))
	require.NoError(t, err)
	return d
}

func TestDecode(t *testing.T) {
	d := parse(t, text)
	o := outer{Inner: inner{Rates: []float64{7}}}
	require.NoError(t, d.Decode(&o))
	assert.Equal(t, inner{3, []float64{7}}, o.Inner)
	require.Len(t, o.Pairs, 2)
	assert.Equal(t, "b.c", o.Pairs[0].Key, "in the order of the file")
	assert.Equal(t, "f.yaml:5", o.Pairs[1].Where)
	assert.True(t, d.Given("inner.steps"))
	assert.False(t, d.Given("inner.rates"))
	assert.True(t, d.Filled("inner"))
	assert.False(t, d.Filled("nothing.there"))
	assert.Equal(t, "f.yaml:2", d.At("inner.steps"))
	assert.Equal(t, "f.yaml", d.At("inner.rates"))
}

func TestFieldsWithoutNameAreNoKeys(t *testing.T) {
	type section struct {
		Steps int `yaml:"steps"`
		own   []byte
	}
	s := section{own: []byte("mine")}
	err := parse(t, "\"\": [1]\n").Decode(&s)
	assert.EqualError(t, err, "f.yaml:1: unknown key, expected one of steps")
	assert.Equal(t, "mine", string(s.own))
}

func TestPutNamesItsOrigin(t *testing.T) {
	d, from := parse(t, text), parse(t, "x: [0.5]\ny: none\n")
	es, err := from.Entries(from.root, "")
	require.NoError(t, err)
	require.NoError(t, d.Put("inner.rates", es[0].Value, es[0].Where+": set"))
	var o outer
	require.NoError(t, d.Decode(&o))
	assert.Equal(t, []float64{0.5}, o.Inner.Rates)
	require.NoError(t, d.Put("inner.steps", es[1].Value, "g.yaml:2: set"))
	assert.EqualError(t, d.Decode(&o), `g.yaml:2: set: inner.steps: found text "none", expected an integer`)
	assert.EqualError(t, d.Put("pairs.a.x", es[1].Value, "g.yaml:2: set"),
		"g.yaml:2: set: pairs.a is a list, not a section: pairs.a[0] is its first element")
}

func TestClonesAreIndependent(t *testing.T) {
	d := parse(t, text)
	require.NoError(t, d.Override("inner.steps=many"))
	c := d.Clone()
	require.NoError(t, d.Override("inner.steps=5"))
	var o outer
	require.NoError(t, d.Decode(&o))
	assert.Equal(t, 5, o.Inner.Steps)
	assert.EqualError(t, c.Decode(&o), `--set inner.steps=many: inner.steps: found text "many", expected an integer`,
		"and they remember origins")
	under := d.Under(find(d.root, "inner"))
	var i inner
	require.NoError(t, under.Decode(&i))
	assert.Equal(t, 5, i.Steps)
}

func TestEntriesRefuse(t *testing.T) {
	for text, want := range map[string]string{
		"pairs: 5\n":               "f.yaml:1: pairs: found the integer 5, expected a section",
		"pairs:\n  a: 1\n  a: 2\n": "f.yaml:3: pairs.a: the key is given twice",
		"pairs: {[a]: 1}\n":        "f.yaml:1: pairs: found a list as a key, expected text",
		"pairs: &x {a: 1}\n":       "f.yaml:1: pairs: anchors and aliases are not supported",
	} {
		var o outer
		assert.ErrorContains(t, parse(t, text).Decode(&o), want)
	}
}

func TestFlatten(t *testing.T) {
	m, err := Flatten([]byte(text))
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"inner.steps": "3", "pairs.b.c": "5", "pairs.a": "[1 2]"}, m)
}
