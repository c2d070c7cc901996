package inference

import (
	"context"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func draws(t *testing.T, s Sampling, logits []float32, n int) map[uint32]float64 {
	t.Helper()
	require.NoError(t, s.Validate())
	sampler := NewSampler(s)
	shares := map[uint32]float64{}
	for range n {
		id, err := sampler.Next(logits)
		require.NoError(t, err)
		shares[id] += 1 / float64(n)
	}
	return shares
}

func TestSamplerFollowsTheDistribution(t *testing.T) {
	p := []float64{0.1, 0.4, 0.2, 0.3}
	logits := make([]float32, len(p))
	for i, x := range p {
		logits[i] = float32(math.Log(x)) + 7
	}
	const n = 20000
	near := func(want map[uint32]float64, got map[uint32]float64) {
		assert.Len(t, got, len(want))
		for id, share := range want {
			assert.InDelta(t, share, got[id], 5*math.Sqrt(share*(1-share)/n)+1e-12, "token %d", id)
		}
	}
	near(map[uint32]float64{0: 0.1, 1: 0.4, 2: 0.2, 3: 0.3}, draws(t, Sampling{Temperature: 1, TopK: 0, TopP: 1, Seed: 1}, logits, n))
	near(map[uint32]float64{1: 4.0 / 7, 3: 3.0 / 7}, draws(t, Sampling{Temperature: 1, TopK: 2, TopP: 1, Seed: 1}, logits, n))
	near(map[uint32]float64{1: 4.0 / 9, 3: 3.0 / 9, 2: 2.0 / 9}, draws(t, Sampling{Temperature: 1, TopK: 0, TopP: 0.75, Seed: 1}, logits,
		n))
	near(map[uint32]float64{1: 1}, draws(t, Sampling{Temperature: 1, TopK: 0, TopP: 0.39, Seed: 1}, logits, 100))
	near(map[uint32]float64{1: 1}, draws(t, Sampling{Temperature: 0, TopK: 0, TopP: 1, Seed: 1}, logits, 100))
	// At temperature 1/2 probabilities are squared: 1, 16, 4, 9 of 30.
	near(map[uint32]float64{0: 1.0 / 30, 1: 16.0 / 30, 2: 4.0 / 30, 3: 9.0 / 30},
		draws(t, Sampling{Temperature: 0.5, TopK: 0, TopP: 1, Seed: 1}, logits, n))
	_, err := NewSampler(Sampling{Temperature: 1, TopK: 0, TopP: 1, Seed: 1}).Next([]float32{0, float32(math.NaN())})
	assert.ErrorContains(t, err, "token 1 has NaN")
}

// Tokens far less likely than the likeliest one are not drawn, and penalties change what is likely: the repetition
// penalty for tokens of the prompt, too, the others for each draw.
func TestMinPAndPenalties(t *testing.T) {
	logits := []float32{0, 1, 2, -1}
	got := draws(t, Sampling{Temperature: 1, TopP: 1, MinP: 0.3, Seed: 1}, logits, 1000)
	assert.Len(t, got, 2, "e⁻¹ of the likeliest is above 0.3, e⁻² is below")

	next := func(p Penalties, prompt ...uint32) (ids []uint32) {
		s := NewSampler(Sampling{TopP: 1, Penalties: p})
		s.Begin(prompt)
		for range 4 {
			id, err := s.Next(logits)
			require.NoError(t, err)
			ids = append(ids, id)
		}
		return ids
	}
	assert.Equal(t, []uint32{2, 2, 2, 2}, next(Penalties{}, 2, 2))
	assert.Equal(t, []uint32{2, 2, 1, 2}, next(Penalties{Frequency: 0.6}, 2, 2))
	assert.Equal(t, []uint32{2, 1, 2, 2}, next(Penalties{Presence: 1.5}, 2, 2))
	assert.Equal(t, []uint32{1, 2, 2, 2}, next(Penalties{Repetition: 1e9}, 2))
	assert.Equal(t, []float32{0, 1, 2, -1}, logits)
}

func TestSamplingIsRefused(t *testing.T) {
	for want, s := range map[string]Sampling{
		"temperature: found -1": {Temperature: -1, TopP: 1}, "temperature: found NaN": {Temperature: math.NaN(), TopP: 1},
		"top_k: found -1": {TopK: -1, TopP: 1}, "top_p: found 0": {}, "top_p: found 1.5": {TopP: 1.5},
		"min_p: found 2": {TopP: 1, MinP: 2}, "frequency_penalty: found -3": {TopP: 1, Penalties: Penalties{Frequency: -3}},
		"presence_penalty: found NaN":  {TopP: 1, Penalties: Penalties{Presence: math.NaN()}},
		"repetition_penalty: found -1": {TopP: 1, Penalties: Penalties{Repetition: -1}},
	} {
		assert.ErrorContains(t, s.Validate(), want)
	}
}

func trained(t *testing.T, overrides ...string) string {
	t.Helper()
	c := traintest.Demo(t, t.TempDir(), overrides...)
	_, err := train.Run(context.Background(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	return c.Run.Dir
}

func generator(t *testing.T, dir string) *Generator {
	t.Helper()
	src, err := OpenModel(dir, "")
	require.NoError(t, err)
	g, err := NewGenerator(src, onReference)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, g.Close()) })
	return g
}

func generate(t *testing.T, g *Generator, prompt string, n int, s Sampling) (string, int) {
	t.Helper()
	var b strings.Builder
	made, err := g.Generate(context.Background(), []byte(prompt), n, s, func(text []byte) error {
		b.Write(text)
		return nil
	})
	require.NoError(t, err)
	return b.String(), made
}

func TestGenerate(t *testing.T) {
	g := generator(t, trained(t))
	s := Sampling{Temperature: 1, TopP: 1, Seed: 1}
	// The context is 8 tokens: prompt and text go beyond it.
	for _, prompt := range []string{"", "the", "a prompt that is longer than the context"} {
		text, made := generate(t, g, prompt, 20, s)
		assert.Equal(t, 20, made)
		assert.Len(t, text, 20, "a token is a byte")
		again, _ := generate(t, g, prompt, 20, s)
		assert.Equal(t, text, again, "a seed draws one text")
		other, _ := generate(t, g, prompt, 20, Sampling{Temperature: 1, TopP: 1, Seed: 2})
		assert.NotEqual(t, text, other)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := g.Generate(ctx, nil, 5, s, func([]byte) error { return nil })
	assert.ErrorIs(t, err, context.Canceled)
}

func TestStreamHandsOnWholeCharacters(t *testing.T) {
	tok, err := tokenizer.Open("bytes")
	require.NoError(t, err)
	var parts []string
	s := &TextStream{tok: tok, emit: func(b []byte) error { parts = append(parts, string(b)); return nil }}
	s.start([]uint32{'x'})
	for _, b := range []byte("aé€\xff!\xe2\x82") {
		require.NoError(t, s.Add(uint32(b)))
	}
	require.NoError(t, s.Flush())
	assert.Equal(t, []string{"a", "é", "€", "\xff", "!", "\xe2\x82"}, parts)
}

func TestOpenModelFindsRunsCheckpointsAndFolders(t *testing.T) {
	dir := trained(t)
	for _, path := range []string{dir, dir + "/checkpoints/step-4"} {
		src, err := OpenModel(path, "")
		require.NoError(t, err)
		assert.Equal(t, "bytes", src.Tokenizer.Name())
		assert.Equal(t, 8, src.Model.Size().DModel)
		require.NoError(t, src.Close())
	}
	for _, path := range []string{dir + "/none", dir + "/config.yaml", dir + "/tensorboard"} {
		_, err := OpenModel(path, "")
		assert.Error(t, err, path)
	}
	_, err := OpenModel(t.TempDir(), "")
	assert.ErrorContains(t, err, "no model here: expected a run folder")
	_, err = OpenModel(dir, "gpt2")
	assert.ErrorContains(t, err, "has 50257 tokens, but the model has rows for 256: token 256, \" t\", has none")
	_, err = Evaluate(context.Background(), EvalOptions{From: dir + "/none", BatchSize: 1, Target: Target{Open: traintest.OpenNull}})
	var user *usererror.Error
	assert.ErrorAs(t, err, &user)
}

// The model of a run that goes on can be opened at any time, though the run deletes what it has newer checkpoints of.
func TestOpeningTheModelOfARunThatGoesOn(t *testing.T) {
	c := traintest.Demo(t, t.TempDir(), "train={steps: 10, eval_every: 0, save_every: 1, keep: 1}")
	begun, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_, err := train.Run(t.Context(), c, runtest.Options(&traintest.Reference{}, &runtest.Notes{OnStep: func(p train.Progress) {
			if p.Step == 2 {
				close(begun)
			}
		}}))
		assert.NoError(t, err)
	}()
	<-begun
	for opened := 0; ; opened++ {
		src, err := OpenWeights(c.Run.Dir, nil, "", VersionX, func(format string, args ...any) { t.Errorf(format, args...) })
		require.NoError(t, err)
		require.NoError(t, src.Close())
		select {
		case <-done:
			t.Log(opened, "times")
			return
		default:
		}
	}
}

// blocks counts the runs of the program that reads blocks.
type blocks struct {
	engine.Session
	runs int
}

func (b *blocks) RunAt(program string, at exec.Binding) error {
	if program == prefillProgram {
		b.runs++
	}
	return b.Session.RunAt(program, at)
}

// The program that reads blocks of a prompt leaves what reading token by token leaves: the text that follows is the
// same.
func TestPromptInBlocks(t *testing.T) {
	g := generator(t, trained(t))
	counted := &blocks{Session: g.session}
	g.session = counted
	greedy := Sampling{TopP: 1}
	whole, _ := generate(t, g, "t", 7, greedy) // all of a context
	assert.Zero(t, counted.runs, "a block of one token")
	for n := 1; n < 7; n++ {
		counted.runs = 0
		rest, _ := generate(t, g, "t"+whole[:n], 7-n, greedy)
		assert.Equal(t, whole[n:], rest)
		assert.Equal(t, 1, counted.runs)
	}
	long := "a prompt that is longer than the context"
	inBlocks, _ := generate(t, g, long, 20, greedy)
	g.reader = cached{context: g.context}
	one, _ := generate(t, g, long, 20, greedy)
	assert.Equal(t, one, inBlocks)
}

// What comes next depends on the text so far, not on how much of it was given at once.
func TestGenerateWithAWrittenModel(t *testing.T) {
	dir := t.TempDir()
	_, err := train.Run(context.Background(), traintest.HookModel(t, dir, traintest.GPT2(t), "train.steps=30"),
		runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	g := generator(t, filepath.Join(dir, "run"))
	greedy := Sampling{TopP: 1}
	whole, _ := generate(t, g, "th", 6, greedy) // all of a context
	for n := 1; n < 6; n++ {
		rest, _ := generate(t, g, "th"+whole[:n], 6-n, greedy)
		assert.Equal(t, whole[n:], rest)
	}
	_, made := generate(t, g, "a prompt that is longer than the context", 20, greedy)
	assert.Equal(t, 20, made)
	_, err = Evaluate(context.Background(), EvalOptions{From: filepath.Join(dir, "run"), SeqLen: 4, BatchSize: 1, Target: onReference})
	assert.ErrorContains(t, err, "seq-len: found 4, expected ")
}

// Tokens are drawn in the order of a stable sort by falling logits.
func TestSorted(t *testing.T) {
	negative := float32(math.Copysign(0, -1))
	logits := []float32{0, -1, negative, 3, 0, float32(math.Inf(-1)), 3, -1e-30, 1e-30, -3e38, 3e38, negative}
	var ids []uint32
	for _, c := range sorted(logits) {
		assert.Equal(t, float64(logits[c.id]), c.logit)
		ids = append(ids, c.id)
	}
	assert.Equal(t, []uint32{10, 3, 6, 8, 0, 2, 4, 11, 7, 1, 9, 5}, ids)
}
