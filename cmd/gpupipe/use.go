package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

type evalCommand struct {
	From      string   `arg:"" name:"model" help:"A run folder, a checkpoint, or a folder in Hugging Face's Llama layout."`
	Data      []string `help:"Texts or shards to evaluate on; without, the text that the run held out." placeholder:"FILE" sep:"none"`
	Tokenizer string   `help:"bytes, gpt2 or a tokenizer.json, instead of the model's own."`
	Weights   string   `help:"Of a run whose updates are delayed: x, at which it trains, or y, which hold every update." enum:"x,y" default:"x"`
	SeqLen    int      `help:"Tokens of context, instead of the model's."`
	BatchSize int      `help:"Sequences at a time." default:"4"`
	Device    string   `help:"Where to compute: webgpu:0, vulkan:0, null."`
	JSON      bool     `help:"Print a JSON object."`
}

func (c *evalCommand) Help() string {
	return `Computes in f32, whatever train.precision the run has: its val_loss, which is computed in that precision, differs by rounding.

Example:
  gpupipe eval runs/demo --weights y`
}

func (c *evalCommand) Run(a *app) error {
	if err := windowFlags(c.BatchSize, c.SeqLen); err != nil {
		return err
	}
	p := a.progress(c.JSON)
	e, err := train.Evaluate(a.ctx, train.EvalOptions{From: c.From, Data: c.Data, Tokenizer: c.Tokenizer, SeqLen: c.SeqLen,
		BatchSize: c.BatchSize, Device: c.Device, OpenDevice: a.openDevice, Progress: p.Reading,
		Weights: train.Weights(c.Weights), Note: a.note})
	p.line.clear()
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(e)
	}
	rows := [][]string{
		{"model", e.Model}, {"weights", string(e.Weights)}, {"text", e.Text}, {"tokens", grouped(e.Tokens)}, {"loss", fmt.Sprintf("%.4f nats per token", e.Loss)},
		{"perplexity", fmt.Sprintf("%.4g", e.Perplexity)},
	}
	if e.Bytes > 0 {
		rows = append(rows, []string{"bits per byte", fmt.Sprintf("%.4f", e.BitsPerByte)})
	}
	a.table(append(rows, []string{"unigram entropy", fmt.Sprintf("%.4f nats per token", e.UnigramEntropy)}))
	return nil
}

// windowFlags refuses sizes that no device computes with.
func windowFlags(batchSize, seqLen int) error {
	switch {
	case batchSize < 1 || batchSize > 1<<16:
		return usererror.New(fmt.Errorf("batch-size: found %d, expected an integer from 1 to %d", batchSize, 1<<16))
	case seqLen < 0 || seqLen > 1<<24:
		return usererror.New(fmt.Errorf("seq-len: found %d, expected an integer from 1 to %d (0: the model's)", seqLen, 1<<24))
	}
	return nil
}

type generateCommand struct {
	From        string  `arg:"" name:"model" help:"A run folder, a checkpoint, or a folder in Hugging Face's Llama layout."`
	Prompt      string  `help:"The text to continue."`
	Tokens      int     `help:"How many tokens to make." default:"200" short:"n"`
	Temperature float64 `help:"Above 1 is wilder, below 1 tamer; 0 always takes the likeliest." default:"0.8"`
	TopK        int     `help:"Draw from this many of the likeliest tokens only; 0: from all." default:"0"`
	TopP        float64 `help:"Draw from the fewest tokens that have this probability together." default:"1"`
	Seed        uint64  `help:"The same seed draws the same text." default:"1"`
	Tokenizer   string  `help:"bytes, gpt2 or a tokenizer.json, instead of the model's own."`
	Weights     string  `help:"Of a run whose updates are delayed: x, at which it trains, or y, which hold every update." enum:"x,y" default:"x"`
	Device      string  `help:"Where to compute: webgpu:0, vulkan:0, null."`
	JSON        bool    `help:"Print a JSON object at the end."`
}

func (c *generateCommand) Help() string {
	return `Example:
  gpupipe generate runs/demo --prompt "In the beginning" --temperature 0.7 --top-k 40 --seed 2

It computes in f32, whatever train.precision the run has.`
}

func (c *generateCommand) Run(a *app) error {
	s := train.Sampling{Temperature: c.Temperature, TopK: c.TopK, TopP: c.TopP, Seed: c.Seed}
	if err := s.Validate(); err != nil {
		return err
	}
	if c.Tokens < 1 {
		return usererror.New(fmt.Errorf("tokens: found %d, expected at least 1", c.Tokens))
	}
	src, err := train.OpenWeights(c.From, nil, c.Tokenizer, train.Weights(c.Weights), a.note)
	if err != nil {
		return err
	}
	g, err := train.NewGenerator(src, c.Device, a.openDevice, nil)
	if err != nil {
		return err
	}
	err = c.stream(a, g, s)
	return errors.Join(err, g.Close())
}

func (c *generateCommand) stream(a *app, g *train.Generator, s train.Sampling) error {
	var text strings.Builder
	text.WriteString(c.Prompt)
	if !c.JSON {
		a.printf("%s", c.Prompt)
	}
	began := time.Now()
	n, err := g.Generate(a.ctx, []byte(c.Prompt), c.Tokens, s, func(part []byte) error {
		text.Write(part)
		if c.JSON {
			return nil
		}
		a.printf("%s", part)
		return a.failed
	})
	rate := float64(n) / time.Since(began).Seconds()
	if c.JSON && err == nil {
		return a.printJSON(event{"text": text.String(), "tokens": n, "tokens_per_s": rate})
	}
	if !c.JSON {
		a.printf("\n")
	}
	return err
}

type dataCommand struct {
	Inputs      []string `arg:"" name:"text" help:"Text and jsonl files; globs are expanded."`
	Out         string   `help:"The folder for the shards." required:""`
	Tokenizer   string   `help:"bytes, gpt2 or the path of a tokenizer.json." default:"gpt2"`
	Val         []string `help:"Texts for the held-out shards." placeholder:"FILE" sep:"none"`
	ValTokens   int64    `help:"Hold out the first tokens instead."`
	ShardTokens int64    `help:"Tokens of a shard." default:"100000000"`
	Field       string   `help:"Of a jsonl object: where its text is." default:"text"`
	JSON        bool     `help:"Print the shards as a JSON object."`
}

func (c *dataCommand) Help() string {
	return `Writes llm.c shards, train_000001.bin … and val_000000.bin …, beside a manifest. Started again with the same arguments it
goes on after the last finished shard.

Example:
  gpupipe data --tokenizer gpt2 --out shards --val-tokens 1000000 'text/*.jsonl'
  then: data: {train: ["shards/train_*.bin"], val: ["shards/val_*.bin"], tokenizer: gpt2}`
}

func (c *dataCommand) Run(a *app) error {
	tok, err := tokenizer.Open(c.Tokenizer)
	if err != nil {
		return usererror.New(err)
	}
	p := a.progress(c.JSON)
	began := time.Now()
	m, err := data.Prepare(a.ctx, data.PrepareOptions{Inputs: c.Inputs, Val: c.Val, ValTokens: c.ValTokens, OutDir: c.Out,
		Tokenizer: tok, Field: c.Field, ShardTokens: c.ShardTokens, Progress: func(done, total int64, shards int) {
			p.preparing(began, done, total, shards)
		}})
	p.line.clear()
	if a.ctx.Err() != nil {
		fmt.Fprintln(a.stderr, "stopped; the same command goes on after the last finished shard")
		return errInterrupted
	}
	if err != nil {
		return usererror.New(err)
	}
	if c.JSON {
		return a.printJSON(m)
	}
	rows := [][]string{{"SHARD", "TOKENS"}}
	for _, s := range m.Shards {
		rows = append(rows, []string{s.Name, grouped(s.Tokens)})
	}
	a.table(rows)
	return nil
}

func (p *progress) preparing(began time.Time, done, total int64, shards int) {
	if p.json {
		return
	}
	left := time.Duration(float64(time.Since(began)) * float64(total-done) / float64(max(1, done)))
	p.line.show(fmt.Sprintf("%d%% of %s bytes", 100*done/max(1, total), grouped(total)), fmt.Sprintf("%d shards", shards),
		left.Round(time.Second).String()+" left")
}
