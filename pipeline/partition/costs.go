package partition

import (
	"math/bits"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// costs answers in constant time what a stage costs and takes, for any range of units.
type costs struct {
	Problem
	slots             []int64 // by stage
	halves, postponed bool    // backwards run in two halves, the second of which does not always follow the first
	parameters, state []int64 // of the units before each
	kept, keptW       []int64 // likewise, what enters them included
	data              []int64 // given to them
	working           rangeMax
	times             [][]Time // by device: of the units before each
	share             []int    // by device: stages on it
	turns             []int    // by device: lines on it, those of other replicas too
	evenly            bool     // a shared device's memory is divided evenly; else each stage may take it all
}

func newCosts(p Problem) *costs {
	c := &costs{Problem: p}
	for _, actions := range p.Schedule.Actions {
		line := slices.Values(actions)
		_, halves, postponed := schedule.Backwards(line)
		c.slots, c.halves, c.postponed = append(c.slots, int64(schedule.Slots(line))), c.halves || halves, c.postponed || postponed
	}
	n := len(p.Units)
	c.parameters, c.state = make([]int64, n+1), make([]int64, n+1)
	c.kept, c.keptW, c.data = make([]int64, n+1), make([]int64, n+1), make([]int64, n+1)
	for i, u := range p.Units {
		c.parameters[i+1], c.state[i+1] = c.parameters[i]+u.Parameters, c.state[i]+u.State
		c.kept[i+1], c.keptW[i+1] = c.kept[i]+u.Kept+p.passes(i), c.keptW[i]+u.KeptW
		c.data[i+1] = c.data[i] + u.Given
	}
	c.working = newRangeMax(p.Units)
	for i, d := range p.Devices {
		t := make([]Time, len(d.Times)+1)
		for u, x := range d.Times {
			t[u+1] = t[u].plus(x)
		}
		c.times = append(c.times, t)
		c.share = append(c.share, 0)
		for _, e := range p.Devices {
			if e.Name == d.Name {
				c.share[i]++
			}
		}
		c.turns = append(c.turns, max(c.share[i], d.Lines))
	}
	return c
}

// passes is the bytes of the activation that enters a unit; nothing enters the first or leaves the last.
func (p Problem) passes(unit int) int64 {
	if unit == 0 || unit == len(p.Units) {
		return 0
	}
	return p.Units[unit-1].Out
}

// rangeMax answers the largest Working of a range of units: level k holds the maxima of 2^k units.
type rangeMax [][]int64

func newRangeMax(us []Unit) rangeMax {
	level := make([]int64, len(us))
	for i, u := range us {
		level[i] = u.Working
	}
	r := rangeMax{level}
	for w := 1; 2*w <= len(us); w *= 2 {
		next := make([]int64, len(us)-2*w+1)
		for i := range next {
			next[i] = max(level[i], level[i+w])
		}
		r, level = append(r, next), next
	}
	return r
}

func (r rangeMax) of(first, last int) int64 {
	k := bits.Len(uint(last-first)) - 1
	return max(r[k][first], r[k][last-1<<k])
}

// cost is what a search compares.
type cost struct {
	forward, backward, update, transfer, exchange float64
	recompute                                     bool
	seconds                                       float64 // as Stage.Seconds
	memory                                        Memory
	over                                          int64 // bytes missing
}

// stage costs one stage's parts on a device: without recomputation if it fits and that may be chosen, else with.
func (c *costs) stage(stage, device int, parts []Part) cost {
	if c.Recompute != Always {
		x := c.stageAs(stage, device, parts, false)
		if x.over == 0 || c.Recompute == Never {
			return x
		}
		// Recomputation that takes more, as on a stage with one microbatch in flight, helps nothing.
		if y := c.stageAs(stage, device, parts, true); y.over < x.over {
			return y
		}
		return x
	}
	return c.stageAs(stage, device, parts, true)
}

func (c *costs) stageAs(stage, device int, parts []Part, recompute bool) cost {
	x := cost{recompute: recompute, memory: c.memory(stage, parts, recompute)}
	for _, p := range parts {
		t := c.part(device, p, recompute)
		x.forward += t.Forward
		x.backward += t.Backward
		x.update += t.Update
		x.transfer += 2 * (c.transfer(device, p.First) + c.transfer(device, p.Last)) // activations and gradients
	}
	if n := c.exchanged(parts); n > 0 {
		x.exchange = c.Devices[device].Link.Seconds(n)
	}
	x.seconds = c.steady(x) * float64(c.turns[device])
	if have := c.available(device); have > 0 {
		x.over = max(0, x.memory.Total()-have)
	}
	return x
}

// part is the time of a part's compute. Where backwards run in two halves, Backward is their sum.
func (c *costs) part(device int, p Part, recompute bool) Time {
	t := c.times[device][p.Last].minus(c.times[device][p.First])
	if p.First == 0 {
		t.InputGrad, t.WeightGrad = 0, t.Backward
	}
	if again := t.Forward; recompute {
		t.Backward += again
		if p.First == 0 {
			t.WeightGrad += again
		} else {
			t.InputGrad += again
		}
	}
	if c.halves {
		t.Backward = t.InputGrad + t.WeightGrad
	}
	return t
}

// transfer is a device's share of what it takes to pass an activation, or its gradient, over the border before a unit.
func (c *costs) transfer(device, unit int) float64 {
	if c.Schedule.Stages == 1 || unit == 0 || unit == len(c.Units) {
		return 0
	}
	return c.Devices[device].Link.Seconds(c.passes(unit))
}

// steady is what a microbatch takes when the pipeline is full. A delayed update leaves a batch's time for the exchange.
func (c *costs) steady(x cost) float64 {
	m := float64(c.Schedule.Microbatches)
	work := x.forward + x.backward + x.transfer + x.update/m
	if c.Schedule.Delay > 0 {
		return max(work, x.exchange/m)
	}
	return work + x.exchange/m
}

// available is the bytes that a stage may take on a device; 0: not known.
func (c *costs) available(device int) int64 {
	if c.evenly {
		return c.Devices[device].Memory / int64(c.share[device])
	}
	return c.Devices[device].Memory
}

// ends tells whether the model's first and last unit are among the parts, and how many bytes of weights these units share.
func (c *costs) ends(parts []Part) (first, last bool, shared int64) {
	for _, p := range parts {
		first, last = first || p.First == 0, last || p.Last == len(c.Units)
	}
	return first, last, c.Units[len(c.Units)-1].Shared
}

// exchanged is the bytes that pass over a stage's link once a batch: gradients of copies to the owner, weights back.
func (c *costs) exchanged(parts []Part) int64 {
	n := int64(0)
	for _, p := range parts {
		n += 2 * int64(c.Replicas-1) * (c.parameters[p.Last] - c.parameters[p.First])
	}
	switch first, last, shared := c.ends(parts); {
	case first && !last:
		n += 2 * int64(c.Replicas) * shared
	case last && !first:
		n += 2 * shared
	}
	return n
}

// memory is what the parts take: weights and gradients share 2 + delay buffers; the owner of a parameter has room for each
// gradient that arrives from a copy.
func (c *costs) memory(stage int, parts []Part, recompute bool) Memory {
	m, slots := Memory{}, c.slots[stage]
	for _, p := range parts {
		n := c.parameters[p.Last] - c.parameters[p.First]
		m.Weights += int64(1+c.Schedule.Delay) * n
		m.Gradients += int64(c.Replicas) * n
		m.Optimizer += c.state[p.Last] - c.state[p.First]
		c.activations(&m, p, slots, recompute)
	}
	switch first, last, shared := c.ends(parts); {
	case first: // the head's gradient of the embedding is one of its own, wherever it comes from
		m.Gradients += int64(c.Replicas) * shared
	case last:
		m.Weights += int64(1+c.Schedule.Delay) * shared
		m.Gradients += shared
	}
	return m
}

// activations adds what a part keeps: for each microbatch in flight what its units keep and are given. A recomputing part keeps
// what it is given alone, and all the rest once, as it begins its way back, where it holds hardly more than a gradient besides.
func (c *costs) activations(m *Memory, p Part, slots int64, recompute bool) {
	in, out := c.passes(p.First), c.passes(p.Last)
	given := c.Given + c.data[p.Last] - c.data[p.First]
	each, working := c.kept[p.Last]-c.kept[p.First], c.working.of(p.First, p.Last)
	between := int64(0)
	if c.halves && p.First > 0 { // the first part's backward has one half only
		between = c.keptW[p.Last] - c.keptW[p.First]
	}
	if c.postponed {
		each, between = each+between, 0
	}
	if recompute {
		gradient := max(in, out, c.Units[p.First].Out)
		each, working = in, max(working, each-in+gradient)
	}
	m.Activations += slots*(given+each) + between + in + 2*out // on their way: the input's gradient; the output and its gradient
	m.Working = max(m.Working, working)
}

// unitsText names the units of a stage's parts as users know them.
func (c *costs) unitsText(parts []Part) string {
	var texts []string
	for _, p := range parts {
		first, last := c.Units[p.First].Name, c.Units[p.Last-1].Name
		if first != last {
			first += " to " + last
		}
		texts = append(texts, first)
	}
	return strings.Join(texts, ", ")
}
