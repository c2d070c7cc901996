package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/device/faulty"
)

var errInjected = errors.New("injected")

// saboteur injects a fault at one operation of one rank's device, and counts the operations of all.
type saboteur struct {
	mu    sync.Mutex
	count map[place]int
	// happen is called at the n-th operation of a kind on a rank, and others from then on at operations of other ranks.
	at     place
	n      int
	happen func() error
	others func() error
	struck time.Time // when the fault happened
}

type place struct {
	rank int
	op   faulty.Op
}

func (s *saboteur) before(rank int) func(faulty.Op, string) error {
	return func(op faulty.Op, _ string) error {
		s.mu.Lock()
		here := place{rank, op}
		s.count[here]++
		now := here == s.at && s.count[here] == s.n
		if now {
			s.struck = time.Now()
		}
		struck := !s.struck.IsZero()
		s.mu.Unlock()
		switch {
		case now:
			return s.happen()
		case struck && rank != s.at.rank && s.others != nil:
			return s.others()
		}
		return nil
	}
}

// live runs a pipeline from New to Close. It returns how long after the fault Train reported it, and the error. It
// checks that no memory remains allocated; the synctest bubble checks that no goroutine remains.
func (s *saboteur) live(t *testing.T, p setup) (after time.Duration, reported error) {
	t.Helper()
	s.count = map[place]int{}
	devices := idle(10*time.Millisecond, p.imports)
	p.device = func(rank int) device.Device { return &faulty.Device{Device: devices(rank), Before: s.before(rank)} }
	o := p.options(t)
	e, err := New(o)
	require.NoError(t, err)
	if err = e.Load(); err == nil {
		data := zeros(o.Microbatches * o.Layout.Replicas * o.Model.Size().SeqLen)
		if _, err = e.Train(t.Context(), data, 0, 4, ignore); err == nil {
			err = e.Evaluate(t.Context(), zeros(o.Model.Size().SeqLen), 2, ignore)
		}
		if after = time.Since(s.struck); err != nil {
			_, again := e.Train(t.Context(), data, 0, 4, ignore)
			assert.Equal(t, err, again, "a failed engine stays failed")
		}
	}
	closed := e.Close()
	if err == nil {
		err = closed
	}
	for i, d := range o.Devices {
		buffers, _ := d.Allocated()
		assert.Zero(t, buffers, "rank %d", i)
		require.NoError(t, d.Close())
	}
	return after, err
}

// somewhere picks operations of every kind on random ranks.
func somewhere(rng *rand.Rand, p setup, total map[place]int, ops ...faulty.Op) (ps []place, ns []int) {
	for _, op := range ops {
		at := place{rng.IntN(p.stages * max(p.replicas, 1)), op}
		if n := total[at]; n > 0 {
			ps, ns = append(ps, at), append(ns, 1+rng.IntN(n))
		}
	}
	return ps, ns
}

func rankName(p setup, rank int) string {
	if p.replicas > 1 {
		return fmt.Sprintf("replica %d stage %d", rank/p.stages, rank%p.stages)
	}
	return fmt.Sprintf("stage %d", rank)
}

// namesPlace checks that an error names the rank and the operation.
func namesPlace(t *testing.T, err error, p setup, at place) {
	t.Helper()
	require.ErrorIs(t, err, errInjected)
	require.ErrorContains(t, err, rankName(p, at.rank)+": ")
	require.ErrorContains(t, err, fmt.Sprintf("null:%d: %s ", at.rank, at.op))
}

var inTraining = `: [A-Z]{1,2}\d+(\.\d+)?(:\d+)?: `

// An error of a device, wherever it strikes, stops all ranks within a second and leaves nothing allocated.
func TestDeviceErrors(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, p := range tier.Divide(t, setups(), tier.Every[setup](2)) {
		t.Run(p.String(), func(t *testing.T) {
			clean := &saboteur{}
			synctest.Test(t, func(t *testing.T) {
				_, err := clean.live(t, p)
				require.NoError(t, err)
			})
			at, n := somewhere(rng, p, clean.count, faulty.Alloc, faulty.Load, faulty.Write, faulty.Run, faulty.Run, faulty.Read,
				faulty.Transfer, faulty.Transfer, faulty.Wait, faulty.Wait)
			for i := range at {
				synctest.Test(t, func(t *testing.T) {
					s := &saboteur{at: at[i], n: n[i], happen: func() error { return errInjected }}
					after, err := s.live(t, p)
					namesPlace(t, err, p, at[i])
					if at[i].op != faulty.Alloc && after > 0 {
						assert.Less(t, after, time.Second)
					}
					if at[i].op == faulty.Run || at[i].op == faulty.Transfer || at[i].op == faulty.Wait {
						assert.Regexp(t, rankName(p, at[i].rank)+inTraining, err.Error())
					}
				})
			}
		})
	}
}

// The failure of one device is reported within a second even if another hangs. Close waits for the one that hangs.
func TestHangingDevices(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	for _, p := range tier.Divide(t, setups(), func(i int, _ setup) bool { return i%2 == 1 }) {
		if p.stages == 1 {
			continue // there is no other rank to fail
		}
		t.Run(p.String(), func(t *testing.T) {
			clean := &saboteur{}
			synctest.Test(t, func(t *testing.T) {
				_, err := clean.live(t, p)
				require.NoError(t, err)
			})
			at, n := somewhere(rng, p, clean.count, faulty.Write, faulty.Run, faulty.Read, faulty.Transfer, faulty.Wait, faulty.Wait)
			for i := range at {
				synctest.Test(t, func(t *testing.T) {
					const hang = time.Hour
					s := &saboteur{at: at[i], n: n[i], happen: func() error { time.Sleep(hang); return errInjected }}
					var failed sync.Once
					var failure time.Time
					s.others = func() error {
						failed.Do(func() { failure = time.Now() })
						return errInjected
					}
					began := time.Now()
					after, err := s.live(t, p)
					require.ErrorIs(t, err, errInjected)
					assert.GreaterOrEqual(t, time.Since(began), hang, "Close has waited")
					if !failure.IsZero() && after > 0 { // it was not Load that hung
						assert.Less(t, after, failure.Sub(s.struck)+time.Second)
					}
				})
			}
		})
	}
}

// failingSource has no such batch.
type failingSource struct {
	Source
	batch int64
	fail  func() error
}

func (f failingSource) Batch(b int64) (Batch, error) {
	if b == f.batch {
		return nil, f.fail()
	}
	return f.Source.Batch(b)
}

// An error of the source stops all ranks and names the stage and the action.
func TestDataErrors(t *testing.T) {
	for _, p := range setups() {
		t.Run(p.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p.device = idle(10*time.Millisecond, p.imports)
				e, data := p.load(t)
				source := failingSource{data, 2, func() error { return errInjected }}
				var reported []int
				reached, err := e.Train(t.Context(), source, 0, 5,
					func(m Measured) error { reported = append(reported, m.Batch); return nil })
				require.ErrorIs(t, err, errInjected)
				assert.Regexp(t, `stage \d+: F\d+\.2(:\d)?: injected`, err.Error())
				assert.Zero(t, reached)
				assert.LessOrEqual(t, len(reported), 2)
				require.NoError(t, e.Close())
			})
		})
	}
}

// scarceSource has data up to a batch.
type scarceSource struct {
	Source
	end int64
}

func (s scarceSource) Prepare(b int64) error {
	if b >= s.end {
		return errInjected
	}
	return nil
}

// A batch that is not available ends training after the batch before it. The pipeline is empty then and can continue.
func TestUnavailableBatch(t *testing.T) {
	for _, p := range setups() {
		t.Run(p.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p.device = idle(10*time.Millisecond, p.imports)
				e, data := p.load(t)
				reported := 0
				count := func(Measured) error { reported++; return nil }
				for range 2 {
					done, err := e.Train(t.Context(), scarceSource{data, 3}, reported, 7, count)
					require.ErrorIs(t, err, errInjected)
					assert.Equal(t, []int{3, 3}, []int{done, reported})
				}
				done, err := e.Train(t.Context(), data, 3, 7, count)
				require.NoError(t, err)
				assert.Equal(t, []int{7, 7}, []int{done, reported})
			})
		})
	}
}

// Stages wait for a slow one: the messages in flight between them stay bounded by their slots.
func TestSlowStage(t *testing.T) {
	for i := range 8 {
		synctest.Test(t, func(t *testing.T) {
			slow := i % 4
			p := setup{schedule: "2bw", stages: 4, microbatches: 6, halved: true, imports: i / 4 * 4}
			var mu sync.Mutex
			inFlight, most := map[string]int{}, map[string]int{}
			note := func(what string, n int) {
				mu.Lock()
				defer mu.Unlock()
				inFlight[what] += n
				most[what] = max(most[what], inFlight[what])
			}
			p.device = func(rank int) device.Device {
				latency := time.Millisecond
				if rank == slow {
					latency *= 100
				}
				return &faulty.Device{Device: idle(latency, p.imports)(rank), Before: func(op faulty.Op, object string) error {
					switch {
					case (op == faulty.Read || op == faulty.Transfer) && strings.Contains(object, "act/out"):
						note(fmt.Sprint("activations to ", rank+1), 1)
					case (op == faulty.Write || op == faulty.Transfer) && strings.Contains(object, "act/in"):
						note(fmt.Sprint("activations to ", rank), -1)
					case (op == faulty.Read || op == faulty.Transfer) && strings.Contains(object, "grad/in"):
						note(fmt.Sprint("gradients to ", rank-1), 1)
					case (op == faulty.Write || op == faulty.Transfer) && strings.Contains(object, "grad/out"):
						note(fmt.Sprint("gradients to ", rank), -1)
					}
					return nil
				}}
			}
			e, data := p.load(t)
			_, err := e.Train(t.Context(), data, 0, 12, ignore)
			require.NoError(t, err)
			require.NoError(t, e.Close())
			require.Len(t, most, 6)
			for what, n := range most {
				assert.Zero(t, inFlight[what], what)
				assert.LessOrEqual(t, n, p.stages, what)
			}
		})
	}
}
