package model

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
)

// Naming is how files name and cut parameters. Checkpoints have the zero value: one tensor for each parameter, with its
// name.
type Naming struct {
	names   []hfName
	headDim int
	fused   bool
	gguf    *ggufArch // of a GGUF file
	tied    bool      // gguf: the head is the embedding
}

// hfName is how a class names the tensors of parameters whose names contain own.
type hfName struct {
	own    string
	theirs string // in place of own; with %d, one tensor for each expert; "": the same
	halves bool   // the halves of each head's rows change places: the class rotates the other way around
}

// Tensor is a tensor of a file with elements of a parameter.
type Tensor struct {
	Name   string
	Shape  graph.Shape
	Pieces []Piece
}

// Piece is a range of elements: [From, From+Len) of a tensor is [To, To+Len) of a parameter.
type Piece struct{ From, To, Len int }

// Namings lists how files may name and cut the parameters: as checkpoints do, as files of the class of Transformers do,
// which exports follow, and with the fused experts that its version 5 has in memory.
func (c Config) Namings() []Naming {
	list := []Naming{{}}
	class, err := hfClassOf(c)
	if err == nil && len(class.names) > 0 {
		list = append(list, Naming{names: class.names, headDim: c.HeadDim()})
	}
	if c.MoE.Experts > 0 {
		list = append(list, Naming{fused: true})
	}
	return list
}

// ExportNaming is the naming in exports: the names of the model's class. If the class has no other names, or there is
// no class, they are the names in checkpoints.
func ExportNaming(m Model) Naming {
	if list := m.Namings(); len(list) > 1 && !list[1].fused {
		return list[1]
	}
	return Naming{}
}

// Tensors lists the tensors with the elements of a parameter.
func (n Naming) Tensors(p Parameter) []Tensor {
	if n.fused {
		return []Tensor{fusedTensor(p)}
	}
	if n.gguf != nil {
		return n.ggufTensors(p)
	}
	for _, rule := range n.names {
		before, after, ok := strings.Cut(p.Name, rule.own)
		switch {
		case !ok:
			continue
		case rule.halves:
			return []Tensor{{p.Name, p.Type.Shape, swappedHalves(p.Type.Shape, n.headDim)}}
		case strings.Contains(rule.theirs, "%d"):
			return expertTensors(p, before+rule.theirs+after)
		}
		return []Tensor{whole(before+rule.theirs+after, p.Type.Shape)}
	}
	return []Tensor{whole(p.Name, p.Type.Shape)}
}

func whole(name string, s graph.Shape) Tensor { return Tensor{name, s, []Piece{{0, 0, s.Len()}}} }

// expertTensors are the matrices of a parameter [experts, out, in]. name has the place of an expert's number.
func expertTensors(p Parameter, name string) (ts []Tensor) {
	matrix := p.Type.Shape[1:]
	for e := range p.Type.Shape[0] {
		ts = append(ts, Tensor{fmt.Sprintf(name, e), matrix, []Piece{{0, e * matrix.Len(), matrix.Len()}}})
	}
	return ts
}

// fusedTensor is the tensor of a parameter where experts' gates and ups are one tensor [experts, 2·width, d_model].
func fusedTensor(p Parameter) Tensor {
	before, kind, ok := strings.Cut(p.Name, "mlp.experts.")
	if kind = strings.TrimSuffix(kind, ".weight"); !ok {
		return whole(p.Name, p.Type.Shape)
	}
	name := before + "mlp.experts."
	if kind == "down_proj" {
		return whole(name+kind, p.Type.Shape)
	}
	s := p.Type.Shape
	t := Tensor{Name: name + "gate_up_proj", Shape: graph.Shape{s[0], 2 * s[1], s[2]}}
	matrix := s[1] * s[2]
	for e := range s[0] {
		from := 2 * e * matrix
		if kind == "up_proj" {
			from += matrix
		}
		t.Pieces = append(t.Pieces, Piece{from, e * matrix, matrix})
	}
	return t
}

// swappedHalves exchanges the halves of each head's rows in a matrix [heads·headDim, in].
func swappedHalves(s graph.Shape, headDim int) (ps []Piece) {
	half := headDim / 2 * s[1]
	for at := 0; at < s.Len(); at += 2 * half {
		ps = append(ps, Piece{at, at + half, half}, Piece{at + half, at, half})
	}
	return ps
}
