package tasks

import (
	"fmt"
	"math"
	"strings"
	"unicode"
)

// Result is how well a model answers a task.
type Result struct {
	Task         string  `json:"task"`
	Questions    int     `json:"questions"`
	Accuracy     float64 `json:"acc"`      // the option with the largest probability
	AccuracyNorm float64 `json:"acc_norm"` // the option with the largest log-probability per character
	StdErr       float64 `json:"acc_stderr"`
	Chance       float64 `json:"chance"`   // accuracy of guessing
	Centered     float64 `json:"centered"` // (acc − chance) / (1 − chance)
}

// Row is an option as a model reads it. The tokens from Scored on are the option's own.
type Row struct {
	Tokens []uint32 // at least 2
	Scored int      // at least 1
}

// Encoder turns texts into tokens.
type Encoder interface {
	Encode(text []byte) ([]uint32, error)
	EOS() (uint32, bool)
}

// Shots is a task without its first n questions, which come before each of the others with their right options.
func (t *Task) Shots(n int) (*Task, error) {
	if n >= len(t.Questions) {
		return nil, fmt.Errorf("%s has %d questions, expected more than the %d examples", t.Name, len(t.Questions), n)
	}
	var examples strings.Builder
	for _, q := range t.Questions[:n] {
		o := q.Options[q.Answer]
		examples.WriteString(o.Context + o.Continuation + "\n\n")
	}
	out := &Task{Name: t.Name}
	for _, q := range t.Questions[n:] {
		with := Question{Answer: q.Answer}
		for _, o := range q.Options {
			o.Context = examples.String() + o.Context
			with.Options = append(with.Options, o)
		}
		out.Questions = append(out.Questions, with)
	}
	return out, nil
}

// First is a task with its first n questions; 0: all.
func (t *Task) First(n int) *Task {
	if n == 0 || n >= len(t.Questions) {
		return t
	}
	return &Task{t.Name, t.Questions[:n]}
}

// Encode returns a row for each option of each question, in order. If a row has more than most tokens, the first ones
// are cut off.
func (t *Task) Encode(e Encoder, most int) ([]Row, error) {
	var rows []Row
	for i, q := range t.Questions {
		for j, o := range q.Options {
			r, err := o.encode(e)
			if err == nil && len(r.Tokens)-r.Scored >= most {
				err = fmt.Errorf("its %d tokens leave no room for a context in %d", len(r.Tokens)-r.Scored, most)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: question %d: option %d: %w", t.Name, i+1, j+1, err)
			}
			if over := len(r.Tokens) - most; over > 0 {
				r = Row{r.Tokens[over:], max(1, r.Scored-over)}
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// encode splits the tokens of context and continuation as lm-evaluation-harness does: white space at the end of the
// context belongs to the continuation, and the continuation's tokens begin after as many tokens as the context alone
// has.
func (o Option) encode(e Encoder) (r Row, err error) {
	context := strings.TrimRightFunc(o.Context, unicode.IsSpace)
	whole, err := e.Encode([]byte(o.Context + o.Continuation))
	if err != nil {
		return r, err
	}
	var before []uint32
	if context != "" {
		if before, err = e.Encode([]byte(context)); err != nil {
			return r, err
		}
	}
	r = Row{whole, len(before)}
	if r.Scored == 0 { // something must come before the first token
		end, ok := e.EOS()
		if !ok {
			return r, fmt.Errorf("its context is empty, and the tokenizer has no token that ends a document to put there")
		}
		r = Row{append([]uint32{end}, whole...), 1}
	}
	if r.Scored >= len(r.Tokens) {
		return r, fmt.Errorf("the tokenizer makes no token of it")
	}
	return r, nil
}

// Longest is the length of the longest row, less one: what a model reads, since the last token is only a target.
func Longest(rows []Row) (n int) {
	for _, r := range rows {
		n = max(n, len(r.Tokens)-1)
	}
	return n
}

// fill writes a row to the inputs and targets of a sequence. none is the target of positions that do not count.
func (r Row) fill(inputs, targets []int32, none uint32) {
	for i := range inputs {
		inputs[i], targets[i] = 0, int32(none)
		if i+1 < len(r.Tokens) {
			inputs[i] = int32(r.Tokens[i])
			if i+1 >= r.Scored {
				targets[i] = int32(r.Tokens[i+1])
			}
		}
	}
}

// Score returns a task's result from the negative log-likelihoods of the rows that Encode returned.
func (t *Task) Score(losses []float64) (Result, error) {
	r := Result{Task: t.Name, Questions: len(t.Questions)}
	n := float64(len(t.Questions))
	for i, q := range t.Questions {
		mine := losses[:len(q.Options)]
		losses = losses[len(q.Options):]
		best, bestNorm := 0, 0
		for j, l := range mine {
			if math.IsNaN(l) {
				return r, fmt.Errorf("%s: question %d: the loss of option %d is not a number", t.Name, i+1, j+1)
			}
			if l < mine[best] {
				best = j
			}
			if l/float64(q.Options[j].Characters) < mine[bestNorm]/float64(q.Options[bestNorm].Characters) {
				bestNorm = j
			}
		}
		if best == q.Answer {
			r.Accuracy += 1 / n
		}
		if bestNorm == q.Answer {
			r.AccuracyNorm += 1 / n
		}
		r.Chance += 1 / float64(len(q.Options)) / n
	}
	if n > 1 {
		r.StdErr = math.Sqrt(r.Accuracy * (1 - r.Accuracy) / (n - 1))
	}
	r.Centered = (r.Accuracy - r.Chance) / (1 - r.Chance)
	return r, nil
}

// Core is the mean of the tasks' centered accuracies, as DCLM's CORE is (Li et al., arXiv 2406.11794).
func Core(results []Result) (mean float64) {
	for _, r := range results {
		mean += r.Centered / float64(len(results))
	}
	return mean
}

// Rows is the number of rows that Encode returns.
func (t *Task) Rows() (n int) {
	for _, q := range t.Questions {
		n += len(q.Options)
	}
	return n
}

// Batch is the inputs and targets of n sequences, the first ones of rows. none is the target of tokens that do not
// count: tokens of contexts, at the end of short rows, and in sequences without a row.
func Batch(rows []Row, n, seqLen int, none uint32) (inputs, targets []int32) {
	inputs, targets = make([]int32, n*seqLen), make([]int32, n*seqLen)
	for i := range n {
		var r Row
		if i < len(rows) {
			r = rows[i]
		}
		r.fill(inputs[i*seqLen:][:seqLen], targets[i*seqLen:][:seqLen], none)
	}
	return inputs, targets
}
