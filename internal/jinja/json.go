package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Decode reads a JSON value. Keys of objects keep their order, and integers of any size their value.
func Decode(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := decode(d, 0)
	if err == nil {
		_, err = d.Token()
		if err == nil {
			return nil, errors.New("found more than one JSON value")
		}
		if err.Error() == "EOF" {
			return v, nil
		}
	}
	return nil, err
}

func decode(d *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("JSON is nested more than %d deep", maxDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		return decodeNumber(string(t))
	case json.Delim:
		if t == '[' {
			return decodeList(d, depth)
		}
		return decodeObject(d, depth)
	}
	return t, nil
}

func decodeNumber(text string) (any, error) {
	if strings.ContainsAny(text, ".eE") {
		f, err := strconv.ParseFloat(text, 64)
		if errors.Is(err, strconv.ErrRange) {
			err = nil // infinite, as in Python
		}
		return f, err
	}
	n, ok := new(big.Int).SetString(text, 10)
	if !ok || n.BitLen() > maxBits {
		return nil, fmt.Errorf("found an integer of more than %d bits", maxBits)
	}
	return small(n), nil
}

func decodeList(d *json.Decoder, depth int) (any, error) {
	l := &List{Items: []any{}}
	for d.More() {
		v, err := decode(d, depth+1)
		if err != nil {
			return nil, err
		}
		l.Items = append(l.Items, v)
	}
	_, err := d.Token()
	return l, err
}

func decodeObject(d *json.Decoder, depth int) (any, error) {
	o := &Dict{}
	for d.More() {
		k, err := d.Token()
		if err != nil {
			return nil, err
		}
		v, err := decode(d, depth+1)
		if err != nil {
			return nil, err
		}
		o.Set(k, v)
	}
	_, err := d.Token()
	return o, err
}

// encoder writes JSON as Python's json.dumps does.
type encoder struct {
	m         *machine
	b         strings.Builder
	ascii     bool
	sortKeys  bool
	indent    *string // nil: on one line
	item, key string  // separators
}

// tojson is the filter as transformers defines it.
func tojson(m *machine, v any, a args) any {
	p := a.bind("tojson", 0, "ensure_ascii", "indent", "separators", "sort_keys")
	e := &encoder{m: m, ascii: truth(or(p[0], false)), sortKeys: truth(or(p[3], false)), item: ", ", key: ": "}
	switch i := or(p[1], nil).(type) {
	case nil:
	case string:
		e.indent, e.item = &i, ","
	default:
		s := strings.Repeat(" ", max(width("tojson: indent", i), 0))
		e.indent, e.item = &s, ","
	}
	if s := or(p[2], nil); s != nil {
		two := m.items(s)
		if len(two) != 2 {
			fail("tojson: separators: expected two strings")
		}
		e.item, e.key = textArg("tojson: separators", two[0]), textArg("tojson: separators", two[1])
	}
	e.value(v, 0)
	return e.b.String()
}

func (e *encoder) value(v any, depth int) {
	e.m.spend(1)
	if depth > 2*maxDepth {
		fail("tojson: the value is nested too deep")
	}
	switch v := v.(type) {
	case nil:
		e.b.WriteString("null")
	case bool:
		e.b.WriteString(strconv.FormatBool(v))
	case float64:
		e.b.WriteString(jsonFloat(v))
	case int64, *big.Int:
		e.b.WriteString(toBig(v).String())
	case string, markup:
		e.text(text(v))
	case *List:
		e.list(v.Items, depth)
	case Tuple, group:
		e.list(tupleOf(v), depth)
	case *Dict:
		e.dict(v, depth)
	default:
		use(v)
		fail("Object of type %s is not JSON serializable", typeName(v))
	}
	if e.b.Len() > maxText {
		e.m.spendText(e.b.Len())
	}
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return floatRepr(f)
}

// line begins a line where there is an indentation.
func (e *encoder) line(depth int) {
	if e.indent != nil {
		e.m.spendText(depth * len(*e.indent))
		e.b.WriteString("\n" + strings.Repeat(*e.indent, depth))
	}
}

func (e *encoder) list(items []any, depth int) {
	if len(items) == 0 {
		e.b.WriteString("[]")
		return
	}
	e.b.WriteString("[")
	for i, x := range items {
		if i > 0 {
			e.b.WriteString(e.item)
		}
		e.line(depth + 1)
		e.value(x, depth+1)
	}
	e.line(depth)
	e.b.WriteString("]")
}

func (e *encoder) dict(d *Dict, depth int) {
	if len(d.keys) == 0 {
		e.b.WriteString("{}")
		return
	}
	order := make([]int, len(d.keys))
	for i := range order {
		order[i] = i
	}
	if e.sortKeys {
		slices.SortStableFunc(order, func(i, j int) int { return e.m.cmp(d.keys[i], d.keys[j]) })
	}
	e.b.WriteString("{")
	for n, i := range order {
		if n > 0 {
			e.b.WriteString(e.item)
		}
		e.line(depth + 1)
		switch k := d.keys[i].(type) {
		case string, markup:
			e.text(text(k))
		case nil:
			e.text("null")
		case bool:
			e.text(strconv.FormatBool(k))
		case float64:
			e.text(jsonFloat(k))
		case int64, *big.Int:
			e.text(toBig(k).String())
		default:
			fail("keys must be str, int, float, bool or None, not %s", typeName(k))
		}
		e.b.WriteString(e.key)
		e.value(d.values[i], depth+1)
	}
	e.line(depth)
	e.b.WriteString("}")
}

func (e *encoder) text(s string) {
	e.m.spendText(len(s))
	e.b.WriteByte('"')
	for _, r := range s {
		short := strings.IndexRune("\"\\\n\r\t\f\b", r)
		switch {
		case short >= 0:
			e.b.WriteString(`\` + `"\nrtfb`[short:short+1])
		case r < 0x20 || e.ascii && r > 0x7e && r < 0x10000:
			e.b.WriteString(sprintf(`\u%04x`, r))
		case e.ascii && r >= 0x10000:
			high, low := utf16.EncodeRune(r)
			e.b.WriteString(sprintf(`\u%04x\u%04x`, high, low))
		default:
			e.b.WriteRune(r)
		}
	}
	e.b.WriteByte('"')
}

// cmp orders two values by <.
func (m *machine) cmp(a, b any) int {
	switch {
	case m.less(a, b):
		return -1
	case m.less(b, a):
		return 1
	}
	return 0
}
