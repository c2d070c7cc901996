package stage

import (
	"math/rand/v2"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// anyhow writes a schedule by doing again and again, on a stage drawn by lot, something that can be done there.
func anyhow(o schedule.Options, delay int, random *rand.Rand) *schedule.Schedule {
	s := &schedule.Schedule{Name: "anyhow", Stages: o.Stages, Chunks: o.Chunks, Microbatches: o.Microbatches, Batches: o.Batches,
		Delay: delay, Actions: make([][]schedule.Action, o.Stages)}
	parts, total := s.VirtualStages(), o.Microbatches*o.Batches
	// How many microbatches each part has done of a kind, counted through batches, and how many updates each stage.
	forwards, inputs, weights, updates := make([]int, parts), make([]int, parts), make([]int, parts), make([]int, o.Stages)
	halves := random.IntN(2) == 0
	for {
		var can []func()
		do := func(kind schedule.Kind, part int, count *int) {
			can = append(can, func() {
				s.Actions[part%o.Stages] = append(s.Actions[part%o.Stages],
					schedule.Action{Kind: kind, Microbatch: *count % o.Microbatches, Batch: *count / o.Microbatches, Chunk: part / o.Stages})
				*count++
			})
		}
		for part := range parts {
			stage := part % o.Stages
			complete := weights[stage] // of all the stage's chunks
			for c := stage; c < parts; c += o.Stages {
				complete = min(complete, weights[c])
			}
			if f := forwards[part]; f < total && (part == 0 || forwards[part-1] > f) && f/o.Microbatches <= updates[stage]+delay {
				do(schedule.Forward, part, &forwards[part])
			}
			if b := inputs[part]; b < forwards[part] && (part == parts-1 || inputs[part+1] > b) {
				if halves {
					do(schedule.InputGrad, part, &inputs[part])
				} else if complete/o.Microbatches == b/o.Microbatches { // the stage's buffer is the batch's
					do(schedule.Backward, part, &inputs[part])
				}
			}
			if w := weights[part]; halves && w < inputs[part] && complete/o.Microbatches == w/o.Microbatches {
				do(schedule.WeightGrad, part, &weights[part])
			} else if !halves {
				weights[part] = inputs[part]
			}
			if part == stage && complete >= (updates[stage]+1)*o.Microbatches {
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
