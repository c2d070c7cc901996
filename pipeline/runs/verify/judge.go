package verify

import (
	"context"
	"fmt"
	"math"
	"os"

	"github.com/gpupipe/gpupipe/pipeline/train"
)

// compare judges two settings that shall give the same bits, or, with a tolerance, losses that differ by no more than
// that part.
func (t *trainer) compare(ctx context.Context, c *Case, want, got setting, tolerance float64) error {
	w, g, err := t.outcomes(ctx, want, got)
	if err == nil {
		c.judge(w, g, tolerance)
	}
	return err
}

// outcomes are the outcomes of two settings.
func (t *trainer) outcomes(ctx context.Context, a, b setting) (x, y *outcome, err error) {
	if x, err = t.outcome(ctx, a); err != nil {
		return nil, nil, err
	}
	y, err = t.outcome(ctx, b)
	return x, y, err
}

// measureFar describes the farthest relative difference of two outcomes' losses, and returns it.
func (c *Case) measureFar(x, y *outcome) float64 {
	far := farthest(x, y)
	c.Detail = fmt.Sprintf("losses differ by %.1g of themselves", far)
	return far
}

func (c *Case) judge(want, got *outcome, tolerance float64) {
	c.Verdict, c.Difference = Equal, difference(want, got)
	if c.Difference == nil {
		return
	}
	c.Verdict = Differs
	if tolerance > 0 {
		if c.measureFar(want, got) <= tolerance {
			c.Verdict, c.Difference = Close, nil
		}
	}
}

// learns judges a run by itself: its loss falls, and its gradients are clipped.
func (t *trainer) learns(ctx context.Context, c *Case, s setting) error {
	o, err := t.outcome(ctx, s)
	if err != nil {
		return err
	}
	clipped := 0
	for _, r := range o.records {
		if r.Values["grad_norm"] > clip {
			clipped++
		}
	}
	if len(o.records) != t.batches {
		return fmt.Errorf("%d batches were trained, expected %d", len(o.records), t.batches)
	}
	first, last := o.records[0].Values["loss"], o.records[t.batches-1].Values["loss"]
	c.Detail = fmt.Sprintf("loss %.3f to %.3f; %d of %d batches clipped", first, last, clipped, t.batches)
	if !(last < 0.95*first) || math.IsInf(first, 0) || clipped == 0 {
		return fmt.Errorf("expected a falling loss and clipped batches: %s", c.Detail)
	}
	c.Verdict = OK
	return nil
}

// overflows judges that the loss scale of a run passes some batches over and not others: else nothing that is equal to
// it says anything of those.
func (t *trainer) overflows(ctx context.Context, c *Case, s setting) error {
	o, err := t.outcome(ctx, s)
	if err != nil {
		return err
	}
	skipped := 0
	for _, r := range o.records {
		skipped += int(r.Values["skipped"])
	}
	c.Detail = fmt.Sprintf("%d of %d batches overflow", skipped, t.batches)
	if skipped == 0 || skipped == len(o.records) {
		return fmt.Errorf("expected some to overflow: %s", c.Detail)
	}
	c.Verdict = OK
	return nil
}

// differ judges two settings that mean different mathematics: if they agree, their difference has no effect, and
// whatever is equal to one of them proves nothing.
func (t *trainer) differ(ctx context.Context, c *Case, a, b setting) error {
	x, y, err := t.outcomes(ctx, a, b)
	if err != nil {
		return err
	}
	if c.measureFar(x, y) <= rounding {
		return fmt.Errorf("expected losses that differ by more than %g of themselves: %s", rounding, c.Detail)
	}
	c.Verdict = OK
	return nil
}

// roundedFar is the relative difference of two losses that rounded tensors may make in a run.
const roundedFar = 0.05

// change judges two settings, one of which rounds more: their bits differ, and their losses little.
func (t *trainer) change(ctx context.Context, c *Case, a, b setting) error {
	x, y, err := t.outcomes(ctx, a, b)
	if err != nil {
		return err
	}
	if far := c.measureFar(x, y); difference(x, y) == nil || far > roundedFar {
		return fmt.Errorf("expected other bits, and losses that differ by less than %g of themselves: %s", roundedFar, c.Detail)
	}
	c.Verdict = OK
	return nil
}

// again judges a second run of a setting on devices that are opened anew.
func (t *trainer) again(ctx context.Context, c *Case, s setting) error {
	w, err := t.outcome(ctx, s)
	if err != nil {
		return err
	}
	if err := t.close(); err != nil {
		return err
	}
	dir := t.folder()
	if _, err := t.run(ctx, s, dir, train.Options{}); err != nil {
		return err
	}
	g, err := read(dir)
	if err != nil {
		return err
	}
	c.judge(w, g, 0)
	return os.RemoveAll(dir)
}

// interrupted judges a run that is stopped after half of its batches and resumed under another setting.
func (t *trainer) interrupted(ctx context.Context, c *Case, want, first, then setting) error {
	w, err := t.outcome(ctx, want)
	if err != nil {
		return err
	}
	dir := t.folder()
	res, err := t.run(ctx, first, dir, train.Options{StopAfter: t.batches / 2})
	if err != nil {
		return err
	}
	if _, err := t.run(ctx, then, dir, train.Options{Resume: true}); err != nil {
		return err
	}
	g, err := read(dir)
	if err != nil {
		return err
	}
	c.judge(w, g, 0)
	c.Detail = fmt.Sprintf("stopped after batch %d", res.Step)
	return os.RemoveAll(dir)
}
