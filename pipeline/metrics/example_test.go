package metrics_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

// A run logs each step; afterwards its records are read back and drawn.
func Example() {
	dir, err := os.MkdirTemp("", "metrics")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "metrics.jsonl")
	log, err := metrics.Create(path)
	if err != nil {
		panic(err)
	}
	for step, loss := range []float64{5.5, 4.25, 3.5} {
		if err := log.Append(step+1, metrics.Value{Name: "tokens", Value: float64(2048 * (step + 1))},
			metrics.Value{Name: "loss", Value: loss}); err != nil {
			panic(err)
		}
	}
	if err := log.Close(); err != nil {
		panic(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	fmt.Print(string(text))
	records, err := metrics.Read(path)
	if err != nil {
		panic(err)
	}
	if err := metrics.PlotLoss(filepath.Join(dir, "loss.png"), "example", "three steps", records, 3); err != nil {
		panic(err)
	}
	// Output:
	// {"step":1,"tokens":2048,"loss":5.5}
	// {"step":2,"tokens":4096,"loss":4.25}
	// {"step":3,"tokens":6144,"loss":3.5}
}
