package wire_test

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/wire"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var formats = []wire.Format{wire.F32, wire.BF16, wire.Int8}

func bytesOf(xs ...float32) (b []byte) {
	for _, x := range xs {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

func floatsOf(b []byte) []float32 {
	xs := make([]float32, len(b)/4)
	for i := range xs {
		xs[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return xs
}

// normal is n numbers of a normal distribution whose deviation grows from tile to tile.
func normal(n int, seed uint64) []float32 {
	rng := rand.New(rand.NewPCG(seed, 0))
	xs := make([]float32, n)
	for i := range xs {
		xs[i] = float32(rng.NormFloat64() * math.Pow(3, float64(i/64)))
	}
	return xs
}

func encode(f wire.Format, xs []float32, key wire.Key) []byte {
	b := make([]byte, f.Size(int64(len(xs))))
	f.Encode(b, bytesOf(xs...), key)
	return b
}

func decode(t *testing.T, f wire.Format, data []byte) []float32 {
	t.Helper()
	n, err := f.Elements(int64(len(data)))
	require.NoError(t, err)
	b := make([]byte, 4*n)
	require.NoError(t, f.Decode(b, data))
	return floatsOf(b)
}

func roundTrip(t *testing.T, f wire.Format, xs []float32, key wire.Key) []float32 {
	t.Helper()
	return decode(t, f, encode(f, xs, key))
}

func TestNames(t *testing.T) {
	for _, f := range formats {
		g, err := wire.Parse(f.String())
		require.NoError(t, err)
		assert.Equal(t, f, g)
	}
	_, err := wire.Parse("fp8")
	assert.EqualError(t, err, `found "fp8", expected one of f32, bf16, int8`)
	assert.Equal(t, "Format(9)", wire.Format(9).String())
}

// Every number of elements has a size of its own, and other sizes are refused.
func TestSizes(t *testing.T) {
	for _, f := range formats {
		sizes := map[int64]int64{}
		for n := range int64(300) {
			size := f.Size(n)
			sizes[size] = n
			got, err := f.Elements(size)
			require.NoError(t, err)
			assert.Equal(t, n, got)
		}
		for size := range f.Size(299) {
			_, err := f.Elements(size)
			_, possible := sizes[size]
			assert.Equal(t, possible, err == nil, "%v: %d bytes", f, size)
		}
		_, err := f.Elements(-4)
		assert.Error(t, err)
	}
	assert.Equal(t, int64(66*9), wire.Int8.Size(576))
	assert.ErrorContains(t, wire.Int8.Decode(make([]byte, 8), make([]byte, 67)), "found 67 bytes, expected the size of a tensor in int8")
	assert.ErrorContains(t, wire.BF16.Decode(make([]byte, 8), make([]byte, 6)), "found 3 elements in bf16, expected 2")
}

// f32 changes no bit, NaN payloads included.
func TestF32IsExact(t *testing.T) {
	xs := append(normal(100, 1), math.Float32frombits(0x7f800001), float32(math.Copysign(0, -1)))
	assert.Equal(t, bytesOf(xs...), encode(wire.F32, xs, 1))
	assert.Equal(t, bytesOf(xs...), bytesOf(roundTrip(t, wire.F32, xs, 1)...))
}

// bfloat16 is the nearest of its numbers, by a search in float64, and the even one of two.
func TestBF16RoundsToNearest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	xs := []float32{0, 1, -1, 1 + 0x1p-8, 1 + 3*0x1p-8, 1 + 0x1p-8 + 0x1p-23, -1 - 0x1p-8, 0x1p-149, 0x1p-134, math.MaxFloat32,
		-math.MaxFloat32}
	for range 4000 {
		if x := math.Float32frombits(rng.Uint32()); !math.IsNaN(float64(x)) {
			xs = append(xs, x)
		}
	}
	for i, got := range roundTrip(t, wire.BF16, xs, 0) {
		x, bits := float64(xs[i]), math.Float32bits(xs[i])
		below := math.Float32frombits(bits &^ 0xffff) // toward zero
		above := math.Float32frombits(bits&^0xffff + 0x10000)
		far := float64(above)
		if math.IsInf(far, 0) { // as if there were a next number
			far = math.Copysign(0x1p128, x)
		}
		want := below
		if d, e := math.Abs(x-float64(below)), math.Abs(far-x); e < d || e == d && bits>>16&1 == 1 {
			want = above
		}
		require.Equal(t, math.Float32bits(want), math.Float32bits(got), "%v", xs[i])
	}
}

// scaleOf is the scale that a tile of int8 has, by a search in float64.
func scaleOf(xs []float32) float64 {
	largest := 0.0
	for _, x := range xs {
		largest = max(largest, math.Abs(float64(x)))
	}
	for bits := math.Float32bits(0x1p-110); ; bits += 0x10000 {
		if s := float64(math.Float32frombits(bits)); float64(float32(largest)/126) <= s {
			return s
		}
	}
}

// int8 rounds to one of the two multiples of the scale around each element: to the upper one if the random number
// exceeds the distance to it. The reference computes in float64.
func TestInt8RoundsAtRandom(t *testing.T) {
	for _, n := range []int{1, 3, 63, 64, 65, 127, 128, 130, 576} {
		xs := normal(n, uint64(n))
		xs[0] = -xs[n-1]
		ups := 0
		for key := range wire.Key(20) {
			got := roundTrip(t, wire.Int8, xs, key)
			for i := range xs {
				first := i / 64 * 64
				scale := scaleOf(xs[first:min(first+64, n)])
				exact, code := float64(xs[i])/scale, float64(got[i])/scale
				require.Equal(t, math.Trunc(code), code, "a multiple of the scale")
				require.LessOrEqual(t, math.Abs(code), 127.0)
				r := float64(wire.Random(key, i)) / 0x1p16
				const cutOff = 0x1p-16 + 0x1p-16 // cut off to 2⁻¹⁶, after a rounding of the product
				if up := exact - math.Floor(exact) + r; math.Abs(up-1) > cutOff && up > cutOff {
					require.Equal(t, math.Floor(exact+r), code, "element %d of %d: %v at scale %v", i, n, xs[i], scale)
				} else {
					require.Less(t, math.Abs(code-exact), 1+cutOff)
				}
				if code > exact {
					ups++
				}
			}
		}
		if n > 60 {
			assert.InDelta(t, 0.5, float64(ups)/float64(20*n), 0.1)
		}
	}
}

// The mean of many roundings is the element, and roundings of neighbors, of microbatches and of batches are
// independent: their errors cancel as those of independent numbers do.
func TestInt8IsUnbiased(t *testing.T) {
	const n, rounds = 256, 4000
	xs := make([]float32, n)
	rng := rand.New(rand.NewPCG(5, 5))
	for i := range xs {
		xs[i] = float32(rng.Float64()*2 - 1)
	}
	xs[0], xs[64], xs[128], xs[192] = 1, 1, -1, -1
	scale := scaleOf(xs)
	for what, at := range map[string]func(i int) wire.Position{
		"batches":        func(i int) wire.Position { return wire.Position{Seed: 7, Batch: i} },
		"microbatches":   func(i int) wire.Position { return wire.Position{Seed: 7, Microbatch: i} },
		"virtual stages": func(i int) wire.Position { return wire.Position{Seed: 7, VirtualStage: i} },
		"kinds":          func(i int) wire.Position { return wire.Position{Seed: 7, Kind: uint64(i)} },
		"seeds":          func(i int) wire.Position { return wire.Position{Seed: uint64(i)} },
	} {
		sums, squares := make([]float64, n), 0.0
		for i := range rounds {
			total := 0.0
			for j, x := range roundTrip(t, wire.Int8, xs, at(i).Key()) {
				e := (float64(x) - float64(xs[j])) / scale
				sums[j] += e
				total += e
			}
			squares += total * total
		}
		variance := 0.0
		for j, sum := range sums {
			f := float64(xs[j]) / scale
			f -= math.Floor(f)
			variance += f * (1 - f)
			assert.Less(t, math.Abs(sum)/rounds, 5*math.Sqrt(f*(1-f)/rounds)+0x1p-15, "%s: element %d", what, j)
		}
		assert.InDelta(t, 1, squares/rounds/variance, 0.15, "%s: variance of the sum of all elements' errors", what)
	}
}

// Positions that differ in one field round differently.
func TestPositionsDiffer(t *testing.T) {
	xs := normal(64, 3)
	seen := map[string]bool{}
	positions := []wire.Position{{}, {Seed: 1}, {Kind: 1}, {Batch: 1}, {Microbatch: 1}, {VirtualStage: 1}, {Batch: 1, Microbatch: 1},
		{Kind: 1, Batch: 1}}
	for _, p := range positions {
		b := encode(wire.Int8, xs, p.Key())
		assert.Equal(t, b, encode(wire.Int8, xs, p.Key()), "%+v again", p)
		seen[string(b)] = true
	}
	assert.Len(t, seen, len(positions))
}

// The bytes are the same on every machine and in every version: runs that resume depend on them.
func TestBytesNeverChange(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 0))
	xs := []float32{float32(math.NaN()), float32(math.Inf(-1)), 1, 2, 3}
	for i := range 1000 {
		xs = append(xs, float32(math.Ldexp(rng.Float64()-0.5, i/64)))
	}
	for f, want := range map[wire.Format]string{wire.BF16: "b3cd3de578fd724d", wire.Int8: "18da5b34eea019fd"} {
		h := fnv.New64a()
		_, _ = h.Write(encode(f, xs, wire.Position{Seed: 1, Kind: 1, Batch: 2, Microbatch: 3, VirtualStage: 4}.Key()))
		assert.Equal(t, want, fmt.Sprintf("%016x", h.Sum64()), "%v", f)
	}
}

// NaN and infinities arrive as such, in every format and at every place of a tile. Their neighbors arrive nearly as
// exactly as without them.
func TestNonfiniteValuesSurvive(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, f := range formats {
		for _, at := range []int{0, 1, 62, 63, 64, 130} {
			for _, bad := range []float32{nan, inf, -inf, math.Float32frombits(0x7f800001), math.Float32frombits(0xffffffff)} {
				xs := normal(131, 9)
				xs[at] = bad
				for i, got := range roundTrip(t, f, xs, 5) {
					switch {
					case i == at && bad != bad:
						require.True(t, math.IsNaN(float64(got)), "%v: %v at %d", f, bad, at)
					case i == at:
						require.Equal(t, bad, got)
					default:
						first := i / 64 * 64
						finite := slices.DeleteFunc(slices.Clone(xs[first:min(first+64, len(xs))]),
							func(x float32) bool { return x != x || math.IsInf(float64(x), 0) })
						require.InDelta(t, xs[i], got, 1.01*scaleOf(finite), "%v: element %d", f, i)
					}
				}
			}
		}
	}
	all := roundTrip(t, wire.Int8, []float32{nan, inf, -inf}, 5)
	assert.True(t, math.IsNaN(float64(all[0])))
	assert.Equal(t, []float32{inf, -inf}, all[1:])
}

// Tiles of extreme magnitudes stay finite, and zeros stay zero.
func TestInt8Extremes(t *testing.T) {
	for key := range wire.Key(200) {
		big := roundTrip(t, wire.Int8, []float32{math.MaxFloat32, -math.MaxFloat32, 1e38, 0}, key)
		assert.InEpsilon(t, math.MaxFloat32, big[0], 0.01)
		assert.InEpsilon(t, -math.MaxFloat32, big[1], 0.01)
		assert.Zero(t, big[3])
		for _, x := range roundTrip(t, wire.Int8, []float32{0x1p-149, -0x1p-149, 0x1p-126, 0}, key) {
			assert.LessOrEqual(t, math.Abs(float64(x)), 0x1p-110)
		}
		assert.Equal(t, make([]float32, 70), roundTrip(t, wire.Int8, make([]float32, 70), key))
	}
}

func TestEncodePanicsOnWrongSizes(t *testing.T) {
	assert.PanicsWithValue(t, "wire: 8 bytes of float32 to 5 bytes of bf16",
		func() { wire.BF16.Encode(make([]byte, 5), make([]byte, 8), 0) })
	assert.Panics(t, func() { wire.F32.Encode(make([]byte, 7), make([]byte, 7), 0) })
}

// A scale that Encode does not write is an error.
func TestInt8RefusesScales(t *testing.T) {
	for _, scale := range []uint16{0x7f80, 0xff80, 0x7fc0} {
		data := encode(wire.Int8, normal(130, 1), 1)
		binary.LittleEndian.PutUint16(data[66:], scale)
		err := wire.Int8.Decode(make([]byte, 4*130), data)
		assert.ErrorContains(t, err, "tile 1 has scale ")
	}
}

func TestPool(t *testing.T) {
	var p wire.Pool
	for _, n := range []int{0, 1, 2, 63, 64, 65, 1000} {
		b := p.Get(n)
		assert.Len(t, b, n)
		p.Put(b)
		again := p.Get(n)
		assert.Len(t, again, n)
	}
	p.Put(make([]byte, 3)) // not of the pool
	p.Put(nil)
	assert.Len(t, p.Get(3), 3)
}

// A message of the same size as one before allocates nothing.
func TestMessagesAllocateNothing(t *testing.T) {
	var p wire.Pool
	tensor := bytesOf(normal(4096, 1)...)
	for _, f := range formats {
		size := int(f.Size(4096))
		assert.Less(t, testing.AllocsPerRun(200, func() {
			data, out := p.Get(size), p.Get(len(tensor))
			f.Encode(data, tensor, wire.Position{Batch: 1}.Key())
			if err := f.Decode(out, data); err != nil {
				t.Error(err)
			}
			p.Put(data)
			p.Put(out)
		}), 1.0, "%v", f)
	}
}

// Whatever arrives, decoding returns an error or a tensor of the announced size, whose elements encode again.
func FuzzDecode(f *testing.F) {
	for _, format := range formats {
		f.Add(uint8(format), encode(format, normal(70, 2), 3))
	}
	f.Add(uint8(wire.Int8), []byte{0x80, 0xff, 0, 1})
	f.Add(uint8(wire.Int8), []byte{0x80})
	f.Fuzz(func(t *testing.T, format uint8, data []byte) {
		f := wire.Format(format % 3)
		n, err := f.Elements(int64(len(data)))
		if err != nil {
			assert.Error(t, f.Decode(nil, data))
			return
		}
		tensor := make([]byte, 4*n)
		if f.Decode(tensor, data) != nil {
			return
		}
		again := make([]byte, len(data))
		f.Encode(again, tensor, 1)
		require.NoError(t, f.Decode(tensor, again))
		if f != wire.Int8 {
			exact := make([]byte, len(tensor))
			require.NoError(t, f.Decode(exact, data))
			for i, x := range floatsOf(exact) {
				if y := floatsOf(tensor)[i]; x == x {
					assert.Equal(t, math.Float32bits(x), math.Float32bits(y))
				} else {
					assert.True(t, y != y)
				}
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) { benchmark(b, true) }
func BenchmarkDecode(b *testing.B) { benchmark(b, false) }

// benchmark counts the bytes of the tensor in float32: 1024 tokens of 576.
func benchmark(b *testing.B, encodes bool) {
	tensor := bytesOf(normal(1024, 1)...)
	for len(tensor) < 1024*576*4 {
		tensor = append(tensor, tensor...)
	}
	tensor = tensor[:1024*576*4]
	for _, f := range formats {
		b.Run(f.String(), func(b *testing.B) {
			data := make([]byte, f.Size(int64(len(tensor)/4)))
			f.Encode(data, tensor, 1)
			b.SetBytes(int64(len(tensor)))
			for b.Loop() {
				if encodes {
					f.Encode(data, tensor, 1)
				} else if err := f.Decode(tensor, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
