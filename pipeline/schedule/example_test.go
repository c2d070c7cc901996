package schedule_test

import (
	"fmt"
	"log"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Build, communicate, validate, simulate and print a schedule.
func Example() {
	s, err := schedule.Generate(schedule.OneF1B, schedule.Options{Stages: 2, Microbatches: 3})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(s)

	s, err = schedule.Communicate(s, schedule.Copies{})
	if err != nil {
		log.Fatal(err)
	}
	report, err := schedule.Validate(s)
	if err != nil {
		log.Fatal(err)
	}
	for stage, r := range report.Stages {
		fmt.Printf("stage %d has %d microbatches in flight: %v\n", stage, r.InFlight, s.Actions[stage])
	}

	// A backward takes twice as long as a forward, an update no time.
	result, err := schedule.Simulate(s, schedule.Costs{VirtualStages: []schedule.Cost{schedule.Even(1, 2, 0)}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("makespan %v, bubble %.0f %%\n", result.Makespan, 100*result.Bubble)
	// Output:
	// # name: 1f1b
	// # stages: 2
	// # chunks: 1
	// # microbatches: 3
	// # batches: 1
	// # delay: 0
	// F0.0 F1.0 B0.0 F2.0 B1.0 B2.0 U0
	// F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 U0
	// stage 0 has 2 microbatches in flight: [F0.0 SF0.0 F1.0 SF1.0 RB0.0 B0.0 F2.0 SF2.0 RB1.0 B1.0 RB2.0 B2.0 N0 U0]
	// stage 1 has 1 microbatches in flight: [RF0.0 F0.0 B0.0 SB0.0 RF1.0 F1.0 B1.0 SB1.0 RF2.0 F2.0 B2.0 SB2.0 N0 U0]
	// makespan 12, bubble 25 %
}

// A schedule of one's own is text. Repeat turns it into one for any number of batches.
func ExampleParse() {
	s, err := schedule.Parse("mine.txt", `
F0 F1 B0 B1 U0
F0 B0 F1 B1 U0
`)
	if err != nil {
		log.Fatal(err)
	}
	g, err := schedule.Repeat(s, 2)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(slices.Collect(g.Actions(1)))

	_, err = schedule.Validate(&schedule.Schedule{Name: "wrong", Stages: 1, Chunks: 1, Microbatches: 1, Batches: 1,
		Actions: [][]schedule.Action{{{Kind: schedule.Backward}, {Kind: schedule.Forward}, {Kind: schedule.Update}}}})
	fmt.Println(err)
	// Output:
	// [F0.0 B0.0 F1.0 B1.0 U0 F0.1 B0.1 F1.1 B1.1 U1]
	// schedule wrong: stage 0: action 1, B0.0, stands before F0.0, which it needs
}
