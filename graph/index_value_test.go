package graph

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// value evaluates an index of variables by its definition.
func (x Index) value(variables map[string]int) int {
	sum := x.konst
	for _, t := range x.terms {
		v, a := 0, t.atom
		switch {
		case a.div == nil:
			v = variables[a.key]
		case a.mod:
			v = a.div.value(variables) % a.n
		default:
			v = a.div.value(variables) / a.n
		}
		sum += t.coef * v
	}
	return sum
}

// Simplification keeps the value, below its bound.
func TestIndicesKeepTheirValue(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		x, y := Var("x", 1+r.IntN(40), 1), Var("y", 1+r.IntN(40), 1)
		at := map[string]int{"x": r.IntN(x.bound), "y": r.IntN(y.bound)}
		i, want := x, at["x"]
		for range 6 {
			n := 1 + r.IntN(4)*(1+r.IntN(16))
			switch r.IntN(4) {
			case 0:
				i, want = i.Times(n), want*n
			case 1:
				i, want = i.Over(n), want/n
			case 2:
				i, want = i.Mod(n), want%n
			default:
				i, want = i.Plus(y.Times(n)).Plus(Const(n)), want+at["y"]*n+n
			}
			require.Equal(t, want, i.value(at), i.String())
			require.Less(t, want, i.bound, i.String())
		}
	}
}

func TestRemaindersOfBlocks(t *testing.T) {
	i := Var("row", 100, 1).Times(16).Plus(Var("col", 16, 2))
	assert.Equal(t, "((row)%2u)*16u + col", i.Mod(32).String())
	assert.Equal(t, "(row)/2u", i.Over(32).String())
	assert.Equal(t, "((row + 1u)%2u)*16u + col", i.Plus(Const(16)).Mod(32).String())
}
