package compute

import (
	"encoding/binary"
	"fmt"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// CheckLoops runs loops of 70,000 and of 1,000,000 iterations. Some drivers (Mesa's lavapipe before 25) silently leave
// a loop after 65,535 iterations, which makes every long reduction wrong.
func CheckLoops(dev device.Device) []Result {
	var results []Result
	for _, n := range []uint32{70_000, 1_000_000} {
		r := Result{Op: "loops", Case: fmt.Sprint(n, " iterations"), Candidate: "loop", Tolerance: DefaultTolerance}
		got, err := loop(dev, n)
		if want := looped(n); err != nil {
			r.Failure = err.Error()
		} else if got != want {
			r.Failure = fmt.Sprintf("found %d, expected %d: the device leaves long loops early", got, want)
		}
		results = append(results, r)
	}
	return results
}

// looped is the loop's result. No compiler replaces it by a formula.
func looped(n uint32) uint32 {
	x := uint32(1)
	for i := range n {
		x = x*1664525 + 1013904223 ^ i
	}
	return x
}

const loopWGSL = `@group(0) @binding(0) var<storage, read_write> b0: array<u32>;
@compute @workgroup_size(1) fn main() {
  var x = 1u;
  let n = b0[0];
  for (var i = 0u; i < n; i++) { x = (x * 1664525u + 1013904223u) ^ i; }
  b0[1] = x;
}
`

const loopC = target.C + `
KERNEL {
  u32 *b0 = args[0].at, x = 1;
  for (u32 i = 0; i < b0[0]; i++) x = (x * 1664525u + 1013904223u) ^ i;
  b0[1] = x;
}
`

func loop(dev device.Device, n uint32) (uint32, error) {
	b, err := dev.Alloc("loop", 8)
	if err != nil {
		return 0, err
	}
	defer b.Release()
	if err := dev.Write(b, 0, binary.LittleEndian.AppendUint32(nil, n)); err != nil {
		return 0, err
	}
	source := loopWGSL
	if dev.Limits().Native {
		source = loopC
	}
	p, err := dev.Load(&device.Program{Label: "loop",
		Shaders:  []device.Shader{{Label: "loop", Source: source, Bindings: []device.Access{device.ReadWrite}, Workgroup: [3]int{1, 1, 1}}},
		Commands: []device.Command{{Args: []device.Range{{Buffer: b, Size: 8}}, Groups: [3]int{1, 1, 1}}}})
	if err != nil {
		return 0, err
	}
	defer p.Release()
	if err := dev.Run(p); err != nil {
		return 0, err
	}
	read, err := dev.Read(b, 4, 4)
	if err != nil {
		return 0, err
	}
	data, err := read.Wait()
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(data), nil
}
