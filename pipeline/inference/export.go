package inference

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
)

// ExportOptions select the weights to export, and the format.
type ExportOptions struct {
	From       string // as OpenModel takes it
	Step       *int   // of a run's checkpoint; nil: the latest good one
	Weights    Version
	Tokenizer  string // empty: the model's own
	Format     string // FormatFolder ("" too) or FormatGGUF
	DType      string // f32 ("" too), bf16, f16; for FormatGGUF also q8_0
	Out        string // the folder or file to make
	Force      bool   // replace an earlier export
	ShardLimit int64  // bytes of tensors in one file; 0: as Hugging Face
	Progress   func(done, total int64)
	Note       func(format string, args ...any) // messages for the user; nil: none
}

// The values of ExportOptions.Format.
const (
	FormatFolder = "hf"
	FormatGGUF   = "gguf"
)

// Exported describes the written export.
type Exported struct {
	Out        string   `json:"out"`
	Model      string   `json:"model"` // the folder that the tensors come from
	Step       *int     `json:"step,omitempty"`
	Weights    Version  `json:"weights"`
	DType      string   `json:"dtype"`
	Parameters int64    `json:"parameters"`
	Bytes      int64    `json:"bytes"` // of tensors
	Files      []string `json:"files"`
}

// exportType is a number type by its names in the formats.
type exportType struct {
	dtype safetensors.DType
	torch string
}

var exportTypes = map[string]exportType{
	"f32": {safetensors.F32, "float32"}, "bf16": {safetensors.BF16, "bfloat16"}, "f16": {safetensors.F16, "float16"},
}

// Export writes a model as a folder that Hugging Face's transformers reads: config.json, generation_config.json,
// tokenizer.json, tokenizer_config.json and model.safetensors, in shards with an index where it is large. The folder
// appears whole or not at all. A model that a hook builds has other tensors than a Llama: its folder holds the module
// instead, and OpenModel reads it. With FormatGGUF, Export writes one file for llama.cpp. Errors of the input are
// marked by usererror.
func Export(ctx context.Context, o ExportOptions) (out Exported, err error) {
	o.DType = cmp.Or(o.DType, "f32")
	if o.Format == FormatGGUF {
		return exportGGUF(ctx, o)
	}
	as, ok := exportTypes[o.DType]
	if !ok {
		return out, usererror.Errorf("dtype: found %q, expected f32, bf16 or f16", o.DType)
	}
	if err := checkOut(o.Out, o.Force); err != nil {
		return out, usererror.New(err)
	}
	src, out, err := o.open()
	if err != nil {
		return out, err
	}
	defer src.Close()
	out.Bytes = src.Model.Count() * as.dtype.Size()
	if src.saved != nil {
		orSilent(o.Note)("a hook built this model: the folder has its module, %s, and gpupipe reads it; transformers does not",
			config.ModuleFile)
	}
	files, err := src.exported(as, o.ShardLimit, src.converter(ctx, as.dtype, out.Bytes, o.Progress))
	if err != nil {
		return out, err
	}
	err = atomicfile.WriteFolder(o.Out, o.Force, func(dir string) error {
		for _, f := range files {
			if err := atomicfile.Write(filepath.Join(dir, f.Name), f.Encode); err != nil {
				return err
			}
			out.Files = append(out.Files, f.Name)
		}
		return nil
	})
	if ctx.Err() != nil {
		return out, ctx.Err()
	}
	return out, usererror.New(err)
}

// open opens the model, and describes the export as far as it does not depend on the format.
func (o ExportOptions) open() (src *Source, out Exported, err error) {
	if src, err = OpenWeights(o.From, o.Step, o.Tokenizer, o.Weights, o.Note); err != nil {
		return nil, out, err
	}
	out = Exported{Out: o.Out, Model: src.Dir, Weights: cmp.Or(o.Weights, VersionX), DType: o.DType, Parameters: src.Model.Count()}
	if c := src.checkpoint; c != nil {
		out.Step = &c.Step
	}
	return src, out, nil
}

// exportFile matches the names of an export's files besides its weights.
var exportFile = regexp.MustCompile(`^(config|generation_config|tokenizer|tokenizer_config)\.json$|^chat_template\.jinja$|^model\.wasm$`)

// exportWeights matches the names of an export's files of weights and of their index.
var exportWeights = regexp.MustCompile(`^model(-\d{5}-of-\d{5})?\.safetensors$|^model\.safetensors\.index\.json$`)

// IsWeights reports whether an export gives a file of weights, or their index, this name.
func IsWeights(name string) bool { return exportWeights.MatchString(name) }

// checkOut returns an error unless an export may be written at a path: at a new path, into an empty folder, or with
// force over an earlier export.
func checkOut(path string, force bool) error {
	if path == "" {
		return fmt.Errorf("out: found nothing, expected the folder to make")
	}
	if err := atomicfile.CheckName(path); err != nil {
		return err
	}
	st, err := os.Lstat(path)
	switch {
	case os.IsNotExist(err):
		return nil
	case err != nil:
		return err
	case !st.IsDir():
		return fmt.Errorf("%s: a file, expected a folder to make", path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !exportFile.MatchString(e.Name()) && !IsWeights(e.Name()) {
			return fmt.Errorf("%s: found %s, expected only files of an export: choose another folder", path, e.Name())
		}
	}
	if len(entries) > 0 && !force {
		return fmt.Errorf("%s: a model is there already: replace it with --force, or choose another folder", path)
	}
	return nil
}

// converter converts the tensors of parameters. It keeps the parameter that it has read last.
type converter struct {
	ctx      context.Context
	src      *Source
	naming   model.Naming
	progress func(done, total int64) // may be nil
	total    int64                   // bytes

	done   int64
	last   string // the parameter that has the values
	values []float32
}

// write writes a tensor of a parameter, of size bytes.
func (c *converter) write(p model.Parameter, t model.Tensor, size int64, encode func(x []float32) error) (err error) {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if c.last != p.Name {
		if c.values, err = c.src.weights.Initial(p); err != nil {
			return err
		}
		c.last = p.Name
	}
	x := make([]float32, t.Shape.Len())
	for _, piece := range t.Pieces {
		copy(x[piece.From:piece.From+piece.Len], c.values[piece.To:])
	}
	if err := encode(x); err != nil {
		return err
	}
	if c.done += size; c.progress != nil {
		c.progress(c.done, c.total)
	}
	return nil
}

// converter returns the tensors of a parameter as they are written. A parameter is read when its first one is written.
func (src *Source) converter(ctx context.Context, d safetensors.DType, total int64,
	progress func(done, total int64)) func(model.Parameter) []safetensors.Entry {
	c := &converter{ctx: ctx, src: src, naming: model.ExportNaming(src.Model), progress: progress, total: total}
	return func(p model.Parameter) (entries []safetensors.Entry) {
		for _, t := range c.naming.Tensors(p) {
			entries = append(entries, safetensors.Entry{Name: t.Name, DType: d, Shape: t.Shape, WriteTo: func(w io.Writer) error {
				return c.write(p, t, int64(t.Shape.Len())*d.Size(), func(x []float32) error { return safetensors.WriteFloats(w, x, d) })
			}})
		}
		return entries
	}
}

// exported lists the files to write, the small ones first.
func (src *Source) exported(as exportType, limit int64, entry func(model.Parameter) []safetensors.Entry) ([]safetensors.Output, error) {
	var entries []safetensors.Entry
	for _, p := range src.Model.Parameters() {
		entries = append(entries, entry(p)...)
	}
	tensors, err := safetensors.Layout("model", entries, limit)
	if err != nil {
		return nil, err
	}
	fields, module, err := src.describe(as.torch)
	if err != nil {
		return nil, err
	}
	outputs := []safetensors.Output{jsonFile("config.json", fields)}
	files := tokenizer.Files(src.Tokenizer, src.Model.Size().SeqLen)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		outputs = append(outputs, textFile(name, files[name]))
	}
	return slices.Concat(outputs, module, tensors), nil
}

// describe returns config.json, and the module of a model that a hook builds.
func (src *Source) describe(dtype string) (fields map[string]any, module []safetensors.Output, err error) {
	if c, ok := src.Model.(model.Config); ok {
		if err := c.Exportable(); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", src.Dir, fielderror.In("model", err))
		}
	}
	text := src.Model.HuggingFace()
	if text == nil {
		by, _ := src.hooks.ModelModule()
		text, module = by.JSON(src.Model.Size(), dtype), []safetensors.Output{textFile(config.ModuleFile, by.Content())}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // a module's seed has more digits than a float64
	if err := d.Decode(&fields); err != nil {
		panic(err) // what was just made
	}
	fields["torch_dtype"] = dtype
	maps.Copy(fields, tokenizer.SpecialIDs(src.Tokenizer))
	return fields, module, nil
}

func jsonFile(name string, v map[string]any) safetensors.Output {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err) // texts and numbers
	}
	return textFile(name, append(text, '\n'))
}

func textFile(name string, text []byte) safetensors.Output {
	return safetensors.Output{Name: name, Encode: func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	}}
}
