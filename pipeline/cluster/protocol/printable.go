package protocol

import (
	"strings"
	"unicode"
)

// Printable replaces the characters of a member's text that could command a terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '�'
	}, text)
}

// Printable makes the texts of a description printable.
func (i Info) Printable() Info {
	i.Host, i.System = Printable(i.Host), Printable(i.System)
	devices := make([]Device, len(i.Devices))
	for n, d := range i.Devices {
		d.Name, d.Info.Name, d.Info.Adapter = Printable(d.Name), Printable(d.Info.Name), Printable(d.Info.Adapter)
		devices[n] = d
	}
	i.Devices = devices
	return i
}
