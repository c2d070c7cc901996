package optim

import (
	"math"
	"slices"
)

// Schedule is the factor on all learning rates, by step. It rises linearly to 1 over Warmup steps, and then follows the
// schedule of the table Schedules that Name names.
type Schedule struct {
	Name     string
	Steps    int // of the run: the factor reaches MinRatio there
	Warmup   int
	MinRatio float64
	Decay    int // steps over which wsd falls; 0: a fifth of all
}

// Fields lists the values but for Steps, which the run has.
func (s *Schedule) Fields() []Field {
	from0 := Range{To: math.MaxInt32}
	return []Field{
		{Name: "schedule", About: "course of the learning rate after the warm-up", Value: &s.Name, Choices: ScheduleNames()},
		{Name: "warmup", About: "steps over which the learning rate rises from 0", Value: &s.Warmup, Range: from0},
		{Name: "min_ratio", About: "the last learning rate over the highest", Value: &s.MinRatio, Range: Range{To: 1}},
		{Name: "decay", About: "last steps, over which wsd falls; 0: a fifth of all", Value: &s.Decay, Range: from0},
	}
}

// Factor returns the factor at a step, counted from 0.
func (s Schedule) Factor(step int) float64 {
	if step < s.Warmup {
		return float64(step+1) / float64(s.Warmup)
	}
	kinds := Schedules()
	return kinds[slices.IndexFunc(kinds, func(k ScheduleKind) bool { return k.Name == s.Name })].after(s, step)
}

func (s Schedule) cosine(step int) float64 {
	return s.MinRatio + (1-s.MinRatio)*0.5*(1+math.Cos(math.Pi*s.progress(step, s.Warmup)))
}

func (s Schedule) linear(step int) float64 { return 1 - (1-s.MinRatio)*s.progress(step, s.Warmup) }

func (s Schedule) wsd(step int) float64 {
	decay := s.Decay
	if decay == 0 {
		decay = s.Steps / 5
	}
	return 1 - (1-s.MinRatio)*s.progress(step, max(s.Warmup, s.Steps-decay))
}

// progress is the fraction of the steps after from that are done, from 0 to 1.
func (s Schedule) progress(step, from int) float64 {
	if step >= s.Steps {
		return 1
	}
	return max(0, float64(step-from)/float64(s.Steps-from))
}
