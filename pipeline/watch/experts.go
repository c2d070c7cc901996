package watch

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
)

const (
	// maxLayers and maxExperts bound the loads of experts.jsonl that are shown.
	maxLayers  = 256
	maxExperts = 1024
)

// experts holds the newest loads of a run's experts, from the last line of experts.jsonl.
type experts struct {
	line  []byte // that is not read yet; nil: there is none
	loads *loads // nil: the run has no experts
}

// loads are the loads of the experts of all layers at a step.
type loads struct {
	Step   int     `json:"step"`
	Layers []layer `json:"layers"` // ascending
}

// layer is a mixture of experts.
type layer struct {
	Layer int       `json:"layer"`
	Loads []float64 `json:"loads"` // of each expert, over the mean load of the layer
}

// take keeps a line for read, in place of the line before.
func (e *experts) take(line []byte) { e.line = append(e.line[:0], line...) }

// read reads the newest line, and reports whether there was one.
func (e *experts) read() (bool, error) {
	if len(e.line) == 0 {
		return false, nil
	}
	l, err := parseLoads(e.line)
	e.line = e.line[:0]
	if err != nil {
		return false, err
	}
	e.loads = l
	return true, nil
}

var loadsName = regexp.MustCompile(`^layers\.([0-9]{1,4})/loads$`)

// parseLoads reads a line of experts.jsonl.
func parseLoads(line []byte) (*loads, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(line, &members); err != nil {
		return nil, err
	}
	l := &loads{Layers: []layer{}}
	if err := json.Unmarshal(members["step"], &l.Step); err != nil {
		return nil, fmt.Errorf("step: %w", err)
	}
	for name, text := range members {
		match := loadsName.FindStringSubmatch(name)
		if match == nil {
			continue
		}
		number, err := strconv.Atoi(match[1])
		if err != nil {
			return nil, err
		}
		var rows []float64
		if err := json.Unmarshal(text, &rows); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		l.Layers = append(l.Layers, layer{number, overMean(rows)})
	}
	slices.SortFunc(l.Layers, func(a, b layer) int { return cmp.Compare(a.Layer, b.Layer) })
	l.Layers = l.Layers[:min(len(l.Layers), maxLayers)]
	return l, nil
}

// overMean divides loads by their mean, with three decimals. It omits experts after maxExperts.
func overMean(rows []float64) []float64 {
	sum := 0.0
	for _, x := range rows {
		sum += max(0, x)
	}
	out := make([]float64, 0, min(len(rows), maxExperts))
	for _, x := range rows[:cap(out)] {
		share := 0.0
		if sum > 0 {
			share = max(0, x) / sum * float64(len(rows))
		}
		out = append(out, math.Round(1000*share)/1000)
	}
	return out
}
