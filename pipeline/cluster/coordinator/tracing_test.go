package coordinator

import (
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/internal/testing/traintest"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/trace"
)

// A run over members whose clocks differ by an hour has one trace: each rank's runs in order, and arrows that begin in
// their sends and end after them.
func TestOneTraceOfAllMembers(t *testing.T) {
	dir := t.TempDir()
	n := newNetwork()
	n.ahead = map[string]time.Duration{"a": time.Hour, "b": -3 * time.Second}
	n.add(t, "a")
	n.add(t, "b")
	run(t, traintest.Demo(t, dir, "run.dir="+dir+"/run", "pipeline.stages=3", "pipeline.schedule=2bw", "train.microbatches=4"),
		n.remote("a", "b"))

	var slices []trace.Event
	var arrows []trace.Arrow
	cut, err := trace.Read(filepath.Join(dir, "run", trace.FileName), func(e trace.Event) error {
		slices = append(slices, e)
		return nil
	}, func(a trace.Arrow) { arrows = append(arrows, a) })
	require.NoError(t, err)
	require.False(t, cut)

	end, ran, sends, of := map[string]float64{}, map[string]int{}, map[string]map[float64]bool{}, map[string]string{}
	stated := map[string]float64{}
	for _, e := range slices {
		if e.Category == trace.Clock {
			stated[e.Track] = max(stated[e.Track], *e.Args.Error)
			continue
		}
		if e.Process == "" {
			continue
		}
		assert.GreaterOrEqual(t, e.Start, end[e.Track]-1e-6, "%s: %s", e.Track, e.Name)
		assert.Less(t, e.End, float64(time.Hour.Microseconds())/2, "by the clock of the run")
		end[e.Track] = e.End
		of[e.Track] = e.Process
		if e.Category.Computes() {
			ran[e.Track]++
		}
		if e.Category == trace.Send {
			if sends[e.Track] == nil {
				sends[e.Track] = map[float64]bool{}
			}
			sends[e.Track][e.Start] = true
		}
	}
	assert.Len(t, ran, 3)
	assert.Equal(t, "b", of["stage 1"])
	assert.Equal(t, "a", of["stage 2"])
	assert.Len(t, stated, 2)
	for track, e := range stated {
		assert.GreaterOrEqual(t, e, float64(clockError.Nanoseconds())/1e3, track)
		assert.Less(t, e, 20e3, track)
	}
	received := 0
	for _, e := range slices {
		if e.Category == trace.Receive {
			received++
		}
	}
	assert.NotZero(t, received)
	assert.Len(t, arrows, received, "each receive has an arrow")
	for _, a := range arrows {
		assert.True(t, sends[a.From][a.Sent], "%+v begins at the start of a send", a)
		between := stated[trace.ClockTrack("a")] + stated[trace.ClockTrack("b")]
		assert.GreaterOrEqual(t, a.Received, a.Sent-between)
	}
	s, err := trace.Summarize(filepath.Join(dir, "run", trace.FileName))
	require.NoError(t, err)
	assert.Len(t, s.Stages, 3)
	require.NotNil(t, s.Machines)
	assert.Equal(t, trace.Settings{Schedule: "2bw", Asynchronous: true, Wire: "f32"}, s.Machines.Settings)
	assert.Len(t, s.Machines.Links, 2)
	assert.Len(t, s.Machines.Clocks, 2)
	assert.InDelta(t, time.Hour.Seconds(), s.Machines.Clocks[0].Offset, 1e-3)
	assert.Contains(t, s.Advice()[0], "slowest rank: stage ")
}

// The time in the trace is never further from the true one than stated, and grows with the member's clock, while that
// drifts, is set, and is measured more or less well.
func TestClockOfAMember(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	start := time.Unix(1e9, 0)
	var c memberClock
	offset := 7 * time.Second
	type event struct {
		true time.Time
		at   int64 // by the member's clock
	}
	var events []event
	worst, now, set := time.Duration(0), start, start.Add(1000*time.Second) // when the clock is set
	check := func(stated time.Duration) {
		for _, e := range events {
			off := c.convert(e.at).Sub(e.true).Abs()
			assert.LessOrEqual(t, off, stated, "%v after the start", e.true.Sub(start))
			if e.true.Before(set) {
				worst = max(worst, off)
			}
		}
		events = events[:0]
	}
	last := int64(0)
	for step := range 400 {
		e := time.Duration(random.IntN(int(20 * time.Millisecond)))
		if step%3 == 0 {
			e /= 100
		}
		stated := c.take(transport.Clock{Offset: offset + time.Duration((random.Float64()*2-1)*float64(e)), Error: e, Measured: now}, now)
		check(stated)
		for range 50 {
			now = now.Add(100 * time.Millisecond)
			offset += 10 * time.Microsecond // a tenth of a thousandth
			at := now.Add(offset).UnixNano()
			if at < last {
				continue // the member's clock was set back
			}
			last = at
			events = append(events, event{now, at})
		}
		if !now.Before(set) && step == 199 {
			offset += 300 * time.Millisecond
		}
	}
	assert.Less(t, worst, 40*time.Millisecond)
	before := c.convert(start.UnixNano())
	for at := start.UnixNano(); at < last; at += int64(77 * time.Millisecond) {
		converted := c.convert(at)
		assert.False(t, converted.Before(before), "the conversion grows")
		before = converted
	}
}

// A measurement that takes long changes nothing that is converted already.
func TestClockKeepsThePast(t *testing.T) {
	var c memberClock
	start := time.Unix(1e9, 0)
	c.take(transport.Clock{Error: 50 * time.Millisecond, Measured: start}, start)
	event := start.Add(6 * time.Second).UnixNano()
	before := c.convert(event)
	c.take(transport.Clock{Offset: time.Millisecond, Error: 50 * time.Millisecond, Measured: start.Add(5 * time.Second)},
		start.Add(6*time.Second))
	assert.Equal(t, before, c.convert(event))
	late := start.Add(10 * time.Second)
	assert.Equal(t, late.Add(-time.Millisecond).UnixNano(), c.convert(late.UnixNano()).UnixNano())
}

// A member records on tracks of its own ranks only, and events that are right.
func TestEventsAreChecked(t *testing.T) {
	a, b := &tracedMember{id: "a"}, &tracedMember{id: "b"}
	for name, e := range map[string]protocol.Event{
		"expected a track of one of its ranks": {Track: "stage 1", Name: "F0", Category: trace.Forward, Start: 1},
		"expected one of a rank":               {Track: "stage 0", Name: "F0", Category: trace.Run, Start: 1},
		"expected Unix nanoseconds":            {Track: "stage 0", Name: "F0", Category: trace.Forward, Start: -1},
		"a name of 101 bytes":                  {Track: "stage 0", Name: strings.Repeat("F", 101), Category: trace.Forward, Start: 1},
	} {
		tr := &tracing{owners: map[string]*tracedMember{"stage 0": a, "stage 1": b}, members: map[string]*tracedMember{"a": a, "b": b}}
		err := tr.receive("a", protocol.Events{}, [][]byte{protocol.EncodeEvents([][]byte{e.Encode()})})
		assert.ErrorContains(t, err, name)
	}
	assert.NoError(t, (*tracing)(nil).receive("a", protocol.Events{}, nil), "after the end of the trace")
	p := &Pipeline{tracing: &tracing{members: map[string]*tracedMember{}}}
	assert.ErrorContains(t, p.traced().receive("c", protocol.Events{}, nil), "without ranks")
}

// Events of a member whose clock is not known, or that has ended its trace, are refused.
func TestEventsAreExpected(t *testing.T) {
	a := &tracedMember{id: "a"}
	tr := &tracing{owners: map[string]*tracedMember{"stage 0": a}, members: map[string]*tracedMember{"a": a}, newest: map[string]int64{}}
	events := [][]byte{protocol.EncodeEvents([][]byte{protocol.Event{Track: "stage 0", Name: "x", Start: 1, From: "stage 0"}.Encode()})}
	require.ErrorContains(t, tr.receive("a", protocol.Events{}, events), "before they were asked for")
	a.clock.take(transport.Clock{Measured: time.Now()}, time.Now())
	tr.lose("a")
	require.ErrorContains(t, tr.receive("a", protocol.Events{}, events), "after the last")
	require.ErrorContains(t, tr.receive("b", protocol.Events{}, events), "without ranks")
}
