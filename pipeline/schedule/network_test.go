package schedule

import (
	"math"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// By hand: two machines, 1F1B, two microbatches. A message leaves in 1.5 and arrives 2 later.
func TestSimulateNetworkByHand(t *testing.T) {
	s, err := Generate("1f1b", Options{Stages: 2, Microbatches: 2})
	require.NoError(t, err)
	c := Costs{VirtualStages: []Cost{{Forward: 1, Backward: 2, Transfer: 99}}, Exchange: 99,
		Network: Uniform(2, Link{Latency: 2, Transfer: 1.5})}
	_, at := simulated(t, s, c)
	assert.Equal(t, map[string][2]float64{
		"0 F0.0": {0, 1}, "0 F1.0": {1, 2}, // leave until 2.5 and 4
		// leave until 9 and 12
		"1 F0.0": {4.5, 5.5}, "1 B0.0": {5.5, 7.5}, "1 F1.0": {7.5, 8.5}, "1 B1.0": {8.5, 10.5}, "1 U0": {10.5, 10.5},
		"0 B0.0": {11, 13}, "0 B1.0": {14, 16}, "0 U0": {16, 16},
	}, at)

	s, err = Communicate(s, Copies{})
	require.NoError(t, err)
	_, at = simulated(t, s, c)
	assert.Equal(t, [2]float64{18, 18}, at["1 U0"], "stage 0 has its gradient norms at 16, and they take 2")
}

// A machine sends one message at a time, whatever it carries and wherever it goes. A machine with two stages passes
// messages between them as if there were no network.
func TestMachinesSendOneMessageAtATime(t *testing.T) {
	s, err := Generate("1f1b", Options{Stages: 3, Microbatches: 2})
	require.NoError(t, err)
	c := Costs{VirtualStages: []Cost{{Forward: 1, Backward: 1, Transfer: 0.5}}, Network: Uniform(3, Link{Transfer: 10})}
	_, at := simulated(t, s, c)
	assert.Equal(t, 22.0, at["2 F0.0"][0])
	assert.Equal(t, [2]float64{34, 35}, at["1 B0.0"], "its gradient waits until stage 1 has sent the activations of F1.0, from 22 to 32")
	assert.Equal(t, [2]float64{45, 46}, at["0 B0.0"])

	c.Network.Machines = []int{0, 1, 1}
	_, at = simulated(t, s, c)
	assert.Equal(t, [2]float64{12.5, 13.5}, at["2 F0.0"])
	assert.Equal(t, [2]float64{22, 23}, at["1 B0.0"], "F1.0 comes first, whose activations leave stage 0 from 11 to 21")
	assert.Equal(t, [2]float64{33, 34}, at["0 B0.0"])
}

// Tied embeddings wait for activations and gradients, and both stages for the tied embeddings.
func TestTiedEmbeddingsOverANetwork(t *testing.T) {
	for _, replica := range []bool{false, true} {
		s, err := Generate("gpipe", Options{Stages: 2, Microbatches: 1, Batches: 2})
		require.NoError(t, err)
		s, err = Communicate(s, Copies{Tied: true, Replica: replica})
		require.NoError(t, err)
		_, at := simulated(t, s, Costs{VirtualStages: []Cost{Even(1, 1, 4)}, Exchange: 5,
			Network: Uniform(2, Link{Latency: 1, Transfer: 2, Copies: 64})})
		assert.Equal(t, [2]float64{4, 5}, at["1 F0.0"])
		assert.Equal(t, [2]float64{9, 10}, at["0 B0.0"], "its gradient leaves from 6 to 8")
		if replica {
			assert.Equal(t, [2]float64{20, 21}, at["0 F0.1"], "the owner's exchange, as on one machine")
			continue
		}
		assert.Equal(t, [2]float64{73, 77}, at["0 U0"], "the gradient of the embedding leaves from 8 to 72")
		assert.Equal(t, [2]float64{74, 78}, at["1 U0"], "norms have only a latency")
		assert.Equal(t, [2]float64{77, 78}, at["0 F0.1"])
		assert.Equal(t, [2]float64{144, 145}, at["1 F0.1"],
			"pieces leave from 77 to 78 and from 80 to 143; the activations leave in between")
	}
}

// Four stages of 40 + 80 ms, 16 microbatches of 2.36 MB: throughput as a share of that of four devices without links.
// An independent simulation in Python gave the same shares.
func TestThroughputOverLinks(t *testing.T) {
	for _, c := range []struct {
		gbit, latency float64 // Gbit/s, ms
		flush         float64
		async         map[int]float64 // by depth
	}{
		{1, 1, 0.677, map[int]float64{0: 1, 3: 1, 4: 1}},
		{1, 10, 0.622, map[int]float64{0: 0.900, 3: 1, 4: 1}},
		{1, 50, 0.456, map[int]float64{0: 0.621, 3: 1, 4: 1, 8: 1}},
		{0.2, 10, 0.365, map[int]float64{0: 0.478, 3: 0.636, 4: 0.636, 8: 0.636}},
	} {
		link := Link{Latency: c.latency, Transfer: 1024 * 576 * 4 * 8 / 1e6 / c.gbit}
		share := func(name string, k int) float64 {
			g, err := New(name, Options{Stages: 4, Microbatches: 16, Depth: k, Batches: 6})
			require.NoError(t, err)
			if name == TwoBW {
				g = g.SplitBackward()
			}
			s, err := g.Schedule()
			require.NoError(t, err)
			s, err = Communicate(s, Copies{})
			require.NoError(t, err)
			r, _ := simulated(t, s, Costs{VirtualStages: []Cost{Even(40, 80, 0)}, Network: Uniform(4, link)})
			return 16 * 120 / r.Steady.Period
		}
		assert.InDelta(t, c.flush, share(OneF1B, 0), 0.001, "1f1b over %+v", c)
		assert.Greater(t, share(OneF1B, 4), 1.1*c.flush, "1f1b over %+v", c)
		for k, want := range c.async {
			assert.InDelta(t, want, share(TwoBW, k), 0.001, "2bw with depth %d over %+v", k, c)
		}
	}
}

// The closed form is a lower bound, and exact as long as messages of a machine do not wait for each other. If the depth
// is a multiple of the links, the term of all stages is the longest. Links are shared out among the other options, so
// that any two come together.
func TestPeriod(t *testing.T) {
	ran, all := 0, 0
	defer func() { tier.Count(t, ran, all) }()
	links := []Link{{}, {Latency: 1}, {Transfer: 0.5}, {Latency: 0.4, Transfer: 0.9}, {Latency: 5, Transfer: 1},
		{Latency: 10, Transfer: 0.3}, {Transfer: 1.6}, {Latency: 3, Transfer: 2}}
	for n, split := range []bool{false, true} {
		for p := 2; p <= 5; p++ {
			for i, k := range []int{0, 1, 2, 3, 4, 6, 12} {
				if all++; !tier.All() && (i+p)%6 > 0 {
					continue
				}
				ran++
				for first := (n + p + i) % 2; first < len(links); first += 2 {
					l := links[first]
					o := Options{Stages: p, Microbatches: 24, Depth: k}
					o.Batches = o.SteadyBatches()
					cost := Even(1, 2, 0)
					want := Period(o, cost, l, split)
					if work := cost.Forward + cost.Backward; !split && k%(p-1) == 0 {
						all := (float64(p)*work + 2*float64(p-1)*(l.Latency+l.Transfer)) / float64(p+k)
						assert.InDelta(t, max(work, float64(min(2, p-1))*l.Transfer, all), want, 1e-9)
					}
					g, err := New("2bw", o)
					require.NoError(t, err)
					if split {
						g = g.SplitBackward()
					}
					s, err := g.Schedule()
					require.NoError(t, err)
					r, _ := simulated(t, s, Costs{VirtualStages: []Cost{cost}, Network: Uniform(p, l)})
					got, most := r.Steady.Period/24, 1.002 // of the microbatches that Steady covers, some cycles may lack the last
					if l.Transfer > 1 {
						most = 1.11 // messages wait for each other
					}
					assert.GreaterOrEqual(t, got, want*0.998, "split %v, %d stages, depth %d, %+v", split, p, k, l)
					assert.LessOrEqual(t, got, want*most, "split %v, %d stages, depth %d, %+v", split, p, k, l)
				}
			}
		}
	}
	assert.InDelta(t, 4, Period(Options{Stages: 1, Microbatches: 2}, Even(1, 2, 2), Link{Latency: 9}, false), 1e-12,
		"one stage has no link")
}

func TestNetworksThatAreRefused(t *testing.T) {
	s, err := Generate("gpipe", Options{Stages: 3, Microbatches: 1})
	require.NoError(t, err)
	for want, change := range map[string]func(n *Network){
		"network: found machines of 2 stages and links of 3, expected 3":                            func(n *Network) { n.Machines = n.Machines[:2] },
		"network: stage 1: found machine 3, expected 0 to 2":                                        func(n *Network) { n.Machines[1] = 3 },
		"network: stage 2: found links to 1 stages, expected 3":                                     func(n *Network) { n.Links[2] = n.Links[2][:1] },
		"network: link from stage 1 to stage 2: found -1, expected numbers from 0 to 1e+100":        func(n *Network) { n.Links[1][2].Latency = -1 },
		"schedule gpipe: network: link from stage 0 to stage 1: found NaN, expected numbers from 0": func(n *Network) { n.Links[0][1].Copies = math.NaN() },
	} {
		n := Uniform(3, Link{})
		change(n)
		_, err := Simulate(s, Costs{VirtualStages: []Cost{{}}, Network: n})
		assert.ErrorContains(t, err, want)
	}
}
