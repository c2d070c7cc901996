package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
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
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/layout/measure"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/faulty"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// homes are machines behind home links, each of them a replica on a device that sleeps for a second a step. Time is
// that of a bubble of synctest. There are 135 M parameters and links of 100 and 20 Mbit with 20 ms, but for a factor:
// the model's widths are divided by it, and so the bytes of a message and those that a link carries by its square.
type homes struct {
	machines, factor int
}

const (
	mbit                      = 1e6 / 8
	homeForward, homeBackward = time.Second / 3, time.Second - time.Second/3
)

// link is the connection of each machine.
func (h homes) link() homelink.Connection {
	scale := float64(h.factor * h.factor)
	return homelink.Connection{Up: 20 * mbit / scale, Down: 100 * mbit / scale, Latency: 20 * time.Millisecond}
}

// config is the config of a run of replicas, or of one of them alone.
func (h homes) config(t testing.TB, dir string, replicas int, set ...string) config.Config {
	text := filepath.Join(dir, "text.txt")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("the cat sat on a mat. ", 4000)), 0o666))
	c, err := config.Parse("homes", nil, append([]string{
		fmt.Sprintf("model={arch: llama, vocab_size: %d, d_model: %d, n_layers: 6, n_heads: %d, d_ff: %d, seq_len: 16, "+
			"tie_embeddings: true}", 49152/h.factor, 576/h.factor, 18/h.factor, 9480/h.factor),
		"data={train: [" + text + "], val_fraction: 0.1, tokenizer: bytes}",
		fmt.Sprintf("train={batch_size: %d, microbatches: %[1]d, eval_every: 0, save_every: 0}", replicas),
		"run.dir=" + filepath.Join(dir, "run")}, set...))
	require.NoError(t, err)
	return c
}

// device opens a device that sleeps for a second a step.
func (h homes) device(name string) (device.Device, error) {
	return null.New(null.Options{Name: name, Latency: func(program string) time.Duration {
		switch program {
		case "F":
			return homeForward
		case "B", "B+", "W", "W+":
			return homeBackward
		}
		return 0
	}}), nil
}

// plan plans replicas on the machines.
func (h homes) plan(t testing.TB, dir string) *layout.ReplicaPlan {
	c := h.config(t, dir, 1, "train.steps=1")
	all, link := layout.Homes{}, h.link()
	for i := range h.machines {
		name := fmt.Sprint("home", i)
		all.Machines = append(all.Machines, layout.Machine{Name: name, Site: i, Device: "null:0", TokensPerSec: float64(c.BatchTokens())})
		all.Sites = append(all.Sites, layout.HomeSite{Name: name,
			Site: schedule.Site{Up: link.Up, Down: link.Down, Latency: link.Latency.Seconds()}})
	}
	p, err := train.PlanReplicas(t.Context(), c, func(layout.Machine) (device.Device, error) { return h.device("null:0") }, all,
		measure.Options{Modelled: true})
	require.NoError(t, err)
	return p
}

// train trains with a plan for some steps, and returns their times.
func (h homes) train(t testing.TB, dir string, p *layout.ReplicaPlan, steps int) []time.Time {
	network := homelink.New(4<<10, 16<<10)
	defer network.Close()
	first := network.Add(h.link())
	host, err := coordinator.NewHost(t.Context(), coordinator.HostOptions{Dir: dir + "/cluster", Address: first.Host() + ":0",
		Hosts: []string{first.Host()}, Build: "test", Modelled: true, Listen: first.Listen,
		Local: &member.ProcessOptions{Options: member.Options{OpenDevice: h.device}, Devices: []string{"null:0"},
			Network: transport.Network{Dial: first.Dial}, OnlyDials: true}})
	require.NoError(t, err)
	defer func() { assert.NoError(t, host.Close()) }()
	for i := 1; i < h.machines; i++ {
		m := network.Add(h.link())
		name := fmt.Sprint("home", i)
		joined, err := identity.Join(t.Context(), identity.JoinOptions{Token: host.Token(), Name: name, Build: "test", Dial: m.Dial})
		require.NoError(t, err)
		process, err := member.Start(t.Context(), member.ProcessOptions{Options: member.Options{OpenDevice: h.device},
			Credentials: joined.Credentials, Control: joined.Control, Build: "test", Devices: []string{"null:0"},
			Network: transport.Network{Dial: m.Dial, Bind: m.Listen}, Listen: m.Host(), Hosts: []string{m.Host()}})
		require.NoError(t, err)
		defer func() { assert.NoError(t, process.Close()) }()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour) // of virtual time
	defer cancel()
	require.NoError(t, host.Wait(ctx, func(_, members int) bool { return members == h.machines }))
	c := h.config(t, dir, h.machines, "train.steps=100000", fmt.Sprint("pipeline.replicas=", len(p.Replicas)),
		"pipeline.watchdog=1m", // the weights of the other replicas take longer at first
		fmt.Sprint("pipeline.local_steps=", p.Period), fmt.Sprintf("pipeline.outer={late: %d, wire: %s}", p.Late, p.Wire))
	var r homeReport
	enough := errors.New("enough")
	open := func(name string) (device.Device, error) { // of the outer optimizer
		d, err := h.device(name)
		return &faulty.Device{Device: d, Before: func(faulty.Op, string) error {
			if r.steps.Load() > int64(steps) {
				return enough
			}
			return nil
		}}, err
	}
	_, err = host.Train(ctx, func(int, bool) (config.Config, error) { return c, nil }, train.Options{Report: &r,
		Devices: train.DeviceOptions{Open: open}})
	require.ErrorIs(t, err, enough)
	return r.times
}

// homeReport records the times of steps.
type homeReport struct {
	train.Silent
	steps atomic.Int64
	times []time.Time
}

func (r *homeReport) Step(train.Progress) {
	r.times = append(r.times, time.Now())
	r.steps.Add(1)
}

// Machines behind home links train at nearly the sum of their speeds, as the plan predicts.
func TestHomesTrainAtTheSumOfTheirSpeeds(t *testing.T) {
	type homeCase struct {
		homes
		least  float64
		period int // at most: all exchanges through the coordinator would need 35, 105 and 245 local steps
	}
	for _, x := range tier.Divide(t, []homeCase{{homes{2, 6}, 1.95, 35}, {homes{8, 6}, 7.7, 62}}, tier.First[homeCase](1)) {
		t.Run(fmt.Sprint(x.machines), func(t *testing.T) {
			dir := t.TempDir()
			plan := x.plan(t, dir)
			assert.LessOrEqual(t, plan.Period, x.period)
			synctest.Test(t, func(t *testing.T) {
				first := plan.Period + plan.Late // before that some replicas wait for their weights
				last := first + plan.Period
				times := x.train(t, dir, plan, last)
				seconds := times[last].Sub(times[first]).Seconds()
				speed := float64(x.machines*plan.Period) / seconds
				t.Logf("%d parameters, H %d, %d steps late, %.1f s: %.3f times one machine, predicted %.3f", plan.Parameters, plan.Period,
					plan.Late, seconds, speed, plan.TokensPerSec/16)
				assert.GreaterOrEqual(t, speed, x.least)
				assert.InEpsilon(t, plan.TokensPerSec/16, speed, 0.05)
			})
		})
	}
}
