package sweep

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/runs"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

// RateOptions configure a learning-rate range test.
type RateOptions struct {
	Min, Max float64 // the first and the last value of optimizer.lr; the config's other rates keep their ratio to it
	Steps    int
	Out      string        // folder of the result; it may exist
	Options  train.Options // Resume, StopAfter, Unsaved, RateFactor and Report do not count
	Train    runs.Train    // nil: train.Run
	Step     func(RatePoint, int)
}

// RatePoint is a step of a learning-rate range test.
type RatePoint struct {
	Step     int     `json:"step"` // from 1
	LR       float64 `json:"lr"`   // of the step's update, which the next step's loss shows
	Loss     float64 `json:"loss"` // nats per token
	Smoothed float64 `json:"smoothed"`
}

// RateTest is the result of a learning-rate range test.
type RateTest struct {
	Suggested float64     `json:"suggested"` // optimizer.lr: Lowest divided by rateMargin
	Lowest    float64     `json:"lowest"`    // the rate at the smallest smoothed loss
	Steepest  float64     `json:"steepest"`  // the rate at which the smoothed loss falls fastest over the rate's logarithm
	Key       string      `json:"key"`       // optimizer.lr
	Points    []RatePoint `json:"points"`
	Stopped   string      `json:"stopped,omitempty"` // why the test ended before its last step
	Notes     []string    `json:"notes"`
	Files     []string    `json:"files"`
}

const (
	rateKey = "optimizer.lr"
	// rateMargin divides the rate of the smallest loss: at that rate training is about to become unstable.
	rateMargin = 10
	// rateExcess is how far the smoothed loss may rise, as a multiple of how far it fell, before the test ends.
	rateExcess = 1
	// leastPoints is the number of points that a test needs.
	leastPoints = 10
)

// rate is the learning rate of a step, counted from 0.
func (o RateOptions) rate(step int) float64 {
	return o.Min * math.Pow(o.Max/o.Min, float64(step)/float64(max(1, o.Steps-1)))
}

func (o RateOptions) validate() error {
	switch {
	case !(o.Min > 0 && o.Min < o.Max) || math.IsInf(o.Max, 0):
		return fmt.Errorf("--min and --max: found %g and %g, expected positive numbers, the larger one second", o.Min, o.Max)
	case o.Steps < leastPoints || o.Steps > 1<<20:
		return fmt.Errorf("--steps: found %d, expected an integer from %d to %d", o.Steps, leastPoints, 1<<20)
	}
	return nil
}

// FindRate trains a config's model for a few steps, each at a higher learning rate than the one before, and suggests a
// rate. The test ends where the loss diverges. It writes metrics.jsonl, a figure and result.json into a folder; the run
// folder of the config is not touched.
func FindRate(ctx context.Context, c config.Config, o RateOptions) (*RateTest, error) {
	if err := o.validate(); err != nil {
		return nil, usererror.New(err)
	}
	made := atomicfile.MissingFolders(o.Out)
	if err := os.MkdirAll(o.Out, 0o777); err != nil {
		return nil, usererror.Errorf("--out: %w", err)
	}
	scratch, err := os.MkdirTemp(o.Out, "run-")
	if err != nil {
		return nil, usererror.Errorf("--out: %w", err)
	}
	defer func() {
		os.RemoveAll(scratch)
		for _, dir := range made {
			os.Remove(dir) // only if it is empty: a test that failed leaves nothing behind
		}
	}()
	dir := filepath.Join(scratch, "run")
	c.Run.Dir = dir
	c = c.Alone() // its first size of batches
	c.Train.Steps, c.Train.EvalEvery, c.Train.SaveEvery = o.Steps, 0, 0
	t := &RateTest{Key: rateKey, Notes: []string{}, Files: []string{}}
	if err := o.train(ctx, c, t); err != nil {
		return nil, err
	}
	if len(t.Points) < leastPoints {
		return nil, usererror.Errorf("the test ended after %d steps, expected at least %d: %s; a smaller --min may help",
			len(t.Points), leastPoints, t.Stopped)
	}
	t.suggest(c, o)
	return t, t.write(dir, o)
}

// train runs the test.
func (o RateOptions) train(ctx context.Context, c config.Config, t *RateTest) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	base := c.Optimizer.Algorithm.LearningRate()
	if !(base > 0) {
		return usererror.Errorf("%s: found %g, expected a positive number, to which other rates keep their ratio", rateKey, base)
	}
	run := o.Options
	run.Resume, run.StopAfter, run.Unsaved = false, 0, true
	run.Hooks.RateFactor = func(step int) float64 { return o.rate(step) / base }
	run.Report = &rateReporter{test: t, options: o, cancel: cancel}
	do := o.Train
	if do == nil {
		do = train.Run
	}
	res, err := do(inner, c, run)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, train.ErrDiverged):
		t.Stopped = err.Error()
	case err != nil && !(inner.Err() != nil && errors.Is(err, context.Canceled)):
		return err
	case res.Stopped != "":
		t.Stopped = "stopped by " + res.Stopped
	}
	return nil
}

// rateReporter collects the points of a test. It ends the test when the loss has risen far enough.
type rateReporter struct {
	train.Silent
	test    *RateTest
	options RateOptions
	cancel  func()
	average float64 // not corrected for its beginning
	first   float64
	least   float64
}

// smoothing is the weight of the past in the moving average of the loss.
func (o RateOptions) smoothing() float64 { return math.Exp(-1 / max(1, 0.05*float64(o.Steps))) }

func (r *rateReporter) Step(p train.Progress) {
	if r.test.Stopped != "" || !metrics.Finite(p.Loss) {
		return
	}
	beta := r.options.smoothing()
	r.average = beta*r.average + (1-beta)*p.Loss
	point := RatePoint{Step: p.Step, LR: p.LR, Loss: p.Loss, Smoothed: r.average / (1 - math.Pow(beta, float64(len(r.test.Points)+1)))}
	r.test.Points = append(r.test.Points, point)
	if len(r.test.Points) == 1 {
		r.first, r.least = point.Smoothed, point.Smoothed
	}
	r.least = min(r.least, point.Smoothed)
	if r.options.Step != nil {
		r.options.Step(point, r.options.Steps)
	}
	if len(r.test.Points) >= leastPoints && point.Smoothed > r.first+rateExcess*(r.first-r.least)+stepNoise {
		r.test.Stopped = fmt.Sprintf("step %d: the smoothed loss, %.4g, is far above its first value, %.4g", p.Step, point.Smoothed,
			r.first)
		r.cancel()
	}
}

// stepNoise is a rise of the smoothed loss, in nats per token, that does not end the test.
const stepNoise = 0.5

// suggest finds the rates. The loss of a step shows the updates before it.
func (t *RateTest) suggest(c config.Config, o RateOptions) {
	lowest, steepest, slope := 0, 0, 0.0
	for i, p := range t.Points {
		if p.Smoothed < t.Points[lowest].Smoothed {
			lowest = i
		}
		if i == 0 || i+1 == len(t.Points) {
			continue
		}
		before, after := t.Points[i-1], t.Points[i+1]
		if s := (after.Smoothed - before.Smoothed) / math.Log(after.LR/before.LR); s < slope && i <= lowest+1 {
			steepest, slope = i, s
		}
	}
	t.Lowest, t.Steepest = rounded(t.Points[max(0, lowest-1)].LR), rounded(t.Points[max(0, steepest-1)].LR)
	t.Suggested = rounded(t.Lowest / rateMargin)
	switch {
	case t.Points[0].Smoothed-t.Points[lowest].Smoothed < 0.05:
		t.Notes = append(t.Notes, "the loss hardly falls: a larger --max, or more --steps, may help")
	case lowest+1 == len(t.Points):
		t.Notes = append(t.Notes, fmt.Sprintf("the loss falls up to the last rate, %g: a larger --max may help", rounded(o.Max)))
	}
	if rest := c.Optimizer.AdamW.LR / c.Optimizer.Algorithm.LearningRate(); takesSome(c.Optimizer.Name()) {
		t.Notes = append(t.Notes, fmt.Sprintf("optimizer.adamw.lr was %g times %s at every step, as in the config", rounded(rest), rateKey))
	}
}

// takesSome reports whether an optimizer leaves parameters to AdamW, which has a rate of its own.
func takesSome(optimizer string) bool {
	takes := map[string]string{}
	for _, k := range optim.Optimizers() {
		takes[k.Name] = k.Takes
	}
	return takes[optimizer] != takes["adamw"]
}

// rounded keeps three digits.
func rounded(x float64) float64 {
	var out float64
	if _, err := fmt.Sscan(fmt.Sprintf("%.3g", x), &out); err != nil {
		return x
	}
	return out
}

// write writes the test's files. The run is in a folder of its own.
func (t *RateTest) write(run string, o RateOptions) error {
	text, err := os.ReadFile(filepath.Join(run, "metrics.jsonl"))
	if err != nil {
		return err
	}
	path := func(name string) string {
		t.Files = append(t.Files, filepath.Join(o.Out, name))
		return filepath.Join(o.Out, name)
	}
	if err := runs.WriteFile(path("metrics.jsonl"), text); err != nil {
		return err
	}
	if err := t.plot(path("lr-range.png")); err != nil {
		return usererror.New(err)
	}
	return runs.WriteJSON(path("result.json"), t)
}

// lowestLoss is the smallest smoothed loss.
func (t *RateTest) lowestLoss() float64 {
	least := math.Inf(1)
	for _, p := range t.Points {
		least = min(least, p.Smoothed)
	}
	return least
}

// plot draws the loss over the learning rate.
func (t *RateTest) plot(path string) error {
	loss, smoothed := metrics.Series{Name: "loss", Kind: metrics.Points}, metrics.Series{Name: "smoothed", Kind: metrics.Curve}
	highest := t.Points[0].Smoothed + 1
	for _, p := range t.Points {
		if p.Loss <= highest {
			loss.X, loss.Y = append(loss.X, p.LR), append(loss.Y, p.Loss)
		}
		smoothed.X, smoothed.Y = append(smoothed.X, p.LR), append(smoothed.Y, min(p.Smoothed, highest))
	}
	axes := metrics.Axes{Title: "Learning-rate range test", X: "learning rate (" + t.Key + ")", Y: "training loss (nats per token)",
		LogX:     true,
		Subtitle: fmt.Sprintf("suggested %g; smallest loss at %g, steepest fall at %g", t.Suggested, t.Lowest, t.Steepest)}
	mark := metrics.Series{Name: fmt.Sprintf("suggested: %g", t.Suggested), X: []float64{t.Suggested, t.Suggested},
		Y: []float64{t.lowestLoss(), highest}}
	return metrics.Draw(path, axes, smoothed, loss, mark)
}
