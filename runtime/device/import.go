package device

import "fmt"

// Importer is implemented by devices that can access memory of the host. Memory that two devices have imported carries
// data from one to the other without a copy by the host.
type Importer interface {
	// ImportAlignment returns the alignment in bytes of the address and the size of imported memory; 0 if the device
	// cannot import after all.
	ImportAlignment() int64
	// Import makes a buffer of memory outside Go's heap, such as host.Map returns, and keeps its contents. The buffer
	// does not count against the device's budget, nor in Allocated. freed is called once, by any goroutine, when the
	// device no longer accesses the memory: after the buffer's Release or the device's Close. It is not called if the
	// device is lost, because the device may still access the memory then, nor if Import fails. It must not call the
	// device.
	Import(label string, memory []byte, freed func()) (Buffer, error)
	// Transfer enqueues a copy between ranges of equal size, like a Copy in a program. After Wait has returned, without
	// bytes, the source may change and the target can be read, by the host or by another device. Devices that share
	// memory are not ordered otherwise.
	Transfer(from, to Range) (Pending, error)
}

// ErrNoImport is returned by Import on a device that cannot import.
var ErrNoImport = fmt.Errorf("the device cannot import memory of the host")

// AsImporter returns a device as an Importer, and reports whether it can import.
func AsImporter(d Device) (Importer, bool) {
	im, ok := d.(Importer)
	return im, ok && im.ImportAlignment() > 0
}

// Share reports whether data can pass between two devices in memory of the host that both import, instead of through
// staging buffers of each. alignment is the alignment in bytes of the address and the size of such memory.
func Share(a, b Device) (alignment int64, share bool) {
	x, xImports := AsImporter(a)
	y, yImports := AsImporter(b)
	if !xImports || !yImports {
		return 0, false
	}
	return max(x.ImportAlignment(), y.ImportAlignment()), true
}
