package schedule

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSlotsAndBackwards(t *testing.T) {
	for _, c := range []struct {
		name                    string
		o                       Options
		slots                   []int // by stage
		whole, split, postponed bool  // on any stage
	}{
		{"gpipe", Options{Stages: 3, Microbatches: 5}, []int{5, 5, 5}, true, false, false},
		{"1f1b", Options{Stages: 3, Microbatches: 5}, []int{3, 2, 1}, true, false, false},
		{"interleaved", Options{Stages: 2, Microbatches: 4, Chunks: 2}, []int{4, 3}, true, false, false},
		{"zb-h1", Options{Stages: 3, Microbatches: 6}, []int{3, 3, 3}, false, true, true},
		{"2bw", Options{Stages: 3, Microbatches: 3, Batches: 4}, []int{3, 2, 1}, true, false, false},
		{"2bw", Options{Stages: 4, Microbatches: 8, Depth: 4, Batches: 4}, []int{8, 6, 3, 1}, true, false, false},
		{"1f1b", Options{Stages: 3, Microbatches: 5, Depth: 1}, []int{4, 2, 1}, true, false, false},
		{"eval", Options{Stages: 2, Microbatches: 4}, []int{1, 1}, false, false, false},
	} {
		s, err := Generate(c.name, c.o)
		require.NoError(t, err)
		var slots []int
		var whole, split, postponed bool
		for _, actions := range s.Actions {
			slots = append(slots, Slots(slices.Values(actions)))
			w, h, p := Backwards(slices.Values(actions))
			whole, split, postponed = whole || w, split || h, postponed || p
		}
		assert.Equal(t, c.slots, slots, c.name)
		assert.Equal(t, []bool{c.whole, c.split, c.postponed}, []bool{whole, split, postponed}, c.name)
	}
}

func TestSplitBackwards(t *testing.T) {
	list := func(text string) (out []Action) {
		for _, kind := range text {
			out = append(out, Action{Kind: map[rune]Kind{'F': Forward, 'B': Backward, 'I': InputGrad, 'W': WeightGrad}[kind]})
		}
		return out
	}
	for text, want := range map[string][3]bool{"FB": {true, false, false}, "FIW": {false, true, false}, "FIFW": {false, true, true},
		"W": {false, true, true}} {
		whole, split, postponed := Backwards(slices.Values(list(text)))
		assert.Equal(t, want, [3]bool{whole, split, postponed}, text)
	}
}
