// Package runtest lets tests train whole runs: options for the reference executor, a reporter that records what a run
// reports, and a fake of training for tests of many runs. Package traintest holds the helpers that do without
// pipeline/train, which its own tests use too.
package runtest

import (
	"context"
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/require"
)

// Notes records the reports of a run.
type Notes struct {
	train.Silent
	Started train.Start
	Steps   []train.Progress
	Text    []string
	OnStep  func(train.Progress) // is called after each step; nil: nothing is
}

// Start records the start.
func (n *Notes) Start(s train.Start) { n.Started = s }

// Step records a step and calls OnStep.
func (n *Notes) Step(p train.Progress) {
	n.Steps = append(n.Steps, p)
	if n.OnStep != nil {
		n.OnStep(p)
	}
}

// Note records a message.
func (n *Notes) Note(format string, args ...any) {
	n.Text = append(n.Text, fmt.Sprintf(format, args...))
}

// Options are the options of a run that computes with x and reports to n.
func Options(x *traintest.Reference, n *Notes) train.Options {
	return train.Options{Devices: train.DeviceOptions{Open: traintest.OpenNull, Execute: x.Execute}, Report: n}
}

// Until starts or resumes a run, and interrupts it once it has reported the given step; 0: never.
func Until(t *testing.T, c config.Config, step int) train.Result {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	o := Options(&traintest.Reference{}, &Notes{OnStep: func(p train.Progress) {
		if p.Step == step {
			cancel()
		}
	}})
	o.Resume = true
	res, err := train.Run(ctx, c, o)
	require.NoError(t, err)
	require.Equal(t, step > 0, res.Interrupted)
	return res
}
