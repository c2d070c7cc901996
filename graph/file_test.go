package graph_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sample uses sources, attributes of every kind, several results, scopes and assignments.
func sample(t testing.TB) *graph.Graph {
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

func encode(t testing.TB, g *graph.Graph) string {
	t.Helper()
	var w bytes.Buffer
	require.NoError(t, graph.Encode(&w, g))
	return w.String()
}

func TestFileRoundTrip(t *testing.T) {
	g := sample(t)
	text := encode(t, g)
	back, err := graph.Decode(strings.NewReader(text))
	require.NoError(t, err)
	assert.Equal(t, text, encode(t, back))
	require.Len(t, back.Nodes, len(g.Nodes))
	for i, n := range g.Nodes {
		assert.Equal(t, n.Scope, back.Nodes[i].Scope)
		for j, v := range n.Outputs {
			assert.True(t, v.Type.Equal(back.Nodes[i].Outputs[j].Type), "%v", v)
		}
	}
	want, got := g.Sources("constant")[0].Node.Op.(*graph.Constant).Data, back.Sources("constant")[0].Node.Op.(*graph.Constant).Data
	for i := range want {
		assert.Equal(t, math.Float64bits(want[i]), math.Float64bits(got[i]))
	}
	h1, err := graph.Hash(g)
	require.NoError(t, err)
	h2, err := graph.Hash(back)
	require.NoError(t, err)
	assert.Equal(t, h1, h2)
	assert.Len(t, h1, 64)

	other, err := graph.Build(func(b *graph.Builder) { b.Output("x", op.Scalar(b, graph.F32, 1)) })
	require.NoError(t, err)
	h3, err := graph.Hash(other)
	require.NoError(t, err)
	assert.NotEqual(t, h1, h3)
}

// The decoded graph computes the same bits.
func TestFileComputes(t *testing.T) {
	g := sample(t)
	back, err := graph.Decode(strings.NewReader(encode(t, g)))
	require.NoError(t, err)
	var results [2]map[string]*graph.Tensor
	var weights [2]*graph.Tensor
	for i, g := range []*graph.Graph{g, back} {
		c := graph.Case{Inputs: []graph.Type{graph.T(graph.F32, 3, 4), graph.T(graph.U32, 3), graph.T(graph.F32, 4, 5)}}.Values(1)
		variables := map[string]*graph.Tensor{"w": c[2]}
		results[i], err = eval.Run(g, map[string]*graph.Tensor{"x": c[0], "ids": c[1]}, variables)
		require.NoError(t, err)
		weights[i] = variables["w"]
		assert.NotEqual(t, c[2].Data, weights[i].Data)
	}
	assert.Equal(t, results[0]["loss"].Data, results[1]["loss"].Data)
	assert.Equal(t, weights[0].Data, weights[1].Data)
}

// Every case of every op survives the file.
func TestFileOfEveryOp(t *testing.T) {
	for _, o := range graph.Catalogue() {
		for i, c := range o.Cases() {
			g, err := graph.Build(func(b *graph.Builder) {
				in := make([]*graph.Value, len(c.Inputs))
				for j, typ := range c.Inputs {
					in[j] = b.Input(fmt.Sprint(j), typ)
				}
				b.Output("y", b.Apply(c.Op, in...)[0])
			})
			require.NoError(t, err)
			text := encode(t, g)
			back, err := graph.Decode(strings.NewReader(text))
			require.NoError(t, err, "%s, case %d", o.Name(), i)
			require.Equal(t, text, encode(t, back))
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	full := `{"op":"full","scope":"","attrs":{"type":{"dtype":"f32","shape":[2]},"value":1},"inputs":[]}`
	input := `{"op":"input","scope":"","attrs":{"name":"x","type":{"dtype":"f32","shape":[2]}},"inputs":[]}`
	file := func(nodes, outputs, assigns string) string {
		return `{"format":"gpupipe-graph","version":1,"nodes":[` + nodes + `],"outputs":[` + outputs + `],"assigns":[` + assigns + `]}`
	}
	node := func(op, attrs, inputs string) string {
		return file(full+`,{"op":"`+op+`","scope":"","attrs":`+attrs+`,"inputs":`+inputs+`}`, "", "")
	}
	valid := file(full, `{"name":"y","value":[0,0]}`, "")
	_, err := graph.Decode(strings.NewReader(valid))
	require.NoError(t, err)

	shape := func(s string) string {
		return file(`{"op":"full","scope":"","attrs":{"type":{"dtype":"f32","shape":`+s+`},"value":1},"inputs":[]}`, "", "")
	}
	for what, c := range map[string]struct{ text, says string }{
		"nothing":             {"", "EOF"},
		"not JSON":            {"hello", "invalid character"},
		"truncated":           {valid[:len(valid)-5], "EOF"},
		"more after it":       {valid + "{}", "after its end"},
		"another format":      {strings.Replace(valid, "gpupipe-graph", "onnx", 1), "format"},
		"another version":     {strings.Replace(valid, `"version":1`, `"version":2`, 1), "version 2"},
		"an unknown key":      {strings.Replace(valid, `"version":1`, `"version":1,"extra":2`, 1), "extra"},
		"an unknown op":       {node("frobnicate", "{}", "[[0,0]]"), "frobnicate"},
		"an unknown dtype":    {strings.Replace(valid, "f32", "f8", 1), `"f8"`},
		"a missing attribute": {node("scale", "{}", "[[0,0]]"), "factor"},
		"an extra attribute":  {node("neg", `{"x":1}`, "[[0,0]]"), "unknown field"},
		"null attributes":     {node("neg", `null`, "[[0,0]]"), "attributes"},
		"a null number":       {node("scale", `{"factor":null}`, "[[0,0]]"), "null"},
		"a later node":        {node("neg", "{}", "[[2,0]]"), "reference [2 0]"},
		"itself":              {node("neg", "{}", "[[1,0]]"), "reference [1 0]"},
		"a negative node":     {node("neg", "{}", "[[-1,0]]"), "reference"},
		"no such result":      {node("neg", "{}", "[[0,1]]"), "reference [0 1]"},
		"a short reference":   {node("neg", "{}", "[[0]]"), "reference [0]"},
		"a long reference":    {node("neg", "{}", "[[0,0,0]]"), "reference"},
		"too few inputs":      {node("add", "{}", "[[0,0]]"), "got 1 inputs, expected 2"},
		"too many inputs":     {node("add", "{}", "[[0,0],[0,0],[0,0]]"), "got 3 inputs, expected 2"},
		"a shape mismatch":    {node("reshape", `{"shape":[3]}`, "[[0,0]]"), "2 elements"},
		"an overflowing size": {node("reshape", `{"shape":[4294967296,4294967296,2]}`, "[[0,0]]"), "elements"},
		"an absurd size":      {shape("[100000,100000]"), "more than"},
		"a negative extent":   {shape("[-3]"), "at least 1"},
		"many dimensions":     {shape("[1,1,1,1,1,1,1,1,1]"), "at most 8"},
		"padding overflow": {node("pad", `{"axis":0,"low":9223372036854775807,"high":9223372036854775807,"value":0}`, "[[0,0]]"),
			"padding"},
		"a dangling output":  {file(full, `{"name":"y","value":[7,0]}`, ""), "reference [7 0]"},
		"two outputs a name": {file(full, `{"name":"y","value":[0,0]},{"name":"y","value":[0,0]}`, ""), "twice"},
		"two inputs a name":  {file(input+","+input, "", ""), "twice"}, "assigning no variable": {
			file(full, "", `{"variable":[0,0],"value":[0,0]}`), "not a variable"},
		"a short constant": {
			file(`{"op":"constant","scope":"","attrs":{"name":"c","type":{"dtype":"f32","shape":[2]},"data":[1]},"inputs":[]}`, "", ""),
			"1 values"},
		"a source in a layer": {file(strings.Replace(input, `"scope":""`, `"scope":"a"`, 1), "", ""), "no scope"},
		"a nameless source":   {file(strings.Replace(input, `"name":"x"`, `"name":""`, 1), "", ""), "needs a name"},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := graph.Decode(strings.NewReader(c.text))
			assert.ErrorContains(t, err, c.says)
		})
	}
}

// FuzzDecode: no bytes make Decode, or what follows it, panic or allocate at will; what it accepts is stable.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(encode(f, sample(f))))
	for _, o := range graph.Catalogue() {
		for i, c := range o.Cases() {
			if i > 3 {
				break
			}
			g, err := graph.Build(func(b *graph.Builder) {
				in := make([]*graph.Value, len(c.Inputs))
				for j, typ := range c.Inputs {
					in[j] = b.Input(fmt.Sprint(j), typ)
				}
				b.Output("y", b.Apply(c.Op, in...)[0])
			})
			require.NoError(f, err)
			f.Add([]byte(encode(f, g)))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := graph.Decode(bytes.NewReader(data))
		if err != nil {
			return
		}
		text := encode(t, g)
		back, err := graph.Decode(strings.NewReader(text))
		require.NoError(t, err)
		require.Equal(t, text, encode(t, back))
		for _, n := range g.Nodes {
			n.Op.Kernel(n)
		}
		evaluateSmall(t, g)
	})
}

// evaluateSmall runs a graph of few elements on zeros.
func evaluateSmall(t *testing.T, g *graph.Graph) {
	total := 0
	for _, n := range g.Nodes {
		for _, v := range n.Outputs {
			total += v.Shape.Len()
		}
	}
	if total > 1<<16 {
		return
	}
	sources := func(kind string) map[string]*graph.Tensor {
		m := map[string]*graph.Tensor{}
		for _, v := range g.Sources(kind) {
			m[v.Node.Op.(graph.Source).Label()] = graph.NewTensor(v.Type)
		}
		return m
	}
	_, err := eval.Run(g, sources("input"), sources("variable"))
	require.NoError(t, err)
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
