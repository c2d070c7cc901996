package optim

import (
	"fmt"
	"math"
)

// Schedule is the course of the factor on all learning rates. It rises linearly to 1 over Warmup steps; then cosine and
// linear fall to MinRatio at Steps, wsd stays at 1 and falls linearly over the last Decay steps, constant stays at 1.
type Schedule struct {
	Name     string // cosine, linear, wsd, constant
	Steps    int
	Warmup   int
	MinRatio float64
	Decay    int // steps, of wsd; 0: a fifth of all
}

func (s Schedule) check() error {
	switch s.Name {
	case "cosine", "linear", "wsd", "constant":
		return nil
	}
	return fmt.Errorf("lr.schedule: found %q, expected one of cosine, linear, wsd, constant", s.Name)
}

// Factor is the factor at a step, counted from 0.
func (s Schedule) Factor(step int) float64 {
	if step < s.Warmup {
		return float64(step+1) / float64(s.Warmup)
	}
	switch s.Name {
	case "cosine":
		return s.MinRatio + (1-s.MinRatio)*0.5*(1+math.Cos(math.Pi*s.progress(step, s.Warmup)))
	case "linear":
		return 1 - (1-s.MinRatio)*s.progress(step, s.Warmup)
	case "wsd":
		decay := s.Decay
		if decay == 0 {
			decay = s.Steps / 5
		}
		return 1 - (1-s.MinRatio)*s.progress(step, max(s.Warmup, s.Steps-decay))
	}
	return 1
}

// progress is how much of the way from a step to the end is done, from 0 to 1.
func (s Schedule) progress(step, from int) float64 {
	if step >= s.Steps {
		return 1
	}
	return max(0, float64(step-from)/float64(s.Steps-from))
}
