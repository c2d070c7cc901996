package stage_test

import (
	"fmt"
	"log"

	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// The driver loop of a single rank that trains on one batch of two microbatches. Its device finishes every run at once.
func Example() {
	g, err := schedule.New(schedule.OneF1B, schedule.Options{Stages: 1, Microbatches: 2, Batches: 1})
	if err != nil {
		log.Fatal(err)
	}
	if g, err = g.Communicate(schedule.Copies{}); err != nil {
		log.Fatal(err)
	}
	m, err := stage.New(stage.Config{Pipeline: stage.Pipeline{Stages: 1, Chunks: 1, Microbatches: 2}, Slots: 1, QueueDepth: 2,
		Actions: g.Actions(0), Roles: stage.Roles{Gradients: 1}})
	if err != nil {
		log.Fatal(err)
	}
	var running []schedule.Action // the device's queue
	for !m.Done() {
		if batch, wants := m.WantsBatch(); wants {
			m.Allow(batch) // its data is available
		}
		effects := m.Next()
		for _, e := range effects {
			fmt.Println(e)
			if e.Kind == stage.Run {
				running = append(running, e.Action)
			}
		}
		if len(effects) > 0 {
			continue
		}
		if err := m.Finished(running[0]); err != nil { // with several ranks: or Received, whichever comes first
			log.Fatal(err)
		}
		running = running[1:]
	}
	// Output:
	// feed F0.0 at w0 g1 s0
	// run F0.0 at w0 g1 s0 first
	// run B0.0 at w0 g1 s0 first
	// feed F1.0 at w0 g1 s0
	// run F1.0 at w0 g1 s0
	// run B1.0 at w0 g1 s0
	// run N0 at w0 g1
	// run U0 at w0 g1
	// ready 0
}
