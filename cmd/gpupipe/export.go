package main

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/train"
)

type exportCommand struct {
	From      string `arg:"" name:"model" help:"A run folder, a checkpoint, or a folder in Hugging Face's Llama layout."`
	Out       string `help:"The folder to make." required:"" placeholder:"DIR"`
	Step      *int   `help:"Of a run: the checkpoint of this step instead of the latest." placeholder:"N"`
	Weights   string `help:"Of a run whose updates are delayed: x, at which it trains, or y, which hold every update." enum:"x,y" default:"x"`
	DType     string `name:"dtype" help:"Numbers to store: f32, bf16, f16." enum:"f32,bf16,f16" default:"f32"`
	Tokenizer string `help:"bytes, gpt2 or a tokenizer.json, instead of the model's own."`
	Force     bool   `help:"Replace an earlier export."`
	JSON      bool   `help:"Print a JSON object."`
}

func (c *exportCommand) Help() string {
	return `Writes config.json, generation_config.json, tokenizer.json, tokenizer_config.json and model.safetensors (in shards of 5 GB with
an index where it is larger), which transformers and most other tools read. The folder appears whole or not at all. A model that a hook wrote is no Llama: its
folder holds the module too, model.wasm, and gpupipe alone reads it.

Examples:
  gpupipe export runs/demo --out demo-hf --dtype bf16
  gpupipe export runs/2bw --step 1000 --weights y --out 2bw-hf
  then, in Python: AutoModelForCausalLM.from_pretrained("demo-hf"), AutoTokenizer.from_pretrained("demo-hf")`
}

func (c *exportCommand) Run(a *app) error {
	p := a.progress(c.JSON)
	e, err := train.Export(a.ctx, train.ExportOptions{From: c.From, Step: c.Step, Weights: train.Weights(c.Weights), Tokenizer: c.Tokenizer,
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
	a.table(rows)
	return nil
}
