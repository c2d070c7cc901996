package bench

import (
	_ "embed"
	"fmt"

	"github.com/gpupipe/gpupipe/graph/target"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// The kernels of a CPU, which keep its cores busy.
var (
	//go:embed native/arithmetic.c
	nativeArithmetic string
	//go:embed native/read.c
	nativeRead string
	//go:embed native/copy.c
	nativeCopy string
)

const (
	nativeLanes  = 16      // floats of an accumulator, in as many vectors as that takes
	nativeSteps  = 8       // of a round
	nativeGroups = 1 << 10 // of arithmetic
	nativeBlock  = 1 << 16 // bytes of an array for a group
)

// nativeSource returns a kernel in C.
func nativeSource(code string, macro string, value int) string {
	return fmt.Sprintf("%s\n#define %s %d\n%s", target.C, macro, value, code)
}

// nativeIncrement adds one to 64 words.
func nativeIncrement() device.Shader {
	return device.Shader{Label: "increment", Workgroup: [3]int{1, 1, 1}, Bindings: []device.Access{device.ReadWrite},
		Source: target.C + "\nKERNEL { for (u32 i = 0; i < 64; i++) ((u32 *)args[0].at)[i]++; }\n"}
}

// nativeMultiply has some sums, each of 16 floats.
func nativeMultiply(accumulators int) multiply {
	return multiply{device.Shader{Label: "multiply and add", Workgroup: [3]int{1, 1, 1}, Bindings: []device.Access{device.ReadWrite},
		Source: nativeSource(nativeArithmetic, "ACCUMULATORS", accumulators)}, nativeGroups,
		2 * nativeSteps * nativeLanes * nativeGroups * float64(accumulators)}
}

// reading only reads an array.
func reading(dev device.Device, size int64) (*contender, error) {
	c := &contender{amount: float64(size)}
	groups := size / nativeBlock
	var args []device.Range
	for _, bytes := range []int64{size, 4 * groups} {
		b, err := c.array(dev, bytes)
		if err != nil {
			return nil, err
		}
		args = append(args, device.Range{Buffer: b, Size: bytes})
	}
	err := c.load(dev, device.Shader{Label: "read", Workgroup: [3]int{1, 1, 1}, Bindings: []device.Access{device.ReadOnly,
		device.ReadWrite}, Source: nativeSource(nativeRead, "BLOCK", nativeBlock)}, [3]int{int(groups), 1, 1}, args...)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// nativeCopying copies one array to another, or adds two arrays into a third: the kernel and its groups.
func nativeCopying(size, arrays int64) (device.Shader, [3]int) {
	code := fmt.Sprintf("#define ARRAYS %d\n%s", arrays, nativeCopy)
	return device.Shader{Label: "copy", Workgroup: [3]int{1, 1, 1}, Bindings: make([]device.Access, arrays),
		Source: nativeSource(code, "BLOCK", nativeBlock)}, [3]int{int(size / nativeBlock), 1, 1}
}
