package tokenizer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func options(vocab int, pattern string) TrainOptions {
	return TrainOptions{VocabSize: vocab, Pattern: pattern, MinFrequency: 2, Special: []string{"<|endoftext|>", "<|pad|>"}}
}

// trainedOn trains on texts.
func trainedOn(t *testing.T, o TrainOptions, texts ...string) Trained {
	t.Helper()
	trainer, err := NewTrainer(o)
	require.NoError(t, err)
	require.NoError(t, trainer.Add(context.Background(), func(emit func([]byte) error) error {
		for _, text := range texts {
			if err := emit([]byte(text)); err != nil {
				return err
			}
		}
		return nil
	}))
	out, err := trainer.Train(context.Background(), nil)
	require.NoError(t, err)
	return out
}

// testdata/make_trained_goldens.py wrote golden_trained.json: the merges of Hugging Face's trainer.
func TestTrainedMerges(t *testing.T) {
	var golden struct {
		Text   string
		Merges map[string][]string
	}
	data, err := os.ReadFile("testdata/golden_trained.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &golden))
	require.Len(t, golden.Merges, 2)
	for pattern, want := range golden.Merges {
		require.Greater(t, len(want), 50)
		out := trainedOn(t, options(500, pattern), golden.Text)
		var found struct {
			Model struct {
				Vocab  map[string]int
				Merges []string
			}
		}
		require.NoError(t, json.Unmarshal(out.JSON, &found))
		assert.Equal(t, want, found.Model.Merges, pattern)
		assert.Len(t, found.Model.Vocab, out.VocabSize)

		tok, err := parse("trained", out.JSON, description{})
		require.NoError(t, err)
		ids, err := tok.Encode([]byte(golden.Text + "<|endoftext|>\xff"))
		require.NoError(t, err)
		back, err := tok.Decode(ids)
		require.NoError(t, err)
		assert.Equal(t, golden.Text+"<|endoftext|>\xff", string(back))
		end, ok := tok.EOS()
		assert.Equal(t, []any{uint32(0), true}, []any{end, ok})
		assert.Less(t, len(ids), len(golden.Text)/2)
	}
}

// Words that are forgotten are rare ones, and they are reported. Which ones does not depend on cores.
func TestTrainingForgetsRareWords(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var texts []string
	for range 40 {
		var b strings.Builder
		for range 500 {
			fmt.Fprintf(&b, " the quick fox%c%c%c", 'a'+random.IntN(26), 'a'+random.IntN(26), 'a'+random.IntN(26))
		}
		texts = append(texts, b.String()+strings.Repeat("\n", batchBytes/20))
	}
	o := options(280, "gpt2")
	whole := trainedOn(t, o, texts...)
	assert.Zero(t, whole.Pruned)
	o.MaxWords = 2000
	small := trainedOn(t, o, texts...)
	assert.Positive(t, small.Pruned)
	assert.Less(t, small.Words, whole.Words)
	assert.Equal(t, whole.WordsTotal, small.WordsTotal)
	assert.Equal(t, string(small.JSON), string(trainedOn(t, o, texts...).JSON))
	tok, err := parse("small", small.JSON, description{})
	require.NoError(t, err)
	ids, err := tok.Encode([]byte(" the quick"))
	require.NoError(t, err)
	assert.Len(t, ids, 2, "frequent words stay")
}

func TestTrainerRefuses(t *testing.T) {
	for want, change := range map[string]func(o *TrainOptions){
		"vocab-size: found 257, expected an integer from 258": func(o *TrainOptions) { o.VocabSize = 257 },
		"pattern: found \"x\", expected gpt4, gpt2, qwen2":    func(o *TrainOptions) { o.Pattern = "x" },
		"min-frequency: found 0":                              func(o *TrainOptions) { o.MinFrequency = 0 },
		"special: found \"a\"":                                func(o *TrainOptions) { o.Special = []string{"a"} },
		"special: found \"<e>\"":                              func(o *TrainOptions) { o.Special = []string{"<e>", "<e>"} },
		"max-words: found 10":                                 func(o *TrainOptions) { o.MaxWords = 10 },
	} {
		o := options(300, "gpt4")
		change(&o)
		_, err := NewTrainer(o)
		assert.ErrorContains(t, err, want)
	}
}

func TestTrainingStops(t *testing.T) {
	trainer, err := NewTrainer(options(300, "gpt4"))
	require.NoError(t, err)
	broken := errors.New("broken")
	assert.ErrorIs(t, trainer.Add(context.Background(), func(func([]byte) error) error { return broken }), broken)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.ErrorIs(t, trainer.Add(ctx, func(emit func([]byte) error) error { return emit([]byte("text")) }), context.Canceled)
	require.NoError(t, trainer.Add(context.Background(), func(emit func([]byte) error) error { return emit([]byte("text text text")) }))
	_, err = trainer.Train(ctx, nil)
	assert.ErrorIs(t, err, context.Canceled)
}

func TestReport(t *testing.T) {
	var r Report
	require.NoError(t, r.Add(byteTokenizer{}, []byte("two words"), true))
	require.NoError(t, r.Add(byteTokenizer{}, []byte(" a"), false))
	assert.Equal(t, []any{int64(2), int64(11), int64(3), int64(11), 8, int64(0)},
		[]any{r.Pieces, r.Bytes, r.Words, r.Tokens, r.Used, r.Different})
	assert.InDelta(t, 11.0/3, r.Fertility(), 1e-9)
	assert.InDelta(t, 1, r.BytesPerToken(), 1e-9)
	lossy, err := parse("lossy", []byte(`{"normalizer":{"type":"Lowercase"},"model":{"type":"BPE","vocab":{"a":0,"b":1,"?":2},"merges":[],"unk_token":"?"},"decoder":{"type":"Fuse"}}`), description{})
	require.NoError(t, err)
	r = Report{}
	require.NoError(t, r.Add(lossy, []byte("abz"), true))
	assert.Equal(t, []any{int64(1), int64(1), `byte 2: "abz" becomes "ab?"`}, []any{r.Unknown, r.Different, r.First})
}
