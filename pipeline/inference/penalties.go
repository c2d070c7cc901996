package inference

import (
	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// Penalties change the logits of tokens that a text has, before one is drawn. The zero value changes none.
type Penalties struct {
	Frequency  float64 // is subtracted for each time that the answer has the token
	Presence   float64 // is subtracted once if the answer has the token
	Repetition float64 // divides positive logits, and multiplies others, if the prompt or the answer has the token; 0 and 1: none
}

// maxPenalty bounds Frequency and Presence on both sides, as OpenAI does.
const maxPenalty = 2

func (p Penalties) validate() error {
	switch {
	case !(p.Frequency >= -maxPenalty && p.Frequency <= maxPenalty):
		return fielderror.New("frequency_penalty", p.Frequency, "a number from -%d to %d", maxPenalty, maxPenalty)
	case !(p.Presence >= -maxPenalty && p.Presence <= maxPenalty):
		return fielderror.New("presence_penalty", p.Presence, "a number from -%d to %d", maxPenalty, maxPenalty)
	case !(p.Repetition >= 0 && p.Repetition <= 100):
		return fielderror.New("repetition_penalty", p.Repetition, "a number above 0 and at most 100")
	}
	return nil
}

func (p Penalties) active() bool {
	return p.Frequency != 0 || p.Presence != 0 || p.Repetition != 0 && p.Repetition != 1
}

// history counts the tokens of a text.
type history struct {
	prompt map[uint32]bool
	made   map[uint32]int
}

// apply returns the logits with the penalties, in a slice of its own.
func (p Penalties) apply(logits []float32, h history) []float32 {
	out := append([]float32(nil), logits...)
	repeat := func(id uint32) {
		if int(id) >= len(out) || p.Repetition == 0 {
			return
		}
		if out[id] > 0 {
			out[id] /= float32(p.Repetition)
		} else {
			out[id] *= float32(p.Repetition)
		}
	}
	for id := range h.prompt {
		if h.made[id] == 0 {
			repeat(id)
		}
	}
	for id, n := range h.made {
		repeat(id)
		if int(id) < len(out) {
			out[id] -= float32(p.Frequency)*float32(n) + float32(p.Presence)
		}
	}
	return out
}

// Begin gives the sampler the tokens of the prompt, before the first draw.
func (s *Sampler) Begin(prompt []uint32) {
	if !s.Penalties.active() {
		return
	}
	s.seen = history{map[uint32]bool{}, map[uint32]int{}}
	for _, id := range prompt {
		s.seen.prompt[id] = true
	}
}
