package graph_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os/exec"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sample uses sources, attributes of every kind, several results, scopes and assignments.
func sample(t *testing.T) *graph.Graph {
	t.Helper()
	g, err := graph.Build(func(b *graph.Builder) {
		x := b.Input("x", graph.T(graph.F32, 3, 4))
		ids := b.Input("ids", graph.T(graph.U32, 3))
		w := b.Variable("w", graph.T(graph.F32, 4, 5))
		odd := b.Constant("odd", graph.T(graph.F32, 6),
			[]float64{0.1, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), math.SmallestNonzeroFloat64})
		var loss *graph.Value
		b.Scope("layer", func() {
			h := op.RMSNorm(x, op.Full(b, graph.F32, 1, 4), 1e-6)
			y := op.MatMul(h, w, false, false)
			l, n := op.CrossEntropy(y, ids, op.CrossEntropyOptions{Ignore: -1, ZLoss: 1e-4})
			loss = op.Div(op.Sum(l, nil, false), op.Sum(n, nil, false))
		})
		d := autodiff.Gradients(loss, nil, w)[0]
		b.Output("loss", loss)
		b.Output("odd", op.Shift(op.Clamp(odd, math.Inf(-1), 3), 1e-300))
		b.Assign(w, op.Sub(w, op.Scale(d, 0.1)))
	})
	require.NoError(t, err)
	return g
}

func hash(t *testing.T, g *graph.Graph) string {
	t.Helper()
	h, err := graph.Hash(g)
	require.NoError(t, err)
	return h
}

// Equal graphs have equal hashes, and graphs that differ in anything have others.
func TestHash(t *testing.T) {
	h := hash(t, sample(t))
	assert.Len(t, h, 64)
	assert.Equal(t, h, hash(t, sample(t)))
	for what, change := range map[string]func(g *graph.Graph){
		"attribute":  func(g *graph.Graph) { g.Outputs[1].Value.Node.Op.(*op.ShiftOp).Offset = 1 },
		"constant":   func(g *graph.Graph) { g.Sources("constant")[0].Node.Op.(*graph.Constant).Data[0] = 0.2 },
		"scope":      func(g *graph.Graph) { g.Outputs[0].Value.Node.Scope = "other" },
		"output":     func(g *graph.Graph) { g.Outputs[0].Name = "other" },
		"assignment": func(g *graph.Graph) { g.Assigns[0].Value = g.Assigns[0].Variable },
	} {
		g := sample(t)
		change(g)
		assert.NotEqual(t, h, hash(t, g), what)
	}
}

func TestBuildsForWebAssembly(t *testing.T) {
	tier.Rest(t)
	for _, platform := range [][2]string{{"js", "wasm"}, {"wasip1", "wasm"}} {
		c := exec.Command("go", "build", "-trimpath", "./...")
		c.Env = append(c.Environ(), "GOOS="+platform[0], "GOARCH="+platform[1])
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%v: %s", platform, out)
	}
}

// The graph runs wherever Go does: none of its packages needs a C compiler. The only other module is gonum, the only
// package of the project the errors of fields.
func TestImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,CgoFiles", "./...").Output()
	require.NoError(t, err)
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			ImportPath string
			Standard   bool
			CgoFiles   []string
		}
		require.NoError(t, d.Decode(&p))
		if p.Standard {
			continue
		}
		assert.Empty(t, p.CgoFiles, p.ImportPath)
		assert.Regexp(t, `^(github\.com/gpupipe/gpupipe/(graph|internal/(fielderror|unitname))|gonum\.org/v1/gonum)(/|$)`, p.ImportPath)
	}
}
