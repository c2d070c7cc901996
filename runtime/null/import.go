package null

import "github.com/gpupipe/gpupipe/runtime/device"

// ImportAlignment returns Options.ImportAlignment.
func (d *Device) ImportAlignment() int64 { return d.alignment }

// Import makes a buffer of memory. A transfer into it writes zeros; a transfer out of it moves nothing.
func (d *Device) Import(label string, memory []byte, freed func()) (device.Buffer, error) {
	b := &buffer{Buffer: d.owner.NewBuffer(label, int64(len(memory))), d: d, memory: memory, freed: freed}
	return d.owner.Import(d.do, b, memory, d.alignment, func() error { return nil })
}

// free gives imported memory back, unless the device is lost. The device's lock is held.
func (b *buffer) free() {
	if b.Imported() && b.d.owner.Lost() == nil {
		b.freed()
	}
}

// Transfer counts.
func (d *Device) Transfer(from, to device.Range) (device.Pending, error) {
	p := &pending{d: d, op: "transfer"}
	return d.owner.Transfer(d.do, from, to, p, func() error {
		if memory := to.Buffer.(*buffer).memory; memory != nil {
			clear(memory[to.Offset : to.Offset+to.Size])
		}
		d.counts.Transfers++
		d.counts.BytesTransferred += from.Size
		p.at = d.idle
		return nil
	})
}
