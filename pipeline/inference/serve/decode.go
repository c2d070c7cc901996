package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// neutral lists fields that are not offered, with the values that ask for nothing; null is one of each.
var neutral = map[string][]string{
	"audio": {}, "function_call": {`"none"`, `"auto"`}, "functions": {"[]"}, "ignore_eos": {"false"},
	"include_stop_str_in_output": {"false"},
	"length_penalty":             {"1"}, "logit_bias": {"{}"}, "metadata": {"{}"}, "min_tokens": {"0"}, "modalities": {`["text"]`},
	"parallel_tool_calls": {"true", "false"}, "prediction": {}, "response_format": {`{"type":"text"}`},
	"service_tier":        {`"auto"`, `"default"`},
	"skip_special_tokens": {"false"}, "stop_token_ids": {"[]"}, "store": {"false"}, "suffix": {`""`}, "typical_p": {"1"},
	"use_beam_search": {"false"}, "verbosity": {`"medium"`}, "web_search_options": {},
}

// named lists fields that name the client, and change no answer.
var named = []string{"user", "safety_identifier", "prompt_cache_key"}

// decode reads a request's body into a struct: one JSON object of known fields. A field that is null is not given.
func decode(r *http.Request, into any) error {
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); !strings.EqualFold(strings.TrimSpace(kind), "application/json") {
		return withStatus(http.StatusUnsupportedMediaType, "", "the header Content-Type: found %q, expected application/json", kind)
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil || raw == nil {
		return invalid("", "the body: %s", misread(text, err))
	}
	fields := map[string]reflect.Value{}
	collect(reflect.ValueOf(into).Elem(), fields)
	names := make([]string, 0, len(raw))
	for name := range raw {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := decodeField(name, raw[name], fields); err != nil {
			return err
		}
	}
	return nil
}

// misread says why a body is no JSON object.
func misread(text []byte, err error) string {
	var syntax *json.SyntaxError
	switch {
	case len(bytes.TrimSpace(text)) == 0:
		return "found nothing, expected a JSON object"
	case errors.As(err, &syntax):
		return fmt.Sprintf("expected one JSON object, found an error at byte %d", syntax.Offset)
	}
	return "found " + shown(text) + ", expected one JSON object"
}

// collect finds the fields of a struct, and of the structs that it embeds, by their names in JSON.
func collect(v reflect.Value, fields map[string]reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			collect(v.Field(i), fields)
		} else if name := f.Tag.Get("json"); name != "" {
			fields[name] = v.Field(i)
		}
	}
}

func decodeField(name string, raw json.RawMessage, fields map[string]reflect.Value) error {
	f, known := fields[name]
	values, unused := neutral[name]
	switch {
	case !known && !unused && !slices.Contains(named, name):
		return invalid(name, "there is no such field")
	case string(raw) == "null":
		return nil
	case known:
		if err := json.Unmarshal(raw, f.Addr().Interface()); err != nil {
			return wrongType(name, raw, f.Type(), err)
		}
		return nil
	case !unused:
		var text string
		if json.Unmarshal(raw, &text) != nil {
			return invalid(name, "found %s, expected a string", shown(raw))
		}
		return nil
	case !slices.ContainsFunc(values, func(v string) bool { return sameJSON(raw, v) }):
		return invalid(name, "found %s, expected %s: it is not offered", shown(raw), strings.Join(append(values, "null"), " or "))
	}
	return nil
}

func sameJSON(a json.RawMessage, b string) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}

// wrongType is the error of a field whose value has another type. Errors of the fields' own types say what they expect.
func wrongType(name string, raw json.RawMessage, t reflect.Type, err error) error {
	var own *expected
	if errors.As(err, &own) {
		return invalid(name, "%s", own.message)
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	what := map[reflect.Kind]string{reflect.Bool: "true or false", reflect.Float64: "a number", reflect.String: "a string",
		reflect.Slice: "a list", reflect.Struct: "an object", reflect.Map: "an object"}[t.Kind()]
	return invalid(name, "found %s, expected %s", shown(raw), what)
}

// expected is the error of a value that a field's type does not accept.
type expected struct{ message string }

func (e *expected) Error() string { return e.message }

func expecting(format string, args ...any) error { return &expected{fmt.Sprintf(format, args...)} }

// shown is the beginning of a JSON value.
func shown(raw []byte) string {
	text := []rune(string(bytes.TrimSpace(raw)))
	if len(text) > 40 {
		return string(text[:40]) + "…"
	}
	return string(text)
}

// integer is a JSON number without a fraction, such as 16, 16.0 or 1.6e1.
type integer int64

func (n *integer) UnmarshalJSON(text []byte) error {
	if i, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		*n = integer(i)
		return nil
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<53 {
		return expecting("found %s, expected an integer", shown(text))
	}
	*n = integer(f)
	return nil
}

// stops is a string or a list of them.
type stops []string

func (s *stops) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*s = stops{one}
		return nil
	}
	if json.Unmarshal(text, (*[]string)(s)) != nil {
		return expecting("found %s, expected a string or a list of strings", shown(text))
	}
	return nil
}

// prompts is a text, a list of texts, a list of tokens, or a list of lists of tokens. A prompt is a text or tokens.
type prompts []prompt

type prompt struct {
	text string
	ids  []uint32 // nil: the text is to be encoded
}

func (p *prompts) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*p = prompts{{text: one}}
		return nil
	}
	var parts []json.RawMessage
	if json.Unmarshal(text, &parts) != nil {
		return expecting("found %s, expected a string, a list of strings, a list of tokens, or a list of lists of tokens", shown(text))
	}
	if ids, err := tokenIDs(text); err == nil && len(ids) > 0 {
		*p = prompts{{ids: ids}}
		return nil
	}
	all := make(prompts, len(parts))
	for i, part := range parts {
		if json.Unmarshal(part, &all[i].text) == nil && part[0] == '"' {
			continue
		}
		ids, err := tokenIDs(part)
		if err != nil || len(ids) == 0 {
			return expecting("prompt[%d]: found %s, expected a string or a list of tokens", i, shown(part))
		}
		all[i].ids = ids
	}
	*p = all
	return nil
}

func tokenIDs(text []byte) ([]uint32, error) {
	var list []integer
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	ids := make([]uint32, len(list))
	for i, n := range list {
		if n < 0 || n > math.MaxInt32 {
			return nil, expecting("found token %d", n)
		}
		ids[i] = uint32(n)
	}
	return ids, nil
}
