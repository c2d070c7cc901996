package tasks

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// format is a way to write questions. It writes the prompts of lm-evaluation-harness.
type format struct {
	name     string
	fields   []string // that tell it apart
	question func(fields map[string]json.RawMessage) (Question, error)
}

// formats lists the formats; the first one that fits a line is taken.
func formats() []format {
	return []format{
		{"HellaSwag", []string{"ctx", "endings", "label"}, hellaSwag},
		{"ARC", []string{"question", "choices", "answerKey"}, arc},
		{"PIQA", []string{"goal", "sol1", "sol2", "label"}, piqa},
		{"context, choices, answer", []string{"context", "choices", "answer"}, generic},
		{"query, choices, gold", []string{"query", "choices", "gold"}, query},
		{"context_options, continuation, gold", []string{"context_options", "continuation", "gold"}, schema},
	}
}

// hellaSwag is Zellers et al., "HellaSwag" (2019). Its files have the context whole, and as its last sentence's
// beginning and what comes before it.
func hellaSwag(fields map[string]json.RawMessage) (q Question, err error) {
	var f struct {
		Activity string `json:"activity_label"`
		A        string `json:"ctx_a"`
		B        string `json:"ctx_b"`
		Context  string `json:"ctx"`
		Endings  []string
		Label    index
	}
	if err := read(fields, &f); err != nil {
		return q, err
	}
	context := f.Context
	if f.Activity != "" && f.A != "" {
		context = f.Activity + ": " + f.A + " " + capitalized(f.B)
	}
	for i, e := range f.Endings {
		f.Endings[i] = cleaned(e)
	}
	return Question{options(cleaned(context), f.Endings), int(f.Label)}, nil
}

var bracketed = regexp.MustCompile(`\[.*?\]`)

// cleaned is lm-evaluation-harness's preprocessing of HellaSwag.
func cleaned(text string) string {
	text = strings.ReplaceAll(strings.TrimSpace(text), " [title]", ". ")
	return strings.ReplaceAll(bracketed.ReplaceAllString(text, ""), "  ", " ")
}

// capitalized is Python's str.capitalize.
func capitalized(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	if size == 0 {
		return ""
	}
	return string(unicode.ToTitle(first)) + strings.ToLower(text[size:])
}

// arc is Clark et al., "Think you have solved question answering?" (2018).
func arc(fields map[string]json.RawMessage) (q Question, err error) {
	var f struct {
		Question string
		Choices  struct{ Text, Label []string }
		Key      string `json:"answerKey"`
	}
	if err := read(fields, &f); err != nil {
		return q, err
	}
	if len(f.Choices.Text) != len(f.Choices.Label) {
		return q, fmt.Errorf("found %d texts and %d labels of choices, expected as many", len(f.Choices.Text), len(f.Choices.Label))
	}
	answer := slices.Index(f.Choices.Label, f.Key)
	if answer < 0 {
		return q, fmt.Errorf("answerKey: found %q, expected one of the labels %q", f.Key, f.Choices.Label)
	}
	return Question{options("Question: "+f.Question+"\nAnswer:", f.Choices.Text), answer}, nil
}

// piqa is Bisk et al., "PIQA" (2019).
func piqa(fields map[string]json.RawMessage) (q Question, err error) {
	var f struct {
		Goal, Sol1, Sol2 string
		Label            index
	}
	if err := read(fields, &f); err != nil {
		return q, err
	}
	return Question{options("Question: "+f.Goal+"\nAnswer:", []string{f.Sol1, f.Sol2}), int(f.Label)}, nil
}

// generic questions have their prompt as it is. The answer is the number of a choice, from 0, or its text.
func generic(fields map[string]json.RawMessage) (q Question, err error) {
	var f struct {
		Context string
		Choices []string
		Answer  json.RawMessage
	}
	if err := read(fields, &f); err != nil {
		return q, err
	}
	q.Options = options(f.Context, f.Choices)
	var text string
	if json.Unmarshal(f.Answer, &text) == nil {
		if q.Answer = slices.Index(f.Choices, text); q.Answer >= 0 {
			return q, nil
		}
	}
	var number index
	if err := json.Unmarshal(f.Answer, &number); err != nil {
		return q, fmt.Errorf("answer: found %s, expected the number of a choice from 0, or its text", f.Answer)
	}
	q.Answer = int(number)
	return q, nil
}

// query is the format of multiple-choice tasks in DCLM's evaluations (Li et al., arXiv 2406.11794).
func query(fields map[string]json.RawMessage) (q Question, err error) {
	var f struct {
		Query   string
		Choices []string
		Gold    index
	}
	err = read(fields, &f)
	return Question{options(f.Query, f.Choices), int(f.Gold)}, err
}

// schema is DCLM's format of tasks in which the options are contexts of one continuation.
func schema(fields map[string]json.RawMessage) (q Question, err error) {
	var f struct {
		Contexts     []string `json:"context_options"`
		Continuation string
		Gold         index
	}
	err = read(fields, &f)
	for _, c := range f.Contexts {
		q.Options = append(q.Options, options(c, []string{f.Continuation})...)
	}
	q.Answer = int(f.Gold)
	return q, err
}

// read decodes the fields that a struct has.
func read(fields map[string]json.RawMessage, into any) error {
	text, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// index is a number, or a string with one.
type index int

func (i *index) UnmarshalJSON(text []byte) error {
	n, err := strconv.Atoi(strings.Trim(string(text), `"`))
	if err != nil {
		return fmt.Errorf("found %s, expected the number of an option, from 0", text)
	}
	*i = index(n)
	return nil
}
