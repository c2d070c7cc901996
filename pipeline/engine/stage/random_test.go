package stage

import (
	"math/rand/v2"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// randomSchedule repeatedly chooses a random stage and appends a random action that is possible there.
func randomSchedule(o schedule.Options, delay int, random *rand.Rand) *schedule.Schedule {
	stale := delay * (1 + random.IntN(o.Microbatches))
	s := &schedule.Schedule{Name: "random", Stages: o.Stages, Chunks: o.Chunks, Microbatches: o.Microbatches, Batches: o.Batches,
		Delay: delay, Stale: stale, Actions: make([][]schedule.Action, o.Stages)}
	virtualStages, total := s.VirtualStages(), o.Microbatches*o.Batches
	// How many microbatches each virtual stage has done of a kind, counted through batches, and how many updates each
	// stage.
	forwards, inputs, weights, updates := make([]int, virtualStages), make([]int, virtualStages), make([]int, virtualStages),
		make([]int, o.Stages)
	split := random.IntN(2) == 0
	for {
		var can []func()
		do := func(kind schedule.Kind, v int, count *int) {
			can = append(can, func() {
				s.Actions[v%o.Stages] = append(s.Actions[v%o.Stages],
					schedule.Action{Kind: kind, Microbatch: *count % o.Microbatches, Batch: *count / o.Microbatches, Chunk: v / o.Stages})
				*count++
			})
		}
		for v := range virtualStages {
			stage := v % o.Stages
			complete := weights[stage] // of all the stage's chunks
			for c := stage; c < virtualStages; c += o.Stages {
				complete = min(complete, weights[c])
			}
			ahead := 0
			if forwards[v]%o.Microbatches < stale {
				ahead = delay
			}
			if f := forwards[v]; f < total && (v == 0 || forwards[v-1] > f) && f/o.Microbatches <= updates[stage]+ahead {
				do(schedule.Forward, v, &forwards[v])
			}
			if b := inputs[v]; b < forwards[v] && (v == virtualStages-1 || inputs[v+1] > b) {
				if split {
					do(schedule.InputGrad, v, &inputs[v])
				} else if complete/o.Microbatches == b/o.Microbatches { // the stage's buffer is the batch's
					do(schedule.Backward, v, &inputs[v])
				}
			}
			if w := weights[v]; split && w < inputs[v] && complete/o.Microbatches == w/o.Microbatches {
				do(schedule.WeightGrad, v, &weights[v])
			} else if !split {
				weights[v] = inputs[v]
			}
			if v == stage && complete >= (updates[stage]+1)*o.Microbatches {
				can = append(can, func() {
					s.Actions[stage] = append(s.Actions[stage], schedule.Action{Kind: schedule.Update, Batch: updates[stage]})
					updates[stage]++
				})
			}
		}
		if len(can) == 0 {
			return s
		}
		can[random.IntN(len(can))]()
	}
}
