package trace

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// remote describes a run of two stages on the members a and b.
type remote struct {
	compute           [2]int // milliseconds of a microbatch
	transfer, latency int    // milliseconds of a transfer, and of it the latency
	settings          Settings
}

// summary is that of six batches: stage 1 computes each microbatch when it has come.
func (r remote) summary(t *testing.T) Summary {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace.json")
	w, err := Create(path, "p")
	require.NoError(t, err)
	at := func(i int) time.Time { return w.start.Add(time.Duration(i) * ms) }
	for i, member := range []string{"a", "b"} {
		stage := fmt.Sprint("stage ", i)
		w.Process(member, stage, SendTrack(stage), ReceiveTrack(stage))
		w.Complete(ClockTrack(member), Clock, "offset", at(0), 100*ms, map[string]any{"offset_micros": 1000,
			"error_micros": 100.0 * float64(i+1)})
		w.Complete(ClockTrack(member), Clock, "offset", at(100), 100*ms, map[string]any{"offset_micros": -1000, "error_micros": 50})
	}
	w.Complete(NetworkTrack, Network, "settings", at(0), 0, r.settings.Args())
	w.Complete(NetworkTrack, Network, "a to b", at(0), 0, map[string]any{"source": "a", "target": "b", "latency_micros": 1000 * r.latency,
		"bytes_per_second": 1e6})
	done, idle := 0, 0
	for batch := range 6 {
		args := map[string]any{"batch": batch}
		w.Complete("stage 0", Forward, fmt.Sprintf("F0.%d", batch), at(done), time.Duration(r.compute[0])*ms, args)
		done += r.compute[0]
		w.Complete(SendTrack("stage 0"), Send, "x", at(done), 1*ms, map[string]any{"batch": batch, "bytes": 4000})
		came := done + 1 + r.transfer
		w.Complete(ReceiveTrack("stage 1"), Receive, "x", at(came), 0, args)
		w.Flow("x", SendTrack("stage 0"), at(done), ReceiveTrack("stage 1"), at(came))
		free := max(idle, came)
		if free > idle {
			w.Complete("stage 1", Wait, "wait", at(idle), time.Duration(free-idle)*ms, nil)
		}
		w.Complete("stage 1", Backward, fmt.Sprintf("B0.%d", batch), at(free), time.Duration(r.compute[1])*ms, args)
		idle = free + r.compute[1]
	}
	require.NoError(t, w.Close())
	s, err := Summarize(path)
	require.NoError(t, err)
	require.NotNil(t, s.Machines)
	return s
}

func TestMachines(t *testing.T) {
	s := remote{compute: [2]int{10, 5}, transfer: 40, latency: 39, settings: Settings{"2bw", true, 1, "f32"}}.summary(t)
	m := s.Machines
	assert.Equal(t, []ClockState{{"a", -0.001, 100e-6}, {"b", -0.001, 200e-6}}, m.Clocks)
	require.Len(t, m.Links, 1)
	l := m.Links[0]
	assert.Equal(t, "a", l.From)
	assert.Equal(t, "b", l.To)
	assert.Equal(t, 6, l.Transfers)
	assert.InDelta(t, 0.040, l.Seconds, 1e-9)
	assert.InDelta(t, 4000, l.Bytes, 1e-6)
	assert.InDelta(t, 0.5, l.Wait, 1e-6, "of each 10 ms stage 1 computes 5 and waits 5 while the transfer is under way")
	assert.Equal(t, "stage 0", m.Slowest)
	assert.Equal(t, "b", s.Stages[1].Member)
	assert.Equal(t, Settings{"2bw", true, 1, "f32"}, m.Settings)
}

func TestAdvice(t *testing.T) {
	for want, r := range map[string]remote{
		"latency limits: pipeline.depth: 8 instead of 1 would hide it": {[2]int{10, 8}, 40, 39, Settings{"2bw", true, 1, "f32"}},
		"latency limits: 1f1b waits for it in every batch; pipeline.schedule: 2bw": {[2]int{10, 8}, 40, 39,
			Settings{"1f1b", false, 0, "f32"}},
		"latency limits, although pipeline.depth is large enough": {[2]int{10, 8}, 40, 39, Settings{"2bw", true, 9, "f32"}},
		"bandwidth limits: pipeline.wire: bf16 halves the bytes, int8 quarters them": {[2]int{10, 8}, 40, 1,
			Settings{"2bw", true, 1, "f32"}},
		"bandwidth limits: pipeline.wire: int8 halves the bytes again":           {[2]int{10, 8}, 40, 1, Settings{"2bw", true, 1, "bf16"}},
		"bandwidth limits, and pipeline.wire is int8 already":                    {[2]int{10, 8}, 40, 1, Settings{"2bw", true, 1, "int8"}},
		"another cut would help, by at most 67 %":                                {[2]int{10, 2}, 0, 0, Settings{"2bw", true, 1, "f32"}},
		"the devices are busy: only faster devices, or more of them, would help": {[2]int{10, 10}, 0, 0, Settings{"2bw", true, 1, "f32"}},
		"slowest rank: stage 0 on a, computing 100 % of the time; the mean is 90 %": {[2]int{10, 8}, 40, 39,
			Settings{"2bw", true, 1, "f32"}},
		"slowest link: a to b, 40 ms a transfer; ranks waited for it 20 % of the time": {[2]int{10, 8}, 40, 39,
			Settings{"2bw", true, 1, "f32"}},
	} {
		assert.Contains(t, strings.Join(r.summary(t).Advice(), "\n"), want)
	}
	assert.Nil(t, Summary{}.Advice(), "of one machine")
}
