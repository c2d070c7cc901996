package train_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/runtest"
	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// readProfile reads the profile of a run.
func readProfile(t *testing.T, dir string) profile.Profile {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "profile.json"))
	require.NoError(t, err)
	var p profile.Profile
	require.NoError(t, json.Unmarshal(text, &p))
	return p
}

// A profiled run has the bits of an unprofiled one, and its profile has a time for every kernel of every stage.
func TestProfileOfAPipeline(t *testing.T) {
	const steps = 2 // that a profile covers
	dir := t.TempDir()
	var got *profile.Profile
	run := func(name string, o train.Options) train.Result {
		c := traintest.Demo(t, dir, "pipeline={schedule: 2bw, stages: 2, delay: 1, devices: ["+testdevice.Name+"]}",
			"run.dir="+filepath.Join(dir, name), "optimizer.name=adamw")
		o.Devices.Open = testdevice.Open
		res, err := train.Run(context.Background(), c, o)
		require.NoError(t, err)
		return res
	}
	peaks := 0
	plain := run("plain", train.Options{})
	profiled := run("profiled", train.Options{Profile: &train.ProfileOptions{
		Peak: func(device.Device) (profile.Peak, error) { peaks++; return profile.Peak{GFLOPS: 1, GBps: 2}, nil },
		Done: func(p *profile.Profile) { got = p },
	}})
	assert.Equal(t, traintest.Files(t, plain.Checkpoint), traintest.Files(t, profiled.Checkpoint))
	assert.Equal(t, traintest.Measurements(t, plain.Dir), traintest.Measurements(t, profiled.Dir))
	assert.Equal(t, 1, peaks, "two logical devices of one adapter")
	assert.Empty(t, plain.Profile)
	assert.Equal(t, filepath.Join(profiled.Dir, "profile.html"), profiled.Profile)
	page, err := os.ReadFile(profiled.Profile)
	require.NoError(t, err)
	assert.Contains(t, string(page), "layers.0 backward")

	p := readProfile(t, profiled.Dir)
	require.NotNil(t, got)
	assert.Equal(t, got.Ranks, p.Ranks)
	assert.Equal(t, steps, p.Steps)
	require.Len(t, p.Ranks, 2)
	for i, l := range p.Ranks {
		assert.Equal(t, []string{"stage 0", "stage 1"}[i], l.Name)
		assert.Equal(t, 1.0, l.Peak.GFLOPS)
		calls := map[string]int{}
		for _, x := range l.Programs {
			calls[x.Name] = x.Calls
			assert.Positive(t, x.DurationMicros, x.Name)
		}
		want := map[string]int{"forward": steps * traintest.Microbatches, "weight gradients": steps * traintest.Microbatches,
			"gradient norms": steps, "update": steps}
		if i > 0 {
			want["input gradients"] = steps * traintest.Microbatches
		}
		assert.Equal(t, want, calls)
		for _, k := range l.Kernels {
			assert.Positive(t, k.DurationMicros, k.Label)
		}
	}
}

// A short run is profiled at the steps that it has. A device without timestamps trains without a profile.
func TestProfilesOfShortRunsAndWithoutTimestamps(t *testing.T) {
	dir := t.TempDir()
	configure := func(name string, overrides ...string) config.Config {
		return traintest.Demo(t, dir, append([]string{"run.dir=" + filepath.Join(dir, name)}, overrides...)...)
	}
	for steps, want := range map[string]int{"train.steps=1": 1, "train.steps=2": 2, "train.steps=4": 2} {
		c := configure(steps, steps)
		_, err := train.Run(context.Background(), c, train.Options{Devices: train.DeviceOptions{Open: traintest.OpenNull},
			Profile: &train.ProfileOptions{}})
		require.NoError(t, err)
		p := readProfile(t, c.Run.Dir)
		assert.Equal(t, want, p.Steps, steps)
		assert.Equal(t, want*traintest.Microbatches, p.Ranks[0].Programs[0].Calls)
	}
	plain, err := train.Run(context.Background(), configure("plain"), runtest.Options(&traintest.Reference{}, &runtest.Notes{}))
	require.NoError(t, err)
	n := &runtest.Notes{}
	o := runtest.Options(&traintest.Reference{}, n)
	o.Profile = &train.ProfileOptions{}
	res, err := train.Run(context.Background(), configure("untimed"), o)
	require.NoError(t, err)
	assert.Empty(t, res.Profile)
	assert.Equal(t, traintest.Files(t, plain.Checkpoint), traintest.Files(t, res.Checkpoint))
	assert.Contains(t, strings.Join(n.Text, "\n"), "profile: stage 0: the device has no timestamps")
	assert.NoFileExists(t, filepath.Join(res.Dir, "profile.html"))

	n.Text = nil
	o.Resume = true // of a run that is done
	_, err = train.Run(context.Background(), configure("untimed"), o)
	require.NoError(t, err)
	assert.Contains(t, n.Text, "profile: no step was measured")

	broken := errors.New("it burns")
	o = runtest.Options(&traintest.Reference{}, &runtest.Notes{})
	o.Profile = &train.ProfileOptions{Peak: func(device.Device) (profile.Peak, error) { return profile.Peak{}, broken }}
	_, err = train.Run(context.Background(), configure("broken"), o)
	require.ErrorIs(t, err, broken)
	assert.ErrorContains(t, err, "profile: the peak of null:0: it burns")
	assert.NoDirExists(t, filepath.Join(dir, "broken"), "nothing was begun")
}
