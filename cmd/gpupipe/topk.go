package main

import (
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/inference"
)

type topKCommand struct {
	modelFlags
	Data      []string `hub:"data" help:"Texts or shards. Default: the run's training text." placeholder:"FILE" sep:"none"`
	Field     string   `help:"Field of JSON objects, or column of .parquet and .arrow, that has the text." default:"text"`
	K         int      `help:"Number of likeliest tokens to store for each token." default:"8"`
	Out       string   `help:"Safetensors file to write." required:"" placeholder:"FILE"`
	Force     bool     `help:"Replace an existing file."`
	SeqLen    int      `help:"Context of the model to be trained, in tokens. Default: this model's context." placeholder:"TOKENS"`
	BatchSize int      `help:"Windows in a batch." default:"4"`
	Device    string   `help:"Device to compute on: cpu:0, webgpu:0, vulkan:0, null." placeholder:"NAME"`
	JSON      bool     `help:"Print a JSON object."`
}

func (c *topKCommand) Help() string {
	return `Stores, for each token of a text, the model's likeliest next tokens and the logarithms of their probabilities. A smaller model can be
distilled from them. Computes in f32.

Example:
  gpupipe topk runs/teacher --data text.txt --k 8 --out teacher.safetensors
  then, in the config:
    data: {train: [text.txt], aligned: [teacher.safetensors]}
    hooks:
      - file: examples/hooks/distillation.wasm
        hook: build_loss
        config: {alpha: 0.5}`
}

func (c *topKCommand) Run(a *app) error {
	if err := windowFlags(c.BatchSize, c.SeqLen); err != nil {
		return err
	}
	from, err := c.place()
	if err != nil {
		return err
	}
	p := newProgress(a, c.JSON)
	s, err := inference.TopK(a.ctx, inference.TopKOptions{From: from, Data: c.Data, Field: c.Field, K: c.K, Out: c.Out, Force: c.Force,
		Tokenizer: c.Tokenizer, Weights: c.Weights, SeqLen: c.SeqLen, BatchSize: c.BatchSize,
		Target:   inference.Target{Device: c.Device, Open: a.openDevice},
		Progress: p.predicting, Note: a.note})
	p.line.clear()
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(s)
	}
	a.facts([][]string{{"model", s.Model}, {"weights", string(s.Weights)}, {"text", s.Text}, {"tokens", grouped(s.Tokens)},
		{"windows of", fmt.Sprintf("%d tokens", s.SeqLen)}, {"file", s.Out},
		{"tensors", fmt.Sprintf("teacher_ids u32 and teacher_logprobs f32 [%d, %d], %s", s.Tokens, s.K, inBytes(s.Bytes))}})
	return nil
}
