package train_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A run whose batches change their size has the bits of one device on every layout, stopped anywhere or never.
func TestBatchSchedule(t *testing.T) {
	const schedule = "train={steps: 9, batch_schedule: {0: 4, 3: 8, 7: 6}, microbatches: 2, eval_every: 2, eval_batches: 1, save_every: 4}"
	type family struct {
		name    string
		layouts [][]string
	}
	for _, f := range tier.Divide(t, []family{
		{"at first all stale", [][]string{{"pipeline={delay: 1, stale_microbatches: 2, correction: dc_asgd}"},
			{"pipeline={schedule: 2bw, stages: 2, stale_microbatches: 2, correction: dc_asgd}"}}},
		{"synchronous", [][]string{nil, {"pipeline={schedule: 1f1b, stages: 2}"},
			{"pipeline={schedule: gpipe, stages: 3}", "model.n_layers=1"}}},
		{"delayed", [][]string{{"pipeline={delay: 1, stale_microbatches: 1}"}, {"pipeline={schedule: 2bw, stages: 2}"}}},
		{"all stale", [][]string{{"pipeline={delay: 1, error_feedback: true}"},
			{"pipeline={schedule: 2bw, stages: 2, stale_microbatches: all, error_feedback: true}"}}},
	}, tier.First[family](1)) {
		t.Run(f.name, func(t *testing.T) {
			dir := t.TempDir()
			var whole train.Result
			for i, layout := range f.layouts {
				for _, stops := range [][]int{{0}, {1, 3, 5, 0}, {2, 7, 0}} {
					run := filepath.Join(dir, strings.Trim(strings.Join(strings.Fields(strings.Join(layout, "")), ""), "{}[]"))
					c := traintest.Demo(t, dir, append(append([]string{schedule}, layout...),
						"run.dir="+run+string(rune('a'+len(stops))))...)
					var last train.Result
					for _, stop := range stops {
						last = runtest.Until(t, c, stop)
					}
					if whole.Dir == "" {
						whole = last
						records := traintest.Measurements(t, whole.Dir)
						assert.Equal(t, []float64{32, 64, 96, 160, 224, 288, 352, 400, 448}, tokensOf(records), "sequences of 8 tokens")
					}
					assert.Equal(t, traintest.Files(t, whole.Checkpoint), traintest.Files(t, last.Checkpoint), "layout %d, stops %v", i,
						stops)
					assert.Equal(t, traintest.Measurements(t, whole.Dir), traintest.Measurements(t, last.Dir), "layout %d, stops %v", i,
						stops)
				}
			}
		})
	}
}

// A resumed run may have another size of batches. It goes on with the next sequence.
func TestResumeWithAnotherBatchSize(t *testing.T) {
	dir := t.TempDir()
	steps := "train={steps: 6, batch_size: %s, microbatches: 2, eval_every: 2, save_every: 2}"
	with := func(size, run string, more ...string) config.Config {
		return traintest.Demo(t, dir, append([]string{strings.Replace(steps, "%s", size, 1), "run.dir=" + filepath.Join(dir, run)},
			more...)...)
	}
	scheduled := traintest.Demo(t, dir, "train={steps: 6, batch_size: 4, batch_schedule: {3: 8}, microbatches: 2, eval_every: 0, save_every: 2}", "run.dir="+filepath.Join(dir, "scheduled"))
	whole := runtest.Until(t, scheduled, 0)

	n := &runtest.Notes{}
	o := runtest.Options(&traintest.Reference{}, n)
	o.StopAfter = 3
	_, err := train.Run(t.Context(), with("4", "run", "train.eval_every=0"), o)
	require.NoError(t, err)
	o.Resume, o.StopAfter = true, 0
	c := with("8", "run", "train.microbatches=4", "train.eval_every=0")
	res, err := train.Run(t.Context(), c, o)
	require.NoError(t, err)
	assert.Contains(t, strings.Join(n.Text, "\n"), "train.batch_size: the checkpoint has 4, the config 8: the new value is used")
	assert.Equal(t, traintest.Files(t, whole.Checkpoint), traintest.Files(t, res.Checkpoint))
	assert.Equal(t, []float64{32, 64, 96, 160, 224, 288}, tokensOf(traintest.Measurements(t, res.Dir)))

	_, err = train.Run(t.Context(), with("8", "run", "train.microbatches=2"), o)
	assert.ErrorContains(t, err, "train.microbatches: the checkpoint has 4, the config 2", "without another batch size")
}

// Ctrl-C while batches are resized ends the run at the checkpoint that was saved before, wherever it comes.
func TestInterruptedWhileBatchesAreResized(t *testing.T) {
	dir := t.TempDir()
	demo := func(run string) config.Config {
		return traintest.Demo(t, dir, "train={steps: 6, batch_schedule: {0: 4, 3: 8}, microbatches: 2, eval_every: 0, save_every: 0}",
			"run.dir="+filepath.Join(dir, run))
	}
	whole := runtest.Until(t, demo("whole"), 0)
	for name, reopens := range map[string]func(o *train.Options, reopening func()){
		"opening devices": func(o *train.Options, reopening func()) {
			o.Devices.Open = func(name string) (device.Device, error) {
				reopening()
				return traintest.OpenNull(name)
			}
		},
		"planning": func(o *train.Options, reopening func()) {
			execute := o.Devices.Execute
			o.Devices.Execute = func(d device.Device, graphs map[string]*graph.Graph, pools map[string]exec.Pool) (engine.Planned, error) {
				reopening()
				return execute(d, graphs, pools)
			}
		},
		"waiting for members": func(o *train.Options, reopening func()) {
			execute := o.Devices.Execute
			o.Devices.Remote = func(ctx context.Context, task train.RemoteTask) (train.Pipeline, error) {
				if reopening(); ctx.Err() != nil {
					return nil, ctx.Err()
				}
				dev, err := traintest.OpenNull("")
				if err != nil {
					return nil, err
				}
				e, _, err := task.Choose(ctx, task.Optimizer, []device.Device{dev}, layout.Options{Execute: execute})
				return e, err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := 0
			o := runtest.Options(&traintest.Reference{}, &runtest.Notes{OnStep: func(p train.Progress) { done = p.Step }})
			reopens(&o, func() {
				if done == 3 {
					cancel()
				}
			})
			c := demo(name)
			res, err := train.Run(ctx, c, o)
			require.NoError(t, err)
			assert.True(t, res.Interrupted)
			assert.False(t, res.Idle, "steps were done and saved")
			assert.Equal(t, 3, res.Step)
			assert.Equal(t, traintest.StepDir(c.Run.Dir, 3), res.Checkpoint)
			assert.Len(t, traintest.Measurements(t, c.Run.Dir), 3)
			last := runtest.Until(t, c, 0)
			assert.Equal(t, traintest.Files(t, whole.Checkpoint), traintest.Files(t, last.Checkpoint))
			assert.Equal(t, traintest.Measurements(t, whole.Dir), traintest.Measurements(t, last.Dir))
		})
	}
}

func tokensOf(records []metrics.Record) (all []float64) {
	for _, r := range records {
		all = append(all, r.Values["tokens"])
	}
	return all
}
