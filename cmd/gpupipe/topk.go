package main

import (
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/train"
)

type topKCommand struct {
	From      string   `arg:"" name:"model" help:"A run folder, a checkpoint, or a folder in Hugging Face's Llama layout."`
	Data      []string `help:"Texts or shards, as in a run's data.train; without, the training text of the run." placeholder:"FILE" sep:"none"`
	Field     string   `help:"Of a jsonl object: where its text is." default:"text"`
	K         int      `help:"Tokens to store for each token." default:"8"`
	Out       string   `help:"The safetensors file to write." required:"" placeholder:"FILE"`
	Force     bool     `help:"Replace an earlier file."`
	Tokenizer string   `help:"bytes, gpt2 or a tokenizer.json, instead of the model's own."`
	Weights   string   `help:"Of a run whose updates are delayed: x, at which it trains, or y, which hold every update." enum:"x,y" default:"x"`
	SeqLen    int      `help:"Tokens of a window, instead of the model's context: that of the model to be trained."`
	BatchSize int      `help:"Windows at a time." default:"4"`
	Device    string   `help:"Where to compute: webgpu:0, null."`
	JSON      bool     `help:"Print a JSON object."`
}

func (c *topKCommand) Help() string {
	return `For each token of a text, stores the tokens that the model holds likeliest to come next, and the logarithms of their probabilities:
what a smaller model is distilled from. It computes in f32, whatever train.precision the run has.

Example:
  gpupipe topk runs/teacher --data text.txt --k 8 --out teacher.safetensors
  then: data: {train: [text.txt], aligned: [teacher.safetensors]}
        hooks: [{file: examples/hooks/distillation.wasm, hook: build_loss, config: {alpha: 0.5}}]`
}

func (c *topKCommand) Run(a *app) error {
	if err := windowFlags(c.BatchSize, c.SeqLen); err != nil {
		return err
	}
	p := a.progress(c.JSON)
	s, err := train.TopK(a.ctx, train.TopKOptions{From: c.From, Data: c.Data, Field: c.Field, K: c.K, Out: c.Out, Force: c.Force, Tokenizer: c.Tokenizer,
		Weights: train.Weights(c.Weights), SeqLen: c.SeqLen, BatchSize: c.BatchSize, Device: c.Device, OpenDevice: a.openDevice,
		Progress: p.predicting, Note: a.note})
	p.line.clear()
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(s)
	}
	a.table([][]string{{"model", s.Model}, {"weights", string(s.Weights)}, {"text", s.Text}, {"tokens", grouped(s.Tokens)},
		{"windows of", fmt.Sprintf("%d tokens", s.SeqLen)}, {"file", s.Out}, {"tensors", fmt.Sprintf("teacher_ids u32 and teacher_logprobs f32 [%d, %d], %s bytes", s.Tokens, s.K, grouped(s.Bytes))}})
	return nil
}
