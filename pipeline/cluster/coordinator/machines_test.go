package coordinator_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/internal/testing/slowlink"
	"github.com/gpupipe/gpupipe/pipeline/cluster/coordinator"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/member"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
)

// machines is a pipeline of one stage a member, on devices that sleep. A forward and a backward of a microbatch take
// the same time on all of them.
type machines struct {
	stages, microbatches, steps int
	forward, backward           time.Duration
	latency                     time.Duration
	bandwidth                   float64 // bits a second; 0: no limit
	set                         []string
}

// fourMachines is a pipeline with activations of 2.4 MB.
func fourMachines(latency time.Duration) machines {
	return machines{stages: 4, microbatches: 16, steps: 12, forward: 40 * time.Millisecond, backward: 80 * time.Millisecond,
		latency: latency, bandwidth: 1e9}
}

// BenchmarkMachines trains on a coordinator and members that are connected by emulated links, with the depth that the
// coordinator chooses. It reports the throughput as a share of that of all devices, and the prediction over it.
func BenchmarkMachines(b *testing.B) {
	for _, latency := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond} {
		b.Run(fmt.Sprintf("1Gbit/%v", latency), func(b *testing.B) {
			m := fourMachines(latency)
			for range b.N {
				share, predicted, notes := m.measure(b)
				b.ReportMetric(100*share, "%devices")
				b.ReportMetric(predicted, "predicted/measured")
				b.Log(notes)
			}
		})
	}
}

// BenchmarkLoopback trains on two members that are connected by the loopback interface, and on two ranks of one
// process. It reports the ratio of the throughputs.
func BenchmarkLoopback(b *testing.B) {
	m := machines{stages: 2, microbatches: 8, steps: 24, forward: 20 * time.Millisecond, backward: 40 * time.Millisecond}
	for range b.N {
		members, _, _ := m.measure(b)
		b.ReportMetric(100*members/m.alone(b), "%ranks")
	}
}

// sleeping is a device that sleeps, and whose programs are measured.
type sleeping struct{ *null.Device }

func (s sleeping) Info() device.Info {
	i := s.Device.Info()
	i.Kind = device.Discrete
	return i
}

// open opens the device of a stage.
func (m machines) open(stage int) func(string) (device.Device, error) {
	return func(name string) (device.Device, error) {
		return sleeping{null.New(null.Options{Name: name, Latency: func(program string) time.Duration {
			switch {
			case program == "F":
				return m.forward
			case program == "B", program == "B+", stage == 0 && (program == "W" || program == "W+"): // stage 0 has no input gradient
				return m.backward
			case program == "I", program == "W", program == "W+":
				return m.backward / 2
			}
			return 0
		}})}, nil
	}
}

// links are proxies between the processes of a run: one for each dialing process and address.
type links struct {
	machines
	mu  sync.Mutex
	all map[string]*slowlink.Proxy
}

// dial returns a function that dials through the process's proxies; nil if links are not emulated.
func (l *links) dial(from string) func(context.Context, string) (net.Conn, error) {
	if l.latency == 0 && l.bandwidth == 0 {
		return nil
	}
	return func(ctx context.Context, address string) (net.Conn, error) {
		p, err := l.proxy(from, address)
		if err != nil {
			return nil, err
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", p.Address())
	}
}

func (l *links) proxy(from, address string) (*slowlink.Proxy, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := from + " " + address
	if p := l.all[key]; p != nil {
		return p, nil
	}
	p, err := slowlink.New(address)
	if err != nil {
		return nil, err
	}
	p.SetLatency(l.latency)
	p.SetBandwidth(l.bandwidth)
	l.all[key] = p
	return p, nil
}

func (l *links) close(t testing.TB) {
	for _, p := range l.all {
		require.NoError(t, p.Close())
	}
}

// report records what the benchmark needs of a run.
type report struct {
	train.Silent
	times []time.Time // of steps
	notes []string
}

func (r *report) Step(train.Progress) { r.times = append(r.times, time.Now()) }

func (r *report) Note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// measure trains, and returns the throughput as a share of that of all devices, the predicted throughput over the
// measured one, and the run's notes.
func (m machines) measure(t testing.TB) (share, predicted float64, notes string) {
	dir := t.TempDir()
	l := &links{machines: m, all: map[string]*slowlink.Proxy{}}
	defer l.close(t)
	h, err := coordinator.NewHost(t.Context(), coordinator.HostOptions{Dir: dir + "/cluster", Address: "127.0.0.1:0",
		Hosts: []string{"127.0.0.1"}, Build: "bench"})
	require.NoError(t, err)
	defer func() { require.NoError(t, h.Close()) }()
	for stage := range m.stages {
		p := m.join(t, h, l, stage)
		defer func() { require.NoError(t, p.Close()) }()
	}
	r, c := &report{}, m.config(t, dir)
	_, err = h.Train(t.Context(), func(int, bool) (config.Config, error) { return c, nil }, train.Options{Report: r})
	require.NoError(t, err)
	tokens := float64(c.BatchTokens()) / r.step()
	for _, note := range r.notes {
		var rate float64
		if _, err := fmt.Sscanf(note, "predicted: %g tokens/s", &rate); err == nil {
			predicted = rate / tokens
		}
	}
	return m.share(r), predicted, strings.Join(r.notes, "\n")
}

// share is the throughput of a run as a share of that of all devices.
func (m machines) share(r *report) float64 {
	return float64(m.microbatches) * (m.forward + m.backward).Seconds() / r.step()
}

// step is the duration of a step in seconds, after the first ones.
func (r *report) step() float64 {
	first, last := len(r.times)/4, len(r.times)-2 // the last step is reported with the one before
	return r.times[last].Sub(r.times[first]).Seconds() / float64(last-first)
}

// alone trains in one process and returns the throughput as a share of that of all devices.
func (m machines) alone(t testing.TB) float64 {
	var devices []string
	for stage := range m.stages {
		devices = append(devices, fmt.Sprint("sleeping:", stage))
	}
	m.set = append(slices.Clone(m.set), "pipeline.devices=["+strings.Join(devices, ", ")+"]")
	r := &report{}
	_, err := train.Run(t.Context(), m.config(t, t.TempDir()),
		train.Options{Report: r, Devices: train.DeviceOptions{Open: func(name string) (device.Device, error) {
			return m.open(slices.Index(devices, name))(name)
		}}})
	require.NoError(t, err)
	return m.share(r)
}

// join adds a member.
func (m machines) join(t testing.TB, h *coordinator.Host, l *links, stage int) *member.Process {
	name := fmt.Sprint("machine", stage)
	joined, err := identity.Join(t.Context(), identity.JoinOptions{Token: h.Token(), Name: name, Build: "bench"})
	require.NoError(t, err)
	p, err := member.Start(t.Context(), member.ProcessOptions{Options: member.Options{OpenDevice: m.open(stage)},
		Credentials: joined.Credentials,
		Control:     joined.Control, Build: "bench", Devices: []string{"sleeping:0"}, Hosts: []string{"127.0.0.1"},
		Network: transport.Network{Dial: l.dial(name)}})
	require.NoError(t, err)
	require.NoError(t, h.Wait(t.Context(), func(_, members int) bool { return members == stage+1 }))
	return p
}

// config has at least a unit for each stage, and activations of 2.4 MB.
func (m machines) config(t testing.TB, dir string) config.Config {
	text := filepath.Join(dir, "text.txt")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("the cat sat on a mat. ", 4000)), 0o666))
	c, err := config.Parse("bench", nil, slices.Concat([]string{
		fmt.Sprintf("model={vocab_size: 256, d_model: 576, n_layers: %d, n_heads: 9, d_ff: 4, seq_len: 1024}", max(1, m.stages-2)),
		"data={train: [" + text + "], val_fraction: 0.1}",
		fmt.Sprintf("train={steps: %d, batch_size: %d, microbatches: %[2]d, eval_every: 0, save_every: 0}", m.steps, m.microbatches),
		fmt.Sprintf("pipeline={schedule: 2bw, stages: %d}", m.stages), "run.dir=" + filepath.Join(dir, "run"),
	}, m.set))
	require.NoError(t, err)
	return c
}
