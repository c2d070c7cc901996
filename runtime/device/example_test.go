package device_test

import (
	"encoding/binary"
	"fmt"
	"log"

	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/null"
)

// double multiplies each of n floats by two, 64 floats a workgroup.
var double = device.Shader{
	Label:     "double",
	Bindings:  []device.Access{device.ReadOnly, device.ReadWrite},
	Workgroup: [3]int{64, 1, 1},
	Source: `
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  y[id.x] = 2.0 * x[id.x];
}
`,
}

// A program is data: shaders, and commands that bind ranges of buffers to them. The device here executes nothing, so
// that the example runs anywhere: it checks the program and counts. webgpu.Open or vulkan.Open return one that
// computes.
func Example() {
	counter := null.New(null.Options{})
	var dev device.Device = counter
	defer dev.Close()

	const floats = 256
	x, err := dev.Alloc("x", 4*floats)
	if err != nil {
		log.Fatal(err)
	}
	y, err := dev.Alloc("y", 4*floats)
	if err != nil {
		log.Fatal(err)
	}
	all := func(b device.Buffer) device.Range { return device.Range{Buffer: b, Size: b.Size()} }
	program := &device.Program{
		Label:   "example",
		Shaders: []device.Shader{double},
		Commands: []device.Command{
			{Shader: 0, Args: []device.Range{all(x), all(y)}, Groups: [3]int{floats / 64, 1, 1}},
			{Shader: device.Copy, Args: []device.Range{all(y), all(x)}},
		},
	}
	loaded, err := dev.Load(program)
	if err != nil {
		log.Fatal(err)
	}

	// Write, Run and Read enqueue work in order. Only Wait and Sync wait for the device.
	data := binary.LittleEndian.AppendUint32(nil, 0x3f800000) // 1.0
	if err := dev.Write(x, 0, data); err != nil {
		log.Fatal(err)
	}
	if err := dev.Run(loaded); err != nil {
		log.Fatal(err)
	}
	result, err := dev.Read(y, 0, 4*floats)
	if err != nil {
		log.Fatal(err)
	}
	bytes, err := result.Wait()
	if err != nil {
		log.Fatal(err)
	}
	n := counter.Counts()
	fmt.Printf("read %d bytes after %d dispatch and %d copy\n", len(bytes), n.Dispatches, n.Copies)

	// Every backend refuses what no device may be given, with the same error.
	program.Commands[0].Groups[0] = 1 << 20
	_, err = dev.Load(program)
	fmt.Println(err)

	// Output:
	// read 1024 bytes after 1 dispatch and 1 copy
	// null:0: load "double": validation failed: command 0: dispatch [1048576 1 1]: dimension 0 must lie in 1…65535
}
