package pretrained

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
)

// tiny is a tied Llama.
const tiny = `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4, "hidden_size": 2, "num_hidden_layers": 1,
"num_attention_heads": 1, "intermediate_size": 2, "max_position_embeddings": 8, "tie_word_embeddings": true}`

// save writes the model's folder. Tensors have the values first, first+1, …; name may rename or, by "", omit one; the
// head is present if there is a value for it.
func save(t *testing.T, name func(string) string, head *float32, limit int64) string {
	t.Helper()
	dir := t.TempDir()
	c, err := model.FromJSON([]byte(tiny))
	require.NoError(t, err)
	var entries []safetensors.Entry
	add := func(tensor string, shape graph.Shape, first float32) {
		var data bytes.Buffer
		for i := range shape.Len() {
			require.NoError(t, binary.Write(&data, binary.LittleEndian, first+float32(i)))
		}
		if tensor = name(tensor); tensor != "" {
			entries = append(entries, safetensors.Entry{Name: tensor, DType: safetensors.F32, Shape: shape, Data: data.Bytes()})
		}
	}
	for _, p := range c.Parameters() {
		add(p.Name, p.Type.Shape, 1)
	}
	if head != nil {
		add(headName, graph.Shape{4, 2}, *head)
	}
	outputs, err := safetensors.Layout("model", entries, limit)
	require.NoError(t, err)
	for _, o := range outputs {
		require.NoError(t, atomicfile.Write(filepath.Join(dir, o.Name), o.Encode))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, ConfigFile), []byte(tiny), 0o666))
	return dir
}

func same(name string) string { return name }

func number(x float32) *float32 { return &x }

// As transformers 5.23 does: an equal matrix of the head is tied, another one is not.
func TestHeadOfTiedModels(t *testing.T) {
	for what, c := range map[string]struct {
		head  *float32
		limit int64
		tied  bool
	}{"absent": {nil, 0, true}, "equal": {number(1), 0, true}, "another": {number(2), 0, false},
		"another, in shards": {number(2), 40, false}} {
		dir := save(t, same, c.head, c.limit)
		got, err := Config(dir)
		require.NoError(t, err, what)
		assert.Equal(t, c.tied, got.TieEmbeddings, what)
		read, err := Open(dir, got)
		require.NoError(t, err, what)
		if c.tied {
			assert.Empty(t, read.Notes, what)
		} else {
			assert.Contains(t, strings.Join(read.Notes, "\n"), "they are two matrices, as in transformers", what)
		}
		require.NoError(t, read.Close())
	}
}

// Matrices are compared in pieces, to the last element.
func TestLargeHeads(t *testing.T) {
	dir := t.TempDir()
	n := 2*comparedAtOnce + 3
	entry := func(name string, last byte) safetensors.Entry {
		data := make([]byte, 2*n)
		data[len(data)-1] = last
		return safetensors.Entry{Name: name, DType: safetensors.BF16, Shape: graph.Shape{n, 1}, Data: data}
	}
	for last, want := range map[byte]bool{0: true, 3: false} {
		require.NoError(t, safetensors.Write(filepath.Join(dir, "model.safetensors"),
			[]safetensors.Entry{entry(embedName, 0), entry(headName, last)}))
		r, err := safetensors.Open(dir)
		require.NoError(t, err)
		read := Tensors{Reader: r}
		same, err := read.sameHead()
		require.NoError(t, err)
		assert.Equal(t, want, same)
		require.NoError(t, read.Close())
	}
}

// Tying goes both ways: a file with the head alone has the embedding, too.
func TestHeadWithoutEmbedding(t *testing.T) {
	dir := save(t, func(name string) string {
		if name == embedName {
			return ""
		}
		return name
	}, number(5), 0)
	c, err := Config(dir)
	require.NoError(t, err)
	read, err := Open(dir, c)
	require.NoError(t, err)
	x, err := read.Float32(embedName)
	require.NoError(t, err)
	assert.Equal(t, float32(5), x[0])
	require.NoError(t, read.Close())
}

func TestPrefixes(t *testing.T) {
	for what, rename := range map[string]func(string) string{
		"torch.compile":            func(s string) string { return "_orig_mod." + s },
		"data parallelism":         func(s string) string { return "module." + s },
		"both":                     func(s string) string { return "module._orig_mod." + s },
		"compiled layers":          func(s string) string { return strings.Replace(s, "layers.0.", "layers.0._orig_mod.", 1) },
		"an outer module":          func(s string) string { return "student.net." + s },
		"the model without a head": func(s string) string { return strings.TrimPrefix(s, "model.") },
	} {
		dir := save(t, rename, nil, 0)
		c, err := Config(dir)
		require.NoError(t, err, what)
		read, err := Open(dir, c)
		require.NoError(t, err, what)
		assert.Len(t, read.Notes, 1, what)
		for _, p := range c.Parameters() {
			_, ok := read.Lookup(p.Name)
			assert.True(t, ok, "%s: %s", what, p.Name)
		}
		require.NoError(t, read.Close())
	}
}

// A tied model is read from a file of the class without the head, as transformers does.
func TestModelWithoutItsHead(t *testing.T) {
	for config, want := range map[string]string{
		strings.Replace(tiny, "LlamaForCausalLM", "LlamaModel", 1): "",
		strings.Replace(tiny, `: true`, `: false`,
			1): `no tensor "lm_head.weight", and tie_word_embeddings is false: the file is of a model without its head`,
	} {
		dir := save(t, func(s string) string { return strings.TrimPrefix(s, "model.") }, nil, 0)
		require.NoError(t, os.WriteFile(filepath.Join(dir, ConfigFile), []byte(config), 0o666))
		c, err := Config(dir)
		require.NoError(t, err)
		read, err := Open(dir, c)
		if want != "" {
			require.ErrorContains(t, err, want)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, read.Close())
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, ".", map[string]string{"m/config.json": tiny, "m/README.md": "", "hub/models--o--m/snapshots/a/config.json": tiny})
	for dir, want := range map[string]string{"m": "m: found README.md, config.json, and no weights: expected model.safetensors",
		filepath.Join("hub", "models--o--m", "snapshots", "a"): `"gpupipe fetch hf:o/m" downloads what is missing`} {
		c, err := Config(dir)
		require.NoError(t, err, "a plan needs no weights")
		_, err = Open(dir, c)
		require.ErrorContains(t, err, want)
	}
	dir := save(t, func(s string) string { return "base_model.model." + strings.Replace(s, "q_proj.", "q_proj.lora_A.", 1) }, nil, 0)
	_, err := Config(dir)
	require.ErrorContains(t, err, "is of a PEFT adapter")
	dir = save(t, same, nil, 0)
	require.NoError(t, os.WriteFile(filepath.Join(dir, ConfigFile), []byte("version https://git-lfs.github.com/spec/v1\n"), 0o666))
	_, err = Config(dir)
	require.ErrorContains(t, err, "config.json: found a Git LFS pointer")
}
