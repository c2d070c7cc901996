//go:build unix

package sidecar

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/devicetest/contract"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/null"
	"github.com/gpupipe/gpupipe/runtime/webgpu"
	"github.com/stretchr/testify/require"
)

// BenchmarkStep does steps in a worker and in this process by turns, and gives the ratio of their medians. "train" is
// four microbatches of a small model, forward and backward: each uploads its tokens, runs and reads its loss. "calls"
// is 200 times a write, a run of next to nothing and a read, and a wait at the end.
func BenchmarkStep(b *testing.B) {
	here, err := webgpu.Open(0, webgpu.Options{})
	require.NoError(b, err)
	defer here.Close()
	there := opened(b, options("webgpu"))
	for name, prepare := range map[string]func(testing.TB, device.Device) func() error{"train": trainStep, "calls": manyCalls} {
		b.Run(name, func(b *testing.B) {
			compare(b, prepare(b, here), prepare(b, there))
		})
	}
}

func compare(b *testing.B, here, there func() error) {
	var times [2][]time.Duration
	var work [2]time.Duration
	for _, step := range []func() error{here, there} {
		require.NoError(b, step())
	}
	for b.Loop() {
		for i, step := range []func() error{here, there} {
			began, before := time.Now(), computed(b)
			require.NoError(b, step())
			times[i] = append(times[i], time.Since(began))
			work[i] += computed(b) - before
		}
	}
	median := func(ts []time.Duration) float64 {
		slices.Sort(ts)
		return float64(ts[len(ts)/2].Microseconds())
	}
	b.ReportMetric(median(times[0]), "µs/here")
	b.ReportMetric(median(times[1]), "µs/there")
	b.ReportMetric(median(times[1])/median(times[0]), "there/here")
	b.ReportMetric(float64(work[1])/float64(work[0]), "cpu-there/here")
}

// computed is the processor's time that this process and its workers have taken.
func computed(b *testing.B) (sum time.Duration) {
	for _, pid := range append(children(), "process self") {
		text, err := os.ReadFile("/proc/" + strings.TrimPrefix(pid, "process ") + "/stat")
		require.NoError(b, err)
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')'):]))
		for _, f := range fields[12:14] { // user and system, in hundredths of a second after the name and state
			n, err := strconv.Atoi(f)
			require.NoError(b, err)
			sum += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return sum
}

func trainStep(t testing.TB, d device.Device) func() error {
	const microbatches = 4
	c, err := model.Preset("tiny")
	require.NoError(t, err)
	c.NLayers, c.SeqLen = 2, 64
	g, err := c.Grad(4, microbatches, false)
	require.NoError(t, err)
	plan, err := exec.NewPlan(d, map[string]*graph.Graph{"grad": g}, exec.Options{})
	require.NoError(t, err)
	s, err := plan.Load()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for _, p := range c.Parameters() {
		require.NoError(t, s.WriteVariable(p.Name, exec.F32Bytes(p.Initial(1))))
	}
	return func() error {
		var losses []device.Pending
		for range microbatches {
			for _, v := range g.Sources("input") {
				if err := s.SetInput("grad", v.Node.Op.(graph.Source).Label(), make([]byte, v.Type.Bytes())); err != nil {
					return err
				}
			}
			if err := s.Run("grad"); err != nil {
				return err
			}
			r, err := s.Output("grad", "loss")
			if err != nil {
				return err
			}
			losses = append(losses, r)
		}
		return waitAll(losses)
	}
}

func waitAll(reads []device.Pending) error {
	for _, r := range reads {
		if _, err := r.Wait(); err != nil {
			return err
		}
	}
	return nil
}

func manyCalls(t testing.TB, d device.Device) func() error {
	b, err := d.Alloc("b", 4096)
	require.NoError(t, err)
	t.Cleanup(b.Release)
	l := contract.Load(t, d, contract.Increments(b, 1))
	data := contract.Pattern(4096, 1)
	return func() error {
		var reads []device.Pending
		for range 200 {
			if err := d.Write(b, 0, data); err != nil {
				return err
			}
			if err := d.Run(l); err != nil {
				return err
			}
			r, err := d.Read(b, 0, 64)
			if err != nil {
				return err
			}
			reads = append(reads, r)
		}
		return waitAll(reads)
	}
}

// BenchmarkCall measures a call on a device that does nothing: in the host's thread, and until the work is done.
func BenchmarkCall(b *testing.B) {
	for name, d := range map[string]device.Device{"here": null.New(null.Options{}), "there": opened(b, options("null"))} {
		buffer, err := d.Alloc("b", 4096)
		require.NoError(b, err)
		l := contract.Load(b, d, contract.Increments(buffer, 1))
		b.Run(name+"/run", func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, d.Run(l))
			}
		})
		b.Run(name+"/sync", func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, d.Sync())
			}
		})
		b.Run(name+"/read64MiB", func(b *testing.B) {
			big, err := d.Alloc("big", 64<<20)
			require.NoError(b, err)
			defer big.Release()
			b.SetBytes(64 << 20)
			for b.Loop() {
				contract.Read(b, d, big, 0, 64<<20)
			}
		})
		b.Run(name+"/write64MiB", func(b *testing.B) {
			big, err := d.Alloc("big", 64<<20)
			require.NoError(b, err)
			defer big.Release()
			data := make([]byte, 64<<20)
			b.SetBytes(64 << 20)
			for b.Loop() {
				require.NoError(b, d.Write(big, 0, data))
			}
			require.NoError(b, d.Sync())
		})
	}
}
