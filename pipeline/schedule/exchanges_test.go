package schedule

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each fragment is sent once in a period, evenly spread, and lands before it is sent again. At the end of the run all
// land.
func TestExchanges(t *testing.T) {
	for _, p := range []Exchanges{{1, 1, 0, 5}, {4, 8, 3, 50}, {5, 3, 3, 20}, {6, 32, 32, 100}, {3, 7, 6, 1000}} {
		last, landed := make([]int, p.Fragments), make([]int, p.Fragments)
		for s := 1; s <= p.Last; s++ {
			sent := p.Sent(s)
			assert.LessOrEqual(t, len(sent), max(p.Fragments, 1), "%+v", p)
			if s < p.Last {
				assert.LessOrEqual(t, len(sent), (p.Fragments+p.Period-1)/p.Period, "%+v: step %d", p, s)
			}
			for _, f := range sent {
				assert.Equal(t, s, p.Next(f, last[f]), "%+v: fragment %d", p, f)
				if last[f] > 0 && s < p.Last {
					assert.Equal(t, p.Period, s-last[f], "%+v: fragment %d", p, f)
					assert.LessOrEqual(t, landed[f], s, "%+v: fragment %d", p, f)
				}
				last[f], landed[f] = s, p.Lands(s)
				assert.LessOrEqual(t, landed[f], p.Last)
			}
		}
		assert.Equal(t, slices.Repeat([]int{p.Last}, p.Fragments), last, "%+v", p)
		assert.Equal(t, p.Last, p.Lands(p.Last))
		assert.Zero(t, p.Next(0, p.Last))
		assert.Equal(t, p.Last+1, Exchanges{p.Fragments, p.Period, 0, p.Last}.Lands(p.Last+1), "a run that goes on after its end")
		if p.Last > p.Period {
			assert.Contains(t, p.Sent(p.Period), p.Fragments-1, "the last one at the end of the period")
		}
	}
	assert.Empty(t, Exchanges{2, 4, 0, 0}.Sent(-1))
}

func TestExchangesRefused(t *testing.T) {
	for want, e := range map[string]Exchanges{
		"fragments: found 0, expected 1": {0, 1, 0, 9}, "period: found 0, expected 1": {1, 0, 0, 9},
		"late: found 5, expected 0 to 4": {1, 4, 5, 9}, "last: found 0, expected 1": {1, 4, 0, 0},
	} {
		assert.ErrorContains(t, e.Validate(), want)
	}
}

// star is replicas at sites of their own, and an owner at another one.
func star(replicas int, step float64, home, hub Site) ExchangeCosts {
	c := ExchangeCosts{Sites: []Site{hub}, Replicas: []ReplicaCost{{Share: 1}}}
	for i := range replicas {
		c.Sites = append(c.Sites, home)
		c.Replicas = append(c.Replicas, ReplicaCost{Step: step, Site: i + 1})
	}
	return c
}

// A message leaves, crosses, arrives and comes back, one after the other.
func TestExchangesTakeTheirTime(t *testing.T) {
	c := star(3, 5, Site{Up: 1, Latency: 1}, Site{Up: 10, Down: 5})
	c.Bytes = []float64{10}
	r, err := SimulateExchanges(Exchanges{1, 8, 8, Endless}, c, 30)
	require.NoError(t, err)
	f := r.Flights[0]
	assert.Equal(t, 8, f.Step)
	assert.Equal(t, 40., f.Sent[1])
	assert.Equal(t, 50., f.Left[1])
	assert.InDelta(t, 50+1+3+1, f.Arrived[1], 1e-9, "three messages leave the hub in 3; it received faster than they left")
	assert.Equal(t, 3, r.Lateness)
	assert.Equal(t, 5., r.Step)
	assert.Zero(t, r.Replicas[1].Waited)

	c.Sites[0].Down = 1 // all arrive there one after the other
	r, err = SimulateExchanges(Exchanges{1, 8, 8, Endless}, c, 30)
	require.NoError(t, err)
	assert.InDelta(t, 40+1+30+3+1, r.Flights[0].Arrived[1], 1e-9)

	r, err = SimulateExchanges(Exchanges{1, 8, 0, Endless}, c, 30)
	require.NoError(t, err)
	assert.InDelta(t, 3*35, r.Replicas[1].Waited, 1e-9, "three times, for the whole exchange")
	assert.InDelta(t, 5+35./8, r.Step, 0.7)
}

// With the lateness that a simulation finds nothing waits; with less something does. Connections carry what Traffic
// says.
func TestLateness(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		n, fragments, period := 2+random.IntN(5), 1+random.IntN(8), 4+random.IntN(40)
		c := ExchangeCosts{}
		for range 1 + random.IntN(n) {
			c.Sites = append(c.Sites, Site{Up: 1 + random.Float64(), Down: 1 + 5*random.Float64(), Latency: random.Float64()})
		}
		for range n {
			c.Replicas = append(c.Replicas, ReplicaCost{Step: 1, Share: 1 / float64(n), Site: random.IntN(len(c.Sites)), Port: 50})
		}
		if random.IntN(2) == 0 { // one owner, which may train
			for i := range c.Replicas {
				c.Replicas[i].Share = 0
			}
			c.Replicas[0].Share = 1
			if most := c.Passed(); most >= 1 && random.IntN(2) == 0 {
				c.Copies = 1 + (most-1)*random.Float64()
			}
		}
		for range fragments {
			c.Bytes = append(c.Bytes, random.Float64()*float64(period)/float64(4*n*fragments))
		}
		e := Exchanges{fragments, period, period, Endless}
		r, err := SimulateExchanges(e, c, 4*period)
		require.NoError(t, err)
		require.LessOrEqual(t, r.Lateness, period, "%+v", c)
		assert.InDelta(t, 1, r.Step, 1e-9)
		for site := range c.Sites {
			up, down := c.Traffic(site)
			assert.InDelta(t, 4*up/c.Sites[site].Up, r.Sites[site].Up, 1e-6)
			assert.InDelta(t, 4*down/c.Sites[site].Down, r.Sites[site].Down, 1e-6)
		}
		e.Late = r.Lateness
		assert.Zero(t, waited(t, e, c), "%+v %+v", e, c)
		if e.Late--; e.Late >= 0 {
			assert.Positive(t, waited(t, e, c), "%+v %+v", e, c)
		}
	}
}

// What replicas relay leaves them, and not the owner. It takes longer for each of a chain, by a piece.
func TestExchangesThatArePassedOn(t *testing.T) {
	c := star(3, 5, Site{Up: 1, Latency: 1}, Site{Up: 1})
	c.Bytes, c.Copies = []float64{10}, 1.5
	traffic := func(site int) []float64 {
		up, down := c.Traffic(site)
		return []float64{up, down}
	}
	assert.Equal(t, []float64{15, 30}, traffic(0))
	assert.Equal(t, []float64{15, 10}, traffic(1))
	c.Copies = 1
	r, err := SimulateExchanges(Exchanges{1, 12, 12, Endless}, c, 40)
	require.NoError(t, err)
	f := r.Flights[0]
	assert.Equal(t, 70., f.Left[1])
	assert.InDelta(t, 70+1+1+2*10+2*(10./16+1), f.Arrived[1], 1e-9)
	c.Copies = 0
	assert.Equal(t, []float64{30, 30}, traffic(0))
	c.Copies = 4
	_, err = SimulateExchanges(Exchanges{1, 12, 12, Endless}, c, 40)
	assert.ErrorContains(t, err, "found 4 copies of a result, expected 1 to 3")
}

func waited(t *testing.T, e Exchanges, c ExchangeCosts) (sum float64) {
	r, err := SimulateExchanges(e, c, 4*e.Period)
	require.NoError(t, err)
	for _, r := range r.Replicas {
		sum += r.Waited
	}
	if sum < 1e-9 {
		return 0
	}
	return sum
}

// The slowest replica sets the pace, and the work of exchanges takes time.
func TestSlowReplicas(t *testing.T) {
	c := star(2, 1, Site{}, Site{})
	c.Bytes, c.Work = []float64{1, 1}, []float64{0.25, 0.25}
	c.Replicas[2].Step = 2
	r, err := SimulateExchanges(Exchanges{2, 10, 1, Endless}, c, 100)
	require.NoError(t, err)
	assert.InDelta(t, 2+0.1, r.Step, 1e-2)
	assert.InDelta(t, 0, r.Replicas[2].Waited, 1e-9)
	assert.InDelta(t, 100, r.Replicas[1].Waited, 10)
	assert.InDelta(t, 10, r.Replicas[1].Work, 1)
}

// At the end of a run everything lands, however late.
func TestExchangesEnd(t *testing.T) {
	c := star(2, 1, Site{Up: 1}, Site{})
	c.Bytes = []float64{1, 1}
	r, err := SimulateExchanges(Exchanges{2, 10, 8, 44}, c, 44)
	require.NoError(t, err)
	for _, f := range r.Flights {
		assert.Positive(t, f.Landed[1])
		assert.LessOrEqual(t, f.Landed[1], r.Makespan+2)
	}
	for want, bad := range map[string]ExchangeCosts{
		"bytes of 0 fragments": {}, "that own 0 of each": {Bytes: c.Bytes, Sites: c.Sites, Replicas: c.Replicas[1:]},
		"one of 0 sites":   {Bytes: c.Bytes, Replicas: c.Replicas},
		"found 0 replicas": {Bytes: c.Bytes, Sites: c.Sites, Replicas: c.Replicas[:1]},
		"site 0":           {Bytes: c.Bytes, Sites: []Site{{Up: -1}}, Replicas: c.Replicas[:1]},
	} {
		_, err := SimulateExchanges(Exchanges{2, 10, 8, 44}, bad, 44)
		assert.ErrorContains(t, err, want)
	}
}
