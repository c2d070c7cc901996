package serve

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// follows is the next token after each, by the model of twoEnds: x and an end after a, y and the other end after b, x
// after a space.
var follows = []int{2, 3, 5, 6, 2, 0, 1, 0}

// twoEnds is the folder of a model that is sure of each next token, with a chat template, two ends and a token of a
// side file.
func twoEnds(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	const config = `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1,
		"num_attention_heads": 2, "intermediate_size": 4, "max_position_embeddings": 8, "tie_word_embeddings": false}`
	for name, text := range map[string]string{
		"config.json": config, tokenizer.GenerationFile: `{"eos_token_id": [6, 5]}`,
		tokenizer.File: `{"added_tokens": [{"id": 5, "content": "<|end|>", "special": true}, {"id": 6, "content": "<|im_end|>", "special": true}],
			"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"},
			"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "x": 2, "y": 3, "Ġ": 4}, "merges": []}}`,
		tokenizer.ConfigFile: `{"eos_token": "<|end|>", "bos_token": "<s>", "pad_token": "<|im_end|>",
			"chat_template": [{"name": "default", "template": "{{ messages[-1].content }}"}, {"name": "tool_use", "template": "b"}]}`,
		"added_tokens.json": `{"<s>": 7}`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	c, err := model.FromJSON([]byte(config))
	require.NoError(t, err)
	var entries []safetensors.Entry
	for _, p := range c.Parameters() {
		x := make([]float32, p.Type.Shape.Len())
		for i := range x {
			switch column := i % 8; {
			case strings.Contains(p.Name, "norm"):
				x[i] = 1
			case strings.Contains(p.Name, "embed_tokens") && column == i/8:
				x[i] = 1
			case strings.Contains(p.Name, "lm_head") && column < len(follows) && follows[column] == i/8:
				x[i] = 20
			}
		}
		var data bytes.Buffer
		require.NoError(t, binary.Write(&data, binary.LittleEndian, x))
		entries = append(entries, safetensors.Entry{Name: p.Name, DType: safetensors.F32, Shape: p.Type.Shape, Data: data.Bytes()})
	}
	require.NoError(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), entries))
	return dir
}

// tuned trains the model of a folder for two steps with a stop between them, at a rate that changes nothing.
func tuned(t *testing.T, folder string) (run string) {
	t.Helper()
	dir := t.TempDir()
	text := filepath.Join(dir, "text.jsonl")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("{\"text\": \"ax\"}\n{\"text\": \"by<|im_end|>ax\"}\n", 20)), 0o644))
	c := traintest.Demo(t, dir, "model={seq_len: 8}", "init.from="+folder,
		"data={train: ["+text+"], val_fraction: 0.2, document_mask: true}",
		"train={steps: 2, batch_size: 2, microbatches: 2, save_every: 1}", "optimizer.lr=1e-9", "optimizer.adamw.lr=1e-9",
		"optimizer.weight_decay=0")
	o := runtest.Options(&traintest.Reference{}, &runtest.Notes{})
	o.StopAfter = 1
	_, err := train.Run(context.Background(), c, o)
	require.NoError(t, err)
	o.StopAfter, o.Resume = 0, true
	_, err = train.Run(context.Background(), c, o)
	require.NoError(t, err)
	return c.Run.Dir
}

// What belongs to a tokenizer passes whole through training, checkpoints, resuming and exports, and each end of its
// list ends a document and an answer.
func TestTheWholeTokenizer(t *testing.T) {
	folder := twoEnds(t)
	run := tuned(t, folder)
	out := t.TempDir()
	places := []string{folder, run, traintest.StepDir(run, 1), filepath.Join(out, "hf"), filepath.Join(out, "m.gguf"),
		filepath.Join(out, "again")}
	for _, o := range []inference.ExportOptions{{From: run, Out: places[3]}, {From: run, Out: places[4], Format: inference.FormatGGUF},
		{From: places[4], Out: places[5]}} {
		_, err := inference.Export(context.Background(), o)
		require.NoError(t, err)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(folder, tokenizer.ConfigFile)))
	var want *tokenizer.Special
	for i, place := range places[1:] {
		src, err := inference.OpenModel(place, "")
		require.NoError(t, err)
		s := src.Tokenizer.Special()
		if i == 0 {
			want = s
			assert.Equal(t, map[string]tokenizer.Token{tokenizer.RoleEOS: {ID: 5, Text: "<|end|>"}, tokenizer.RoleBOS: {ID: 7, Text: "<s>"},
				tokenizer.RolePad: {ID: 6, Text: "<|im_end|>"}}, s.Roles)
			assert.Equal(t, []uint32{6, 5}, s.Ends)
			assert.Equal(t, []tokenizer.Template{{Name: "default", Source: "{{ messages[-1].content }}"},
				{Name: "tool_use", Source: "b"}}, s.Templates)
		}
		assert.Equal(t, want, s, place)
		ids, err := src.Tokenizer.Encode([]byte("a<s>b"))
		require.NoError(t, err)
		assert.Equal(t, []uint32{0, 7, 1}, ids, place)
		require.NoError(t, src.Close())
		assert.Equal(t, "x", generated(t, place, "a", 5, inference.Sampling{TopP: 1}), place)
		answersEnd(t, place)
	}
	sameLoss(t, run, places[3:])
}

// A checkpoint of an earlier version, which kept tokenizer.json alone, has what belongs to the run's tokenizer if that
// is still there. A note says what is assumed.
func TestOldCheckpointsSayWhatIsAssumed(t *testing.T) {
	folder := twoEnds(t)
	run := tuned(t, folder)
	dir := traintest.StepDir(run, 2)
	manifest := traintest.JSONOf(t, filepath.Join(dir, "manifest.json"))
	manifest["files"] = slices.DeleteFunc(manifest["files"].([]any), func(f any) bool {
		name := f.(map[string]any)["name"].(string)
		return (name == tokenizer.ConfigFile || name == tokenizer.GenerationFile) && os.Remove(filepath.Join(dir, name)) == nil
	})
	text, err := json.Marshal(manifest)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "manifest.json"), text, 0o644))
	open := func() (s *tokenizer.Special, notes string) {
		src, err := inference.OpenWeights(run, nil, "", "", func(format string, args ...any) { notes += fmt.Sprintf(format, args...) })
		require.NoError(t, err)
		require.NoError(t, src.Close())
		return src.Tokenizer.Special(), notes
	}
	s, notes := open()
	assert.Equal(t, []any{[]uint32{6, 5}, 2}, []any{s.Ends, len(s.Templates)})
	assert.Contains(t, notes, "step-2 keeps tokenizer.json alone: its special tokens and chat template are assumed to be those of "+folder)
	require.NoError(t, os.RemoveAll(folder))
	s, notes = open()
	assert.Empty(t, s.Ends)
	assert.Contains(t, notes, "is not there: no token ends a document; name the tokenizer with --tokenizer")
}

// answersEnd asks a server for texts that end at one end of the list, and at the other.
func answersEnd(t *testing.T, place string) {
	t.Helper()
	h := opened(t, place, 2, Options{})
	for prompt, want := range map[string]string{"a": "x", "b": "y"} {
		c := completed(t, h, fmt.Sprintf(`{"model": "m", "prompt": %q, "max_tokens": 5, "temperature": 0}`, prompt))
		assert.Equal(t, []any{want, "stop"}, []any{c["text"], c["finish_reason"]}, place)
		status, out := ask(t, h, "/v1/chat/completions",
			fmt.Sprintf(`{"model": "m", "max_tokens": 5, "temperature": 0, "messages": [{"role": "user", "content": %q}]}`, prompt))
		require.Equal(t, http.StatusOK, status, "%v", out)
		choice := out["choices"].([]any)[0].(map[string]any)
		assert.Equal(t, []any{want, "stop"}, []any{choice["message"].(map[string]any)["content"], choice["finish_reason"]}, place)
	}
}

// sameLoss compares an evaluation of a run's model with the loss that the run measured last, and the tokens of texts
// and the answers to a question between the run and its exports.
func sameLoss(t *testing.T, run string, exports []string) {
	t.Helper()
	measured := traintest.Measurements(t, run)
	e, err := inference.Evaluate(context.Background(), inference.EvalOptions{From: run, BatchSize: 2, Target: onReference})
	require.NoError(t, err)
	assert.InDelta(t, measured[len(measured)-1].Values["val_loss"], e.Loss, 1e-6)
	dir := t.TempDir()
	question := filepath.Join(dir, "q.jsonl")
	require.NoError(t, os.WriteFile(question, []byte(`{"context": "a", "choices": ["y", "x"], "answer": 1}`+"\n"), 0o644))
	for i, place := range append(exports, run) {
		stored, err := inference.TopK(context.Background(),
			inference.TopKOptions{From: place, Data: []string{filepath.Join(filepath.Dir(run), "text.jsonl")}, K: 1,
				BatchSize: 2, Target: onReference, Out: filepath.Join(dir, fmt.Sprint(i))})
		require.NoError(t, err, place)
		assert.EqualValues(t, 180, stored.Tokens, "an end after each of 40 documents of 2 or 5 tokens")
		o := inference.TaskOptions{EvalOptions: inference.EvalOptions{From: place, BatchSize: 1, Target: onReference},
			Files: []string{question}}
		answered, err := inference.AnswerTasks(context.Background(), o)
		require.NoError(t, err, place)
		assert.Equal(t, 1.0, answered.Tasks[0].Accuracy, place)
	}
}
