package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// chatting is the folder of a model with a chat template.
func chatting(t *testing.T, template string) string {
	t.Helper()
	dir := trained(t)
	folder := t.TempDir() + "/hf"
	_, err := inference.Export(context.Background(), inference.ExportOptions{From: dir, Out: folder})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(folder+"/chat_template.jinja", []byte(template), 0o666))
	return folder
}

// Values that ask for nothing are accepted, as null is for each field; others of these fields are refused by name.
func TestNeutralValues(t *testing.T) {
	h := opened(t, chatting(t, "{{ messages[-1].content }}"), 1, Options{})
	const fields = `"model": "m", "max_tokens": 1, "temperature": 0`
	for path, prompt := range map[string]string{"/v1/completions": `"prompt": "a"`,
		"/v1/chat/completions": `"messages": [{"role": "user", "content": "a"}]`} {
		var all []string
		for name, values := range neutral {
			for _, v := range append(values, "null") {
				all = append(all, fmt.Sprintf("%q: %s", name, v))
			}
			status, out := ask(t, h, path, fmt.Sprintf(`{%s, %s, %q: ["no"]}`, fields, prompt, name))
			assert.Equal(t, http.StatusBadRequest, status, name)
			assert.Equal(t, name, out["error"].(map[string]any)["param"])
		}
		for _, field := range append(all, `"user": "u"`, `"safety_identifier": "s"`, `"prompt_cache_key": "k"`, `"max_tokens": 1.0`,
			`"max_tokens": 1e0`, `"n": 1.0`,
			`"top_k": -1`, `"top_k": 0`, `"min_p": 0`, `"top_p": 1`, `"best_of": 1`, `"presence_penalty": 0`, `"frequency_penalty": 0`,
			`"repetition_penalty": 1`,
			`"seed": 3.0`, `"stop": null`, `"stop": []`, `"stream": null`, `"stream_options": null`, `"temperature": null`,
			`"logprobs": null`, `"service_tier": "auto"`) {
			status, out := ask(t, h, path, fmt.Sprintf(`{%s, %s, %s}`, fields, prompt, field))
			assert.Equal(t, http.StatusOK, status, "%s %v", field, out)
		}
	}
	for _, field := range []string{`"tools": []`, `"tools": null`, `"tool_choice": "none"`, `"tool_choice": "auto"`, `"top_logprobs": 0`,
		`"chat_template_kwargs": {}`, `"logprobs": false`, `"max_completion_tokens": 1.0`, `"reasoning_effort": "low"`} {
		status, out := ask(t, h, "/v1/chat/completions", fmt.Sprintf(`{%s, "messages": [{"role": "user", "content": "a"}], %s}`, fields,
			field))
		assert.Equal(t, http.StatusOK, status, "%s %v", field, out)
	}
}

// The table of docs/SERVING.md has every field that is not offered, with the values that are accepted.
func TestNeutralValuesAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/SERVING.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(doc), "| field that is not offered | values that are accepted |\n| --- | --- |\n")
	require.True(t, found)
	table, _, _ := strings.Cut(rest, "\n\n")
	var want []string
	for _, name := range slices.Sorted(maps.Keys(neutral)) {
		values := append(slices.Clone(neutral[name]), "null")
		want = append(want, fmt.Sprintf("| `%s` | `%s` |", name, strings.Join(values, "`, `")))
	}
	assert.Equal(t, want, strings.Split(table, "\n"))
}

// sent returns the events of a stream as objects, and its comments.
func sent(t *testing.T, h *httptest.Server, path, body string) (events []map[string]any, comments int) {
	t.Helper()
	r, err := http.Post(h.URL+path, "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer r.Body.Close()
	all, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	for _, e := range strings.Split(strings.TrimSuffix(string(all), "\n\n"), "\n\n") {
		data, isData := strings.CutPrefix(e, "data: ")
		switch {
		case !isData:
			require.Equal(t, ": keep-alive", e)
			comments++
		case data != "[DONE]":
			var v map[string]any
			require.NoError(t, json.Unmarshal([]byte(data), &v), data)
			events = append(events, v)
		}
	}
	return events, comments
}

// A stream of a chat has the role once, whatever the number of its parts, and counts tokens where it is asked to.
func TestChatStream(t *testing.T) {
	h := opened(t, chatting(t, "{{ messages[-1].content }}"), 2, Options{KeepAlive: time.Nanosecond})
	events, comments := sent(t, h, "/v1/chat/completions",
		`{"model": "m", "max_tokens": 9, "seed": 1, "n": 2, "stream": true, "logprobs": true, "stream_options": {"include_usage": true}, "messages": [{"role": "user", "content": "the"}]}`)
	roles, texts, reasons := map[any]int{}, map[any]string{}, map[any]any{}
	for i, e := range events {
		assert.Contains(t, e, "usage")
		if i == len(events)-1 {
			assert.Empty(t, e["choices"])
			assert.Equal(t, 18.0, e["usage"].(map[string]any)["completion_tokens"])
			continue
		}
		assert.Nil(t, e["usage"])
		c := e["choices"].([]any)[0].(map[string]any)
		delta := c["delta"].(map[string]any)
		if role, ok := delta["role"]; ok {
			assert.Equal(t, "assistant", role)
			assert.Empty(t, texts[c["index"]])
			assert.Contains(t, delta, "refusal")
			roles[c["index"]]++
		}
		if s, ok := delta["content"].(string); ok {
			texts[c["index"]] += s
		}
		if l, ok := c["logprobs"].(map[string]any); ok {
			for _, token := range l["content"].([]any) {
				assert.Equal(t, []any{}, token.(map[string]any)["top_logprobs"])
			}
		}
		reasons[c["index"]] = c["finish_reason"]
	}
	assert.Equal(t, map[any]int{0.0: 1, 1.0: 1}, roles)
	assert.Equal(t, map[any]any{0.0: "length", 1.0: "length"}, reasons)
	assert.Positive(t, comments)
	for i := range 2 {
		status, out := ask(t, h, "/v1/chat/completions",
			fmt.Sprintf(`{"model": "m", "max_tokens": 9, "seed": %d, "messages": [{"role": "user", "content": "the"}]}`, 1+i))
		require.Equal(t, http.StatusOK, status)
		assert.Equal(t, out["choices"].([]any)[0].(map[string]any)["message"].(map[string]any)["content"], texts[float64(i)])
	}
}

// What clients send back of an answer, calls of tools, and variables reach the template as transformers gives them to
// it.
func TestTemplateInput(t *testing.T) {
	message := func(text string) string {
		m, err := readMessage([]byte(text))
		if err != nil {
			return err.Error()
		}
		var keys []string
		m.Each(func(k, v any) { keys = append(keys, fmt.Sprintf("%v=%v", k, v)) })
		return strings.Join(keys, " ")
	}
	assert.Equal(t, "role=assistant content=x", message(`{"role": "assistant", "content": "x", "refusal": null, "tool_calls": null, "annotations": []}`))
	assert.Equal(t, "content=ab role=user name=n",
		message(`{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "role": "user", "name": "n"}`))
	assert.Equal(t, "content: expected a string, or a list of texts", message(`{"role": "user"}`))
	assert.Equal(t, "role: expected a string", message(`{"content": "x"}`))

	open := func(sources ...string) *chatTemplate {
		s := &tokenizer.Special{}
		for i, source := range sources {
			s.Templates = append(s.Templates, tokenizer.Template{Name: []string{"default", "tool_use"}[i], Source: source})
		}
		template, err := openTemplate(s)
		require.NoError(t, err)
		return template
	}
	prompt := func(template *chatTemplate, fields string) string {
		var c chatRequest
		r := httptest.NewRequest("POST", "/", strings.NewReader(fields))
		r.Header.Set("Content-Type", "application/json")
		require.NoError(t, decode(r, &c), fields)
		conversation, err := c.conversation()
		require.NoError(t, err)
		out, err := template.prompt(conversation)
		if err != nil {
			return err.Error()
		}
		return out
	}
	const called = `{"messages": [{"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}}]}], "tools": [{"x": 1}]}`
	assert.Equal(t, `{"b": 1, "a": 2}`, prompt(open("{{ messages[0].tool_calls[0].function.arguments | tojson }}"), called))
	assert.Equal(t, `<{"b": 1, "a": 2}>`, prompt(open("{{ '<' + messages[0].tool_calls[0].function.arguments + '>' }}"), called),
		"as a text where an object fails")
	assert.Equal(t, `t{"x": 1}`, prompt(open("d", "t{{ tools[0] | tojson }}"), called))
	assert.Equal(t, "d", prompt(open("d", "t"), `{"messages": [{"role": "user", "content": "x"}]}`))
	assert.Equal(t, "False high", prompt(open("{{ enable_thinking }} {{ reasoning_effort }}"),
		`{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"enable_thinking": false}, "reasoning_effort": "high"}`))
	assert.Equal(t, "x", prompt(open("{{ messages[0].content[0].text }}"), `{"messages": [{"role": "user", "content": "x"}]}`),
		"a template that reads parts alone")
	assert.Equal(t, "why", prompt(open("{{ messages[0].reasoning_content }}"),
		`{"messages": [{"role": "assistant", "content": "x", "reasoning": "why"}]}`))
}

// The place of a token is the place of its character, which several tokens may make.
func TestTextOffset(t *testing.T) {
	h := opened(t, trained(t), 1, Options{})
	_, out := ask(t, h, "/v1/completions", `{"model": "m", "prompt": "é日b", "max_tokens": 0, "echo": true, "logprobs": 0}`)
	l := out["choices"].([]any)[0].(map[string]any)["logprobs"].(map[string]any)
	assert.Equal(t, []any{0.0, 0.0, 1.0, 1.0, 1.0, 2.0}, l["text_offset"])
	assert.Equal(t, "b", l["tokens"].([]any)[5])

	var p position
	var at []int
	for _, token := range []string{"a", "\xe6", "\x97", "\xa5", "\xff", "\xe6", "b", "c"} {
		at = append(at, p.characters)
		p.advance([]byte(token))
	}
	assert.Equal(t, []int{0, 1, 1, 1, 2, 3, 3, 5}, at, "bytes that are no character count as one each")
}

// The stop string that is complete first ends a text, whatever the order of the strings.
func TestFirstStop(t *testing.T) {
	for _, c := range []struct {
		stops []string
		want  int
	}{{[]string{"abcdef", "cd"}, 3}, {[]string{"cd", "abcdef"}, 3}, {[]string{"zz", "cd", "bcd"}, 2}, {[]string{"bcd", "cd"}, 2},
		{[]string{"x", "y"}, 0}, {[]string{"y"}, -1}} {
		assert.Equal(t, c.want, firstStop("xabcdefg", c.stops), c.stops)
	}
}

// An error of a request names the field that it is about.
func TestErrorsNameFields(t *testing.T) {
	h := opened(t, chatting(t, "{{ messages[-1].content }}"), 1, Options{})
	long := strings.Repeat("x", 40)
	for field, fields := range map[string]string{"model": `"model": "other", "messages": [{"role": "user", "content": "a"}]`,
		"messages":    `"model": "m", "messages": [{"role": "user", "content": "` + long + `"}]`,
		"max_tokens":  `"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 40`,
		"temperature": `"model": "m", "messages": [{"role": "user", "content": "a"}], "temperature": "warm"`} {
		_, out := ask(t, h, "/v1/chat/completions", "{"+fields+"}")
		require.Contains(t, out, "error", fields)
		assert.Equal(t, field, out["error"].(map[string]any)["param"], fields)
	}
	_, out := ask(t, h, "/v1/completions", `{"model": "m", "prompt": "`+long+`"}`)
	assert.Equal(t, "prompt", out["error"].(map[string]any)["param"])
}

func TestOtherMethodsAndMetrics(t *testing.T) {
	h := opened(t, trained(t), 3, Options{})
	for path, method := range map[string]string{"/v1/completions": "GET", "/v1/chat/completions": "DELETE", "/v1/models": "POST",
		"/health": "PUT", "/metrics": "POST", "/": "POST"} {
		r, err := http.NewRequest(method, h.URL+path, nil)
		require.NoError(t, err)
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		assert.Equal(t, http.StatusMethodNotAllowed, answer.StatusCode, path)
		assert.NotEmpty(t, answer.Header.Get("Allow"))
		assert.Contains(t, string(text), `"code":"method_not_allowed"`)
	}
	completed(t, h, `{"model": "m", "prompt": "the", "max_tokens": 4}`)
	r, err := http.Get(h.URL + "/metrics")
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	for _, line := range []string{`gpupipe_requests_total{path="/v1/completions",code="200"} 1`, "gpupipe_prompt_tokens_total 3",
		"gpupipe_generated_tokens_total 4",
		"gpupipe_texts_running 0", "gpupipe_texts_waiting 0", "gpupipe_slots 3", `gpupipe_first_token_seconds_bucket{le="+Inf"} 1`,
		"gpupipe_text_seconds_count 1", "# TYPE gpupipe_text_seconds histogram"} {
		assert.Contains(t, string(text), "\n"+line+"\n")
	}
	assert.False(t, Public(httptest.NewRequest("GET", "/metrics", nil)))
}
