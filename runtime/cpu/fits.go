//go:build linux && cgo

package cpu

import (
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/shaders/native"
)

// fits compares what a source in WGSL declares with what the program says of it.
func fits(s *device.Shader, k native.Translation) error {
	if k.Workgroup != s.Workgroup {
		return device.Invalid("the source declares workgroup %v, the program %v", k.Workgroup, s.Workgroup)
	}
	if len(k.Writable) > len(s.Bindings) {
		return device.Invalid("the source has %d bindings, the program %d", len(k.Writable), len(s.Bindings))
	}
	for i, writable := range k.Writable {
		if writable != (s.Bindings[i] == device.ReadWrite) {
			return device.Invalid("the source declares binding %d %s, the program %s", i, access(writable), access(!writable))
		}
	}
	return nil
}

func access(writable bool) string {
	if writable {
		return "read_write"
	}
	return "read"
}
