package partition

import (
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/unitname"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// costs computes the time and the memory of a stage with any range of units in constant time. A search asks for
// millions of stages (see effort), so newCosts prepares all sums once.
//
// Sums over ranges: the parameters, state, kept bytes and times of a chunk are sums over its units. Prefix sums give
// them: entry u is the sum over the units before u, and the sum over the units [first, last) is entry last minus entry
// first. The scratch memory of a chunk is a maximum over its units, which scratch finds.
//
// Time: a stage costs, per microbatch of a full pipeline, the forwards and backwards of its chunks, the transfers at
// both ends of each chunk (an activation one way, its gradient the other), and a microbatch's share of the update. The
// exchange of gradients and weights with the copies of its parameters comes once a batch. Without delay the stage waits
// for it, with a delay it overlaps the next batch, and the longer of the two counts. A device that is not Parallel
// gives each of its ranks an equal share of its time.
//
// Memory: a stage holds 1 + delay versions of its weights, the gradients with a buffer for each copy, the state of the
// optimizer, the activations of all microbatches in flight (slots), and the scratch memory of one program.
//
// Recomputation: a stage recomputes its activations if Problem.Recompute is Always. With Auto it does so if it lacks
// memory otherwise, and lacks less memory with recomputation. A microbatch in flight then keeps only the activation
// that enters the chunk, its data, and the bytes that are never recomputed. In return each backward costs another
// forward, and its scratch memory holds the recomputed activations of the whole chunk.
type costs struct {
	Problem
	slots            []int64      // by stage: activations that it holds at once
	before           []sizes      // by unit, and after the last: the sum over the units before it
	devices          []deviceCost // as Problem.Devices
	scratch          scratch
	whole            bool // there are backwards that are not split
	split, postponed bool // backwards are split, and other actions stand between input gradient and weight gradients
	evenly           bool // the memory of a shared device is divided evenly; otherwise each stage may take all of it
}

// sizes are bytes of units.
type sizes struct {
	parameters, state int64
	kept              int64 // from forward to backward, including the activations that enter if backwards read them
	keptW             int64 // besides, between input gradient and weight gradients
	always            int64 // of kept, even with recomputation; without the activations that enter
	data              int64 // of a microbatch that the units read
}

// deviceCost is the time of units on a device, and the ranks among which it divides its time.
type deviceCost struct {
	times  []Time // by unit, and after the last: the sum over the units before it
	stages int    // stages on it
	ranks  int    // ranks that share its time, including ranks of other replicas
}

func newCosts(p Problem) *costs {
	c := &costs{Problem: p, before: make([]sizes, len(p.Units)+1)}
	for _, list := range p.Schedule.Actions {
		actions := slices.Values(list)
		whole, split, postponed := schedule.Backwards(actions)
		c.whole = c.whole || whole
		c.slots, c.split, c.postponed = append(c.slots, int64(schedule.Slots(actions))), c.split || split, c.postponed || postponed
	}
	for i, u := range p.Units {
		b := c.before[i]
		c.before[i+1] = sizes{parameters: b.parameters + u.Parameters, state: b.state + u.State, kept: b.kept + u.Kept + u.Enters,
			keptW: b.keptW + u.KeptW, always: b.always + u.Always, data: b.data + u.Given}
	}
	c.scratch = newScratch(p, c.before)
	for _, d := range p.Devices {
		x := deviceCost{times: make([]Time, len(d.Times)+1), ranks: 1}
		for u, t := range d.Times {
			x.times[u+1] = x.times[u].plus(t)
		}
		for _, e := range p.Devices {
			if e.Name == d.Name {
				x.stages++
			}
		}
		if !d.Parallel {
			x.ranks = max(x.stages, d.Ranks)
		}
		c.devices = append(c.devices, x)
	}
	return c
}

// of is the sum of sizes over a chunk's units.
func (c *costs) of(p Chunk) sizes {
	x, y := c.before[p.First], c.before[p.Last]
	return sizes{y.parameters - x.parameters, y.state - x.state, y.kept - x.kept, y.keptW - x.keptW, y.always - x.always, y.data - x.data}
}

// passes is the size of the activation that enters a unit; none enters the first or leaves the last.
func (p Problem) passes(unit int) int64 {
	if unit == 0 || unit == len(p.Units) {
		return 0
	}
	return p.Units[unit-1].Out
}

// cost is what a search compares.
type cost struct {
	forward, backward, update, transfer, exchange float64
	recompute                                     bool
	seconds                                       float64 // as Stage.Seconds
	memory                                        Memory
	over                                          int64 // bytes missing
}

// stage is the cost of a stage on a device. It recomputes activations if it must, or if it does not fit otherwise.
func (c *costs) stage(stage, device int, chunks []Chunk) cost {
	if c.Recompute != Always {
		x := c.stageAs(stage, device, chunks, false)
		if x.over == 0 || c.Recompute == Never {
			return x
		}
		// Recomputation may take more memory, as on a stage with one microbatch in flight.
		if y := c.stageAs(stage, device, chunks, true); y.over < x.over {
			return y
		}
		return x
	}
	return c.stageAs(stage, device, chunks, true)
}

func (c *costs) stageAs(stage, device int, chunks []Chunk, recompute bool) cost {
	x := cost{recompute: recompute, memory: c.memory(stage, chunks, recompute)}
	for _, p := range chunks {
		t := c.chunkTime(device, p, recompute)
		x.forward += t.Forward
		x.backward += t.Backward
		x.update += t.Update
		x.transfer += 2 * (c.transfer(device, p.First) + c.transfer(device, p.Last)) // activations and gradients
	}
	if n := c.exchanged(chunks); n > 0 {
		x.exchange = max(c.Devices[device].Link.Seconds(n), c.replicaSeconds(device, n))
	}
	x.seconds = c.steady(x) * float64(c.devices[device].ranks)
	if have := c.available(device); have > 0 {
		x.over = max(0, x.memory.Total()-have)
	}
	return x
}

// chunkTime is the computation of a chunk. If backwards are split, Backward is the sum of both parts.
func (c *costs) chunkTime(device int, p Chunk, recompute bool) Time {
	t := c.devices[device].times[p.Last].minus(c.devices[device].times[p.First])
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
	if c.split {
		t.Backward = t.InputGrad + t.WeightGrad
	}
	return t
}

// atLeast is a time that a stage of one chunk takes at least on a device.
func (c *costs) atLeast(device int, p Chunk) float64 {
	t := c.chunkTime(device, p, false)
	return (t.Forward + t.Backward) * float64(c.devices[device].ranks)
}

// transfer is the time on a device's link of an activation, or its gradient, at the boundary before a unit.
func (c *costs) transfer(device, unit int) float64 {
	if c.Schedule.Stages == 1 || unit == 0 || unit == len(c.Units) {
		return 0
	}
	return c.Devices[device].Link.Seconds(c.passes(unit))
}

// steady is the time of a microbatch in a full pipeline. With a delay the exchange has the time of a batch.
func (c *costs) steady(x cost) float64 {
	m := float64(c.Schedule.Microbatches)
	work := x.forward + x.backward + x.transfer + x.update/m
	if c.Schedule.Delay > 0 {
		return max(work, x.exchange/m)
	}
	return work + x.exchange/m
}

// available is the memory that a stage may take on a device; 0: unknown.
func (c *costs) available(device int) int64 {
	if c.evenly {
		return c.Devices[device].Memory / int64(c.devices[device].stages)
	}
	return c.Devices[device].Memory
}

// ends reports whether the model's first and last unit are among the chunks, and the size of the weights that these
// units share.
func (c *costs) ends(chunks []Chunk) (first, last bool, shared int64) {
	for _, p := range chunks {
		first, last = first || p.First == 0, last || p.Last == len(c.Units)
	}
	return first, last, c.Units[len(c.Units)-1].Shared
}

// exchanged is the bytes per batch on a stage's link: gradients of copies to the owner, weights back.
func (c *costs) exchanged(chunks []Chunk) int64 {
	n := int64(0)
	for _, p := range chunks {
		n += 2 * int64(c.Replicas-1) * c.of(p).parameters
	}
	switch first, last, shared := c.ends(chunks); {
	case first && !last:
		n += 2 * int64(c.Replicas) * shared
	case last && !first:
		n += 2 * shared
	}
	return n
}

// memory is the memory of a stage's chunks. Weights and gradients share 2 + delay buffers; the owner of a parameter
// also has a buffer for the gradient of each copy.
func (c *costs) memory(stage int, chunks []Chunk, recompute bool) Memory {
	m, slots := Memory{}, c.slots[stage]
	for _, p := range chunks {
		n := c.of(p)
		m.Weights += int64(1+c.Schedule.Delay) * n.parameters
		m.Gradients += int64(c.Replicas) * n.parameters
		m.Optimizer += n.state
		c.activations(&m, p, slots, recompute)
	}
	switch first, last, shared := c.ends(chunks); {
	case first: // the head has a gradient of its own for the embedding, on any stage
		m.Gradients += int64(c.Replicas) * shared
	case last:
		m.Weights += int64(1+c.Schedule.Delay) * shared
		m.Gradients += shared
	}
	return m
}

// activations adds the activations of a chunk: for each microbatch in flight, the activations that its units keep and
// the data that they read. A chunk that recomputes keeps only its input, the data and the bytes that are never
// recomputed. The rest is part of the scratch memory of its backward.
func (c *costs) activations(m *Memory, p Chunk, slots int64, recompute bool) {
	in, out, n := c.passes(p.First), c.passes(p.Last), c.of(p)
	given := c.Given + n.data
	each, between := in-c.Units[p.First].Enters+n.kept, int64(0)
	if c.split && p.First > 0 { // the backward of the first virtual stage is not split
		between = n.keptW
	}
	if c.postponed {
		each, between = each+between, 0
	}
	if recompute {
		each = in + n.always
	}
	m.Activations += slots*(given+each) + between + in + 2*out // in transfer: the input's gradient, the output and its gradient
	m.Working = max(m.Working, c.working(p, recompute))
}

// unitsText names the units of a stage's chunks.
func (c *costs) unitsText(chunks []Chunk) string {
	var texts []string
	for _, p := range chunks {
		texts = append(texts, unitname.Range(c.names(), p.First, p.Last))
	}
	return strings.Join(texts, ", ")
}

// names are the names of the units.
func (p Problem) names() []unitname.Unit {
	names := make([]unitname.Unit, len(p.Units))
	for i, u := range p.Units {
		names[i] = unitname.Unit{Name: u.Name, Layer: u.Layer}
	}
	return names
}
