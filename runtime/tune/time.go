package tune

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/shaders"
)

// Time returns the duration of one execution of a kernel on random data: the best of several batches, after a warm-up.
func Time(dev device.Device, k shaders.Kernel) (time.Duration, error) {
	return timeUpTo(dev, k, forever)
}

// timeUpTo is Time, except that a kernel whose first run exceeds limit is not measured more exactly.
func timeUpTo(dev device.Device, k shaders.Kernel, limit time.Duration) (time.Duration, error) {
	b := &bench{dev: dev, values: map[*graph.Value]device.Buffer{}}
	defer b.release()
	var scratch []device.Buffer
	for _, n := range k.Scratch {
		buf, err := b.alloc("scratch", n)
		if err != nil {
			return 0, err
		}
		scratch = append(scratch, buf)
	}
	program := func(repeat int) (device.Loaded, error) {
		p := &device.Program{Label: k.Name}
		var once []device.Command
		for _, pass := range k.Passes {
			c, err := b.command(p, pass, scratch)
			if err != nil {
				return nil, err
			}
			once = append(once, c)
		}
		for range repeat {
			p.Commands = append(p.Commands, once...)
		}
		return dev.Load(p)
	}
	return best(dev, program, limit)
}

// best is Best of a program's runs.
func best(dev device.Device, program func(repeat int) (device.Loaded, error), limit time.Duration) (time.Duration, error) {
	return Best(limit, func(repeat int) (time.Duration, error) {
		l, err := program(repeat)
		if err != nil {
			return 0, err
		}
		defer l.Release()
		if err := dev.Sync(); err != nil {
			return 0, err
		}
		start := time.Now()
		if err := dev.Run(l); err != nil {
			return 0, err
		}
		err = dev.Sync()
		return time.Since(start) / time.Duration(repeat), err
	})
}

// Best is the shortest time of one repetition of some work; timed carries out some and returns the time of one. That is
// done once to warm up, which may compile, once to learn the scale, and then a few times for about 20 ms. Work of which
// one repetition exceeds limit is not measured more exactly.
func Best(limit time.Duration, timed func(repeat int) (time.Duration, error)) (time.Duration, error) {
	if _, err := timed(1); err != nil {
		return 0, err
	}
	fastest, err := timed(1)
	if err != nil || fastest > limit {
		return fastest, err
	}
	repeat := max(1, min(200, int(20*time.Millisecond/max(fastest, time.Microsecond))))
	for range 3 {
		t, err := timed(repeat)
		if err != nil {
			return 0, err
		}
		fastest = min(fastest, t)
	}
	return fastest, nil
}

// bench is the memory of one timing.
type bench struct {
	dev    device.Device
	values map[*graph.Value]device.Buffer
	all    []device.Buffer
}

func (b *bench) alloc(label string, size int64) (device.Buffer, error) {
	buf, err := b.dev.Alloc("tune "+label, size)
	if err == nil {
		b.all = append(b.all, buf)
	}
	return buf, err
}

func (b *bench) release() {
	for _, buf := range b.all {
		buf.Release()
	}
}

// Shader returns what a device compiles for a pass. label names it in errors.
func Shader(label string, pass shaders.Pass) device.Shader {
	return device.Shader{Label: label, Source: pass.Source, Bindings: make([]device.Access, len(pass.Args)),
		Workgroup: pass.Workgroup, WorkgroupMemory: pass.WorkgroupMemory, Inside: pass.Inside}
}

func (b *bench) command(p *device.Program, pass shaders.Pass, scratch []device.Buffer) (device.Command, error) {
	c := device.Command{Shader: len(p.Shaders), Groups: pass.Groups}
	p.Shaders = append(p.Shaders, Shader(p.Label, pass))
	for _, a := range pass.Args {
		if a.Value == nil {
			from := scratch[a.Scratch]
			offset, n := a.Within(from.Size())
			c.Args = append(c.Args, device.Range{Buffer: from, Offset: offset, Size: n})
			continue
		}
		buf := b.values[a.Value]
		if buf == nil {
			var err error
			if buf, err = b.alloc("value", a.Value.Type.Bytes()); err != nil {
				return c, err
			}
			data := noise(a.Value.Type)
			if a.Grouped > 0 {
				data = offsets(a.Value.Shape.Len()-1, a.Grouped)
			}
			if err := b.dev.Write(buf, 0, data); err != nil {
				return c, err
			}
			b.values[a.Value] = buf
		}
		c.Args = append(c.Args, device.Range{Buffer: buf, Size: buf.Size()})
	}
	return c, nil
}

// offsets returns the offsets of groups that share the rows evenly.
func offsets(groups, rows int) (data []byte) {
	for g := range groups + 1 {
		data = binary.LittleEndian.AppendUint32(data, uint32(g*rows/groups))
	}
	return data
}

// noise returns floats in [0, 1) or integers below 256: no denormals, and no index far out of range.
func noise(t graph.Type) []byte {
	rng := rand.New(rand.NewPCG(3, 4))
	data := make([]byte, t.Bytes())
	for i := 0; i < len(data); i += 4 {
		r := rng.Uint32()
		switch t.DType { // exponents of [0.5, 1)
		case graph.F32:
			r = r&0x007fffff | 0x3f000000
		case graph.F16:
			r = r&0x03ff03ff | 0x38003800
		case graph.BF16:
			r = r&0x007f007f | 0x3f003f00
		default:
			r &= 0xff
		}
		binary.LittleEndian.PutUint32(data[i:], r)
	}
	return data
}
