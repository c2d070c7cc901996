package faulty

import "github.com/gpupipe/gpupipe/runtime/device"

// ImportAlignment returns the alignment of the wrapped device, 0 if it imports nothing.
func (d *Device) ImportAlignment() int64 {
	if im, ok := device.AsImporter(d.Device); ok {
		return im.ImportAlignment()
	}
	return 0
}

func label(b device.Buffer) string {
	if b == nil {
		return ""
	}
	return b.Label()
}

func (d *Device) Import(label string, memory []byte, freed func()) (device.Buffer, error) {
	im, ok := device.AsImporter(d.Device)
	if !ok {
		return nil, d.error(Import, label, device.ErrNoImport)
	}
	if err := d.fail(Import, label); err != nil {
		return nil, err
	}
	return im.Import(label, memory, freed)
}

func (d *Device) Transfer(from, to device.Range) (device.Pending, error) {
	label := label(from.Buffer) + " to " + label(to.Buffer)
	im, ok := device.AsImporter(d.Device)
	if !ok {
		return nil, d.error(Transfer, label, device.ErrNoImport)
	}
	if err := d.fail(Transfer, label); err != nil {
		return nil, err
	}
	p, err := im.Transfer(from, to)
	if err != nil {
		return nil, err
	}
	return pending{p, d, label}, nil
}
