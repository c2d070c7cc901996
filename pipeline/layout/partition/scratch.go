package partition

import "math/bits"

// scratch finds the scratch memory of chunks in constant time. A chunk runs one program at a time, and a program one
// unit at a time. So the scratch memory of a program is the largest among its units. A unit needs its own scratch
// memory and the activations, or gradients, that it exchanges with the units before and after it in the chunk. The
// first and the last unit have one such neighbor. All units between them have two, and rangeMax knows their maximum for
// every range.
type scratch struct {
	working, backward, split scratchOf
	// A backward that recomputes runs all forwards of its chunk first, and frees what each unit's backward has read. So
	// at a unit the memory also holds what the units before it in the chunk keep. recomputing counts these bytes from
	// the model's first unit on, and working subtracts the bytes of the units before the chunk.
	recomputing scratchOf
}

func newScratch(p Problem, before []sizes) (s scratch) {
	of := func(each func(u int) int64) scratchOf {
		r := scratchOf{p: p, alone: make([]int64, len(p.Units))}
		inner := make([]int64, len(p.Units))
		for u := range p.Units {
			r.alone[u] = each(u)
			inner[u] = r.alone[u] + p.passes(u) + p.passes(u+1)
		}
		r.inner = newRangeMax(inner)
		return r
	}
	s.working = of(func(u int) int64 { return p.Units[u].Working })
	s.backward = of(func(u int) int64 { return p.Units[u].Backward })
	s.split = of(func(u int) int64 { return p.Units[u].Split })
	s.recomputing = of(func(u int) int64 { return before[u].kept + p.Units[u].Enters + p.Units[u].Recomputing })
	return s
}

// working is the scratch memory of a chunk.
func (c *costs) working(p Chunk, recompute bool) int64 {
	n := c.scratch.working.of(p)
	switch {
	case recompute: // what enters the chunk is no scratch memory
		n = max(n, c.scratch.recomputing.of(p)-c.before[p.First].kept-c.Units[p.First].Enters)
	case c.split && p.First > 0: // the backward of the first virtual stage is not split
		n = max(n, c.scratch.split.of(p))
	}
	if !recompute && (c.whole || p.First == 0) {
		n = max(n, c.scratch.backward.of(p))
	}
	return n
}

// scratchOf is the scratch memory of one kind of program.
type scratchOf struct {
	p     Problem
	alone []int64  // by unit: in a chunk of its own
	inner rangeMax // by unit: with the tensors that it receives from the unit before and passes to the next
}

func (s scratchOf) of(p Chunk) int64 {
	first, last := p.First, p.Last-1
	if first == last {
		return s.alone[first]
	}
	n := max(s.alone[first]+s.p.passes(first+1), s.alone[last]+s.p.passes(last))
	if last-first > 1 {
		n = max(n, s.inner.of(first+1, last))
	}
	return n
}

// rangeMax finds the largest value of a range: level k holds the maxima of 2^k values.
type rangeMax [][]int64

func newRangeMax(level []int64) rangeMax {
	n := len(level)
	r := rangeMax{level}
	for w := 1; 2*w <= n; w *= 2 {
		next := make([]int64, n-2*w+1)
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
