package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/unitname"
	"go.yaml.in/yaml/v3"
)

// CutPoint is a place where a model is cut: before the unit of a name, before the layer of a name, or before the layer
// of a number. The embedding and the head count as layers: 0 is the embedding.
type CutPoint string

// DecodeYAML accepts a number of at least 0 and a name.
func (p *CutPoint) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	var number int
	switch {
	case n.ShortTag() == "!!str" && n.Value != "":
		*p = CutPoint(n.Value)
	case n.ShortTag() == "!!int" && n.Decode(&number) == nil && number >= 0:
		*p = CutPoint(strconv.Itoa(number))
	default:
		return d.Errorf(n, key, "found %s, expected a name, as layers.0.mlp, or the number of a layer", strictyaml.Describe(n))
	}
	return nil
}

// MarshalYAML writes a number as such.
func (p CutPoint) MarshalYAML() (any, error) { return numberOrText(string(p)), nil }

// UnmarshalJSON reads a name or a number, as checkpoints from before units had names have it.
func (p *CutPoint) UnmarshalJSON(text []byte) error {
	var number int
	if json.Unmarshal(text, &number) == nil {
		*p = CutPoint(strconv.Itoa(number))
		return nil
	}
	var name string
	err := json.Unmarshal(text, &name)
	*p = CutPoint(name)
	return err
}

// CutPoints names the places before units of a model.
func CutPoints(m model.Model, units []int) (points []CutPoint) {
	for _, name := range unitname.Points(model.UnitNames(m), units) {
		points = append(points, CutPoint(name))
	}
	return points
}

// CutUnits returns the first unit of each chunk of a model after the first; none if the cut is left to the planner.
func (p Pipeline) CutUnits(m model.Model) (cut []int, err error) {
	names := model.UnitNames(m)
	for _, point := range p.Cut {
		u, ok := unitname.Find(names, string(point))
		if layer, err := strconv.Atoi(string(point)); err == nil {
			u, ok = unitname.First(names, layer)
		}
		if before := slices.Max(append(cut, 0)); !ok || u <= before {
			return nil, Invalid("pipeline.cut", listed(p.Cut), "%s", expectedCut(names))
		}
		cut = append(cut, u)
	}
	return cut, nil
}

// expectedCut describes the cuts of a model with units.
func expectedCut(units []unitname.Unit) string {
	last := unitname.Layers(units) - 1
	text := fmt.Sprintf("ascending numbers from 1 to %d (0 is %s, %d %s), or names of units", last, units[0].Name, last,
		units[len(units)-1].Name)
	for i, u := range units {
		if !unitname.Begins(units, i) {
			return text + ", as " + u.Name + " for the second half of " + u.Layer
		}
	}
	return text
}
