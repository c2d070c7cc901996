package protocol

import "github.com/gpupipe/gpupipe/internal/printable"

// Printable makes the texts of a description printable.
func (i Info) Printable() Info {
	i.Host, i.System = printable.Text(i.Host), printable.Text(i.System)
	devices := make([]Device, len(i.Devices))
	for n, d := range i.Devices {
		d.Name, d.Info.Name, d.Info.Adapter = printable.Text(d.Name), printable.Text(d.Info.Name), printable.Text(d.Info.Adapter)
		devices[n] = d
	}
	i.Devices = devices
	return i
}
