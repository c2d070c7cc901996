//go:build linux

package vulkan

/*
#include "native.h"
*/
import "C"

import (
	"slices"
	"unsafe"

	"github.com/gpupipe/gpupipe/runtime/device"
	vk "github.com/vulkan-go/vulkan"
)

// batch is the commands that are submitted before anything else: zeros for new buffers, and copies from and to the
// host.
type batch struct {
	commands []C.gv_command
	zeros    []*buffer // by command, nil for a copy
	bytes    int64     // to be copied
	hazards  hazards
}

func handle(b vk.Buffer) C.uint64_t { return C.uint64_t(uintptr(unsafe.Pointer(b))) }

func (b *batch) fill(r device.Range) {
	dst := r.Buffer.(*buffer)
	b.add(C.gv_command{dst: handle(dst.handle), size: C.uint64_t(r.Size)}, access{r, true})
	b.zeros[len(b.zeros)-1] = dst
}

func (b *batch) upload(from vk.Buffer, at int64, r device.Range) {
	dst := r.Buffer.(*buffer)
	b.add(C.gv_command{src: handle(from), src_offset: C.uint64_t(at), dst: handle(dst.handle), dst_offset: C.uint64_t(r.Offset),
		size: C.uint64_t(r.Size)}, access{r, true})
	b.bytes += r.Size
}

func (b *batch) download(r device.Range, to vk.Buffer, at int64) {
	src := r.Buffer.(*buffer)
	b.add(C.gv_command{src: handle(src.handle), src_offset: C.uint64_t(r.Offset), dst: handle(to), dst_offset: C.uint64_t(at),
		size: C.uint64_t(r.Size)}, access{r, false})
	b.bytes += r.Size
}

func (b *batch) copy(from, to device.Range) {
	src, dst := from.Buffer.(*buffer), to.Buffer.(*buffer)
	b.add(C.gv_command{src: handle(src.handle), src_offset: C.uint64_t(from.Offset), dst: handle(dst.handle),
		dst_offset: C.uint64_t(to.Offset), size: C.uint64_t(from.Size)}, access{from, false}, access{to, true})
	b.bytes += from.Size
}

func (b *batch) add(c C.gv_command, as ...access) {
	if b.hazards.add(as...) {
		c.barrier = 1
	}
	b.commands, b.zeros = append(b.commands, c), append(b.zeros, nil)
}

// forget drops the zeros of a buffer that no other command has used: unused memory need not be written.
func (b *batch) forget(gone *buffer) {
	if i := slices.Index(b.zeros, gone); i >= 0 && i == len(b.zeros)-1 {
		b.commands, b.zeros = b.commands[:i], b.zeros[:i]
	}
}

func (b *batch) reset() {
	b.commands, b.zeros, b.bytes = b.commands[:0], b.zeros[:0], 0
	b.hazards.reset()
}

// access is a command's access to a range.
type access struct {
	device.Range
	writes bool
}

// hazards are the accesses since the last barrier.
type hazards struct{ since []access }

func (h *hazards) reset() { h.since = h.since[:0] }

// add records the accesses of one command, and reports whether it needs a barrier before it. It does if it writes what
// was read or written since the last barrier, or reads what was written.
func (h *hazards) add(as ...access) (barrier bool) {
	for _, a := range as {
		for _, b := range h.since {
			if (a.writes || b.writes) && a.Buffer == b.Buffer && a.Offset < b.Offset+b.Size && b.Offset < a.Offset+a.Size {
				barrier = true
			}
		}
	}
	if barrier {
		h.reset()
	}
	h.since = append(h.since, as...)
	return barrier
}
