package wire

// Position is the place of a message in a run. Different messages of a run have different positions, and each has the
// same one wherever and whenever the run computes it.
type Position struct {
	Seed         uint64 // of the run
	Kind         uint64 // activation, gradient, …
	Batch        int
	Microbatch   int // of the batch, counted over all replicas
	VirtualStage int
}

// Key seeds the rounding of a message's elements.
type Key uint64

// Key is a hash of the position.
func (p Position) Key() Key {
	h := uint64(0)
	for _, x := range [...]uint64{p.Seed, p.Kind, uint64(p.Batch), uint64(p.Microbatch), uint64(p.VirtualStage)} {
		h = mix(h + golden ^ x)
	}
	return Key(h)
}

const golden = 0x9e3779b97f4a7c15

// mix is the output function of SplitMix64 (Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators,
// OOPSLA 2014): a bijection in which every bit of the result depends on all bits of x.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// random is 16 random bits for each of the elements 4·group to 4·group + 3, the first in the lowest bits: output number
// group of SplitMix64 from the key.
func (k Key) random(group int) uint64 { return mix(uint64(k) + (uint64(group)+1)*golden) }
