package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/jsonfile"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
)

type tokenizerCommand struct {
	Train tokenizerTrainCommand `cmd:"" help:"Train a byte-level BPE tokenizer."`
	Check tokenizerCheckCommand `cmd:"" help:"Encode and decode texts."`
}

func (c *tokenizerCommand) Help() string {
	return `Examples:
  gpupipe tokenizer train --vocab-size 32768 --out tok text/*.txt
  gpupipe tokenizer check tok --text held-out.txt`
}

type tokenizerTrainCommand struct {
	Inputs       []string `arg:"" name:"text" hub:"data" help:"Files of documents, globs, or folders that datasets saved."`
	Out          string   `help:"Folder to create, or a file whose name ends in .json." required:"" placeholder:"PATH"`
	VocabSize    int      `help:"Tokens, special ones and the 256 bytes included." default:"32768"`
	Pattern      string   `help:"How text is cut into words: as GPT-4 (numbers of up to three digits), GPT-2 or Qwen2 (single digits) do." enum:"gpt4,gpt2,qwen2" default:"gpt4"`
	Special      []string `help:"Special tokens, with the first ids. The first one ends a document." default:"<|endoftext|>" sep:"none" placeholder:"TOKEN"`
	MinFrequency int64    `help:"Merge no pair that occurs less often." default:"2"`
	MaxWords     int      `help:"Different words to keep in memory; beyond them the rarest are forgotten, and a note says so. 10 million need 1 GiB." default:"10000000"`
	Field        string   `help:"Field of JSON objects, or column of .parquet and .arrow, that has the text." default:"text"`
	Force        bool     `help:"Replace an existing tokenizer."`
	JSON         bool     `help:"Print a JSON object."`
}

func (c *tokenizerTrainCommand) Help() string {
	return `Writes tokenizer.json, which Hugging Face's tokenizers and transformers load
with equal ids, and tokenizer_config.json. Ties of frequency go to the pair with
the smaller ids, as there: the same words give the same merges.

Examples:
  gpupipe tokenizer train --vocab-size 32768 --out tok text/*.txt
  gpupipe tokenizer train --pattern gpt2 --out tok.json 'a/*.jsonl.zst'
  then, in the config:
    data: {train: "text/*.txt", tokenizer: tok}`
}

// trainedTokenizer is what --json prints.
type trainedTokenizer struct {
	Out        string  `json:"out"`
	VocabSize  int     `json:"vocab_size"`
	Merges     int     `json:"merges"`
	Words      int     `json:"words"`
	WordsTotal int64   `json:"words_total"`
	Pruned     int64   `json:"pruned"`
	Bytes      int64   `json:"bytes"`
	Seconds    float64 `json:"seconds"`
}

func (c *tokenizerTrainCommand) Run(a *app) error {
	t, err := tokenizer.NewTrainer(tokenizer.TrainOptions{VocabSize: c.VocabSize, Pattern: c.Pattern, MinFrequency: c.MinFrequency,
		Special: c.Special, MaxWords: c.MaxWords})
	if err != nil {
		return usererror.New(fielderror.Rename(err, func(field string) string { return "--" + field }))
	}
	var found data.Findings
	files, size, err := textFiles(c.Inputs)
	if err == nil {
		err = checkTokenizerOut(c.Out, c.Force)
	}
	if err != nil {
		return usererror.New(err)
	}
	p := newProgress(a, c.JSON)
	began := time.Now()
	out := trainedTokenizer{Out: c.Out}
	err = t.Add(a.ctx, func(emit func(text []byte) error) error {
		done := int64(0)
		for _, f := range files {
			if err := data.ReadTexts(f, c.Field, &found, func(text []byte, _, _ bool, read int64) error {
				done, out.Bytes = done+read, out.Bytes+int64(len(text))
				p.percent("counting words", done, size)
				return emit(text)
			}); err != nil {
				return data.FieldSetting(err, "--field")
			}
		}
		return nil
	})
	var trained tokenizer.Trained
	if err == nil {
		trained, err = t.Train(a.ctx, func(tokens, of int) { p.percent("merging pairs", int64(tokens), int64(of)) })
	}
	p.line.clear()
	if a.ctx.Err() != nil {
		a.note("stopped; nothing was written")
		return errInterrupted
	}
	if err == nil {
		err = writeTokenizer(c.Out, c.Special, trained.JSON)
	}
	if err != nil {
		return usererror.New(err)
	}
	a.notes(found.Notes())
	if trained.Pruned > 0 {
		a.note("%s rare words were forgotten, since more than --max-words %s were different", grouped(trained.Pruned),
			grouped(int64(c.MaxWords)))
	}
	if trained.VocabSize < c.VocabSize {
		a.note("the text has pairs that occur %d times for %d tokens only", c.MinFrequency, trained.VocabSize)
	}
	out.VocabSize, out.Merges, out.Words, out.WordsTotal, out.Pruned = trained.VocabSize, trained.Merges, trained.Words,
		trained.WordsTotal, trained.Pruned
	if out.Seconds = time.Since(began).Seconds(); c.JSON {
		return a.printJSON(out)
	}
	a.facts([][]string{{"tokenizer", c.Out}, {"tokens", grouped(int64(out.VocabSize))}, {"merges", grouped(int64(out.Merges))},
		{"words", fmt.Sprintf("%s, %s different", grouped(out.WordsTotal), grouped(int64(out.Words)))},
		{"text", fmt.Sprintf("%s bytes in %.1f s", grouped(out.Bytes), out.Seconds)}})
	return nil
}

// textFiles expands globs and adds up the files' sizes.
func textFiles(patterns []string) (files []string, size int64, err error) {
	if files, err = data.Expand(patterns); err != nil {
		return nil, 0, err
	}
	for _, f := range files {
		if strings.HasSuffix(f, ".bin") {
			return nil, 0, fmt.Errorf("%s: token shards, expected texts", f)
		}
		st, err := os.Stat(f)
		if err != nil {
			return nil, 0, err
		}
		size += st.Size()
	}
	return files, size, nil
}

// checkTokenizerOut refuses to replace a tokenizer without force.
func checkTokenizerOut(out string, force bool) error {
	path := out
	if filepath.Ext(out) != ".json" {
		if st, err := os.Stat(out); err == nil && !st.IsDir() {
			return fmt.Errorf("--out: %s is a file: expected a folder, or a name that ends in .json", out)
		}
		path = filepath.Join(out, tokenizer.File)
	}
	if _, err := os.Stat(path); err == nil && !force {
		return fmt.Errorf("--out: %s exists: replace it with --force, or choose another name", path)
	}
	return nil
}

// writeTokenizer writes tokenizer.json and, into a folder, tokenizer_config.json.
func writeTokenizer(out string, special []string, text []byte) error {
	if filepath.Ext(out) == ".json" {
		return errors.Join(os.MkdirAll(filepath.Dir(out), 0o777), atomicfile.WriteBytes(out, text))
	}
	config := map[string]any{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}
	if len(special) > 0 {
		config["eos_token"] = special[0]
	}
	err := os.MkdirAll(out, 0o777)
	if err == nil {
		err = jsonfile.Write(filepath.Join(out, "tokenizer_config.json"), config, "  ")
	}
	if err == nil {
		err = atomicfile.WriteBytes(filepath.Join(out, tokenizer.File), text)
	}
	return err
}

type tokenizerCheckCommand struct {
	Tokenizer string   `arg:"" hub:"tokenizer" help:"bytes, gpt2, a tokenizer.json or tokenizer.model, its folder, or a GGUF file."`
	Text      []string `hub:"data" help:"Files of documents to encode and decode." required:"" placeholder:"FILE" sep:"none"`
	Field     string   `help:"Field of JSON objects, or column of .parquet and .arrow, that has the text." default:"text"`
	JSON      bool     `help:"Print a JSON object."`
}

func (c *tokenizerCheckCommand) Help() string {
	return `Reports whether decoding gives the text back, tokens a word (fertility), bytes a
token, and unknown tokens. The exit status is 1 if a text does not come back.

Examples:
  gpupipe tokenizer check tok --text held-out.txt
  gpupipe tokenizer check gpt2 --text 'b/*.parquet' --field content --json`
}

func (c *tokenizerCheckCommand) Run(a *app) error {
	tok, err := tokenizer.Open(c.Tokenizer)
	if err != nil {
		return usererror.New(err)
	}
	a.notes(tokenizer.Notes(tok))
	files, size, err := textFiles(c.Text)
	if err != nil {
		return usererror.Errorf("--text: %w", err)
	}
	p := newProgress(a, c.JSON)
	var report tokenizer.Report
	var found data.Findings
	done := int64(0)
	for _, f := range files {
		if err := data.ReadTexts(f, c.Field, &found, func(text []byte, first, _ bool, read int64) error {
			done += read
			p.percent("encoding", done, size)
			return errors.Join(a.ctx.Err(), report.Add(tok, text, first))
		}); err != nil {
			return usererror.New(data.FieldSetting(err, "--field"))
		}
	}
	p.line.clear()
	a.notes(found.Notes())
	if c.JSON {
		err = a.printJSON(struct {
			tokenizer.Report
			VocabSize     int     `json:"vocab_size"`
			Fertility     float64 `json:"fertility"`
			BytesPerToken float64 `json:"bytes_per_token"`
		}{report, tok.VocabSize(), report.Fertility(), report.BytesPerToken()})
	} else {
		trip := "every text comes back"
		if report.Different > 0 {
			trip = fmt.Sprintf("%s of %s texts differ; at %s", grouped(report.Different), grouped(report.Pieces), report.First)
		}
		a.facts([][]string{{"round trip", trip}, {"text", fmt.Sprintf("%s bytes, %s words", grouped(report.Bytes), grouped(report.Words))},
			{"tokens", fmt.Sprintf("%s, %s of %s different", grouped(report.Tokens), grouped(int64(report.Used)),
				grouped(int64(tok.VocabSize())))},
			{"fertility", fmt.Sprintf("%.3f tokens a word, %.3f bytes a token", report.Fertility(), report.BytesPerToken())},
			{"unknown", grouped(report.Unknown)}})
	}
	if err == nil && report.Different > 0 {
		err = fmt.Errorf("%s of %s texts do not come back", grouped(report.Different), grouped(report.Pieces))
	}
	return err
}
