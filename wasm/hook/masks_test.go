package hook_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// random is a batch of few different tokens, in which hooks before have set some things apart, unless it is fresh.
func random(rng *rand.Rand, rows, length int, fresh bool) *hook.Batch {
	b := plain(rows, length, 4)
	for i := range b.Tokens {
		b.Tokens[i], b.Targets[i] = rng.Uint32N(4), rng.Uint32N(4)
		if !fresh {
			b.Segments[i], b.Weights[i] = rng.Uint32N(2), float32(rng.Uint32N(3))
		}
	}
	return b
}

// sees reports for each two positions of a row whether the later one sees the earlier.
func sees(segments []uint32, length int) (out []bool) {
	for i := range segments {
		for j := i - i%length; j <= i; j++ {
			out = append(out, segments[i] == segments[j])
		}
	}
	return out
}

// apart is sees where hooks before have made segments, and a rule says where a part of a row ends, before i.
func apart(before []uint32, length int, ends func(i int) bool) (out []bool) {
	for i := range before {
		for j := i - i%length; j <= i; j++ {
			same := before[i] == before[j]
			for k := j + 1; k <= i; k++ {
				same = same && !ends(k)
			}
			out = append(out, same)
		}
	}
	return out
}

func TestDocumentMask(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	p := exampleOf(t, "document_mask.wasm", `{"separator": 3}`)
	for n := range 50 {
		b := random(rng, 1+rng.IntN(4), 2+rng.IntN(20), n < 25)
		tokens, targets, weights := slices.Clone(b.Tokens), slices.Clone(b.Targets), slices.Clone(b.Weights)
		want := apart(b.Segments, b.SeqLen, func(i int) bool { return tokens[i-1] == 3 })
		for i, token := range tokens {
			if token == 3 {
				weights[i] = 0
			}
		}
		require.NoError(t, p.Apply(ctx, n, b))
		assert.Equal(t, want, sees(b.Segments, b.SeqLen))
		assert.Equal(t, weights, b.Weights)
		assert.Equal(t, [][]uint32{tokens, targets}, [][]uint32{b.Tokens, b.Targets})
	}
	assert.ErrorContains(t, exampleOf(t, "document_mask.wasm", `{}`).Apply(ctx, 0, plain(1, 2, 4)),
		"separator: expected the number of a token")
}

func TestLengthCurriculum(t *testing.T) {
	// lengths of a sequence of 100 tokens at steps 0 to 10: from 8, by multiples of 8
	grow := []int{8, 16, 24, 32, 40, 48, 56, 72, 80, 88, 100}
	for _, c := range []struct {
		config string
		want   func(step int) int
	}{
		{`{"steps": 10}`, func(step int) int { return grow[min(step, 10)] }},
		{`{"steps": 10, "truncate": true}`, func(step int) int { return grow[min(step, 10)] }},
		{`{}`, func(step int) int { return grow[min(step, 10)] }}, // half of the run's 20 steps
		{`{"steps": 1, "start": 20}`, func(step int) int { return []int{20, 100}[min(step, 1)] }},
		{`{"steps": 90, "start": 10, "multiple": 1}`, func(step int) int { return 10 + step }},
		{`{"start": 100}`, func(int) int { return 100 }},
		{`{"start": 1000}`, func(int) int { return 100 }},
	} {
		rng := rand.New(rand.NewPCG(2, 9))
		p := exampleOf(t, "length_curriculum.wasm", c.config)
		for step := range 20 {
			b := random(rng, 3, 100, step%2 == 0)
			b.Step, b.Steps = step, 20
			before, weights := slices.Clone(b.Segments), slices.Clone(b.Weights)
			require.NoError(t, p.Apply(ctx, step, b))
			length := c.want(step)
			assert.Equal(t, apart(before, 100, func(i int) bool { return length < 100 && i%100%length == 0 }), sees(b.Segments, 100),
				"%s: step %d", c.config, step)
			for i := range weights {
				if c.config == `{"steps": 10, "truncate": true}` && i%100 >= length {
					weights[i] = 0
				}
			}
			assert.Equal(t, weights, b.Weights)
		}
	}
	for config, want := range map[string]string{
		`{"start": 0}`: "start: expected a number of tokens", `{"steps": 0}`: "steps: expected a number of at least 1",
		`{"multiple": 0.5}`: "multiple: expected a number of tokens", `{"truncate": 1}`: "truncate is not true or false",
	} {
		assert.ErrorContains(t, exampleOf(t, "length_curriculum.wasm", config).Apply(ctx, 0, plain(1, 2, 4)),
			fmt.Sprintf("failed: %s", want), config)
	}
}
