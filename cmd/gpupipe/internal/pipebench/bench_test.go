package pipebench

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
)

func sleeper(latency func(string) time.Duration) device.Device {
	return null.New(null.Options{Latency: latency})
}

// Where the host takes no time, 2bw has no bubble at all, and 1f1b exactly the one of its closed form.
func TestSleepingInNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs, err := Run(t.Context(), Options{Sleeper: sleeper, Quick: true})
		require.NoError(t, err)
		require.Len(t, rs, 3)
		got := map[string]float64{}
		for _, m := range slices.Concat(rs[0].Measures, rs[1].Measures, rs[2].Measures) {
			assert.True(t, m.Met(), m.What)
			got[m.What] = m.Value
		}
		for _, stages := range []int{4, 8} {
			work := 4*float64(stages)*0.06 + 0.01
			for _, stale := range []string{"", fmt.Sprintf(", %d stale", 4*stages)} {
				assert.InDelta(t, work, got[fmt.Sprintf("%d stages, 2bw%s, %d microbatches, a batch", stages, stale, 4*stages)], 1e-6)
			}
			assert.InDelta(t, 100, got[fmt.Sprintf("%d stages: few stale, of the throughput with all stale", stages)], 1e-6)
		}
		assert.InDelta(t, 16*0.03, got["one stage alone, a batch"], 1e-6)
		assert.InDelta(t, 100, got["2bw, of 16 × one stage's throughput"], 1e-6)
		assert.InDelta(t, 100, got["2bw, busy in the idlest stage"], 1e-6)
		for what, batch := range map[string]float64{"10 layers on 4 stages": 4 * 2.5 * 0.03, "24 layers on 16 stages": 16 * 1.5 * 0.03} {
			assert.InDelta(t, batch, got[what+", a batch"], 1e-6)
			assert.InDelta(t, 1, got[what+", predicted over measured"], 1e-6)
		}
		assert.InDelta(t, 100*16./31, got["1f1b, of 16 × one stage's throughput; m/(m+p−1) is 51.6 %"], 1e-6)
	})
}

// The case with real devices runs on any; on those that take no time it says nothing.
func TestDevices(t *testing.T) {
	opened := 0
	rs, err := Run(t.Context(), Options{Quick: true, Filter: regexp.MustCompile("devices"), Sleeper: sleeper,
		Open: func() (device.Device, error) {
			opened++
			return null.New(null.Options{}), nil
		}})
	require.NoError(t, err)
	require.Len(t, rs, 1)
	assert.Equal(t, 1+2+2, opened)
	for _, m := range rs[0].Measures {
		assert.Positive(t, m.Value, m.What)
	}
	text, err := json.Marshal(rs)
	require.NoError(t, err)
	var back []Result
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, rs, back)
}

func TestRunStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Run(ctx, Options{Sleeper: sleeper})
	require.ErrorIs(t, err, context.Canceled)
}

func TestPrint(t *testing.T) {
	var out strings.Builder
	require.NoError(t, Print(&out, 0, []Result{{Name: "a", About: "b", Measures: []Measure{
		{What: "time", Value: 1.5, Unit: "s"}, {What: "share", Value: 96, Unit: "%", AtLeast: bound(97)},
		Measure{What: "ratio", Value: 1.2}.within(0.05, 1.25)}}}))
	assert.Equal(t, "a: b\n\ntime   1.5000 s\nshare  96.0 %    MISSED: at least 97.0 %\nratio  1.200     1.188 to 1.312\n\n", out.String())
}
