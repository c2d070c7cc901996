package trace_test

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/trace"
)

// Two stages run three batches: stage 1 waits for what stage 0 sends.
func Example() {
	dir, err := os.MkdirTemp("", "trace")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, trace.FileName)
	w, err := trace.Create(path, "example")
	if err != nil {
		panic(err)
	}
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	for batch := range 3 {
		began, args := 10*batch, map[string]any{"batch": batch}
		name := fmt.Sprintf("F0.%d", batch)
		w.Complete("stage 0", trace.Forward, name, at(began), 8*time.Millisecond, args)
		w.Complete("stage 0", trace.Wait, "wait", at(began+8), 2*time.Millisecond, nil)
		w.Complete(trace.SendTrack("stage 0"), trace.Send, "activation", at(began+8), time.Millisecond, args)
		w.Complete(trace.ReceiveTrack("stage 1"), trace.Receive, "activation", at(began+9), time.Millisecond, args)
		w.Flow("activation", trace.SendTrack("stage 0"), at(began+8), trace.ReceiveTrack("stage 1"), at(began+9))
		w.Complete("stage 1", trace.Forward, name, at(began+10), 5*time.Millisecond, args)
		w.Counter(trace.LossCounter, trace.LossUnit, at(began+15), 5.5-float64(batch))
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	summary, err := trace.Summarize(path)
	if err != nil {
		panic(err)
	}
	for _, s := range summary.Stages {
		fmt.Printf("%s: busy %.0f %%, transfer %.0f %%\n", s.Name, 100*s.Steady.Busy, 100*s.Steady.Transfer)
	}
	// Output:
	// stage 0: busy 80 %, transfer 10 %
	// stage 1: busy 50 %, transfer 10 %
}
