package pipebench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// staleness measures the cost of few stale microbatches, in time and memory. It compares 2bw with as few as possible
// with 2bw with all, and with schedules without delay, on devices that sleep. A pipeline of p stages has 4p
// microbatches.
func staleness(ctx context.Context, o Options) (Result, error) {
	forward, backward, update, turns := 20*time.Millisecond, 40*time.Millisecond, 10*time.Millisecond, 5
	if o.Quick {
		turns = 1
	}
	r := Result{About: fmt.Sprintf("stages of equal times on devices that sleep: F %v, B %v, update %v; 4 microbatches a stage; medians of %d turns",
		forward, backward, update, turns)}
	for _, stages := range []int{4, 8} {
		few := o.asleep(stages, 4*stages, forward, backward, update)
		all := few
		all.stale = few.microbatches
		pipes := []pipe{all, few, few.of(schedule.ZBH1, stages), few.of(schedule.OneF1B, stages)}
		batches, memory := make([][]float64, len(pipes)), make([]int64, len(pipes))
		for range turns {
			ts, err := o.measure(ctx, pipes...)
			if err != nil {
				return r, err
			}
			for i, t := range ts {
				batches[i], memory[i] = append(batches[i], t.batch), t.memory
			}
		}
		for i, p := range pipes {
			r.add(Measure{What: fmt.Sprintf("%v, a batch", p), Value: median(batches[i]), Unit: "s"})
		}
		r.add(Measure{What: fmt.Sprintf("%d stages: few stale, of the throughput with all stale", stages),
			Value: 100 * median(batches[0]) / median(batches[1]), Unit: "%", AtLeast: bound(99.5)})
		r.add(Measure{What: fmt.Sprintf("%d stages: few stale, memory over that with all stale", stages),
			Value: float64(memory[1]) / float64(memory[0])}.within(0, 1))
	}
	return r, nil
}

func median(xs []float64) float64 {
	xs = slices.Sorted(slices.Values(xs))
	return xs[len(xs)/2]
}
