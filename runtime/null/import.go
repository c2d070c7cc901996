package null

import "github.com/gpupipe/gpupipe/runtime/device"

// ImportAlignment is as Options have it.
func (d *Device) ImportAlignment() int64 { return d.align }

// Import makes a buffer of memory. Transfers there bring zeros, those from there bring nothing.
func (d *Device) Import(label string, memory []byte, freed func()) (device.Buffer, error) {
	if err := d.enter("import", label); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	if err := d.checker().Import(label, memory, d.align); err != nil {
		return nil, err
	}
	b := &buffer{d: d, label: label, size: int64(len(memory)), memory: memory, freed: freed}
	d.imported[b] = struct{}{}
	return b, nil
}

// free gives imported memory back, under d.mu.
func (d *Device) free(b *buffer) {
	if _, held := d.imported[b]; held && d.left != 0 {
		delete(d.imported, b)
		b.freed()
	}
}

// Transfer counts.
func (d *Device) Transfer(from, to device.Range) (device.Pending, error) {
	if err := d.enter("transfer", ""); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	if err := d.checker().Copy(from, to); err != nil {
		return nil, err
	}
	if memory := to.Buffer.(*buffer).memory; memory != nil {
		clear(memory[to.Offset : to.Offset+to.Size])
	}
	d.counts.Transfers++
	d.counts.BytesTransferred += from.Size
	return pending{d, "transfer", nil, d.idle}, nil
}
