package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/inference"
)

type evalCommand struct {
	modelFlags
	Data      []string `hub:"data" help:"Texts or shards to evaluate on. Default: the run's held-out text." placeholder:"FILE" sep:"none"`
	Task      []string `hub:"file" help:"Instead of a text: multiple-choice questions as JSON lines, in the formats of HellaSwag, ARC, PIQA or DCLM." placeholder:"FILE" sep:"none"`
	Shots     int      `help:"With --task: the first questions of a file, which come as examples before each of the others." default:"0"`
	Limit     int      `help:"With --task: questions of each file; 0: all." default:"0"`
	SeqLen    int      `help:"Context in tokens. Default: the model's." placeholder:"TOKENS"`
	BatchSize int      `help:"Sequences in a batch." default:"4"`
	Device    string   `help:"Device to compute on: cpu:0, webgpu:0, vulkan:0, null." placeholder:"NAME"`
	JSON      bool     `help:"Print a JSON object."`
}

func (c *evalCommand) Help() string {
	return `Computes in f32. A run with another train.precision reports a val_loss that differs by rounding.

With --task a model chooses the likeliest option (acc), or the likeliest per character (acc_norm), as
lm-evaluation-harness does. docs/SERVING.md has the formats.

Examples:
  gpupipe eval runs/demo --weights y
  gpupipe eval runs/demo --task arc_easy.jsonl --task piqa.jsonl --json`
}

func (c *evalCommand) Run(a *app) error {
	if err := windowFlags(c.BatchSize, c.SeqLen); err != nil {
		return err
	}
	from, err := c.place()
	if err != nil {
		return err
	}
	p := newProgress(a, c.JSON)
	o := inference.EvalOptions{From: from, Data: c.Data, Tokenizer: c.Tokenizer, SeqLen: c.SeqLen,
		BatchSize: c.BatchSize, Target: inference.Target{Device: c.Device, Open: a.openDevice}, Progress: p.Reading,
		Weights: c.Weights, Note: a.note}
	if len(c.Task) > 0 {
		return c.answer(a, p, o)
	}
	if c.Shots != 0 || c.Limit != 0 {
		return usererror.Errorf("--shots and --limit: expected --task with them")
	}
	e, err := inference.Evaluate(a.ctx, o)
	p.line.clear()
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(e)
	}
	rows := [][]string{
		{"model", e.Model}, {"weights", string(e.Weights)}, {"text", e.Text}, {"tokens", grouped(e.Tokens)},
		{"loss", fmt.Sprintf("%.4f nats per token", e.Loss)}, {"perplexity", fmt.Sprintf("%.4g", e.Perplexity)},
	}
	if e.Bytes > 0 {
		rows = append(rows, []string{"bits per byte", fmt.Sprintf("%.4f", e.BitsPerByte)})
	}
	a.facts(append(rows, []string{"unigram entropy", fmt.Sprintf("%.4f nats per token", e.UnigramEntropy)}))
	return nil
}

// answer scores the model on tasks.
func (c *evalCommand) answer(a *app, p *progress, o inference.EvalOptions) error {
	switch {
	case len(c.Data) > 0:
		return usererror.Errorf("--task and --data: expected one of the two")
	case c.Shots < 0 || c.Limit < 0:
		return usererror.Errorf("--shots and --limit: expected at least 0")
	}
	e, err := inference.AnswerTasks(a.ctx, inference.TaskOptions{EvalOptions: o, Files: c.Task, Shots: c.Shots, Limit: c.Limit})
	p.line.clear()
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(e)
	}
	rows := [][]string{{"TASK", "QUESTIONS", "ACC", "ACC_NORM", "STDERR", "CHANCE", "CENTERED"}}
	for _, r := range e.Tasks {
		row := []string{r.Task, grouped(int64(r.Questions))}
		for _, x := range []float64{r.Accuracy, r.AccuracyNorm, r.StdErr, r.Chance, r.Centered} {
			row = append(row, fmt.Sprintf("%.4f", x))
		}
		rows = append(rows, row)
	}
	a.headed(rows)
	if len(e.Tasks) > 1 {
		a.printf("\nCORE, the mean of the centered accuracies: %.4f\n", e.Core)
	}
	return nil
}

// windowFlags checks the sizes of batches and windows.
func windowFlags(batchSize, seqLen int) error {
	switch {
	case batchSize < 1 || batchSize > 1<<16:
		return usererror.Errorf("--batch-size: found %d, expected an integer from 1 to %d", batchSize, 1<<16)
	case seqLen < 0 || seqLen > 1<<24:
		return usererror.Errorf("--seq-len: found %d, expected an integer from 1 to %d, or 0 for the model's", seqLen, 1<<24)
	}
	return nil
}

type generateCommand struct {
	modelFlags
	Prompt      string  `help:"Text to continue; - reads it from standard input." placeholder:"TEXT"`
	Tokens      int     `help:"Number of tokens to generate." default:"200" short:"n"`
	Temperature float64 `help:"Above 1 flattens the distribution, below 1 sharpens it; 0 always takes the likeliest token." default:"0.8"`
	TopK        int     `help:"Sample from this many of the likeliest tokens; 0: from all." default:"0"`
	TopP        float64 `help:"Sample from the smallest set of tokens with this total probability." default:"1"`
	Seed        uint64  `help:"Seed of the random numbers: the same seed gives the same text." default:"1"`
	Device      string  `help:"Device to compute on: cpu:0, webgpu:0, vulkan:0, null." placeholder:"NAME"`
	JSON        bool    `help:"Print a JSON object at the end."`
}

func (c *generateCommand) Help() string {
	return `Computes in f32. On a terminal, control characters and invalid UTF-8 in the text are escaped, as in \x1b; output to a file or pipe has the
model's bytes.

Examples:
  gpupipe generate runs/demo --prompt "In the beginning" --temperature 0.7
  gpupipe generate runs/demo --prompt "In the beginning" --top-k 40 --seed 2
  gpupipe generate runs/demo --prompt - < prompt.txt`
}

func (c *generateCommand) Run(a *app) error {
	s := inference.Sampling{Temperature: c.Temperature, TopK: c.TopK, TopP: c.TopP, Seed: c.Seed}
	if err := s.Validate(); err != nil {
		return usererror.New(fielderror.Rename(err, func(field string) string { return "--" + strings.ReplaceAll(field, "_", "-") }))
	}
	if c.Tokens < 1 {
		return usererror.Errorf("--tokens: found %d, expected at least 1", c.Tokens)
	}
	if c.Prompt == "-" {
		text, err := io.ReadAll(io.LimitReader(a.stdin, maxPrompt+1))
		switch {
		case err != nil:
			return usererror.Errorf("--prompt -: %w", err)
		case len(text) > maxPrompt:
			return usererror.Errorf("--prompt -: found more than %d bytes on standard input", maxPrompt)
		}
		c.Prompt = string(text)
	}
	src, err := c.open(a)
	if err != nil {
		return err
	}
	g, err := inference.NewGenerator(src, inference.Target{Device: c.Device, Open: a.openDevice})
	if err != nil {
		return err
	}
	err = c.stream(a, g, s)
	return errors.Join(err, g.Close())
}

// maxPrompt bounds the bytes of a prompt on standard input.
const maxPrompt = 1 << 24

func (c *generateCommand) stream(a *app, g *inference.Generator, s inference.Sampling) error {
	var text strings.Builder
	text.WriteString(c.Prompt)
	if !c.JSON {
		a.printText(c.Prompt)
	}
	began := time.Now()
	n, err := g.Generate(a.ctx, []byte(c.Prompt), c.Tokens, s, func(part []byte) error {
		text.Write(part)
		if c.JSON {
			return nil
		}
		a.printText(string(part))
		if a.unread() {
			return errUnread
		}
		return a.failed
	})
	if errors.Is(err, errUnread) {
		return nil
	}
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
	Inputs      []string `arg:"" name:"text" hub:"data" help:"Files of documents, globs, or folders that datasets saved."`
	Out         string   `help:"Folder for the shards." required:"" placeholder:"DIR"`
	Tokenizer   string   `hub:"tokenizer" help:"bytes, gpt2, a tokenizer.json or tokenizer.model, or its folder." default:"gpt2"`
	Val         []string `hub:"data" help:"Texts for the held-out shards." placeholder:"FILE" sep:"none"`
	ValTokens   int64    `help:"Instead of --val: hold out this many tokens, the first ones." placeholder:"TOKENS"`
	ShardTokens int64    `help:"Tokens in a shard." default:"100000000"`
	SpecialText string   `help:"What special tokens are that are spelled out in a text: token, or text as any other." enum:"token,text" default:"token"`
	BOS         string   `name:"bos" help:"Whether each document begins with the tokenizer's token for it: true, false, or auto, as the tokenizer itself does." enum:"true,false,auto" default:"false"`
	Field       string   `help:"Field of JSON objects, or column of .parquet and .arrow, that has the text." default:"text"`
	JSON        bool     `help:"Print shards and statistics as a JSON object."`
}

func (c *dataCommand) Help() string {
	return `Writes llm.c shards, train_000001.bin … and val_000000.bin …, and a manifest.
The same command continues after the last finished shard. Statistics follow:
documents, bytes a token, and documents with the text of an earlier one.

A text file is a document, as is an object in .jsonl or .json and a row of
.parquet and .arrow. Texts and JSON may be compressed: .gz, .zst.

Examples:
  gpupipe data --out shards --val-tokens 1000000 'a/*.jsonl.zst'
  gpupipe data --out shards --tokenizer my.json --field content 'b/*.parquet'
  then, in the config:
    data:
      train: ["shards/train_*.bin"]
      val: ["shards/val_*.bin"]
      tokenizer: gpt2`
}

func (c *dataCommand) Run(a *app) error {
	tok, err := tokenizer.Open(c.Tokenizer)
	if err != nil {
		return usererror.Errorf("--tokenizer: %w", err)
	}
	switch {
	case c.ShardTokens < 1 || c.ShardTokens > data.MaxShard:
		return usererror.Errorf("--shard-tokens: found %d, expected an integer from 1 to %d", c.ShardTokens, data.MaxShard)
	case c.ValTokens < 0 || c.ValTokens > data.MaxShard:
		return usererror.Errorf("--val-tokens: found %d, expected an integer from 0 to %d", c.ValTokens, data.MaxShard)
	case c.ValTokens > 0 && len(c.Val) > 0:
		return usererror.Errorf("--val and --val-tokens: expected one of the two")
	case c.Field == "":
		return usererror.Errorf("--field: found \"\", expected the name of a field")
	}
	a.notes(tokenizer.Notes(tok))
	framing := tokenizer.Framing{SpecialText: c.SpecialText, BOS: c.BOS}
	framed, err := framing.Frame(tok)
	if err != nil {
		return usererror.Errorf("--bos: %w", err)
	}
	p := newProgress(a, c.JSON)
	began := time.Now()
	m, err := data.Prepare(a.ctx, data.PrepareOptions{Inputs: c.Inputs, Val: c.Val, ValTokens: c.ValTokens, OutDir: c.Out,
		Tokenizer: framed, Framing: framing, Field: c.Field, ShardTokens: c.ShardTokens, Progress: func(done, total int64, shards int) {
			p.preparing(began, done, total, shards)
		}})
	p.line.clear()
	if a.ctx.Err() != nil {
		a.note("stopped; the same command continues after the last finished shard")
		return errInterrupted
	}
	if errors.Is(err, data.ErrTooShort) && c.ValTokens > 0 {
		return usererror.Errorf("--val-tokens: %w", err)
	}
	if err != nil {
		return usererror.New(data.FieldSetting(err, "--field"))
	}
	_, hasEnd := tok.EOS()
	found := m.Findings(hasEnd)
	a.notes(found.Notes())
	if c.JSON {
		return a.printJSON(m)
	}
	rows := [][]string{{"SHARD", "TOKENS"}}
	for _, s := range m.Shards {
		rows = append(rows, []string{s.Name, grouped(s.Tokens)})
	}
	a.table(rows)
	a.facts(statisticsRows(m.Statistics))
	return nil
}

// statisticsRows describes the documents of a folder of shards.
func statisticsRows(s *data.Statistics) [][]string {
	if s == nil { // of a folder that an earlier version completed
		return nil
	}
	duplicates := "not known, since shards were repaired"
	if s.Duplicates != nil {
		duplicates = fmt.Sprintf("%s documents, %.2f %%", grouped(*s.Duplicates), 100*float64(*s.Duplicates)/float64(max(1, s.Documents)))
	}
	return [][]string{{"documents", grouped(s.Documents)}, {"text", grouped(s.Bytes) + " bytes"}, {"tokens", grouped(s.Tokens)},
		{"bytes per token", fmt.Sprintf("%.3f", s.BytesPerToken)}, {"duplicates", duplicates}}
}

func (p *progress) preparing(began time.Time, done, total int64, shards int) {
	if p.json {
		return
	}
	left := time.Duration(float64(time.Since(began)) * float64(total-done) / float64(max(1, done)))
	p.line.show(fmt.Sprintf("%d%% of %s bytes", 100*done/max(1, total), grouped(total)), fmt.Sprintf("%d shards", shards),
		left.Round(time.Second).String()+" left")
}
