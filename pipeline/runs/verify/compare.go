package verify

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

// Difference is where two runs part.
type Difference struct {
	Batch   int    `json:"batch,omitempty"`  // the first, from 1, whose loss or norm differs; 0: none
	Tensor  string `json:"tensor,omitempty"` // the first of the checkpoint that differs; "": none
	Element []int  `json:"element,omitempty"`
	Want    string `json:"want"`
	Got     string `json:"got"`
	Count   int    `json:"count,omitempty"` // elements of the tensor that differ
	Of      int    `json:"of,omitempty"`
	Tensors int    `json:"tensors,omitempty"` // that differ
}

func (d Difference) String() string {
	var s string
	if d.Batch > 0 {
		s = fmt.Sprintf("from batch %d on; ", d.Batch)
	}
	if d.Tensor == "" {
		return s + fmt.Sprintf("found %s, expected %s", d.Got, d.Want)
	}
	return s + fmt.Sprintf("%s%v: found %s, expected %s; %d of its %d elements differ, and %d tensors", d.Tensor, d.Element, d.Got,
		d.Want, d.Count, d.Of, d.Tensors)
}

// difference finds where two runs part; nil: nowhere.
func difference(want, got *outcome) *Difference {
	d := &Difference{}
	d.Batch, d.Want, d.Got = firstBatch(want.records, got.records)
	for i, w := range want.tensors {
		if i >= len(got.tensors) || got.tensors[i].Name != w.Name || !slices.Equal(got.tensors[i].Shape, w.Shape) {
			return &Difference{Tensor: w.Name, Want: fmt.Sprint(w.Shape), Got: "another tensor", Tensors: 1}
		}
		at, count := elements(w.data, got.tensors[i].data)
		if count == 0 {
			continue
		}
		if d.Tensors++; d.Tensors == 1 {
			d.Tensor, d.Element, d.Count, d.Of = w.Name, coordinates(at, w.Shape), count, len(w.data)/4
			d.Want, d.Got = number(w, at), number(got.tensors[i], at)
		}
	}
	if len(got.tensors) > len(want.tensors) {
		return &Difference{Tensor: got.tensors[len(want.tensors)].Name, Want: "no such tensor", Got: "one", Tensors: 1}
	}
	if d.Batch == 0 && d.Tensor == "" {
		return nil
	}
	return d
}

// measured are the logged values that do not depend on the clock.
func measured() []string { return []string{"loss", "grad_norm", "loss_scale", "skipped"} }

// firstBatch is the number of the first batch, from 1, that was measured otherwise.
func firstBatch(want, got []metrics.Record) (batch int, w, g string) {
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) {
			return i + 1, fmt.Sprint(len(want), " batches"), fmt.Sprint(len(got), " batches")
		}
		for _, name := range measured() {
			if x, y := want[i].Values[name], got[i].Values[name]; math.Float64bits(x) != math.Float64bits(y) {
				return i + 1, fmt.Sprint(name, " ", x), fmt.Sprint(name, " ", y)
			}
		}
	}
	return 0, "", ""
}

// elements counts the elements of 4 bytes that differ, and returns the index of the first.
func elements(want, got []byte) (first, count int) {
	for i := 0; i < len(want); i += 4 {
		if binary.LittleEndian.Uint32(want[i:]) != binary.LittleEndian.Uint32(got[i:]) {
			if count++; count == 1 {
				first = i / 4
			}
		}
	}
	return first, count
}

func coordinates(at int, shape []int) []int {
	c := make([]int, len(shape))
	for i, n := range slices.Backward(shape) {
		c[i], at = at%n, at/n
	}
	return c
}

func number(t tensor, at int) string {
	bits := binary.LittleEndian.Uint32(t.data[4*at:])
	if t.DType == safetensors.F32 {
		return fmt.Sprint(math.Float32frombits(bits))
	}
	return fmt.Sprint(bits)
}

// rounding is the relative difference of two losses that other roundings of the same mathematics may make in a run.
// An error makes a difference many times as large: one delayed batch makes some percent.
const rounding = 1e-3

// farthest is the largest relative difference of two runs' losses.
func farthest(want, got *outcome) float64 {
	if len(want.records) != len(got.records) {
		return math.Inf(1)
	}
	most := 0.0
	for i := range want.records {
		x, y := want.records[i].Values["loss"], got.records[i].Values["loss"]
		d := math.Abs(x-y) / math.Abs(x)
		if !(d <= most) { // NaN too
			most = d
		}
	}
	return most
}
