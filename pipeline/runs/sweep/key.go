package sweep

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"go.yaml.in/yaml/v3"
)

// Key is a key of the config with the values to search.
type Key struct {
	Name     string
	values   []value   // to choose from; nil: a range
	interval *interval // nil: the values are a list
	where    string
}

// interval is a range of numbers.
type interval struct {
	Min    float64 `yaml:"min"`
	Max    float64 `yaml:"max"`
	Log    bool    `yaml:"log"`    // uniform in the logarithm
	Points int     `yaml:"points"` // that divide the range evenly; 0: all numbers of it

	integer bool
}

// value is a value of a key.
type value struct {
	node   *yaml.Node
	text   string  // on one line
	number float64 // NaN: not a number
}

func newValue(n *yaml.Node) (value, error) {
	v := value{node: n, text: n.Value, number: math.NaN()}
	if n.Kind != yaml.ScalarNode {
		flow := *n
		flow.Style = yaml.FlowStyle
		out, err := yaml.Marshal(&flow)
		if err != nil {
			return v, err
		}
		v.text = strings.Join(strings.Fields(string(out)), " ")
	} else if tag := n.ShortTag(); tag == "!!int" || tag == "!!float" {
		if err := n.Decode(&v.number); err != nil {
			return v, err
		}
		v.text = numberText(v.number, tag == "!!int")
	}
	return v, nil
}

func numberText(x float64, integer bool) string {
	if integer {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

// number is the value of a number.
func number(x float64, integer bool) value {
	tag := "!!float"
	if integer {
		tag = "!!int"
	}
	text := numberText(x, integer)
	return value{&yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: text}, text, x}
}

type keys []Key

// DecodeYAML reads a section whose keys are the config's.
func (ks *keys) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	entries, err := d.Entries(n, key)
	if err != nil {
		return err
	}
	for _, e := range entries {
		k, err := newKey(d, e, key+"."+e.Key)
		if err != nil {
			return err
		}
		*ks = append(*ks, k)
	}
	return nil
}

func newKey(d *strictyaml.Document, e strictyaml.Entry, at string) (k Key, err error) {
	k = Key{Name: e.Key, where: e.Where}
	described, known := config.FindKey(e.Key)
	if !known {
		return k, fmt.Errorf("%s: %s: unknown key of the config (gpupipe config lists them)", e.Where, at)
	}
	switch e.Value.Kind {
	case yaml.SequenceNode:
		return k, k.list(d, e.Value, at)
	case yaml.MappingNode:
		k.interval = &interval{}
		if err := d.DecodeNode(e.Value, k.interval, at); err != nil {
			return k, err
		}
	default:
		return k, d.Errorf(e.Value, at, "found %s, expected a list of values, or a range such as {min: 1e-4, max: 1e-2, log: true}",
			strictyaml.Describe(e.Value))
	}
	r := k.interval
	r.integer = described.Type == "integer"
	switch {
	case !r.integer && described.Type != "number":
		return k, d.Errorf(e.Value, at, "found a range, expected a list of values: the key is %s", described.Type)
	case !(r.Min < r.Max):
		return k, d.Errorf(e.Value, at, "found min %g and max %g, expected a smaller min", r.Min, r.Max)
	case r.Log && r.Min <= 0:
		return k, d.Errorf(e.Value, at, "found min %g, expected a positive number with log: true", r.Min)
	case r.Points == 1 || r.Points < 0:
		return k, d.Errorf(e.Value, at, "found points %d, expected at least 2", r.Points)
	case r.integer && (r.Min != math.Trunc(r.Min) || r.Max != math.Trunc(r.Max)):
		return k, d.Errorf(e.Value, at, "found min %g and max %g, expected integers", r.Min, r.Max)
	}
	for i := range r.Points {
		v := r.at(float64(i) / float64(r.Points-1))
		if !slices.ContainsFunc(k.values, v.equals) {
			k.values = append(k.values, v)
		}
	}
	return k, nil
}

// list reads the values of a list.
func (k *Key) list(d *strictyaml.Document, n *yaml.Node, at string) error {
	for _, c := range n.Content {
		v, err := newValue(c)
		if err != nil {
			return d.Errorf(c, at, "%v", err)
		}
		if slices.ContainsFunc(k.values, v.equals) {
			return d.Errorf(c, at, "found %s twice, expected each value once", v.text)
		}
		k.values = append(k.values, v)
	}
	if len(k.values) == 0 {
		return d.Errorf(n, at, "found an empty list, expected values")
	}
	return nil
}

func (v value) equals(w value) bool { return v.text == w.text }

// significant is the number of digits of drawn values, which keeps names of folders short.
const significant = 3

// at is the number of a range at a position from 0 to 1, rounded to a few digits.
func (r *interval) at(u float64) value {
	x := r.Min + u*(r.Max-r.Min)
	if r.Log {
		x = math.Exp(math.Log(r.Min) + u*math.Log(r.Max/r.Min))
	}
	if r.integer {
		x = math.Round(x)
	} else if rounded, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', significant, 64), 64); err == nil {
		x = rounded
	}
	return number(min(max(x, r.Min), r.Max), r.integer)
}

// position is the inverse of at.
func (r *interval) position(x float64) float64 {
	if r.Log {
		return math.Log(x/r.Min) / math.Log(r.Max/r.Min)
	}
	return (x - r.Min) / (r.Max - r.Min)
}

const (
	endShare   = 0.05 // the share of a range at each of its ends that counts as the end
	leastInner = 3    // values of a list that has an inside
)

// end describes where a number is among the key's values if it is at an end of them; else it is empty.
func (k Key) end(x float64) string {
	if k.values == nil {
		switch p := k.interval.position(x); {
		case p <= endShare:
			return "at the lower end of its range"
		case p >= 1-endShare:
			return "at the upper end of its range"
		}
		return ""
	}
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, v := range k.values {
		lo, hi = min(lo, v.number), max(hi, v.number) // NaN if one is not a number
	}
	switch {
	case len(k.values) < leastInner:
		return ""
	case x == lo:
		return "the smallest tried"
	case x == hi:
		return "the largest tried"
	}
	return ""
}

// draw is the value at a uniform random number from 0 to 1.
func (k Key) draw(u float64) value {
	if k.values == nil {
		return k.interval.at(u)
	}
	return k.values[min(int(u*float64(len(k.values))), len(k.values)-1)]
}

// sets reports whether the key, or a section that is a value of it, sets a key of the config.
func (k Key) sets(name string) bool {
	rest, inside := strings.CutPrefix(name, k.Name+".")
	return k.Name == name || inside && slices.ContainsFunc(k.values, func(v value) bool { return hasKey(v.node, rest) })
}

// hasKey reports whether a section has a dotted key.
func hasKey(section *yaml.Node, name string) bool {
	first, rest, deeper := strings.Cut(name, ".")
	for i := 0; section.Kind == yaml.MappingNode && i+1 < len(section.Content); i += 2 {
		if section.Content[i].Value == first {
			return !deeper || hasKey(section.Content[i+1], rest)
		}
	}
	return false
}

// combinations is the number of combinations of values; 0 if a key has a range without points, or if there are too many
// to count.
func combinations(ks []Key) int {
	n := 1
	for _, k := range ks {
		if k.values == nil || n > maxRuns {
			return 0
		}
		n *= len(k.values)
	}
	return n
}

// shortNames are the names of the keys in descriptions of runs: the shortest ends of them that are unique.
func shortNames(ks []Key) []string {
	end := func(name string, parts int) string {
		all := strings.Split(name, ".")
		return strings.Join(all[max(0, len(all)-parts):], ".")
	}
	var out []string
	for i, k := range ks {
		parts := 1
		for slices.ContainsFunc(ks, func(o Key) bool { return o.Name != ks[i].Name && end(o.Name, parts) == end(k.Name, parts) }) {
			parts++
		}
		out = append(out, end(k.Name, parts))
	}
	return out
}
