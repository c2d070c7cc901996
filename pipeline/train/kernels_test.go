package train_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/runtime/tune"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// card is a GPU of the null device on which naive kernels are the fastest.
type card struct {
	device.Device
	log *cardLog
}

// cardLog counts the programs that a card has loaded.
type cardLog struct{ naive, others int }

func openCard(log *cardLog) layout.OpenDevice {
	return func(string) (device.Device, error) { return card{null.New(null.Options{}), log}, nil }
}

func (d card) Info() device.Info {
	return device.Info{Name: "gpu:0", Adapter: "a card", API: "api", Kind: device.Discrete}
}

// slowProgram is a kernel that takes some time.
type slowProgram struct{ device.Loaded }

func (d card) Load(p *device.Program) (device.Loaded, error) {
	l, err := d.Device.Load(p)
	if p.Label == "naive" {
		d.log.naive++
		return l, err
	}
	d.log.others++
	return slowProgram{l}, err
}

func (d card) Run(l device.Loaded) error {
	if s, ok := l.(slowProgram); ok {
		time.Sleep(100 * time.Microsecond)
		l = s.Loaded
	}
	return d.Device.Run(l)
}

// starting is a report that calls a function before the first step.
type starting struct {
	*runtest.Notes
	start func()
}

func (s starting) Start(at train.Start) {
	s.Notes.Start(at)
	s.start()
}

// choicesOf is the content of a kernels.json: how many kernels there are, timed ones, and naive ones.
func choicesOf(t *testing.T, dir string) (all, timed, naive int) {
	text, err := os.ReadFile(filepath.Join(dir, "kernels.json"))
	require.NoError(t, err)
	var choices map[string]tune.Choice
	require.NoError(t, json.Unmarshal(text, &choices))
	for _, c := range choices {
		if len(c.DurationMicros) > 0 {
			timed++
		}
		if c.Candidate == "naive" {
			naive++
		}
	}
	return len(choices), timed, naive
}

// A run times no kernel before its first step. It times them after it, and the next checkpoint names those that compute
// the steps from there on. What resumes keeps the kernels of its checkpoint until then, or for good.
func TestKernelsAreTimedBetweenSteps(t *testing.T) {
	for _, l := range tier.Divide(t, []namedLayout{{"delayed", "pipeline={schedule: 2bw, stages: 2, devices: [null:0]}"},
		{"one stage", "pipeline.stages=1"}}, tier.First[namedLayout](1)) {
		t.Run(l.name, func(t *testing.T) {
			dir := t.TempDir()
			timings := filepath.Join(dir, "timings.json")
			run := func(c config.Config, share float64, stop int) (n *runtest.Notes, before cardLog) {
				cache, err := tune.Open(timings, nil)
				require.NoError(t, err)
				cache.Postpone()
				log := &cardLog{}
				n = &runtest.Notes{}
				report := starting{n, func() { before = *log }}
				_, err = train.Run(t.Context(), c, train.Options{Devices: train.DeviceOptions{Open: openCard(log), Tune: cache,
					TimingShare: share},
					Report: report, Resume: true, StopAfter: stop})
				require.NoError(t, err)
				return n, before
			}
			with := func(name string) config.Config {
				return traintest.Demo(t, dir, "run.dir="+filepath.Join(dir, name),
					"train={steps: 6, save_every: 3, eval_every: 0, keep: 0, microbatches: 4, batch_size: 4}", l.pipeline)
			}
			const switched = "have faster variants"

			bounded := with("bounded")
			n, _ := run(bounded, 1e-9, 0)
			assert.NotContains(t, strings.Join(n.Text, "\n"), switched, "the share of the time is too small")
			all, timed, static := choicesOf(t, traintest.StepDir(bounded.Run.Dir, 6))
			assert.NotZero(t, all)
			assert.Zero(t, timed)

			c := with("run")
			run(c, 1e-9, 2)
			n, _ = run(c, 1e9, 0)
			assert.Contains(t, strings.Join(n.Text, "\n"), switched+" on this device, which compute the steps after 3")
			_, timed, naive := choicesOf(t, traintest.StepDir(c.Run.Dir, 2))
			assert.Zero(t, timed)
			assert.Equal(t, static, naive)
			for _, dir := range []string{traintest.StepDir(c.Run.Dir, 3), traintest.StepDir(c.Run.Dir, 6), c.Run.Dir} {
				all, timed, naive = choicesOf(t, dir)
				assert.Equal(t, all, timed)
				assert.Greater(t, naive, static)
			}

			again := with("again")
			n, before := run(again, 1e9, 0)
			assert.NotContains(t, strings.Join(n.Text, "\n"), switched, "it begins with the fastest")
			assert.Zero(t, before.naive)
			_, timed, later := choicesOf(t, traintest.StepDir(again.Run.Dir, 3))
			assert.Equal(t, all, timed)
			assert.Equal(t, naive, later)

			fresh := with("fresh")
			timings = filepath.Join(dir, "fresh.json")
			n, before = run(fresh, 1e9, 0)
			assert.Contains(t, strings.Join(n.Text, "\n"), switched)
			assert.Zero(t, before.naive, "nothing is timed before the first step")
		})
	}
}
