package jsontext

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// read returns the texts of a stream, with null as "<null>".
func read(stream, field string) (texts []string, err error) {
	return rest(NewReader(iotest.OneByteReader(strings.NewReader(stream)), field))
}

func rest(r *Reader) (texts []string, err error) {
	for r.Next() {
		if r.Text() == nil {
			texts = append(texts, "<null>")
			continue
		}
		texts = append(texts, string(r.Text()))
	}
	return texts, r.Err()
}

func TestTexts(t *testing.T) {
	for stream, want := range map[string][]string{
		"": nil, " \n\r\n": nil, "\xEF\xBB\xBF": nil, "[]": nil, " [ ] \n": nil,
		"{\"text\":\"a\"}\n{\"text\":\"b\"}":                        {"a", "b"},
		"{\"text\":\"a\"}\r\n\r\n  {\"n\":1,\"text\":\"b\"} \t\r\n": {"a", "b"},
		"\xEF\xBB\xBF{\"text\":\"a\"}":                              {"a"},
		"\xEF\xBB\xBF\n[{\"text\":\"a\"},{\"text\":\"b\"}]\n":       {"a", "b"},
		"[\n  {\n    \"text\": \"a\"\n  },\n  {\"text\": \"b\"}\n]": {"a", "b"},
		"{\n  \"text\": \"a\"\n}\n{\n  \"text\": \"b\"\n}\n":        {"a", "b"},
		`{"text":null}`:                   {"<null>"},
		"{\"n\":1}\n{\"text\":\"a\"}\n{}": {"<null>", "a", "<null>"}, // a table would have nulls there
		"[{},{\"text\":null}]":            {"<null>", "<null>"},
		`{"text":""}`:                     {""},
		`{"text":"a","score":NaN,"x":[Infinity,-Infinity,-1.5e+3,0]}`:  {"a"},
		`{"text":"a","text":"b"}`:                                      {"b"},
		`{"text":"a","text":null}`:                                     {"<null>"},
		`{"text":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00\u0000"}`:          {"\"\\/\b\f\n\r\té😀\x00"},
		`{"text":"\ud83d \ude00 \ud83dx \ud83d\u0041"}`:                {"\uFFFD \uFFFD \uFFFDx \uFFFDA"},
		"{\"text\":\"caf\xe9\"}":                                       {"caf\xe9"},
		`{"a":{"b":[1,{"c":"\"}"}],"d":true},"e":false,"text":"a"}`:    {"a"},
		`{"te\u0078t":"a"}`:                                            {"a"},
		"{\"text\":\"" + strings.Repeat("é", bufferSize) + "\"}\n":     {strings.Repeat("é", bufferSize)},
		"{\"x\":\"" + strings.Repeat("\\\"", 99) + "\",\"text\":\"\"}": {""},
	} {
		got, err := read(stream, "text")
		assert.NoError(t, err, stream)
		assert.Equal(t, want, got, stream)
	}
}

// Halves of surrogate pairs count in the text, not in the other strings of its object.
func TestHalves(t *testing.T) {
	for stream, want := range map[string]int64{
		`{"text":"\ud83d \ude00 \ud83d\ude00"}`:       2,
		`{"x":"\ud83d","text":"\ude00","y":"\ud83d"}`: 1,
		`{"x":"\ud83d","text":null}`:                  0,
		`{"x":"\ud83d"}`:                              0,
	} {
		r := NewReader(strings.NewReader(stream), "text")
		for r.Next() {
			assert.Equal(t, want, r.Halves(), stream)
		}
	}
}

func TestNestedFields(t *testing.T) {
	for stream, want := range map[string]string{
		`{"meta":{"text":"a"}}`:                          "a",
		`{"meta.text":"a"}`:                              "a",
		`{"meta":"b","meta.text":"a"}`:                   "a",
		`{"meta.text":"a","meta":"b"}`:                   "a",
		`{"meta":{"text":"a"},"meta.text":"b"}`:          "b",
		`{"meta.text":"b","meta":{"text":"a"}}`:          "b",
		`{"meta":null}`:                                  "<null>",
		`{"meta":{"text":null}}`:                         "<null>",
		`{"meta":{"text":"a"},"meta":{"text":"b"}}`:      "b",
		`{"text":"c","meta":{"x":{"text":1},"text":""}}`: "",
	} {
		got, err := read(stream, "meta.text")
		assert.NoError(t, err, stream)
		assert.Equal(t, []string{want}, got, stream)
	}
	for stream, found := range map[string][]string{
		`{"text":"a","meta":{"y":1,"x":2}}`:   {"meta.x", "meta.y", "text"},
		`{"n":1,"meta":{}}`:                   {"n"},
		`{"meta":{"text":"a"},"meta":{}}`:     {"meta.text"},
		`{"metatext":1,"meta-text":2,"me":3}`: {"me", "meta-text", "metatext"},
	} {
		_, err := read(stream, "meta.text")
		var missing *FieldError
		require.ErrorAs(t, err, &missing, stream)
		assert.ElementsMatch(t, found, missing.Found, stream)
	}
}

func TestErrors(t *testing.T) {
	for stream, want := range map[string]string{
		`"alpha"`:                          `line 1: found a string, "alpha", expected an object such as {"text": "…"}`,
		"{\"text\":\"\"}\n7":               `line 2: found the number 7, expected an object`,
		"null":                             `line 1: found null, expected an object`,
		"NaN":                              `line 1: found NaN, expected an object`,
		`["a"]`:                            `element 1 of the array, line 1: found a string, "a", expected an object`,
		"[{\"text\":\"a\"},\n[1]]":         `element 2 of the array, line 2: found a list, expected an object`,
		"[{\"text\":\"a\"}]\n[]":           `line 2: found "[]" after the end of the array`,
		"[{\"text\":\"a\"} {}]":            `found "{}]", expected a comma or the end of the array`,
		"[{\"text\":\"a\"},]":              `element 2 of the array, line 1: not a JSON object: found "]"`,
		"[{\"text\":\"a\"},":               `element 2 of the array, line 1: the file ends within an array`,
		"[{\"text\":\"a\"":                 `not a JSON object: the file ends within it`,
		`{"text":"a"}{"text":"b"}`:         `line 1: found "{\"text\":\"b\"}" after the object, expected the end of the line`,
		`{"text":7}`:                       `line 1: field "text" is 7: expected a string`,
		`{"text":NaN}`:                     `field "text" is NaN: expected a string`,
		`{"text":["a","b"]}`:               `field "text" is a list: expected a string`,
		`{"text":{"0":"a"}}`:               `field "text" is an object: expected a string`,
		"{\"txt\":\"a\"}\n{}":              `line 1: no field "text", found ["txt"]`,
		"nope":                             `line 1: not a JSON object: found "ope", expected null`,
		"{\"text\":\"a\n\"}":               `line 1: not a JSON object: found "\n\"}", expected an escape such as \n in a string`,
		"{\"a\":1\n{\"text\":2}":           `line 1: not a JSON object: found "{\"text\":2}", expected a comma or '}' (on line 2)`,
		`{"text" "a"}`:                     `found "\"a\"}", expected a colon`,
		`{text:1}`:                         `found "text:1}", expected a key`,
		`{"text":01}`:                      `found "01", expected a number`,
		`{"text":'a'}`:                     `found "'a'}", expected a value`,
		`{"a":"\x"}`:                       `found the escape "\\x"`,
		`{"a":"\u00g0"}`:                   `found the escape "\\u00g0"`,
		`{"a":"\u+123"}`:                   `found the escape "\\u+123"`,
		`{"a":` + strings.Repeat("[", 1e5): `more than 10000 brackets`,
	} {
		_, err := read(stream, "text")
		assert.ErrorContains(t, err, want, stream)
	}
	for stream, want := range map[string]string{
		"{\"meta\":{\"t\":\"a\"}}\n{\"meta\":\"t\"}": `line 2: field "meta" is a string: expected an object, in which "meta.t" is`,
		`{"meta":["t"]}`: `field "meta" is a list: expected an object, in which "meta.t" is`,
		`{"meta":7}`:     `field "meta" is 7: expected an object`,
	} {
		_, err := read(stream, "meta.t")
		assert.ErrorContains(t, err, want, stream)
	}
	_, err := read(`{"a":{"b":"c"}}`, "a.b.c")
	assert.ErrorContains(t, err, `field "a.b" is a string: expected an object, in which "a.b.c" is`)
	broken := errors.New("gzip: the file is truncated")
	_, err = rest(NewReader(io.MultiReader(strings.NewReader(`{"text":"a"`), iotest.ErrReader(broken)), "text"))
	assert.Equal(t, broken, err)
}

// TestLongObjects checks that memory does not depend on what a stream declares.
func TestLongObjects(t *testing.T) {
	const most = 1 << 20
	limited := func(begin, part, end string) error {
		r := NewReader(io.MultiReader(strings.NewReader(begin), io.LimitReader(repeat(part), most+10*bufferSize), strings.NewReader(end)),
			"text")
		r.in.most = most
		_, err := rest(r)
		return err
	}
	for _, begin := range []string{`{"x":"`, `{"x":["`, `{`} {
		assert.ErrorContains(t, limited(begin, " ", ""), "line 1: longer than 1048576 bytes")
	}
	assert.NoError(t, limited("", " ", `{"text":"a"}`))
}

// repeat is a text without end.
type repeat string

func (r repeat) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = r[i%len(r)]
	}
	return len(b), nil
}

// TestResume goes on after each object.
func TestResume(t *testing.T) {
	for _, stream := range []string{"{\"text\":\"a\"}\n\n{\"text\":null}\n{\"text\":\"b\"}\n",
		` [ {"text":"a"} , {"text":"b"},{"text":null} ] `} {
		want, err := read(stream, "text")
		require.NoError(t, err)
		r := NewReader(strings.NewReader(stream), "text")
		array, err := r.Array()
		require.NoError(t, err)
		for n := 1; r.Next(); n++ {
			got, err := rest(Resume(strings.NewReader(stream[r.Offset():]), "text", array, r.Offset()))
			require.NoError(t, err)
			assert.Equal(t, want[n:], append([]string{}, got...))
			at := Resume(strings.NewReader(stream[r.Start():]), "text", array, r.Start())
			require.True(t, at.Next())
			assert.Equal(t, r.Text(), at.Text())
			assert.Equal(t, r.Offset(), at.Offset())
		}
	}
	_, err := rest(Resume(strings.NewReader("\n7"), "text", false, 40))
	assert.ErrorContains(t, err, "the object at offset 41: found the number 7")
}

// FuzzLines compares lines with encoding/json.
func FuzzLines(f *testing.F) {
	for _, s := range []string{`{"text":"a\u00e9"}`, `{"a":[1,-2.5e7,{"text":""}],"text":null}`, `{"text":"\ud800"}`, `{"x":NaN}`, `"a"`,
		`{"text":1}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if strings.ContainsAny(line, "\n") || strings.HasPrefix(strings.TrimSpace(line), "[") || strings.HasPrefix(line, "\xEF\xBB\xBF") {
			return
		}
		var object map[string]json.RawMessage
		err := json.Unmarshal([]byte(line), &object)
		texts, ours := read(line, "text")
		var text *string
		if err == nil && object != nil {
			raw, ok := object["text"]
			if ok && json.Unmarshal(raw, &text) == nil {
				require.NoError(t, ours)
				want := "<null>"
				if text != nil {
					want = *text
				}
				if utf8.ValidString(line) {
					require.Equal(t, []string{want}, texts)
				}
				return
			}
			require.Error(t, ours)
		}
		if err != nil && strings.TrimSpace(line) != "" && !strings.Contains(line, "NaN") && !strings.Contains(line, "Infinity") {
			require.Error(t, ours)
		}
	})
}
