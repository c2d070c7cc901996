package graphhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
)

// decode fills a struct from a JSON object. An empty text means {}. Only fields with "omitempty" are optional.
func decode(text []byte, into any) error {
	if len(text) == 0 {
		text = []byte("{}")
	}
	var (
		given map[string]json.RawMessage
		wrong *json.UnmarshalTypeError
	)
	switch err := json.Unmarshal(text, &given); {
	case errors.As(err, &wrong):
		return fmt.Errorf("attributes: found %s, expected an object", wrong.Value)
	case err != nil:
		return fmt.Errorf("attributes: %w", err)
	}
	known := map[string]bool{} // the attributes; true if required
	t := reflect.TypeOf(into).Elem()
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		known[name] = options == ""
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if _, ok := known[name]; !ok {
			return fmt.Errorf("unknown attribute %.64q, expected %s", name, list(known))
		}
		if string(given[name]) == "null" {
			return fmt.Errorf("attribute %q is null", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if _, ok := given[name]; known[name] && !ok {
			return fmt.Errorf("attribute %q is missing", name)
		}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	switch err := d.Decode(into); {
	case errors.As(err, &wrong):
		return fmt.Errorf("attribute %q: found %s, expected %s", wrong.Field, wrong.Value, kindNames[wrong.Type.Kind()])
	case err != nil:
		return fmt.Errorf("attributes: %w", err)
	}
	return nil
}

// kindNames are the names of the attributes' types in messages.
var kindNames = map[reflect.Kind]string{reflect.Int: "integers", reflect.Uint32: "an integer from 0 to 4294967295",
	reflect.Bool: "true or false", reflect.Slice: "a list", reflect.String: "text"}

func list(names map[string]bool) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

// real is a number. In JSON it is a number or a text: "inf", "-inf", "nan", or a hexadecimal float as in C, "0x1.8p+1",
// which needs no rounding.
type real float64

func (r *real) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		if json.Unmarshal(b, (*float64)(r)) != nil {
			return fmt.Errorf("found %.64s, expected a number", b)
		}
		return nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf("found %.64q, expected a number", text)
	}
	*r = real(f)
	return nil
}

// dtype is a dtype that every device supports: f32, i32 or u32.
type dtype graph.DType

func (d *dtype) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) != nil {
		text = string(b)
	}
	for _, x := range []graph.DType{graph.F32, graph.I32, graph.U32} {
		if x.String() == text {
			*d = dtype(x)
			return nil
		}
	}
	return fmt.Errorf("found dtype %.64q, expected f32, i32 or u32", text)
}

type constantAttributes struct {
	DType dtype  `json:"dtype,omitempty"`
	Shape []int  `json:"shape"`
	Data  []real `json:"data"`
}

func (b *Builder) constant(a constantAttributes) *graph.Value {
	t := graph.T(graph.DType(a.DType), a.Shape...)
	data := make([]float64, len(a.Data))
	for i, x := range a.Data {
		data[i] = float64(x)
		if !holds(t.DType, data[i]) {
			b.b.Fail("constant", "data[%d] is %v, expected a value of %v", i, graph.Real(data[i]), t.DType)
		}
	}
	b.constants++
	return b.b.Constant(fmt.Sprintf("hook/constant/%d", b.constants), t, data)
}

// holds reports whether a number is a value of the dtype.
func holds(d graph.DType, x float64) bool {
	switch d {
	case graph.I32:
		return x == math.Trunc(x) && x >= math.MinInt32 && x <= math.MaxInt32
	case graph.U32:
		return x == math.Trunc(x) && x >= 0 && x <= math.MaxUint32
	}
	return true
}
