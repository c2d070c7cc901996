package partition

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// layout is a cut with the device of each stage.
type layout struct {
	cut     []int
	order   []int  // device by stage
	compare string // the cuts and orders that it was compared with, in words
}

func (l layout) chunks(units int) []Chunk {
	ps := make([]Chunk, 0, len(l.cut)+1)
	first := 0
	for _, u := range l.cut {
		ps = append(ps, Chunk{first, u})
		first = u
	}
	return append(ps, Chunk{first, units})
}

// chunksOf returns the chunks of a stage: virtual stage c·Stages + s is chunk c of stage s.
func (c *costs) chunksOf(l layout, stage int) (ps []Chunk) {
	all := l.chunks(len(c.Units))
	for k := stage; k < len(all); k += c.Schedule.Stages {
		ps = append(ps, all[k])
	}
	return ps
}

// effort bounds the number of stages that a search evaluates, and so its time.
const effort = 1 << 26

// orders lists the distinct orders of the devices, the given one first. Orders that differ only by exchanging equal
// devices are the same. If comparing all would take too long, orders returns only the given one.
func (c *costs) orders(stagesPerOrder int) (orders [][]int, text string) {
	given := make([]int, len(c.Devices))
	for i := range given {
		given[i] = i
	}
	if c.KeepOrder {
		return [][]int{given}, "the devices in the order given"
	}
	most := max(1, effort/max(1, stagesPerOrder))
	orders = c.arrangements(most)
	switch {
	case orders == nil:
		return [][]int{given}, fmt.Sprintf("the devices in the order given, since there are more than %d others", most)
	case len(orders) == 1:
		return orders, "devices that are alike"
	}
	return orders, fmt.Sprintf("all %d orders of the devices", len(orders))
}

// arrangements lists all distinct orders of the devices, lexicographically by class from the given one; nil if more
// than most.
func (c *costs) arrangements(most int) (orders [][]int) {
	class := c.classes()
	used, order := make([]bool, len(class)), []int{}
	var extend func() bool
	extend = func() bool {
		if len(order) == len(class) {
			orders = append(orders, slices.Clone(order))
			return len(orders) <= most
		}
		for d := range class {
			if used[d] || twinFree(d, class, used) {
				continue
			}
			used[d], order = true, append(order, d)
			more := extend()
			used[d], order = false, order[:len(order)-1]
			if !more {
				return false
			}
		}
		return true
	}
	if !extend() {
		return nil
	}
	return orders
}

// twinFree reports whether an equal device before d is free, which then stands for both.
func twinFree(d int, class []int, used []bool) bool {
	for e := range d {
		if class[e] == class[d] && !used[e] {
			return true
		}
	}
	return false
}

// classes numbers the devices so that interchangeable ones have the same number: equally fast entries of one device, or
// devices that are alike and have one stage each.
func (c *costs) classes() []int {
	alike := func(i, j int) bool {
		d, e := c.Devices[i], c.Devices[j]
		return slices.Equal(d.Times, e.Times) && c.Network.alike(i, j) && (d.Name == e.Name || c.devices[i].stages == 1 &&
			c.devices[j].stages == 1 &&
			d.Memory == e.Memory && d.Ranks == e.Ranks && d.Link == e.Link)
	}
	class := make([]int, len(c.Devices))
	for i := range class {
		for !alike(class[i], i) {
			class[i]++
		}
	}
	return class
}

// attempt runs a search in which each stage may take all memory of its device. If stages that share a device then take
// too much together, it searches again with the memory divided evenly. If that does not fit either, it returns the last
// layout and false.
func (c *costs) attempt(find func() layout) (l layout, ok bool) {
	for _, c.evenly = range []bool{false, true} {
		if l = find(); l.order != nil && len(c.missing(l)) == 0 {
			return l, true
		}
	}
	return l, false
}

// search finds the best cut for one chunk per stage. It is exact, except when attempt divides memory evenly.
func (c *costs) search() (layout, error) {
	n := len(c.Units)
	orders, compared := c.orders(c.Schedule.Stages * n * n)
	l, ok := c.attempt(func() layout { return c.fastest(orders) })
	if !ok {
		return l, c.tooLarge(c.smallest(orders))
	}
	l.compare = "all cuts, with " + compared
	return l, nil
}

// fastest is the layout with the fastest slowest stage, or the fastest links where those are slower. Ties go to the
// most even one, by the sum of squares, then to the first. It has no order if nothing fits.
func (c *costs) fastest(orders [][]int) (best layout) {
	slowest, spread := math.Inf(1), math.Inf(1)
	for _, order := range orders {
		seconds := func(s int, p Chunk, most float64) float64 {
			if c.atLeast(order[s], p) > most {
				return math.Inf(1)
			}
			x := c.stage(s, order[s], []Chunk{p})
			if x.over > 0 || x.seconds > most {
				return math.Inf(1)
			}
			return x.seconds
		}
		_, t := c.sweep(func(s int, p Chunk) float64 { return seconds(s, p, slowest) }, math.Max)
		period := max(t, c.overLinks(order, t*float64(len(order))))
		if math.IsInf(t, 1) || period > slowest {
			continue
		}
		cut, even := c.sweep(func(s int, p Chunk) float64 {
			x := seconds(s, p, t)
			return x * x
		}, func(a, b float64) float64 { return a + b })
		if period < slowest || even < spread {
			best, slowest, spread = layout{cut: cut, order: order}, period, even
		}
	}
	return best
}

// smallest is the layout whose stages lack the fewest bytes.
func (c *costs) smallest(orders [][]int) (best layout) {
	least := math.Inf(1)
	for _, order := range orders {
		cut, over := c.sweep(func(s int, p Chunk) float64 { return float64(c.stage(s, order[s], []Chunk{p}).over) }, math.Max)
		if over < least {
			best, least = layout{cut: cut, order: order}, over
		}
	}
	return best
}

// sweep cuts the units into virtual stages with the least combined value. combine must not decrease when one of its
// arguments increases: then the best cut of a prefix extends to a best cut of the whole (Bellman), and the result is
// exact.
func (c *costs) sweep(value func(stage int, p Chunk) float64, combine func(a, b float64) float64) (cut []int, least float64) {
	n, stages := len(c.Units), c.Schedule.VirtualStages()
	best := make([]float64, n+1) // of the stages so far, by the number of units that they cover
	for i := range best {
		best[i] = math.Inf(1)
	}
	best[0] = 0
	from := make([][]int, stages)
	for s := range stages {
		next := make([]float64, n+1)
		from[s] = make([]int, n+1)
		for last := range next {
			next[last] = math.Inf(1)
			if s == stages-1 && last < n || last > n-(stages-1-s) {
				continue // the remaining stages need a unit each
			}
			for first := s; first < last; first++ {
				if best[first] >= next[last] { // combine only adds to it
					continue
				}
				if v := combine(best[first], value(s, Chunk{first, last})); v < next[last] {
					next[last], from[s][last] = v, first
				}
			}
		}
		best = next
	}
	if math.IsInf(best[n], 1) {
		return nil, best[n]
	}
	for s, last := stages-1, n; s > 0; s-- {
		last = from[s][last]
		cut = append(cut, last)
	}
	slices.Reverse(cut)
	return cut, best[n]
}

// given evaluates the user's cut with the best order of the devices.
func (c *costs) given() (layout, error) {
	orders, compared := c.orders(c.Schedule.VirtualStages())
	l, ok := c.attempt(func() layout { return c.bestOrder(orders, func([]int) []int { return c.Cut }) })
	if !ok {
		return l, c.tooLarge(l)
	}
	l.compare = "the cut given, with " + compared
	return l, nil
}

// searchChunks finds a good cut for several chunks per stage: the one with the most even chunks, improved while moving
// one boundary helps. It need not be the best.
func (c *costs) searchChunks() (layout, error) {
	n, chunks := len(c.Units), c.Schedule.VirtualStages()
	orders, compared := c.orders(chunks * n * n)
	l, ok := c.attempt(func() layout { return c.bestOrder(orders, c.evenChunks) })
	if !ok {
		return l, c.tooLarge(l)
	}
	l.compare = "cuts near that of the most even chunks, with " + compared
	return l, nil
}

func (c *costs) evenChunks(order []int) []int {
	cut, _ := c.sweep(func(k int, p Chunk) float64 {
		s := k % c.Schedule.Stages
		x := c.stageAs(s, order[s], []Chunk{p}, false).seconds
		return x * x
	}, func(a, b float64) float64 { return a + b })
	return c.improve(layout{cut: cut, order: order}).cut
}

func (c *costs) bestOrder(orders [][]int, cut func(order []int) []int) (best layout) {
	for i, order := range orders {
		l := layout{cut: cut(order), order: order}
		if i == 0 || c.better(l, best) {
			best = l
		}
	}
	return best
}

// improve moves boundaries by one unit while that makes the layout better.
func (c *costs) improve(l layout) layout {
	for moved := true; moved; {
		moved = false
		for i := range l.cut {
			for _, by := range []int{-1, 1} {
				next := layout{cut: slices.Clone(l.cut), order: l.order}
				next.cut[i] += by
				if c.legal(next.cut) && c.better(next, l) {
					l, moved = next, true
				}
			}
		}
	}
	return l
}

func (c *costs) legal(cut []int) bool {
	before := 0
	for _, u := range cut {
		if u <= before || u >= len(c.Units) {
			return false
		}
		before = u
	}
	return true
}

// score orders layouts: by bytes missing, then the slowest stage or links, then evenness.
type score struct {
	over            int64
	slowest, spread float64
}

func (c *costs) score(l layout) (s score) {
	for _, n := range c.missing(l) {
		s.over += n
	}
	for i := range c.Schedule.Stages {
		x := c.stage(i, l.order[i], c.chunksOf(l, i))
		s.slowest = max(s.slowest, x.seconds)
		s.spread += x.seconds * x.seconds
	}
	s.slowest = max(s.slowest, c.overLinks(l.order, s.slowest*float64(len(l.order))))
	return s
}

func (c *costs) better(a, b layout) bool {
	x, y := c.score(a), c.score(b)
	return cmp.Or(cmp.Compare(x.over, y.over), cmp.Compare(x.slowest, y.slowest), cmp.Compare(x.spread, y.spread)) < 0
}

// missing is the bytes missing, by name of the device, over all stages that share it.
func (c *costs) missing(l layout) map[string]int64 {
	need, have := map[string]int64{}, map[string]int64{}
	for s := range c.Schedule.Stages {
		d := c.Devices[l.order[s]]
		need[d.Name] += c.stage(s, l.order[s], c.chunksOf(l, s)).memory.Total()
		have[d.Name] = d.Memory
	}
	over := map[string]int64{}
	for name, n := range need {
		if have[name] > 0 && n > have[name] {
			over[name] = n - have[name]
		}
	}
	return over
}
