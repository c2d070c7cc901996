package train

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/traintest"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// readProfile reads the profile of a run.
func readProfile(t *testing.T, dir string) profile.Profile {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, profileFile))
	require.NoError(t, err)
	var p profile.Profile
	require.NoError(t, json.Unmarshal(text, &p))
	return p
}

// A profiled run has the bits of an unprofiled one, and its profile has a time for every kernel of every stage.
func TestProfileOfAPipeline(t *testing.T) {
	dir := t.TempDir()
	var got *profile.Profile
	run := func(name string, o Options) Result {
		c := demo(t, dir, "pipeline={schedule: 2bw, stages: 2, delay: 1, devices: [webgpu:0]}", "run.dir="+filepath.Join(dir, name), "optimizer.name=muon")
		o.OpenDevice = openGPU
		res, err := Run(context.Background(), c, o)
		require.NoError(t, err)
		return res
	}
	peaks := 0
	plain := run("plain", Options{})
	profiled := run("profiled", Options{Profile: &ProfileOptions{
		Peak: func(device.Device) (profile.Peak, error) { peaks++; return profile.Peak{GFLOPS: 1, GBps: 2}, nil },
		Done: func(p *profile.Profile) { got = p },
	}})
	assert.Equal(t, files(t, plain.Checkpoint), files(t, profiled.Checkpoint))
	assert.Equal(t, measurements(t, plain.Dir), measurements(t, profiled.Dir))
	assert.Equal(t, 1, peaks, "two logical devices of one adapter")
	assert.Empty(t, plain.Profile)
	assert.Equal(t, filepath.Join(profiled.Dir, "profile.html"), profiled.Profile)
	page, err := os.ReadFile(profiled.Profile)
	require.NoError(t, err)
	assert.Contains(t, string(page), "layers.0 backward")

	p := readProfile(t, profiled.Dir)
	require.NotNil(t, got)
	assert.Equal(t, got.Ranks, p.Ranks)
	assert.Equal(t, profileSteps, p.Steps)
	require.Len(t, p.Ranks, 2)
	for i, l := range p.Ranks {
		assert.Equal(t, []string{"stage 0", "stage 1"}[i], l.Name)
		assert.Equal(t, 1.0, l.Peak.GFLOPS)
		calls := map[string]int{}
		for _, x := range l.Programs {
			calls[x.Name] = x.Calls
			assert.Positive(t, x.DurationMicros, x.Name)
		}
		want := map[string]int{"forward": profileSteps * traintest.Microbatches, "weight gradients": profileSteps * traintest.Microbatches,
			"gradient norms": profileSteps, "update": profileSteps}
		if i > 0 {
			want["input gradients"] = profileSteps * traintest.Microbatches
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
		return demo(t, dir, append([]string{"run.dir=" + filepath.Join(dir, name)}, overrides...)...)
	}
	for steps, want := range map[string]int{"train.steps=1": 1, "train.steps=2": 2, "train.steps=4": 2} {
		c := configure(steps, steps)
		_, err := Run(context.Background(), c, Options{OpenDevice: openNull, Profile: &ProfileOptions{}})
		require.NoError(t, err)
		p := readProfile(t, c.Run.Dir)
		assert.Equal(t, want, p.Steps, steps)
		assert.Equal(t, want*traintest.Microbatches, p.Ranks[0].Programs[0].Calls)
	}
	plain, err := Run(context.Background(), configure("plain"), options(&reference{}, &notes{}))
	require.NoError(t, err)
	n := &notes{}
	o := options(&reference{}, n)
	o.Profile = &ProfileOptions{}
	res, err := Run(context.Background(), configure("untimed"), o)
	require.NoError(t, err)
	assert.Empty(t, res.Profile)
	assert.Equal(t, files(t, plain.Checkpoint), files(t, res.Checkpoint))
	assert.Contains(t, strings.Join(n.text, "\n"), "profile: stage 0: the device has no timestamps")
	assert.NoFileExists(t, filepath.Join(res.Dir, profilePage))

	n.text = nil
	o.Resume = true // of a run that is done
	_, err = Run(context.Background(), configure("untimed"), o)
	require.NoError(t, err)
	assert.Contains(t, n.text, "profile: no step was measured")

	broken := errors.New("it burns")
	o = options(&reference{}, &notes{})
	o.Profile = &ProfileOptions{Peak: func(device.Device) (profile.Peak, error) { return profile.Peak{}, broken }}
	_, err = Run(context.Background(), configure("broken"), o)
	require.ErrorIs(t, err, broken)
	assert.ErrorContains(t, err, "profile: the peak of null:0: it burns")
	assert.NoDirExists(t, filepath.Join(dir, "broken"), "nothing was begun")
}
