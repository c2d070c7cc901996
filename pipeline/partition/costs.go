package partition

import (
	"math/bits"
	"strings"
)

// costs answers in constant time what a stage costs and takes, for any range of units.
type costs struct {
	Problem
	slots                   []int64 // by stage
	parameters, state, kept []int64 // of the units before each
	working                 rangeMax
	times                   [][]Time // by device: of the units before each
	share                   []int    // by device: stages on it
	evenly                  bool     // a shared device's memory is divided evenly; else each stage may take it all
}

func newCosts(p Problem) *costs {
	c := &costs{Problem: p, slots: slots(p.Schedule)}
	halves := split(p.Schedule)
	sums := func(of func(u Unit) int64) []int64 {
		s := make([]int64, len(p.Units)+1)
		for i, u := range p.Units {
			s[i+1] = s[i] + of(u)
		}
		return s
	}
	c.parameters = sums(func(u Unit) int64 { return u.Parameters })
	c.state = sums(func(u Unit) int64 { return u.State })
	c.kept = sums(func(u Unit) int64 {
		if halves {
			return u.Kept + u.KeptW
		}
		return u.Kept
	})
	c.working = newRangeMax(p.Units)
	for i, d := range p.Devices {
		t := make([]Time, len(d.Times)+1)
		for u, x := range d.Times {
			t[u+1] = Time{t[u].Forward + x.Forward, t[u].Backward + x.Backward, t[u].Update + x.Update}
		}
		c.times = append(c.times, t)
		c.share = append(c.share, 0)
		for _, e := range p.Devices {
			if e.Name == d.Name {
				c.share[i]++
			}
		}
	}
	return c
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
	link, last := c.Devices[device].Link, len(c.Units)
	for _, p := range parts {
		t, before := c.times[device][p.Last], c.times[device][p.First]
		x.forward += t.Forward - before.Forward
		x.backward += t.Backward - before.Backward
		x.update += t.Update - before.Update
		if c.Schedule.Stages == 1 {
			continue
		}
		if p.First > 0 { // the activation comes, its gradient goes
			x.transfer += 2 * link.Seconds(c.Units[p.First-1].Out)
		}
		if p.Last < last {
			x.transfer += 2 * link.Seconds(c.Units[p.Last-1].Out)
		}
	}
	if recompute {
		x.backward += x.forward
	}
	if n := c.exchanged(parts); n > 0 {
		x.exchange = link.Seconds(n)
	}
	x.seconds = c.steady(x) * float64(c.share[device])
	if have := c.available(device); have > 0 {
		x.over = max(0, x.memory.Total()-have)
	}
	return x
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

// shared returns the bytes that the parts' units share with unit 0, and whether unit 0 is among the parts.
func (c *costs) shared(parts []Part) (n int64, withOwner bool) {
	for _, p := range parts {
		withOwner = withOwner || p.First == 0
		if p.Last == len(c.Units) {
			n += c.Units[p.Last-1].Shared
		}
	}
	return n, withOwner
}

// exchanged is the bytes that pass over a stage's link once a batch: gradients of copies to the owner, weights back.
func (c *costs) exchanged(parts []Part) int64 {
	n := int64(0)
	for _, p := range parts {
		n += 2 * int64(c.Replicas-1) * (c.parameters[p.Last] - c.parameters[p.First])
	}
	tied, withOwner := c.shared(parts)
	if withOwner && tied == 0 { // the copy, if there is one, is elsewhere
		n += 2 * int64(c.Replicas) * c.Units[len(c.Units)-1].Shared
	}
	if !withOwner {
		n += 2 * tied
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
	tied, withOwner := c.shared(parts)
	switch whole := c.Units[len(c.Units)-1].Shared; {
	case withOwner && tied > 0:
		m.Gradients += int64(c.Replicas) * tied
	case withOwner:
		m.Gradients += int64(c.Replicas) * whole
	default:
		m.Weights += int64(1+c.Schedule.Delay) * tied
		m.Gradients += tied
	}
	return m
}

// activations adds what a part keeps: for each microbatch in flight its input and what the units keep. A recomputing part
// keeps only the input, and all the rest once, while its backward runs.
func (c *costs) activations(m *Memory, p Part, slots int64, recompute bool) {
	in, out, kept := int64(0), int64(0), c.kept[p.Last]-c.kept[p.First]
	if p.First > 0 {
		in = c.Units[p.First-1].Out
	}
	if p.Last < len(c.Units) {
		out = c.Units[p.Last-1].Out
	}
	working := c.working.of(p.First, p.Last)
	if recompute {
		m.Activations += slots * in
		working += kept
	} else {
		m.Activations += slots * (in + kept)
	}
	m.Activations += in + 2*out // on their way: the input's gradient; the output and its gradient
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
