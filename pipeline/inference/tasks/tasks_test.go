package tasks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bytewise is a tokenizer whose tokens are bytes.
type bytewise struct{ end bool }

func (bytewise) Encode(text []byte) (ids []uint32, err error) {
	for _, b := range text {
		ids = append(ids, uint32(b))
	}
	return ids, nil
}

func (b bytewise) EOS() (uint32, bool) { return 256, b.end }

func written(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "task.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o666))
	return path
}

func TestFormats(t *testing.T) {
	for line, want := range map[string]Question{
		`{"ctx": "a  cat [b] sat", "endings": ["on [title] it.", "é"], "label": "1"}`: {
			[]Option{{"a cat sat", " on. it.", 7}, {"a cat sat", " é", 1}}, 1},
		`{"activity_label": "Play", "ctx_a": "A.", "ctx_b": "then HE", "ctx": "x", "endings": ["b", "c"], "label": 0}`: {
			[]Option{{"Play: A. Then he", " b", 1}, {"Play: A. Then he", " c", 1}}, 0},
		`{"id": "1", "question": "why?", "choices": {"text": ["b", "cc"], "label": ["1", "2"]}, "answerKey": "2"}`: {
			[]Option{{"Question: why?\nAnswer:", " b", 1}, {"Question: why?\nAnswer:", " cc", 2}}, 1},
		`{"goal": "g", "sol1": "b", "sol2": "c", "label": 1}`: {
			[]Option{{"Question: g\nAnswer:", " b", 1}, {"Question: g\nAnswer:", " c", 1}}, 1},
		`{"context": "x", "choices": ["b", "c"], "answer": "c"}`: {[]Option{{"x", " b", 1}, {"x", " c", 1}}, 1},
		`{"context": "x", "choices": ["b", "c"], "answer": 0}`:   {[]Option{{"x", " b", 1}, {"x", " c", 1}}, 0},
		`{"query": "x", "choices": ["b", "c"], "gold": 1}`:       {[]Option{{"x", " b", 1}, {"x", " c", 1}}, 1},
		`{"context_options": ["the cat", "it"], "continuation": "sat", "gold": 1}`: {[]Option{{"the cat", " sat", 3}, {"it", " sat", 3}},
			1},
	} {
		task, err := Read(written(t, line, ""))
		require.NoError(t, err, line)
		assert.Equal(t, "task", task.Name)
		assert.Equal(t, []Question{want}, task.Questions, line)
	}
}

func TestMistakes(t *testing.T) {
	good := `{"query": "x", "choices": ["b", "c"], "gold": 1}`
	for want, line := range map[string]string{
		"task.jsonl:2: expected a JSON object":                             `[]`,
		"task.jsonl:2: expected the fields of one format: ctx, endings":    `{"query": "x"}`,
		"task.jsonl:2: the answer is option 2 of 2":                        `{"query": "x", "choices": ["b", "c"], "gold": 2}`,
		"task.jsonl:2: found 1 options, expected 2 to 64":                  `{"query": "x", "choices": ["b"], "gold": 0}`,
		"task.jsonl:2: option 0 is empty":                                  `{"query": "x", "choices": ["", "b"], "gold": 0}`,
		`the format ARC: answerKey: found "C", expected one of the labels`: `{"question": "q", "choices": {"text": ["b", "c"], "label": ["A", "B"]}, "answerKey": "C"}`,
		"the format ARC: found 2 texts and 1 labels":                       `{"question": "q", "choices": {"text": ["b", "c"], "label": ["A"]}, "answerKey": "A"}`,
		"answer: found \"d\", expected the number of a choice":             `{"context": "x", "choices": ["b", "c"], "answer": "d"}`,
		"found a line of more than 1048576 bytes":                          strings.Repeat("x", maxLine+1),
	} {
		_, err := Read(written(t, good, line))
		assert.ErrorContains(t, err, want)
	}
	_, err := Read(written(t, "", " "))
	assert.ErrorContains(t, err, "found no question")
	_, err = Read("none.jsonl")
	assert.ErrorContains(t, err, "none.jsonl")
}

func TestEncode(t *testing.T) {
	q := func(context, continuation string) *Task {
		o := Option{context, continuation, 1}
		return &Task{"t", []Question{{[]Option{o, o}, 0}}}
	}
	encoded := func(task *Task, end bool, most int) (string, int, error) {
		rows, err := task.Encode(bytewise{end}, most)
		if err != nil {
			return "", 0, err
		}
		require.Len(t, rows, task.Rows())
		var text strings.Builder
		for _, id := range rows[0].Tokens {
			text.WriteRune(rune(id))
		}
		return text.String(), rows[0].Scored, nil
	}
	check := func(text string, scored int, task *Task, end bool, most int) {
		t.Helper()
		gotText, gotScored, err := encoded(task, end, most)
		require.NoError(t, err)
		assert.Equal(t, text, gotText)
		assert.Equal(t, scored, gotScored)
	}
	check("the cat", 3, q("the", " cat"), false, 99)
	check("the  cat", 3, q("the ", " cat"), false, 99) // the space before belongs to the continuation
	check("\u0100 cat", 1, q("", " cat"), true, 99)
	check("e cat", 1, q("the", " cat"), false, 5) // the first tokens are cut off
	_, _, err := encoded(q("", " cat"), false, 99)
	assert.ErrorContains(t, err, "t: question 1: option 1: its context is empty")
	_, _, err = encoded(q("the", " cat"), false, 4)
	assert.ErrorContains(t, err, "its 4 tokens leave no room for a context in 4")

	inputs, targets := Batch([]Row{{[]uint32{5, 6, 7, 8}, 2}, {[]uint32{1, 2}, 1}}, 3, 4, 99)
	assert.Equal(t, []int32{5, 6, 7, 0, 1, 0, 0, 0, 0, 0, 0, 0}, inputs)
	assert.Equal(t, []int32{99, 7, 8, 99, 2, 99, 99, 99, 99, 99, 99, 99}, targets)
	assert.Equal(t, 3, Longest([]Row{{[]uint32{5, 6, 7, 8}, 2}, {[]uint32{1, 2}, 1}}))
}

func TestShots(t *testing.T) {
	task, err := Read(written(t, `{"query": "a", "choices": ["b", "c"], "gold": 1}`, `{"query": "d", "choices": ["e", "f"], "gold": 0}`))
	require.NoError(t, err)
	shot, err := task.Shots(1)
	require.NoError(t, err)
	assert.Equal(t, []Question{{[]Option{{"a c\n\nd", " e", 1}, {"a c\n\nd", " f", 1}}, 0}}, shot.Questions)
	_, err = task.Shots(2)
	assert.ErrorContains(t, err, "task has 2 questions, expected more than the 2 examples")
	assert.Len(t, task.First(1).Questions, 1)
	assert.Len(t, task.First(0).Questions, 2)
}

func TestScore(t *testing.T) {
	o := func(characters int) Option { return Option{"", "", characters} }
	task := &Task{"t", []Question{{[]Option{o(1), o(4)}, 1}, {[]Option{o(1), o(1), o(1), o(1)}, 2}}}
	r, err := task.Score([]float64{2, 4, 3, 3, 1, 2})
	require.NoError(t, err)
	assert.Equal(t, Result{Task: "t", Questions: 2, Accuracy: 0.5, AccuracyNorm: 1, StdErr: 0.5, Chance: 0.375, Centered: 0.2}, r)
	assert.InDelta(t, 0.35, Core([]Result{r, {Centered: 0.5}}), 1e-15)
	nan := 0.0
	_, err = task.Score([]float64{2, nan / nan, 3, 3, 1, 2})
	assert.ErrorContains(t, err, "t: question 1: the loss of option 2 is not a number")
}
