//go:build linux

package vulkan

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/gpupipe/gpupipe/runtime/device"
	vk "github.com/vulkan-go/vulkan"
)

const (
	blockSize = 64 << 20 // bytes of a shared block
	alone     = 16 << 20 // bytes from which a buffer has a block of its own
)

// heap allocates the GPU's memory. Small buffers share blocks, because drivers allow few allocations.
type heap struct {
	d      *Device
	types  []memoryType
	blocks []*block
}

// block is one allocation of the driver.
type block struct {
	memory vk.DeviceMemory
	kind   uint32 // memory type
	size   int64
	holes  []hole // free ranges in order, none adjacent to another
	shared bool
}

type hole struct{ offset, size int64 }

// place is the memory of a buffer.
type place struct {
	block        *block
	offset, size int64
}

const bufferUsage = vk.BufferUsageStorageBufferBit | vk.BufferUsageTransferSrcBit | vk.BufferUsageTransferDstBit

// newBuffer makes a buffer without memory, and returns the memory that it requires.
func (h *heap) newBuffer(size int64, usage vk.BufferUsageFlagBits) (vk.Buffer, vk.MemoryRequirements, error) {
	info := vk.BufferCreateInfo{SType: vk.StructureTypeBufferCreateInfo, Size: vk.DeviceSize(size), Usage: vk.BufferUsageFlags(usage),
		SharingMode: vk.SharingModeExclusive}
	defer info.Free()
	var b vk.Buffer
	var need vk.MemoryRequirements
	if err := failure(vk.CreateBuffer(h.d.gpu, &info, nil, &b)); err != nil {
		return b, need, err
	}
	vk.GetBufferMemoryRequirements(h.d.gpu, b, &need)
	defer need.Free()
	need.Deref()
	return b, need, nil
}

// buffer makes a buffer in the GPU's own memory.
func (h *heap) buffer(size int64) (vk.Buffer, place, error) {
	b, need, err := h.newBuffer(size, bufferUsage)
	if err != nil {
		return b, place{}, err
	}
	p, err := h.place(need)
	if err == nil {
		if err = failure(vk.BindBufferMemory(h.d.gpu, b, p.block.memory, vk.DeviceSize(p.offset))); err != nil {
			h.give(p)
		}
	}
	if err != nil {
		vk.DestroyBuffer(h.d.gpu, b, nil)
	}
	return b, p, err
}

// choose returns the first permitted memory type with those flags, preferably one without the flags of avoid.
func (h *heap) choose(permitted uint32, flags, avoid vk.MemoryPropertyFlagBits) (uint32, bool) {
	for _, shun := range []vk.MemoryPropertyFlagBits{avoid, 0} {
		for i, t := range h.types {
			if permitted>>i&1 == 1 && t.flags&flags == flags && t.flags&shun == 0 {
				return uint32(i), true
			}
		}
	}
	return 0, false
}

func (h *heap) place(need vk.MemoryRequirements) (place, error) {
	kind, ok := h.choose(need.MemoryTypeBits, vk.MemoryPropertyDeviceLocalBit, 0)
	if !ok {
		if kind, ok = h.choose(need.MemoryTypeBits, 0, 0); !ok {
			return place{}, fmt.Errorf("%w: no memory that storage buffers can lie in", device.ErrOutOfMemory)
		}
	}
	size, align := int64(need.Size), int64(need.Alignment)
	if size < alone {
		for _, b := range h.blocks {
			if p, ok := b.take(kind, size, align); ok {
				return p, nil
			}
		}
		if b, err := h.block(kind, blockSize); err == nil {
			b.shared, b.holes = true, []hole{{0, blockSize}}
			p, _ := b.take(kind, size, align)
			return p, nil
		}
	}
	b, err := h.block(kind, size)
	return place{b, 0, size}, err
}

// block allocates memory from the driver. If there is none, it waits for the GPU to be done with released buffers and
// tries again.
func (h *heap) block(kind uint32, size int64) (*block, error) {
	memory, err := h.allocate(kind, size)
	if err != nil && len(h.d.queue.garbage) > 0 {
		if err := h.d.queue.submit(); err != nil {
			return nil, err
		}
		if err := h.d.queue.until(h.d.queue.submitted); err != nil {
			return nil, err
		}
		memory, err = h.allocate(kind, size)
	}
	if err != nil {
		return nil, err
	}
	b := &block{memory: memory, kind: kind, size: size}
	h.blocks = append(h.blocks, b)
	return b, nil
}

func (h *heap) allocate(kind uint32, size int64) (vk.DeviceMemory, error) {
	info := vk.MemoryAllocateInfo{SType: vk.StructureTypeMemoryAllocateInfo, AllocationSize: vk.DeviceSize(size), MemoryTypeIndex: kind}
	defer info.Free()
	var memory vk.DeviceMemory
	err := failure(vk.AllocateMemory(h.d.gpu, &info, nil, &memory))
	return memory, err
}

// take reserves memory in the first hole that is large enough.
func (b *block) take(kind uint32, size, align int64) (place, bool) {
	if !b.shared || b.kind != kind {
		return place{}, false
	}
	for i, o := range b.holes {
		at := (o.offset + align - 1) / align * align
		end := o.offset + o.size
		if at+size > end {
			continue
		}
		var left []hole
		if at > o.offset {
			left = append(left, hole{o.offset, at - o.offset})
		}
		if at+size < end {
			left = append(left, hole{at + size, end - at - size})
		}
		b.holes = slices.Replace(b.holes, i, i+1, left...)
		return place{b, at, size}, true
	}
	return place{}, false
}

// put returns a place to the holes.
func (b *block) put(p place) {
	i, _ := slices.BinarySearchFunc(b.holes, p.offset, func(o hole, at int64) int { return int(min(max(o.offset-at, -1), 1)) })
	b.holes = slices.Insert(b.holes, i, hole{p.offset, p.size})
	if i+1 < len(b.holes) && p.offset+p.size == b.holes[i+1].offset {
		b.holes[i].size += b.holes[i+1].size
		b.holes = slices.Delete(b.holes, i+1, i+2)
	}
	if i > 0 && b.holes[i-1].offset+b.holes[i-1].size == b.holes[i].offset {
		b.holes[i-1].size += b.holes[i].size
		b.holes = slices.Delete(b.holes, i, i+1)
	}
}

func (b *block) empty() bool { return !b.shared || len(b.holes) == 1 && b.holes[0].size == b.size }

// give frees a place. An empty block goes back to the driver, except for one spare shared block.
func (h *heap) give(p place) {
	b := p.block
	if b.shared {
		b.put(p)
	}
	spare := func(o *block) bool { return o != b && o.shared && o.kind == b.kind && o.empty() }
	if !b.empty() || b.shared && !slices.ContainsFunc(h.blocks, spare) {
		return
	}
	h.blocks = slices.DeleteFunc(h.blocks, func(o *block) bool { return o == b })
	vk.FreeMemory(h.d.gpu, b.memory, nil)
}

func (h *heap) free() {
	for _, b := range h.blocks {
		vk.FreeMemory(h.d.gpu, b.memory, nil)
	}
	h.blocks = nil
}

// mapped makes a staging buffer that the host can access. cached: the host will read it.
func (h *heap) mapped(size int64, cached bool) (b vk.Buffer, memory vk.DeviceMemory, data []byte, err error) {
	b, need, err := h.newBuffer(size, vk.BufferUsageTransferSrcBit|vk.BufferUsageTransferDstBit)
	if err != nil {
		return b, memory, nil, err
	}
	want, avoid := vk.MemoryPropertyHostVisibleBit|vk.MemoryPropertyHostCoherentBit, vk.MemoryPropertyDeviceLocalBit
	kind, ok := uint32(0), false
	if cached {
		kind, ok = h.choose(need.MemoryTypeBits, want|vk.MemoryPropertyHostCachedBit, avoid)
	}
	if !ok {
		kind, _ = h.choose(need.MemoryTypeBits, want, avoid) // Vulkan promises one
	}
	if memory, err = h.allocate(kind, int64(need.Size)); err != nil {
		vk.DestroyBuffer(h.d.gpu, b, nil)
		return b, memory, nil, err
	}
	err = failure(vk.BindBufferMemory(h.d.gpu, b, memory, 0))
	var at unsafe.Pointer
	if err == nil {
		err = failure(vk.MapMemory(h.d.gpu, memory, 0, vk.DeviceSize(size), 0, &at))
	}
	if err != nil {
		vk.DestroyBuffer(h.d.gpu, b, nil)
		vk.FreeMemory(h.d.gpu, memory, nil)
		return b, memory, nil, err
	}
	return b, memory, unsafe.Slice((*byte)(at), size), nil
}
