package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// onReference computes with the ops' references.
var onReference = inference.Target{Open: traintest.OpenNull, Execute: (&traintest.Reference{}).Execute}

// trained is the folder of a run with a context of 32 tokens, each a byte.
func trained(t *testing.T, overrides ...string) string {
	t.Helper()
	c := traintest.Demo(t, t.TempDir(), append([]string{"model={vocab_size: 256, d_model: 8, n_layers: 1, n_heads: 2, d_ff: 12, seq_len: 32}",
		"train={steps: 6, batch_size: 4, microbatches: 2, eval_every: 0, save_every: 0}"}, overrides...)...)
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	return c.Run.Dir
}

// opened serves a model with some slots until the end of the test.
func opened(t *testing.T, dir string, slots int, o Options) *httptest.Server {
	t.Helper()
	src, err := inference.OpenModel(dir, "")
	require.NoError(t, err)
	b, err := inference.NewBatch(src, onReference, slots, 0)
	require.NoError(t, err)
	o.Name = "m"
	s, err := New(b, o)
	require.NoError(t, err)
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		h.Close()
		s.Close()
		assert.NoError(t, b.Close())
	})
	return h
}

// ask posts a request and returns the status and the JSON object of the response.
func ask(t *testing.T, h *httptest.Server, path, body string) (int, map[string]any) {
	t.Helper()
	r, err := http.Post(h.URL+path, "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer r.Body.Close()
	var out map[string]any
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &out), "%s", text)
	return r.StatusCode, out
}

// completed asks for a completion and returns its only choice.
func completed(t *testing.T, h *httptest.Server, body string) map[string]any {
	t.Helper()
	status, out := ask(t, h, "/v1/completions", body)
	require.Equal(t, http.StatusOK, status, "%v", out)
	return out["choices"].([]any)[0].(map[string]any)
}

// generated is what gpupipe generate prints after a prompt.
func generated(t *testing.T, dir, prompt string, n int, s inference.Sampling) string {
	t.Helper()
	src, err := inference.OpenModel(dir, "")
	require.NoError(t, err)
	g, err := inference.NewGenerator(src, onReference)
	require.NoError(t, err)
	defer g.Close()
	var b bytes.Buffer
	_, err = g.Generate(context.Background(), []byte(prompt), n, s, func(text []byte) error {
		b.Write(text)
		return nil
	})
	require.NoError(t, err)
	return string([]rune(b.String()))
}

func TestCompletionsAreThoseOfGenerate(t *testing.T) {
	dir := trained(t)
	h := opened(t, dir, 2, Options{})
	for _, o := range []struct {
		sampling inference.Sampling
		fields   string
	}{
		{inference.Sampling{TopP: 1}, `"temperature": 0`},
		{inference.Sampling{Temperature: 0.8, TopP: 1, Seed: 7}, `"temperature": 0.8, "seed": 7`},
		{inference.Sampling{Temperature: 1, TopP: 0.9, TopK: 20, Seed: 3}, `"top_p": 0.9, "top_k": 20, "seed": 3`},
	} {
		for _, prompt := range []string{"the cat", "", "a"} {
			c := completed(t, h, fmt.Sprintf(`{"model": "m", "prompt": %q, "max_tokens": 12, %s}`, prompt, o.fields))
			assert.Equal(t, generated(t, dir, prompt, 12, o.sampling), c["text"], "%q %s", prompt, o.fields)
			assert.Equal(t, "length", c["finish_reason"])
		}
	}
}

// evaluated is the negative log-likelihood of the tokens of a text after its first one, by gpupipe eval.
func evaluated(t *testing.T, dir, text string) float64 {
	t.Helper()
	path := t.TempDir() + "/text.txt"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	e, err := inference.Evaluate(context.Background(), inference.EvalOptions{From: dir, Data: []string{path}, BatchSize: 1,
		SeqLen: len(text) - 1, Target: onReference})
	require.NoError(t, err)
	return e.Loss * float64(e.Tokens)
}

// sum adds log-probabilities; null counts as nothing.
func sum(xs any) (total float64) {
	for _, x := range xs.([]any) {
		if x != nil {
			total += x.(float64)
		}
	}
	return total
}

func TestEchoedProbabilitiesAreThoseOfEval(t *testing.T) {
	dir := trained(t)
	h := opened(t, dir, 2, Options{})
	const text = "the cat sat on a mat the mat sat"
	want := evaluated(t, dir, text)
	ids, err := json.Marshal([]int{116, 104, 101})
	require.NoError(t, err)
	c := completed(t, h, fmt.Sprintf(`{"model": "m", "prompt": [%s, "%s"], "max_tokens": 1, "echo": true, "logprobs": 1, "temperature": 0}`, ids, text))
	assert.Len(t, c["logprobs"].(map[string]any)["tokens"], 4, "the tokens of the prompt and one more")

	_, out := ask(t, h, "/v1/completions", fmt.Sprintf(`{"model": "m", "prompt": %q, "max_tokens": 0, "echo": true, "logprobs": 2}`, text))
	c = out["choices"].([]any)[0].(map[string]any)
	l := c["logprobs"].(map[string]any)
	assert.Equal(t, text, c["text"])
	assert.Len(t, l["tokens"], 32)
	assert.Nil(t, l["token_logprobs"].([]any)[0])
	assert.Nil(t, l["top_logprobs"].([]any)[0])
	assert.Equal(t, 31.0, l["text_offset"].([]any)[31])
	assert.Equal(t, map[string]any{"prompt_tokens": 32.0, "completion_tokens": 0.0, "total_tokens": 32.0}, out["usage"])
	assert.InDelta(t, want, -sum(l["token_logprobs"]), 1e-4*want)
	for i, top := range l["top_logprobs"].([]any)[1:] {
		mine := l["token_logprobs"].([]any)[i+1].(float64)
		require.Equal(t, mine, top.(map[string]any)[l["tokens"].([]any)[i+1].(string)])
		largest := 0
		for _, x := range top.(map[string]any) {
			if x.(float64) > mine {
				largest++
			}
		}
		assert.LessOrEqual(t, largest, 2)
		assert.GreaterOrEqual(t, len(top.(map[string]any)), 2)
	}
}

func TestStops(t *testing.T) {
	dir := trained(t)
	h := opened(t, dir, 2, Options{})
	const fields = `"model": "m", "prompt": "the cat", "max_tokens": 20, "temperature": 1, "seed": 5`
	whole := completed(t, h, "{"+fields+"}")["text"].(string)
	stop := regexp.MustCompile(`[!-~]{2}`).FindString(whole[4:])
	require.NotEmpty(t, stop)
	quoted, err := json.Marshal([]string{"never", stop})
	require.NoError(t, err)
	c := completed(t, h, fmt.Sprintf(`{%s, "stop": %s}`, fields, quoted))
	before, _, found := strings.Cut(whole, stop)
	require.True(t, found)
	assert.Equal(t, before, c["text"])
	assert.Equal(t, "stop", c["finish_reason"])
	streamed, reason := stream(t, h, fmt.Sprintf(`{%s, "stop": %s, "stream": true}`, fields, quoted))
	assert.Equal(t, before, streamed)
	assert.Equal(t, "stop", reason)
}

// stream asks for a streamed completion and returns its text and the reason of its end.
func stream(t *testing.T, h *httptest.Server, body string) (text, reason string) {
	t.Helper()
	r, err := http.Post(h.URL+"/v1/completions", "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer r.Body.Close()
	require.Equal(t, "text/event-stream", r.Header.Get("Content-Type"))
	all, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	events := strings.Split(strings.TrimSuffix(string(all), "\n\n"), "\n\n")
	require.Equal(t, "data: [DONE]", events[len(events)-1])
	for _, e := range events[:len(events)-1] {
		var part struct {
			Choices []struct {
				Text         string `json:"text"`
				FinishReason string `json:"finish_reason"`
			} `json:"choices"`
		}
		require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(e, "data: ")), &part))
		for _, c := range part.Choices {
			text += c.Text
			reason = c.FinishReason
		}
	}
	return text, reason
}

func TestStream(t *testing.T) {
	h := opened(t, trained(t), 2, Options{})
	const fields = `"model": "m", "prompt": "the cat", "max_tokens": 20, "temperature": 1, "seed": 5`
	c := completed(t, h, "{"+fields+"}")
	text, reason := stream(t, h, "{"+fields+`, "stream": true}`)
	assert.Equal(t, c["text"], text)
	assert.Equal(t, c["finish_reason"], reason)
	text, _ = stream(t, h, "{"+fields+`, "stream": true, "echo": true, "logprobs": 1}`)
	assert.Equal(t, "the cat"+c["text"].(string), text)
}

func TestMistakesAreErrorsOfTheAPI(t *testing.T) {
	h := opened(t, trained(t), 1, Options{MaxTokens: 20})
	for body, want := range map[string]string{
		`{`: "400 the body: expected one JSON object, found an error at byte 1", `[]`: "400 the body: found [], expected one JSON object",
		`{"model": "m"} x`: "400 the body: expected one JSON object", ``: "400 the body: found nothing", `null`: "400 the body: found null",
		`{"model": "m", "max_tokens": 1.5}`:                   "400 max_tokens: found 1.5, expected an integer",
		`{"model": 3}`:                                        "400 model: found 3, expected a string",
		`{"model": "m", "temperature": "hot"}`:                `400 temperature: found "hot", expected a number`,
		`{"model": "m", "stream": 1}`:                         "400 stream: found 1, expected true or false",
		`{"model": "m", "stop": [1]}`:                         "400 stop: found [1], expected a string or a list of strings",
		`{"model": "m", "Model": "m"}`:                        "400 Model: there is no such field",
		`{"model": "m", "stream": true, "stream_options": 3}`: "400 stream_options: found 3, expected an object",
		`{"model": "m", "user": 3}`:                           "400 user: found 3",
		`{"model": "other", "prompt": "x"}`:                   `404 model: found "other", expected "m"`,
		`{"model": "m", "prompt": {}}`:                        "400 prompt: found {}, expected", `{"model": "m", "prompt": [[]]}`: "400 prompt: prompt[0]",
		`{"model": "m", "prompt": [256]}`:                             "400 prompt: found token 256, expected one below 256",
		`{"model": "m", "prompt": [-1]}`:                              "400 prompt: prompt[0]",
		`{"model": "m", "max_tokens": -1}`:                            "400 max_tokens: found -1",
		`{"model": "m", "max_tokens": 21}`:                            "400 max_tokens: found 21, expected at most 20",
		`{"model": "m", "max_tokens": 40}`:                            "400 1 token of the prompt and max_tokens 40 tokens exceed the context of 32 tokens",
		`{"model": "m", "prompt": "` + strings.Repeat("x", 40) + `"}`: "400 40 tokens of the prompt exceed the context of 32 tokens",
		`{"model": "m", "temperature": -1}`:                           "400 temperature: found -1",
		`{"model": "m", "top_p": 0}`:                                  "400 top_p: found 0, expected a number above 0",
		`{"model": "m", "n": 0}`:                                      "400 n: found 0", `{"model": "m", "n": 1000}`: "400 n: found 1000",
		`{"model": "m", "best_of": 2}`: "400 best_of", `{"model": "m", "suffix": "x"}`: "400 suffix",
		`{"model": "m", "stop": ""}`: "400 stop", `{"model": "m", "logprobs": 21}`: "400 logprobs",
		`{"model": "m", "presence_penalty": 3}`:   "400 presence_penalty: found 3",
		`{"model": "m", "frequency_penalty": -3}`: "400 frequency_penalty",
		`{"model": "m", "repetition_penalty": 0}`: "400 repetition_penalty", `{"model": "m", "min_p": 1.1}`: "400 min_p",
		`{"model": "m", "logit_bias": {"1": 2}}`: "400 logit_bias: found {\"1\": 2}, expected {} or null",
		`{"model": "m", "magic": 0.1}`:           "400 magic: there is no such field",
		`{"model": "m", "stream_options": {}}`:   "400 stream_options",
	} {
		status, out := ask(t, h, "/v1/completions", body)
		require.Contains(t, out, "error", body)
		e := out["error"].(map[string]any)
		assert.Contains(t, fmt.Sprint(status, " ", e["message"]), want, body)
		assert.Equal(t, "invalid_request_error", e["type"])
		if e["param"] != nil {
			assert.Contains(t, want, " "+e["param"].(string), body)
		}
	}
	status, _ := ask(t, h, "/v1/nothing", `{}`)
	assert.Equal(t, http.StatusNotFound, status)
	r, err := http.Post(h.URL+"/v1/completions", "text/plain", strings.NewReader("{}"))
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	assert.Equal(t, http.StatusUnsupportedMediaType, r.StatusCode)
	for path, want := range map[string]int{"/v1/models": 200, "/v1/models/m": 200, "/v1/models/x": 404, "/health": 200} {
		r, err := http.Get(h.URL + path)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		assert.Equal(t, want, r.StatusCode, path)
	}
}

// A chat's prompt is what the template makes of it, as transformers renders it.
func TestChat(t *testing.T) {
	dir := trained(t)
	folder := t.TempDir() + "/hf"
	_, err := inference.Export(context.Background(), inference.ExportOptions{From: dir, Out: folder})
	require.NoError(t, err)
	ask400 := func(h *httptest.Server, body, want string) {
		t.Helper()
		status, out := ask(t, h, "/v1/chat/completions", body)
		assert.Equal(t, http.StatusBadRequest, status)
		assert.Contains(t, out["error"].(map[string]any)["message"], want)
	}
	ask400(opened(t, folder, 1, Options{}), `{"model": "m", "messages": [{"role": "user", "content": "a"}]}`,
		"the model has no chat template")

	template := "{%- for m in messages %}\n    {%- if m['role'] == 'bad' %}{{ raise_exception('no bad role') }}{% endif %}\n    {{- m.role[0] + ':' + m['content'] | trim + eos_token }}\n{%- endfor %}\n{% if add_generation_prompt %}\na:{% endif %}"
	c, err := json.Marshal(map[string]any{"chat_template": template, "eos_token": map[string]string{"content": ";"}, "bos_token": nil})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(folder+"/tokenizer_config.json", c, 0o666))
	h := opened(t, folder, 1, Options{})
	const fields = `"model": "m", "temperature": 0, "max_tokens": 6`
	status, out := ask(t, h, "/v1/chat/completions",
		`{`+fields+`, "logprobs": true, "top_logprobs": 2, "messages": [{"role": "user", "content": " the"}, {"role": "assistant", "content": [{"type": "text", "text": "cat"}]}]}`)
	require.Equal(t, http.StatusOK, status, "%v", out)
	choice := out["choices"].([]any)[0].(map[string]any)
	want := completed(t, h, `{`+fields+`, "prompt": "u:the;a:cat;\na:"}`)
	assert.Equal(t, map[string]any{"role": "assistant", "content": want["text"], "refusal": nil}, choice["message"])
	assert.Len(t, choice["logprobs"].(map[string]any)["content"], 6)
	assert.Equal(t, "chat.completion", out["object"])
	ask400(h, `{`+fields+`, "messages": [{"role": "bad", "content": "x"}]}`, "no bad role")
	ask400(h, `{`+fields+`, "messages": []}`, "messages: found none")
	ask400(h, `{`+fields+`, "top_logprobs": 1, "messages": [{"role": "user", "content": "x"}]}`, "top_logprobs")
	ask400(h, `{`+fields+`, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}`, `found a part of type "image_url"`)

	require.NoError(t, os.WriteFile(folder+"/chat_template.jinja", []byte("{% include '/etc/passwd' %}"), 0o666))
	src, err := inference.OpenModel(folder, "")
	require.NoError(t, err)
	_, err = openTemplate(src.Tokenizer.Special())
	assert.ErrorContains(t, err, "line 1: the tag include is not supported")
}
