package pretrained

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/placeholder"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
)

// Names of the two tensors that a tied model has as one.
const (
	embedName = "model.embed_tokens.weight"
	headName  = "lm_head.weight"
)

// Tensors are a model's tensors, and what the user should know of them.
type Tensors struct {
	*safetensors.Reader
	Notes []string
}

// Config reads config.json in a folder. A model with tied embeddings whose file has another matrix of the head has two
// matrices, as in transformers.
func Config(dir string) (model.Config, error) {
	c, err := readConfig(dir)
	if err != nil || !c.TieEmbeddings {
		return c, err
	}
	t, err := open(dir, c)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil // Open reports it
	}
	if err != nil {
		return c, err
	}
	equal, err := t.sameHead()
	c.TieEmbeddings = equal
	return c, errors.Join(err, t.Close())
}

func readConfig(dir string) (model.Config, error) {
	path := filepath.Join(dir, ConfigFile)
	text, err := strictyaml.ReadSmall(path)
	if err != nil {
		return model.Config{}, err
	}
	c, err := model.FromJSON(text)
	if err != nil {
		err = fmt.Errorf("%s: %w", path, cmp.Or(placeholder.CheckBytes(text), err))
	}
	return c, err
}

// Open opens a file or folder of safetensors of a model. The tensors of a model.Config have the names that transformers
// gives them, whatever wrapped the model that was saved.
func Open(path string, m model.Model) (Tensors, error) {
	if present(path, ConfigFile) && !hasWeights(path) {
		return Tensors{}, noWeights(path)
	}
	c, ok := m.(model.Config)
	if !ok {
		r, err := safetensors.Open(path)
		return Tensors{Reader: r}, err
	}
	t, err := open(path, c)
	if err != nil {
		return t, err
	}
	_, hasHead := t.Lookup(headName)
	_, hasEmbed := t.Lookup(embedName)
	switch {
	case hasEmbed && !hasHead && !c.TieEmbeddings:
		return Tensors{}, errors.Join(fmt.Errorf("%s: no tensor %q, and tie_word_embeddings is false: the file is of a model without its head, "+
			"expected the whole model, as save_pretrained of its ForCausalLM class writes it", path, headName), t.Close())
	case hasHead && !c.TieEmbeddings:
		if said, err := readConfig(path); err == nil && said.TieEmbeddings {
			t.note("tie_word_embeddings is true, but %s differs from %s: they are two matrices, as in transformers (tie_embeddings is false)", headName, embedName)
		}
	}
	return t, nil
}

// open is Open without the note of a head.
func open(path string, c model.Config) (Tensors, error) {
	r, err := safetensors.Open(path)
	if err != nil {
		return Tensors{}, err
	}
	t := Tensors{Reader: r}
	if err := t.rename(c.TieEmbeddings); err != nil {
		return Tensors{}, errors.Join(fmt.Errorf("%s: %w", path, err), r.Close())
	}
	return t, nil
}

func (t *Tensors) note(format string, args ...any) {
	t.Notes = append(t.Notes, fmt.Sprintf(format, args...))
}

// wrappers are the parts of names that torch.compile, data parallelism and activation checkpointing add.
var wrappers = regexp.MustCompile(`(^|\.)((_orig_mod|module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.)+`)

// adapters matches names of PEFT's tensors.
var adapters = regexp.MustCompile(`\.(lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector|base_layer|modules_to_save)\b`)

// rename removes what wrappers and outer modules add to the names, and adds what saving the inner model left out.
func (t *Tensors) rename(tied bool) error {
	names := make([]string, 0, len(t.Reader.Tensors()))
	for _, x := range t.Reader.Tensors() {
		if adapters.MatchString(x.Name) {
			return fmt.Errorf("tensor %q is of a PEFT adapter, expected those of a whole model: merge it with merge_and_unload() of PEFT",
				x.Name)
		}
		names = append(names, x.Name)
	}
	unwrapped := func(name string) string { return wrappers.ReplaceAllString(name, "$1") }
	if i := slices.IndexFunc(names, wrappers.MatchString); i >= 0 {
		if err := t.apply(unwrapped); err != nil {
			return err
		}
		t.note("names of tensors are read without %q, as in %q", strings.TrimPrefix(wrappers.FindString(names[i]), "."), names[i])
	}
	if prefix, found := t.outer(); found && prefix != "" {
		if err := t.apply(func(name string) string { return strings.TrimPrefix(name, prefix) }); err != nil {
			return err
		}
		t.note("names of tensors are read without %q", prefix)
	} else if _, inner := t.Lookup("embed_tokens.weight"); !found && inner {
		if err := t.apply(withModel); err != nil {
			return err
		}
		t.note("names of tensors are read with \"model.\" in front: the file is of the model without its head")
	}
	_, hasHead := t.Lookup(headName)
	if _, hasEmbed := t.Lookup(embedName); tied && hasHead && !hasEmbed { // tying goes both ways
		return t.apply(func(name string) string {
			if name == headName {
				return embedName
			}
			return name
		})
	}
	return nil
}

// outer finds the prefix of the embedding's name.
func (t *Tensors) outer() (prefix string, found bool) {
	if _, ok := t.Lookup(embedName); ok {
		return "", true
	}
	for _, x := range t.Reader.Tensors() {
		if before, ok := strings.CutSuffix(x.Name, "."+embedName); ok {
			return before + ".", true
		}
	}
	return "", false
}

func withModel(name string) string {
	if name == headName || strings.HasPrefix(name, "model.") {
		return name
	}
	return "model." + name
}

func (t *Tensors) apply(rename func(string) string) error { return t.Reader.Rename(rename) }

// sameHead reports whether the head's matrix is absent, or equal to the embedding.
func (t *Tensors) sameHead() (bool, error) {
	head, hasHead := t.Lookup(headName)
	embed, hasEmbed := t.Lookup(embedName)
	if !hasHead || !hasEmbed {
		return true, nil
	}
	if !slices.Equal(head.Shape, embed.Shape) {
		return false, nil
	}
	return t.equal(head, embed)
}

// comparedAtOnce is how many elements of two tensors are in memory while they are compared.
const comparedAtOnce = 1 << 18

// equal reports whether two tensors of one shape have the same values.
func (t *Tensors) equal(a, b safetensors.Tensor) (bool, error) {
	size, err := a.Bytes()
	if err != nil {
		return false, err
	}
	left := int(size / a.DType.Size())
	x, y := make([]float32, min(left, comparedAtOnce)), make([]float32, min(left, comparedAtOnce))
	for from := 0; left > 0; from, left = from+len(x), left-len(x) {
		x, y = x[:min(left, len(x))], y[:min(left, len(y))]
		if err := errors.Join(t.Float32At(a.Name, from, x), t.Float32At(b.Name, from, y)); err != nil {
			return false, err
		}
		if !slices.Equal(x, y) {
			return false, nil
		}
	}
	return true, nil
}
