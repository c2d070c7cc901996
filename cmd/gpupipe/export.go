package main

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/inference"
)

type exportCommand struct {
	From      string `arg:"" name:"model" help:"A run folder, a checkpoint, or a folder in Hugging Face's layout."`
	Out       string `help:"Folder to create." required:"" placeholder:"DIR"`
	Step      *int   `help:"Step of the checkpoint to export. Default: the run's latest." placeholder:"N"`
	Weights   string `help:"Weights of a run with delayed updates: x, at which gradients are computed, or y, which include every update." enum:"x,y" default:"x"`
	DType     string `name:"dtype" help:"Number format to store: f32, bf16, f16." enum:"f32,bf16,f16" default:"f32"`
	Tokenizer string `help:"bytes, gpt2, a tokenizer.json or tokenizer.model, or its folder. Default: the model's own." placeholder:"NAME"`
	Force     bool   `help:"Replace an existing export."`
	JSON      bool   `help:"Print a JSON object."`
}

func (c *exportCommand) Help() string {
	return `Writes config.json, generation_config.json, tokenizer.json, tokenizer_config.json and model.safetensors, which transformers and most
other tools read. A model of more than 5 GB is written in shards with an index. The folder appears complete or not at all. The folder of a
model written by a hook also has the module, model.wasm. Only gpupipe reads such a folder.

Examples:
  gpupipe export runs/demo --out demo-hf --dtype bf16
  gpupipe export runs/2bw --step 1000 --weights y --out 2bw-hf
  then, in Python:
    model = AutoModelForCausalLM.from_pretrained("demo-hf")
    tokenizer = AutoTokenizer.from_pretrained("demo-hf")`
}

func (c *exportCommand) Run(a *app) error {
	p := newProgress(a, c.JSON)
	e, err := inference.Export(a.ctx, inference.ExportOptions{From: c.From, Step: c.Step, Weights: inference.Version(c.Weights), Tokenizer: c.Tokenizer,
		DType: c.DType, Out: c.Out, Force: c.Force, Progress: p.writing, Note: a.note})
	p.line.clear()
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(e)
	}
	rows := [][]string{{"model", e.Model}, {"weights", string(e.Weights)}, {"parameters", fmt.Sprintf("%s as %s, %s bytes", grouped(e.Parameters), e.DType, grouped(e.Bytes))},
		{"folder", e.Out}, {"files", strings.Join(e.Files, ", ")}}
	a.facts(rows)
	return nil
}
