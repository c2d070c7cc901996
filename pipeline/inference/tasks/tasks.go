// Package tasks scores language models on questions with several options. A model chooses the option to which it gives
// the largest probability. EleutherAI's lm-evaluation-harness computes the same numbers for the same prompts.
//
// Read reads the questions of a file. Encode makes a row of tokens and targets of each option, in which only the
// option's own tokens have targets. The caller computes the rows' losses with a model; Score turns them into
// accuracies.
package tasks

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/gpupipe/gpupipe/internal/hub"
)

// Task is the questions of a file.
type Task struct {
	Name      string // of the file, without its ending
	Questions []Question
}

// Question has at least two options. Answer is the index of the right one.
type Question struct {
	Options []Option
	Answer  int
}

// Option is a continuation of a context. Most questions have one context for all options.
type Option struct {
	Context, Continuation string
	Characters            int // of the continuation, without the space before it
}

const (
	maxLine      = 1 << 20 // bytes of a question
	maxQuestions = 1 << 20
	maxOptions   = 64
)

// Read reads a file of JSON objects, one a line, in one of the formats that the package knows: see formats. The path
// may be the name of one in the cache of the Hub.
func Read(path string) (*Task, error) {
	path, err := hub.OneFile(path)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	base := filepath.Base(path)
	t := &Task{Name: strings.TrimSuffix(base, filepath.Ext(base))}
	lines := bufio.NewReaderSize(f, maxLine)
	for number := 1; ; number++ {
		line, err := lines.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s:%d: %w", path, number, tooLong(err))
		}
		if len(bytes.TrimSpace(line)) > 0 {
			q, failed := parse(line)
			if failed == nil && len(t.Questions) == maxQuestions {
				failed = fmt.Errorf("found more than %d questions", maxQuestions)
			}
			if failed != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, number, failed)
			}
			t.Questions = append(t.Questions, q)
		}
		if err != nil {
			break
		}
	}
	if len(t.Questions) == 0 {
		return nil, fmt.Errorf("%s: found no question", path)
	}
	return t, nil
}

func tooLong(err error) error {
	if errors.Is(err, bufio.ErrBufferFull) {
		return fmt.Errorf("found a line of more than %d bytes", maxLine)
	}
	return err
}

// parse reads a question in the first format whose fields it has.
func parse(line []byte) (q Question, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return q, fmt.Errorf("expected a JSON object: %w", err)
	}
	for _, f := range formats() {
		if !has(fields, f.fields) {
			continue
		}
		if q, err = f.question(fields); err != nil {
			return q, fmt.Errorf("the format %s: %w", f.name, err)
		}
		return q, q.check()
	}
	var known []string
	for _, f := range formats() {
		known = append(known, strings.Join(f.fields, ", "))
	}
	return q, fmt.Errorf("expected the fields of one format: %s", strings.Join(known, "; or "))
}

func has(fields map[string]json.RawMessage, names []string) bool {
	for _, n := range names {
		if _, ok := fields[n]; !ok {
			return false
		}
	}
	return true
}

func (q Question) check() error {
	if n := len(q.Options); n < 2 || n > maxOptions {
		return fmt.Errorf("found %d options, expected 2 to %d", n, maxOptions)
	}
	if q.Answer < 0 || q.Answer >= len(q.Options) {
		return fmt.Errorf("the answer is option %d of %d", q.Answer, len(q.Options))
	}
	for i, o := range q.Options {
		if o.Characters == 0 {
			return fmt.Errorf("option %d is empty", i)
		}
	}
	return nil
}

// options are continuations of one context, each after a space.
func options(context string, choices []string) (all []Option) {
	for _, c := range choices {
		all = append(all, Option{context, " " + c, utf8.RuneCountInString(c)})
	}
	return all
}
