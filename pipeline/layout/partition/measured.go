package partition

import (
	"fmt"
	"slices"
)

// Measured is what was measured for a Problem, as a file keeps it. The keys of the file are the names in the tags.
type Measured struct {
	Units    []Unit   `json:"units"`
	Given    int64    `json:"given"` // Problem.Given
	Modelled bool     `json:"modelled"`
	Devices  []Device `json:"devices"` // by rank
	Times    [][]Time `json:"times"`   // by rank and unit
	Network  *Network `json:"network"` // nil: all devices are in one machine
}

// Measured returns what was measured for the problem.
func (p Problem) Measured(modelled bool) Measured {
	m := Measured{Units: p.Units, Given: p.Given, Modelled: modelled, Devices: p.Devices, Network: p.Network}
	for _, d := range p.Devices {
		m.Times = append(m.Times, d.Times)
	}
	return m
}

// Check checks the content of a file.
func (m Measured) Check() error {
	n := len(m.Devices)
	if n == 0 || len(m.Units) == 0 || len(m.Times) != n {
		return fmt.Errorf("found %d devices, %d units and times of %d devices, expected as many times as devices", n, len(m.Units),
			len(m.Times))
	}
	for i, times := range m.Times {
		if len(times) != len(m.Units) {
			return fmt.Errorf("%s: found times of %d units, expected %d", m.Devices[i].Name, len(times), len(m.Units))
		}
	}
	if w := m.Network; w != nil && (len(w.Machines) != n || len(w.Links) != n ||
		slices.ContainsFunc(w.Links, func(links []Link) bool { return len(links) != n })) {
		return fmt.Errorf("found machines of %d devices and links of %d, expected %d", len(w.Machines), len(w.Links), n)
	}
	return nil
}

// Apply gives a problem of the same model the measured devices, the first as many as it has. With microbatches of
// another size, times of forward and backward passes are in proportion.
func (m Measured) Apply(p *Problem) error {
	if err := m.Check(); err != nil {
		return err
	}
	if len(p.Devices) > len(m.Devices) {
		return fmt.Errorf("found %d devices, expected %d, one for each rank", len(m.Devices), len(p.Devices))
	}
	same := func(a, b Unit) bool { return a.Name == b.Name && a.Parameters == b.Parameters }
	if !slices.EqualFunc(m.Units, p.Units, same) {
		return fmt.Errorf("found measurements of another model, with %d units and %d bytes of weights, expected %d units and %d bytes",
			len(m.Units), weightsOf(m.Units), len(p.Units), weightsOf(p.Units))
	}
	size := 1.0
	if m.Units[0].Out > 0 {
		size = float64(p.Units[0].Out) / float64(m.Units[0].Out)
	}
	n := len(p.Devices)
	p.Devices = slices.Clone(m.Devices[:n])
	for i := range p.Devices {
		for _, t := range m.Times[i] {
			p.Devices[i].Times = append(p.Devices[i].Times, Time{t.Forward * size, t.Backward * size, t.InputGrad * size,
				t.WeightGrad * size, t.Update})
		}
	}
	if m.Network != nil {
		p.Network = m.Network.First(n)
	}
	return nil
}

func weightsOf(units []Unit) (bytes int64) {
	for _, u := range units {
		bytes += u.Parameters
	}
	return bytes
}

// First is the network of the first n devices.
func (w *Network) First(n int) *Network {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return w.Reordered(order)
}

// Of is the problem of one machine alone.
func (p Problem) Of(machine int) Problem {
	var own []Device
	for i, d := range p.Devices {
		if p.Network.Machines[i] == machine {
			own = append(own, d)
		}
	}
	p.Devices, p.Network = own, nil
	return p
}
