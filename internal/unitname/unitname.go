// Package unitname names the places where a model is cut, and the pieces between them.
//
// A unit is the smallest piece of a model that a cut respects. The units of a layer follow one another: "layers.2" has
// "layers.2.self_attn" and "layers.2.mlp". A whole layer has the layer's name.
package unitname

import (
	"cmp"
	"strconv"
)

// Unit is a unit of a model.
type Unit struct {
	Name  string
	Layer string // the layer that it is a part of; "": it is one itself
}

func (u Unit) layer() string { return cmp.Or(u.Layer, u.Name) }

// Begins reports whether a unit is the first of its layer.
func Begins(units []Unit, i int) bool { return i == 0 || units[i].layer() != units[i-1].layer() }

// ends reports whether a unit is the last of its layer.
func ends(units []Unit, i int) bool {
	return i == len(units)-1 || units[i].layer() != units[i+1].layer()
}

// Point names the place before a unit: by its layer if the unit is the first of it. A layer whose name is a number is
// named by the number of layers before it, since that is what a number means.
func Point(units []Unit, i int) string {
	if !Begins(units, i) {
		return units[i].Name
	}
	if _, err := strconv.Atoi(units[i].layer()); err == nil {
		return strconv.Itoa(Layers(units[:i]))
	}
	return units[i].layer()
}

// Points names the places before units.
func Points(units []Unit, at []int) []string {
	names := make([]string, len(at))
	for i, u := range at {
		names[i] = Point(units, u)
	}
	return names
}

// Range names the units [first, last), as in "layers.1.mlp to layers.4".
func Range(units []Unit, first, last int) string {
	from, to := units[first].Name, units[last-1].Name
	for i := first; i < last; i++ {
		if Begins(units, first) && ends(units, i) {
			from = units[first].layer()
		}
		if Begins(units, i) && ends(units, last-1) {
			to = units[last-1].layer()
		}
	}
	if from == to {
		return from
	}
	return from + " to " + to
}

// Find returns the unit of a name, or the first unit of the layer of a name.
func Find(units []Unit, name string) (int, bool) {
	for i, u := range units {
		if u.Name == name || u.layer() == name {
			return i, true
		}
	}
	return 0, false
}

// First returns the first unit of a layer, counted from 0. The embedding and the head count as layers.
func First(units []Unit, layer int) (int, bool) {
	for i := range units {
		if Begins(units, i) {
			if layer == 0 {
				return i, true
			}
			layer--
		}
	}
	return 0, false
}

// Layers counts the layers.
func Layers(units []Unit) (n int) {
	for i := range units {
		if Begins(units, i) {
			n++
		}
	}
	return n
}
