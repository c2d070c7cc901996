package null

// Budget is the memory that the device may take in bytes, 0 without a bound.
func (d *Device) Budget() int64 { return d.budget }
