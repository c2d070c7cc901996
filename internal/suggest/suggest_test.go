package suggest

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestClosest(t *testing.T) {
	keys := []string{"steps", "batch_size", "grad_clip", "lr", "seed", "keep", "model"}
	for name, want := range map[string][]string{"stepss": {"steps"}, "setps": {"steps"}, "batchsize": {"batch_size"}, "modle": {"model"},
		"STEPS": {"steps"}, "rl": {"lr"}, "zzzzzz": nil, "see": {"seed"}, "": nil} {
		assert.Equal(t, want, Closest(name, keys), name)
	}
	assert.Equal(t, []string{"ab", "ac"}, Closest("ad", []string{"ab", "xyz", "ac"}))
}

func TestDidYouMean(t *testing.T) {
	assert.Equal(t, " (did you mean steps?)", DidYouMean("stpes", []string{"steps", "seed"}))
	assert.Equal(t, " (did you mean ab or ac?)", DidYouMean("ad", []string{"ab", "ac"}))
	assert.Empty(t, DidYouMean("x", nil))
}
