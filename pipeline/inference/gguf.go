package inference

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/gguf"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
)

// ggufType is a number type of a GGUF file.
type ggufType struct {
	dtype gguf.Type
	file  uint32 // general.file_type
}

var ggufTypes = map[string]ggufType{"f32": {gguf.F32, 0}, "f16": {gguf.F16, 1}, "q8_0": {gguf.Q8_0, 7}, "bf16": {gguf.BF16, 32}}

// exportGGUF writes a model as a GGUF file.
func exportGGUF(ctx context.Context, o ExportOptions) (out Exported, err error) {
	as, ok := ggufTypes[o.DType]
	if !ok {
		return out, usererror.Errorf("dtype: found %q, expected f32, f16, bf16 or q8_0", o.DType)
	}
	if err := checkOutFile(o.Out, o.Force); err != nil {
		return out, usererror.New(err)
	}
	src, out, err := o.open()
	if err != nil {
		return out, err
	}
	defer src.Close()
	out.Files = []string{filepath.Base(o.Out)}
	keys, err := src.ggufKeys(as.file, orSilent(o.Note))
	if err != nil {
		return out, usererror.New(err)
	}
	tensors, err := src.ggufTensors(ctx, as.dtype, o, &out.Bytes)
	if err != nil {
		return out, usererror.New(err)
	}
	err = atomicfile.Write(o.Out, func(w io.Writer) error { return gguf.Write(w, keys, tensors) })
	if ctx.Err() != nil {
		return out, ctx.Err()
	}
	return out, usererror.New(err)
}

// checkOutFile returns an error unless a file may be written at a path: at a new path, or with force over another GGUF
// file.
func checkOutFile(path string, force bool) error {
	if path == "" {
		return fmt.Errorf("out: found nothing, expected the file to make")
	}
	st, err := os.Lstat(path)
	switch {
	case os.IsNotExist(err):
		return os.MkdirAll(filepath.Dir(path), 0o777)
	case err != nil:
		return err
	case st.IsDir():
		return fmt.Errorf("%s: a folder, expected a file to make, such as %s", path, filepath.Join(path, "model.gguf"))
	case !gguf.IsFile(path):
		return fmt.Errorf("%s: a file that is not GGUF: choose another name", path)
	case !force:
		return fmt.Errorf("%s: a model is there already: replace it with --force, or choose another name", path)
	}
	return nil
}

// ggufKeys are the metadata: the model's, the tokenizer's, and general ones.
func (src *Source) ggufKeys(fileType uint32, note func(format string, args ...any)) ([]gguf.Key, error) {
	c, ok := src.Model.(model.Config)
	if !ok {
		return nil, fmt.Errorf("%s: a hook built this model, expected one that llama.cpp computes", src.Dir)
	}
	shape, err := c.GGUF()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", src.Dir, fielderror.In("model", err))
	}
	keys := []gguf.Key{{Name: "general.architecture", Value: shape["general.architecture"]}, {Name: "general.type", Value: "model"},
		{Name: "general.name", Value: src.Name()}, {Name: "general.file_type", Value: fileType},
		{Name: "general.quantization_version", Value: uint32(2)}}
	for _, name := range slices.Sorted(maps.Keys(shape)) {
		if name != "general.architecture" {
			keys = append(keys, gguf.Key{Name: name, Value: shape[name]})
		}
	}
	words, err := tokenizer.GGUF(src.Tokenizer, c.VocabSize, note)
	return append(keys, words...), err
}

// ggufTensors lists the tensors to write, and adds up their bytes. Vectors and routers are F32, as llama.cpp wants
// them. A matrix whose rows are no whole blocks of Q8_0 is F16.
func (src *Source) ggufTensors(ctx context.Context, d gguf.Type, o ExportOptions, bytes *int64) ([]gguf.Entry, error) {
	config := src.Model.(model.Config)
	naming, err := config.GGUFNaming()
	if err != nil {
		return nil, err
	}
	c := &converter{ctx: ctx, src: src, naming: naming, progress: o.Progress}
	var entries []gguf.Entry
	if factors := config.RopeFactors(); factors != nil {
		t := gguf.Tensor{Name: model.RopeFactorsTensor, Shape: []int{len(factors)}, Type: gguf.F32}
		entries = append(entries, gguf.Entry{Tensor: t,
			WriteTo: func(w io.Writer) error { return gguf.EncodeFloats(w, factors, gguf.F32) }})
	}
	narrow := 0
	for _, p := range src.Model.Parameters() {
		for _, t := range naming.Tensors(p) {
			as := gguf.Tensor{Name: t.Name, Shape: t.Shape, Type: d}
			switch {
			case len(t.Shape) < 2 || p.Role == model.Router:
				as.Type = gguf.F32
			case d == gguf.Q8_0 && t.Shape[len(t.Shape)-1]%gguf.BlockSize != 0:
				as.Type = gguf.F16
				narrow++
			}
			size, err := as.Bytes()
			if err != nil {
				return nil, err
			}
			c.total += size
			entries = append(entries, gguf.Entry{Tensor: as, WriteTo: func(w io.Writer) error {
				return c.write(p, t, size, func(x []float32) error { return gguf.EncodeFloats(w, x, as.Type) })
			}})
		}
	}
	if narrow > 0 {
		orSilent(o.Note)("%d tensors are f16: their rows are not a multiple of the %d elements of a block of q8_0", narrow, gguf.BlockSize)
	}
	*bytes = c.total
	return entries, nil
}
