package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/profile"
)

const peakCase = "peak"

// Peak measures the peak of a device: the best of a few kernels that multiply and add in registers, and of a few that
// copy and add arrays.
func Peak(dev device.Device, o Options) (profile.Peak, error) {
	ps, err := peaks([]device.Device{dev}, o)
	if err != nil {
		return profile.Peak{}, err
	}
	return ps[0], nil
}

// PeakFLOPS measures the part of Peak that is computation, in FLOP/s; 0 of a device that computes nothing.
func PeakFLOPS(dev device.Device, o Options) (float64, error) {
	out := make([]profile.Peak, 1)
	err := o.arithmeticPeaks([]device.Device{dev}, out)
	return 1e9 * out[0].GFLOPS, err
}

// arithmeticPeaks measures devices in alternation.
func (o Options) arithmeticPeaks(devs []device.Device, out []profile.Peak) error {
	// On a CPU an accumulator has 16 floats. 24 accumulators fill the registers of AVX-512; 6 fill AVX2, 3 fill SSE2.
	for _, k := range []struct{ accumulators, width, native int }{{8, 1, 3}, {16, 1, 6}, {4, 4, 12}, {8, 4, 24}} {
		err := o.peak(devs, func(dev device.Device) (*contender, error) {
			if dev.Limits().Native {
				return multiplying(dev, nativeMultiply(k.native))
			}
			return multiplying(dev, portableMultiply(k.accumulators, k.width))
		}, func(i int, rate float64) { out[i].GFLOPS = max(out[i].GFLOPS, rate) })
		if err != nil {
			return err
		}
	}
	return nil
}

// peaks measures devices in alternation. A device that computes nothing has no peaks.
func peaks(devs []device.Device, o Options) ([]profile.Peak, error) {
	out := make([]profile.Peak, len(devs))
	if err := o.arithmeticPeaks(devs, out); err != nil {
		return nil, err
	}
	for _, k := range []struct {
		element string
		arrays  int64
	}{{"f32", 2}, {"vec4<f32>", 2}, {"f32", 3}, {"vec4<f32>", 3}, {"f32", 1}} {
		some := slices.DeleteFunc(slices.Clone(devs), func(dev device.Device) bool {
			if dev.Limits().Native {
				return k.element != "f32" // the compiler chooses the vectors
			}
			return k.arrays == 1
		})
		err := o.peak(some, func(dev device.Device) (*contender, error) { return o.bandwidth(dev, k.element, k.arrays) },
			func(i int, rate float64) {
				p := &out[slices.Index(devs, some[i])]
				p.GBps = max(p.GBps, rate)
			})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// contender is a kernel for a peak, and the work of one run.
type contender struct {
	work
	amount  float64 // flops or bytes
	buffers []device.Buffer
	loaded  device.Loaded
}

func (c *contender) release() {
	if c.loaded != nil {
		c.loaded.Release()
	}
	for _, b := range c.buffers {
		b.Release()
	}
}

// peak measures one kernel on all devices.
func (o Options) peak(devs []device.Device, make func(device.Device) (*contender, error), report func(i int, rate float64)) error {
	var subjects []*subject
	var places []int
	var all []*contender
	defer func() {
		for _, c := range all {
			c.release()
		}
	}()
	for i, dev := range devs {
		if dev.Info().Kind == device.Null {
			continue
		}
		c, err := make(dev)
		if err != nil {
			return err
		}
		all = append(all, c)
		s, err := c.subject()
		if err != nil {
			return err
		}
		subjects, places = append(subjects, s), append(places, i)
	}
	if err := o.alternate(subjects, nil); err != nil {
		return err
	}
	for i, s := range subjects {
		report(places[i], all[i].amount/s.fastest().Seconds()/1e9) // a peak is the best measurement
	}
	return nil
}

const (
	peakGroup   = 64
	peakGroups  = 4096
	peakSeeds   = 64 // floats before the results: two factors and the number of rounds
	peakUnroll  = 64 // multiplications and additions of a round
	peakLasts   = 10 * time.Millisecond
	maxRounds   = 1 << 15
	leastRounds = 8
)

// multiply is a kernel that keeps sums in registers, and multiplies and adds to them in turn.
type multiply struct {
	shader device.Shader
	groups int
	flops  float64 // of a round
}

// portableMultiply has some sums, each of so many floats.
func portableMultiply(accumulators, width int) multiply {
	return multiply{device.Shader{Label: "multiply and add", Workgroup: [3]int{peakGroup, 1, 1},
		Bindings: []device.Access{device.ReadWrite},
		Source:   arithmeticSource(accumulators, width)}, peakGroups, 2 * peakUnroll * float64(width) * peakGroup * peakGroups}
}

// multiplying loads a kernel. The number of rounds grows until a run takes long enough.
func multiplying(dev device.Device, m multiply) (*contender, error) {
	c := &contender{}
	b, err := dev.Alloc("peak", 4*(peakSeeds+peakGroup*peakGroups))
	if err != nil {
		return nil, err
	}
	c.buffers = []device.Buffer{b}
	if err := c.load(dev, m.shader, [3]int{m.groups, 1, 1}, device.Range{Buffer: b, Size: b.Size()}); err != nil {
		return nil, err
	}
	if err := c.grow(dev, b, m.flops); err != nil {
		c.release()
		return nil, err
	}
	return c, nil
}

// load loads a program of one kernel. It releases c if it fails.
func (c *contender) load(dev device.Device, s device.Shader, groups [3]int, args ...device.Range) (err error) {
	p := &device.Program{Label: "peak", Shaders: []device.Shader{s}, Commands: []device.Command{{Args: args, Groups: groups}}}
	if c.loaded, err = dev.Load(p); err != nil {
		c.release()
		return err
	}
	c.work = program(dev, c.loaded)
	return nil
}

func (c *contender) grow(dev device.Device, b device.Buffer, flops float64) error {
	for rounds := leastRounds; ; rounds *= 2 {
		if err := dev.Write(b, 0, exec.F32Bytes([]float32{0.5, 1, float32(rounds)})); err != nil {
			return err
		}
		c.amount = float64(rounds) * flops
		if _, err := c.onHost(1); err != nil {
			return err
		}
		if t, err := c.onHost(1); err != nil || t > peakLasts || rounds >= maxRounds {
			return err
		}
	}
}

func arithmeticSource(accumulators, width int) string {
	typ, scalar := "f32", "s0"
	if width > 1 {
		typ, scalar = fmt.Sprintf("vec%d<f32>", width), "dot(s0, "+fmt.Sprintf("vec%d<f32>(1.0)", width)+")"
	}
	var s strings.Builder
	fmt.Fprintf(&s, `@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(%d) fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let a = %s(x[0]); let b = %s(x[1]);
  let rounds = u32(x[2]);
`, peakGroup, typ, typ)
	for i := range accumulators {
		fmt.Fprintf(&s, "  var s%d = %s(f32(g.x + %du));\n", i, typ, i)
	}
	s.WriteString("  for (var i = 0u; i < rounds; i++) {\n")
	for i := range peakUnroll {
		fmt.Fprintf(&s, "    s%[1]d = fma(s%[1]d, a, b);\n", i%accumulators)
	}
	s.WriteString("  }\n")
	for i := 1; i < accumulators; i++ {
		fmt.Fprintf(&s, "  s0 += s%d;\n", i)
	}
	fmt.Fprintf(&s, "  x[%du + g.x] = %s;\n}\n", peakSeeds, scalar)
	return s.String()
}

const (
	bandwidthGroup = 256
	largestArray   = 128 << 20 // bytes, on devices with memory of their own
	sharedArray    = 64 << 20  // bytes, on devices that share the host's memory
	leastArray     = 1 << 20
)

// bandwidth reads one array, copies one to another, or adds two arrays into a third.
func (o Options) bandwidth(dev device.Device, element string, arrays int64) (*contender, error) {
	width := int64(4)
	if element != "f32" {
		width = 16
	}
	size := int64(sharedArray)
	if dev.Info().Kind == device.Discrete {
		size = largestArray
	}
	if o.Quick {
		size /= 4
	}
	for size = min(size, dev.Limits().MaxBindingSize&^0xfffff, dev.Limits().MaxBufferSize&^0xfffff); ; size /= 2 {
		c, err := copying(dev, size, width, arrays, element)
		if err == nil || size <= leastArray || !errors.Is(err, device.ErrOutOfMemory) {
			return c, err
		}
	}
}

func copying(dev device.Device, size, width, arrays int64, element string) (*contender, error) {
	if arrays == 1 {
		return reading(dev, size)
	}
	c := &contender{amount: float64(size * arrays)}
	var args []device.Range
	for range arrays {
		b, err := c.array(dev, size)
		if err != nil {
			return nil, err
		}
		args = append(args, device.Range{Buffer: b, Size: size})
	}
	shader, groups := nativeCopying(size, arrays)
	if !dev.Limits().Native {
		shader, groups = portableCopying(size/width, dev.Limits().MaxDispatchDimension, arrays, element)
	}
	if err := c.load(dev, shader, groups, args...); err != nil {
		return nil, err
	}
	return c, nil
}

// portableCopying copies so many elements: the kernel and its groups, in as many rows as the device needs.
func portableCopying(elements int64, most int, arrays int64, element string) (device.Shader, [3]int) {
	groups := elements / bandwidthGroup
	rows := (groups + int64(most) - 1) / int64(most)
	return device.Shader{Label: "copy", Workgroup: [3]int{bandwidthGroup, 1, 1}, Bindings: make([]device.Access, arrays),
		Source: copySource(element, arrays == 3)}, [3]int{int((groups + rows - 1) / rows), int(rows), 1}
}

// array allocates a buffer and writes to it: memory that nothing was written to may be one page of zeros. It releases c
// if it fails.
func (c *contender) array(dev device.Device, size int64) (device.Buffer, error) {
	b, err := dev.Alloc("peak", size)
	if err == nil {
		c.buffers = append(c.buffers, b)
		err = dev.Write(b, 0, make([]byte, size))
	}
	if err != nil {
		c.release()
		return nil, err
	}
	return b, nil
}

func copySource(element string, triad bool) string {
	arrays, right := "", "x0[i]"
	names := []string{"y", "x0"}
	if triad {
		names, right = append(names, "x1"), "x0[i] + 0.5 * x1[i]"
	}
	for i, name := range names {
		arrays += fmt.Sprintf("@group(0) @binding(%d) var<storage, read_write> %s: array<%s>;\n", i, name, element)
	}
	return fmt.Sprintf(`%s@compute @workgroup_size(%d) fn main(@builtin(global_invocation_id) g: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
  let i = g.x + g.y * n.x * %du;
  if (i < arrayLength(&y)) { y[i] = %s; }
}
`, arrays, bandwidthGroup, bandwidthGroup, right)
}
