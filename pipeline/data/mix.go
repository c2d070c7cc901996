package data

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// A mix repeats a cycle of so many windows, in which each source has a fixed number of them.
const (
	cycle      = 1 << 16
	maxSources = 1024
	// Shuffled, so many windows change places among themselves: each stretch of them has its shares of the sources.
	shuffled = 64
)

// blend says from which source each window of an endless order comes, and the how manyth of that source it is. Both are
// functions of the window's number: nothing has to be kept to resume.
type blend struct {
	slots   []slot  // of a cycle
	counts  []int64 // slots of each source
	shuffle bool
	seed    uint64
	shares  []float64
}

// slot is the rank-th slot of a source.
type slot struct{ source, rank uint32 }

// newBlend gives each source its share of a cycle, to 1/65536.
func newBlend(spans []span, sources []source, cfg BatchConfig) (*blend, error) {
	b := &blend{slots: make([]slot, cycle), shuffle: cfg.Shuffle, seed: mix(cfg.Seed) ^ cycle}
	total := 0.0
	for i, s := range spans {
		b.shares = append(b.shares, s.weight+s.epochs*float64(sources[i].n))
		total += b.shares[i]
	}
	for i := range b.shares {
		b.shares[i] /= total
		if b.shares[i]*cycle < 1 {
			return nil, fielderror.New(fmt.Sprintf("mix[%d].weight", i), spans[i].weight,
				"a share of at least 1/%d of the windows, which is %.3g", cycle, b.shares[i])
		}
	}
	b.counts = apportion(b.shares)
	b.spread()
	return b, nil
}

// apportion divides a cycle by shares: whole numbers first, then the largest remainders.
func apportion(shares []float64) []int64 {
	counts, order := make([]int64, len(shares)), make([]int, len(shares))
	rest := int64(cycle)
	for i, share := range shares {
		counts[i], order[i] = int64(share*cycle), i
		rest -= counts[i]
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Compare(shares[j]*cycle-float64(counts[j]), shares[i]*cycle-float64(counts[i]))
	})
	for i := 0; rest > 0; i++ {
		counts[order[i%len(order)]]++
		rest--
	}
	return counts
}

// spread deals the slots such that each source has its share of every stretch of them: the next slot goes to the source
// that is furthest behind.
func (b *blend) spread() {
	taken := make([]int64, len(b.counts))
	for s := range b.slots {
		best, behind := 0, int64(-1<<62)
		for k, n := range b.counts {
			if d := n*int64(s+1) - taken[k]*cycle; d > behind && taken[k] < n {
				best, behind = k, d
			}
		}
		b.slots[s] = slot{uint32(best), uint32(taken[best])}
		taken[best]++
	}
}

// at returns the source of a window of the order, and how many of that source come before it in the order of ranks.
func (b *blend) at(window int64) (source int, ordinal int64) {
	round, s := window/cycle, window%cycle
	if b.shuffle {
		s += int64(permute(uint64(s%shuffled), shuffled, b.seed, uint64(window/shuffled))) - s%shuffled
	}
	slot := b.slots[s]
	return int(slot.source), round*b.counts[slot.source] + int64(slot.rank)
}

// SourcePosition is where a run is in a source of a mix.
type SourcePosition struct {
	Share   float64 `json:"share"`   // of the windows
	Windows int64   `json:"windows"` // of the source
	Drawn   int64   `json:"drawn"`   // windows so far
}

// Epochs is the number of passes over the source so far.
func (p SourcePosition) Epochs() float64 { return float64(p.Drawn) / float64(p.Windows) }

// positions counts what the first windows of the order have drawn from each source.
func (b *blend) positions(windows int64, sources []source) []SourcePosition {
	all := make([]SourcePosition, len(sources))
	for i, s := range sources {
		all[i] = SourcePosition{b.shares[i], s.n, windows / cycle * b.counts[i]}
	}
	for w := windows / cycle * cycle; w < windows; w++ {
		k, _ := b.at(w)
		all[k].Drawn++
	}
	return all
}
