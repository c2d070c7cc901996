package device

import "fmt"

// Importer is what devices that reach the host's own memory also implement: memory that two devices have imported takes data from the one
// to the other without a copy by the host.
type Importer interface {
	// ImportAlignment is what the address and the size of memory must be multiples of, in bytes; 0: the device cannot import after all.
	ImportAlignment() int64
	// Import makes a buffer of memory outside of Go's heap (host.Map makes such), with what it holds. It does not count against the device's
	// budget, nor to what Allocated tells. freed is called once, by any goroutine, when the device does not touch the memory any more: after
	// the buffer's Release or the device's Close; never once the device is lost, since nobody knows then what it still does. It must not
	// call the device. Where Import fails it is not called.
	Import(label string, memory []byte, freed func()) (Buffer, error)
	// Transfer enqueues a copy between ranges of equal size, as a Copy in a program is. Once Wait returns, without bytes, the source may
	// change and the target can be read, by the host or by another device. Between them nothing orders who uses memory that they share.
	Transfer(from, to Range) (Pending, error)
}

// ErrNoImport is Import's where a device cannot.
var ErrNoImport = fmt.Errorf("the device cannot import memory of the host")

// AsImporter returns a device as an Importer, and whether it can import.
func AsImporter(d Device) (Importer, bool) {
	im, ok := d.(Importer)
	return im, ok && im.ImportAlignment() > 0
}

// Share tells whether data pass between two devices in memory of the host that both import, rather than through the memory of each, and
// what the address and the size of such memory must be multiples of, in bytes.
func Share(a, b Device) (alignment int64, share bool) {
	x, xImports := AsImporter(a)
	y, yImports := AsImporter(b)
	if !xImports || !yImports {
		return 0, false
	}
	return max(x.ImportAlignment(), y.ImportAlignment()), true
}
