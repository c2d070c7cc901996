package main

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/inference"
)

type exportCommand struct {
	modelFlags
	Out    string `help:"Folder to create, or the file with --format gguf." required:"" placeholder:"PATH"`
	Format string `help:"hf: a folder for transformers. gguf: a file for llama.cpp." enum:"hf,gguf" default:"hf"`
	DType  string `name:"dtype" help:"Number format to store: f32, bf16, f16; with --format gguf also q8_0." enum:"f32,bf16,f16,q8_0" default:"f32"`
	Force  bool   `help:"Replace an existing export."`
	JSON   bool   `help:"Print a JSON object."`
}

func (c *exportCommand) Help() string {
	return `Writes config.json, generation_config.json, tokenizer.json, tokenizer_config.json and model.safetensors, which transformers and most
other tools read. A model of more than 5 GB is written in shards with an index. The folder appears complete or not at all. The folder of a
model written by a hook also has the module, model.wasm. Only gpupipe reads such a folder.

With --format gguf it writes one file, tokenizer included, which llama.cpp and programs built on it read. A model or tokenizer that llama.cpp
does not compute is refused by the key in the way.

Examples:
  gpupipe export runs/demo --out demo-hf --dtype bf16
  gpupipe export runs/2bw --step 1000 --weights y --out 2bw-hf
  gpupipe export runs/demo --format gguf --dtype q8_0 --out demo.gguf
  then, in Python:
    model = AutoModelForCausalLM.from_pretrained("demo-hf")
    tokenizer = AutoTokenizer.from_pretrained("demo-hf")`
}

func (c *exportCommand) Run(a *app) error {
	step, err := c.number()
	if err != nil {
		return err
	}
	p := newProgress(a, c.JSON)
	e, err := inference.Export(a.ctx, inference.ExportOptions{From: c.From, Step: step, Weights: c.Weights,
		Tokenizer: c.Tokenizer, Format: c.Format, DType: c.DType, Out: c.Out, Force: c.Force, Progress: p.writing, Note: a.note})
	p.line.clear()
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(e)
	}
	rows := [][]string{{"model", e.Model}, {"weights", string(e.Weights)},
		{"parameters", fmt.Sprintf("%s as %s, %s", grouped(e.Parameters), e.DType, inBytes(e.Bytes))},
		{map[string]string{inference.FormatFolder: "folder", inference.FormatGGUF: "file"}[c.Format], e.Out},
		{"files", strings.Join(e.Files, ", ")}}
	a.facts(rows)
	return nil
}
