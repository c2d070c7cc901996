//go:build wasip1

package gpupipe

import (
	"strconv"
	"strings"
	"unsafe"
)

//go:wasmimport gpupipe config_key
func hostConfigKey(key unsafe.Pointer, length uint32)

var config = "{}"

// Object is a JSON object, of whose keys the values can be had.
type Object struct {
	text  string
	place string // prefix of messages; the hook's configuration, whose keys are reported to the host, has its own
}

// Config is the configuration of the hook.
func Config() Object { return Object{config, "config: "} }

// ObjectOf reads JSON, such as an on_metrics hook receives.
func ObjectOf(json string) Object { return Object{text: json} }

// Number is a number of the object; it fails if the key has another value.
func (o Object) Number(key string, otherwise float64) float64 {
	text, ok := o.Find(key)
	if !ok {
		return otherwise
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		o.wrong(key, text, "a number")
		return otherwise
	}
	return x
}

// True reports whether a key is true; it fails if it is neither true nor false.
func (o Object) True(key string) bool {
	text, ok := o.Find(key)
	if ok && text != "true" && text != "false" {
		o.wrong(key, text, "true or false")
	}
	return text == "true"
}

// Text is a text without escapes; it fails if the key has another value.
func (o Object) Text(key, otherwise string) string {
	text, ok := o.Find(key)
	if !ok {
		return otherwise
	}
	if len(text) < 2 || text[0] != '"' || strings.Contains(text, "\\") {
		o.wrong(key, text, "a text without escapes")
		return otherwise
	}
	return text[1 : len(text)-1]
}

func (o Object) wrong(key, text, want string) {
	Fail(o.place + key + " is " + text + ", expected " + want)
}

// Find is the value of a key, as JSON.
func (o Object) Find(key string) (value string, ok bool) {
	if o.place != "" {
		hostConfigKey(address(key), uint32(len(key)))
	}
	rest, ok := strings.CutPrefix(space(o.text), "{")
	for ok {
		if rest, ok = strings.CutPrefix(space(rest), `"`); !ok {
			break
		}
		end := stringEnd(rest)
		name := rest[:end]
		if rest, ok = strings.CutPrefix(space(rest[min(end+1, len(rest)):]), ":"); !ok {
			break
		}
		rest = space(rest)
		end = valueEnd(rest)
		if name == key {
			return strings.TrimRight(rest[:end], blank), true
		}
		rest, ok = strings.CutPrefix(rest[end:], ",")
	}
	return "", false
}

const blank = " \n\t\r"

func space(s string) string { return strings.TrimLeft(s, blank) }

// stringEnd is where a string ends, after its first quote.
func stringEnd(s string) int {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(s)
}

// valueEnd is where a value ends: at the comma or bracket after it.
func valueEnd(s string) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			i += 1 + stringEnd(s[i+1:])
		case c == '{' || c == '[':
			depth++
		case (c == '}' || c == ']' || c == ',') && depth == 0:
			return i
		case c == '}' || c == ']':
			depth--
		}
	}
	return len(s)
}
