package partition

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func candidate(name string, delay int, rate float64, bytes int64) Candidate {
	return Candidate{Schedule: name, Delay: delay, Microbatches: 4, Stale: 4 * delay, Staleness: float64(delay),
		Plan: &Plan{TokensPerSec: rate, Stages: []Stage{{Memory: Memory{Weights: 1}}, {Memory: Memory{Weights: bytes}}}}}
}

// partly is a candidate with a quarter of the microbatches stale.
func partly(name string, rate float64) Candidate {
	c := candidate(name, 1, rate, 9)
	c.Stale, c.Staleness = 1, 0.25
	return c
}

func TestRecommend(t *testing.T) {
	impossible := Candidate{Schedule: "interleaved", Problem: "too few microbatches"}
	for _, c := range []struct {
		candidates []Candidate
		best       int
		reason     string
	}{
		{[]Candidate{candidate("gpipe", 0, 100, 9), candidate("1f1b", 0, 100, 5), impossible, candidate("2bw", 1, 130, 9)}, 3,
			"30 % more tokens a second than 1f1b, the fastest without delay"},
		{[]Candidate{candidate("1f1b", 0, 100, 5), candidate("zb-h1", 0, 110, 5), candidate("2bw", 1, 111, 9)}, 1,
			"2bw would be 0.9 % faster, too little"},
		{[]Candidate{candidate("gpipe", 0, 100, 9), candidate("1f1b", 0, 99.9, 5), candidate("2bw", 1, 99, 9)}, 1,
			"no slower than 2bw, whose staleness is 1"},
		{[]Candidate{candidate("1f1b", 0, 100, 5), partly("2bw", 102)}, 1, "the first 1 of 4 microbatches of a batch lack"},
		{[]Candidate{candidate("1f1b", 0, 100, 5), partly("2bw", 100)}, 0, "whose staleness is 0.25"},
		{[]Candidate{impossible, candidate("2bw", 1, 99, 9)}, 1, "every gradient is applied one batch late"},
		{[]Candidate{candidate("1f1b", 0, 99, 9), impossible}, 0, "none with a delay is possible"},
		{[]Candidate{impossible}, -1, "no schedule is possible"},
	} {
		best, reason := Recommend(c.candidates)
		assert.Equal(t, c.best, best, "%s", c.reason)
		assert.Contains(t, reason, c.reason)
	}
}
