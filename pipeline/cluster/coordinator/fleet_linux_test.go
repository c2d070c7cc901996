package coordinator_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/homelink"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/cluster/coordinator"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/member"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fleet is a coordinator with many members that come and go, each a replica that sleeps for a second a step and
// computes nothing, in a bubble of synctest.
type fleet struct {
	t       testing.TB
	size    int
	apart   time.Duration // between two events, on average
	random  *rand.Rand
	network *homelink.Network
	host    *coordinator.Host
	members []*fleetMember
	joined  int
	working sync.WaitGroup
	counts  map[string]int // of events, by kind
}

// fleetMember is a member, which may be away.
type fleetMember struct {
	machine *homelink.Machine
	process *member.Process // nil: it is away
	hangs   time.Time       // until then
}

// sleeper opens a device that sleeps.
func sleeper(name string) (device.Device, error) {
	return null.New(null.Options{Name: name, Latency: func(program string) time.Duration {
		if program == "B" {
			return time.Second
		}
		return 0
	}}), nil
}

// fleetUse is what a fleet has taken.
type fleetUse struct {
	steps    int
	counts   map[string]int
	up, down homelink.Carried // of the coordinator
	heap     uint64           // bytes, of the coordinator and all members
	events   string           // of the run
	planned  time.Duration    // of processor time, until the first step
}

// train trains for a time.
func (f *fleet) train(dir string, for_ time.Duration) (u fleetUse) {
	f.network, f.counts = homelink.New(16<<10, 64<<10), map[string]int{}
	defer f.network.Close()
	center := f.network.Add(homelink.Connection{Up: 1000 * mbit, Down: 1000 * mbit, Latency: 5 * time.Millisecond})
	var err error
	f.host, err = coordinator.NewHost(f.t.Context(), coordinator.HostOptions{Dir: dir + "/cluster", Address: center.Host() + ":0",
		Hosts: []string{center.Host()}, Build: "test", Modelled: true, Listen: center.Listen,
		Token: identity.TokenOptions{Lifetime: 24 * time.Hour}})
	require.NoError(f.t, err)
	for range f.size {
		m := &fleetMember{}
		f.members = append(f.members, m)
		f.enter(m)
	}
	require.NoError(f.t, f.host.Wait(f.t.Context(), func(_, members int) bool { return members == f.size }))
	ctx, cancel := context.WithCancel(f.t.Context())
	r := &fleetReport{begun: make(chan struct{})}
	ending := make(chan struct{})
	before := processorTime(f.t)
	f.working.Go(func() {
		<-r.begun
		u.planned = processorTime(f.t) - before
		f.churn(ctx, for_)
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		u.heap = s.HeapAlloc
		u.up, u.down = center.Carried()
		close(ending)
		cancel()
	})
	c := f.config(dir)
	res, err := f.host.Train(ctx, func(int, bool) (config.Config, error) { return c, nil }, train.Options{Report: r,
		Devices: train.DeviceOptions{Open: sleeper}})
	require.NoError(f.t, err)
	<-ending
	for _, m := range f.members {
		m.machine.Resume()
		if m.process != nil {
			f.working.Go(func() { _ = m.process.Close() })
		}
	}
	assert.NoError(f.t, f.host.Close())
	f.working.Wait()
	text, err := os.ReadFile(filepath.Join(c.Run.Dir, "events.jsonl"))
	require.NoError(f.t, err)
	u.steps, u.counts, u.events = res.Step, f.counts, string(text)
	return u
}

// config is that of a model of a few parameters.
func (f *fleet) config(dir string) config.Config {
	text := filepath.Join(dir, "text.txt")
	require.NoError(f.t, os.WriteFile(text, []byte(strings.Repeat("the cat sat on a mat. ", 4000)), 0o666))
	c, err := config.Parse("fleet", nil, []string{
		"model={vocab_size: 256, d_model: 16, n_layers: 2, n_heads: 2, d_ff: 24, seq_len: 8}",
		"data={train: [" + text + "], val_fraction: 0.1, tokenizer: bytes}",
		fmt.Sprintf("train={steps: 100000, batch_size: %d, microbatches: %[1]d, eval_every: 0, save_every: 300}", f.size),
		fmt.Sprintf("pipeline={replicas: %d, local_steps: 30, outer: {wire: int4, late: 20}}", f.size), "run.dir=" + filepath.Join(dir, "run")})
	require.NoError(f.t, err)
	return c
}

// enter starts a member on a machine of its own.
func (f *fleet) enter(m *fleetMember) {
	f.joined++
	m.machine = f.network.Add(homelink.Connection{Up: 20 * mbit, Down: 100 * mbit, Latency: 20 * time.Millisecond})
	pprof.Do(f.t.Context(), pprof.Labels("of", "member"), func(ctx context.Context) {
		joined, err := identity.Join(ctx, identity.JoinOptions{Token: f.host.Token(), Name: fmt.Sprint("m", f.joined), Build: "test",
			Dial: m.machine.Dial})
		require.NoError(f.t, err)
		m.process, err = member.Start(ctx, member.ProcessOptions{Options: member.Options{OpenDevice: sleeper},
			Credentials: joined.Credentials, Control: joined.Control, Build: "test", Devices: []string{"null:0"},
			Network: transport.Network{Dial: m.machine.Dial}, OnlyDials: true, Hosts: []string{m.machine.Host()}})
		require.NoError(f.t, err)
	})
}

// churn lets members come and go for a time.
func (f *fleet) churn(ctx context.Context, duration time.Duration) {
	for end := time.Now().Add(duration); time.Now().Before(end); {
		time.Sleep(time.Duration(f.random.ExpFloat64() * float64(f.apart)))
		m := f.members[f.random.IntN(len(f.members))]
		switch kind := f.random.IntN(3); {
		case time.Now().Before(m.hangs): // it cannot do anything else
		case m.process == nil:
			f.counts["join"]++
			f.enter(m)
		case f.away() > len(f.members)/2:
		case kind == 0:
			f.counts["die"]++
			m.machine.Reset()
			f.leave(m)
			f.enter(m)
		case kind == 1:
			f.counts["leave"]++
			f.leave(m)
		default:
			f.counts["hang"]++
			m.machine.Hang()
			d := time.Duration(f.random.Float64() * float64(5*time.Minute))
			m.hangs = time.Now().Add(d)
			machine := m.machine
			f.working.Go(func() {
				time.Sleep(d)
				machine.Resume()
			})
		}
	}
}

// away is how many members have left or hang.
func (f *fleet) away() (n int) {
	for _, m := range f.members {
		if m.process == nil || time.Now().Before(m.hangs) {
			n++
		}
	}
	return n
}

// leave closes the process of a member.
func (f *fleet) leave(m *fleetMember) {
	p := m.process
	m.process = nil
	f.working.Go(func() { _ = p.Close() })
}

// processorTime is what this process has taken.
func processorTime(t testing.TB) time.Duration {
	var u unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// fleetReport says when the first step is done.
type fleetReport struct {
	train.Silent
	once  sync.Once
	begun chan struct{}
}

func (r *fleetReport) Step(train.Progress) { r.once.Do(func() { close(r.begun) }) }

// A coordinator trains on while members die, leave, hang for minutes and join. No step is done again, and places that
// are free are filled. GPUPIPE_FLEET is a number of members, for an hour.
func TestFleet(t *testing.T) {
	size, apart, duration := 12, 20*time.Second, 15*time.Minute
	if text := os.Getenv("GPUPIPE_FLEET"); text != "" {
		var err error
		size, err = strconv.Atoi(text)
		require.NoError(t, err)
		apart, duration = 10*time.Second, time.Hour
	} else if !tier.All() {
		size, duration = 6, 5*time.Minute
	}
	began := processorTime(t)
	u := trainFleet(t, size, apart, duration)
	t.Logf("%d steps, %v; the coordinator sent %d bytes in %d packets and received %d in %d; coordinator and members: heap %d MiB, "+
		"processor time %v, of it %v until the first step", u.steps, u.counts, u.up.Bytes, u.up.Packets, u.down.Bytes, u.down.Packets,
		u.heap>>20, processorTime(t)-began, u.planned)
	assert.NotContains(t, u.events, `"event":"restart"`)
	assert.Greater(t, u.steps, int(duration.Seconds())/2, "a member that hangs costs the others some seconds")
	assert.GreaterOrEqual(t, strings.Count(u.events, " begins after step "), (u.counts["join"]+u.counts["die"])/2)
}

// trainFleet trains for a time that a fleet believes to pass.
func trainFleet(t *testing.T, size int, apart, duration time.Duration) (u fleetUse) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, size: size, apart: apart, random: rand.New(rand.NewPCG(1, 2))}
		u = f.train(dir, duration)
	})
	return u
}
