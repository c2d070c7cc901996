package webgpu

/*
#include "native.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/cogentcore/webgpu/wgpu"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// The bindings keep their handles private. These types mirror the structs of v0.23.0; a test compares them.
type (
	oneHandle  struct{ ref unsafe.Pointer }
	twoHandles struct{ deviceRef, ref unsafe.Pointer }
)

func handle[T wgpu.Adapter | wgpu.ComputePipeline | wgpu.BindGroup](p *T) unsafe.Pointer {
	return (*oneHandle)(unsafe.Pointer(p)).ref
}

func bufferHandle(b *wgpu.Buffer) unsafe.Pointer { return (*twoHandles)(unsafe.Pointer(b)).ref }

func newInstance(b wgpu.InstanceBackend) *wgpu.Instance {
	ref := C.gp_instance(C.uint32_t(b))
	if ref == nil {
		panic("webgpu: no instance")
	}
	return (*wgpu.Instance)(unsafe.Pointer(&oneHandle{ref}))
}

func deviceOf(ref unsafe.Pointer) *wgpu.Device {
	return (*wgpu.Device)(unsafe.Pointer(&oneHandle{ref}))
}

// text returns s as valid UTF-8 without zero bytes, which the library requires.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "�"), "\x00", "�")
}

func nativeError(e *C.gp_error) error {
	msg := compact(C.GoString(&e.msg[0]))
	switch e._type {
	case C.GP_OUT_OF_MEMORY:
		return fmt.Errorf("%w: %s", device.ErrOutOfMemory, msg)
	case C.GP_VALIDATION:
		return device.Invalid("%s", msg)
	}
	return errors.New(msg)
}

// compact returns wgpu's multi-line drawing of an error as one line.
func compact(msg string) string {
	if strings.HasPrefix(msg, "wgpu.(") {
		_, msg, _ = strings.Cut(msg, "(): ")
	}
	msg = strings.TrimPrefix(strings.TrimSpace(msg), "Validation Error")
	msg = strings.TrimPrefix(strings.TrimSpace(msg), "Caused by:")
	msg = strings.Join(strings.FieldsFunc(msg, func(r rune) bool { return strings.ContainsRune(" \t\r\n│┌└─", r) }), " ")
	const most = 600
	if len(msg) > most {
		msg = strings.ToValidUTF8(msg[:most], "") + " …"
	}
	return msg
}
