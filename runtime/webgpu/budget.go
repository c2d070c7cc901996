package webgpu

// Budget is the memory that the device may take in bytes, 0 where it is not known.
func (d *Device) Budget() int64 { return d.budget }
