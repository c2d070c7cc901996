package inference

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/usererror"
)

// Sampling is how the next token is drawn from the distribution of the logits.
type Sampling struct {
	Temperature float64 // 0 takes the most likely token
	TopK        int     // draws from the k most likely tokens; 0: from all
	TopP        float64 // draws from the fewest tokens whose probabilities add up to TopP; 1: from all
	MinP        float64 // draws from tokens with at least MinP times the probability of the likeliest one; 0: from all
	Penalties   Penalties
	Seed        uint64
}

// Validate returns a *fielderror.Error for settings out of range: of temperature, top_k, top_p, min_p or a penalty.
func (s Sampling) Validate() error {
	switch {
	case !(s.Temperature >= 0) || math.IsInf(s.Temperature, 1):
		return fielderror.New("temperature", s.Temperature, "a number of at least 0")
	case s.TopK < 0:
		return fielderror.New("top_k", s.TopK, "at least 0 (0: no limit)")
	case !(s.TopP > 0) || s.TopP > 1:
		return fielderror.New("top_p", s.TopP, "a number above 0 and at most 1")
	case !(s.MinP >= 0 && s.MinP <= 1):
		return fielderror.New("min_p", s.MinP, "a number from 0 to 1")
	}
	return s.Penalties.validate()
}

// Sampler draws tokens.
type Sampler struct {
	Sampling
	rng  *rand.Rand
	seen history // for penalties alone
}

// NewSampler starts a sequence of draws that depends only on the settings.
func NewSampler(s Sampling) *Sampler {
	return &Sampler{Sampling: s, rng: rand.New(rand.NewPCG(s.Seed, 0))}
}

// choice is a token that may be drawn.
type choice struct {
	id     uint32
	logit  float64
	weight float64 // proportional to its probability; set by draw
}

// Next draws a token. Ties go to the lower id.
func (s *Sampler) Next(logits []float32) (uint32, error) {
	if !s.Penalties.active() {
		return s.next(logits)
	}
	id, err := s.next(s.Penalties.apply(logits, s.seen))
	if err == nil {
		s.seen.made[id]++
	}
	return id, err
}

func (s *Sampler) next(logits []float32) (uint32, error) {
	best := 0
	for i, l := range logits {
		if math.IsNaN(float64(l)) || math.IsInf(float64(l), 1) {
			return 0, usererror.Errorf("the model's logits are not finite: token %d has %v", i, l)
		}
		if l > logits[best] {
			best = i
		}
	}
	if s.Temperature == 0 {
		return uint32(best), nil
	}
	return s.draw(sorted(logits)), nil
}

// sorted returns the tokens, the likeliest first and the lower id first among equals. It sorts integers, which is
// several times as fast as sorting with a function: the high half of a key falls as the logit rises, the low half is
// the id.
func sorted(logits []float32) []choice {
	keys := make([]uint64, len(logits))
	for i, l := range logits {
		bits := math.Float32bits(l + 0) // −0 becomes 0
		if bits>>31 == 0 {
			bits = ^bits & math.MaxInt32
		}
		keys[i] = uint64(bits)<<32 | uint64(i)
	}
	slices.Sort(keys)
	choices := make([]choice, len(keys))
	for i, k := range keys {
		choices[i] = choice{id: uint32(k), logit: float64(logits[uint32(k)])}
	}
	return choices
}

// draw draws one of the tokens, which are sorted.
func (s *Sampler) draw(choices []choice) uint32 {
	if s.TopK > 0 && s.TopK < len(choices) {
		choices = choices[:s.TopK]
	}
	best, sum := choices[0].logit, 0.0
	for i := range choices {
		weight := math.Exp((choices[i].logit - best) / s.Temperature)
		if weight < s.MinP {
			choices = choices[:i]
			break
		}
		choices[i].weight = weight
		sum += weight
	}
	if s.TopP < 1 {
		reached := 0.0
		for i, c := range choices {
			if reached += c.weight; reached >= s.TopP*sum {
				choices, sum = choices[:i+1], reached
				break
			}
		}
	}
	at := s.rng.Float64() * sum
	for _, c := range choices {
		if at -= c.weight; at < 0 {
			return c.id
		}
	}
	return choices[len(choices)-1].id
}

// LogSumExp is the natural logarithm of the sum of the exponentials of logits: what log-probabilities subtract.
func LogSumExp(logits []float32) float64 {
	top := math.Inf(-1)
	for _, l := range logits {
		top = max(top, float64(l))
	}
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l) - top)
	}
	return top + math.Log(sum)
}
