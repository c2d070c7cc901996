package op

import (
	"fmt"
	"strings"
	"text/template"

	"github.com/gpupipe/gpupipe/graph"
)

// rowTexts are the templates of the kernels of the kinds rows and tiles: the forward pass, the gradient of q, and the
// gradients of k and v. rowKernel has the methods that they call.
var rowTexts = template.Must(template.New("").Parse(`
{{- define "queries" -}}
// Workgroups count [BATCH, HEADS, blocks of queries].
let block = group % {{.QueryBlocks}}u;
let h = group / {{.QueryBlocks}}u % HEADS;
let b = group / {{.QueryBlocks}}u / HEADS;
let position = {{.Position}};
let columns = (b * TK * KV + h / GROUP) * UNITS;
let past = min((block + 1u) * {{.Block}}u + position, TK); // the block sees no column from here on
let part = lane % PARTS;
let first = block * {{.Block}}u + lane / PARTS;
let origin = (b * TQ * HEADS + h) * UNITS;
{{range $r := .Rows -}}
let i{{$r}} = first + {{$r}}u * LINES;
let number{{$r}} = (b * HEADS + h) * TQ + min(i{{$r}}, TQ - 1u);
let seen{{$r}} = min(i{{$r}} + position, TK - 1u); // the last column that the row sees
{{$.OwnSegment $r (printf "i%d" $r)}}{{end}}{{.First}}{{end}}

{{- define "keys" -}}
{{if .Tile -}}
for (var t = {{.Start}}; t < past; t += TILE) {
  workgroupBarrier();
  for (var x = lane; x < TILE * UNITS; x += LANES) {
    let at = columns + min(t + x / UNITS, TK - 1u) * (KV * UNITS) + x % UNITS; // past the end: masked later
    xs[x] = in1[at];
    ys[x] = in2[at];
  }
  {{.StageSegments -}}
  workgroupBarrier();
  for (var jj = 0u; jj < min(TILE, past - t); jj += {{.ColumnsPerIteration}}u) {
    let j = t + jj;
    {{- range .Cols}}
    let at{{.}} = (jj + {{.}}u) * UNITS + part;
    {{- end}}
{{else -}}
for (var j = {{.Start}}; j < past; j += {{.ColumnsPerIteration}}u) {
    {{- range .Cols}}
    let at{{.}} = columns + min(j + {{.}}u, TK - 1u) * (KV * UNITS) + part;
    {{- end}}
{{end}}{{end}}

{{- define "close"}}{{if .Tile}}}
{{end}}}
{{end}}

{{- define "forward" -}}
{{template "queries" . -}}
var q: array<U, {{.N}}>;
var o: array<U, {{.N}}>;
{{.Load "q" "in0"}}
{{- range $r := .Rows -}}
var m{{$r}} = LOWEST;
var sum{{$r}} = 0.0;
{{end -}}
{{template "keys" .}}
{{- .CopyColumns "in1" "in2"}}
{{- range .Cols}}{{$.Segment .}}{{end}}
{{- range $r := .Rows}}{{range $c := $.Cols}}var s{{$r}}_{{$c}} = 0.0;
{{end}}{{end -}}
{{range $u := .Units}}{{range $c := $.Cols}}{
let x = {{$.X $c $u "in1"}};
{{range $r := $.Rows}}s{{$r}}_{{$c}} += inner({{$.At "q" $r $u}}, x);
{{end}}}
{{end}}{{end -}}
{{.Reduce "s" -}}
{{range $r := .Rows -}}
{{range $c := $.Cols}}s{{$r}}_{{$c}} = select(LOWEST, s{{$r}}_{{$c}} * SCALE, j + {{$c}}u <= seen{{$r}}{{$.Sees $r $c}});
{{end -}}
let larger{{$r}} = {{$.Largest $r}};
let keep{{$r}} = exp(m{{$r}} - larger{{$r}});
m{{$r}} = larger{{$r}};
{{range $c := $.Cols}}let p{{$r}}_{{$c}} = exp(s{{$r}}_{{$c}} - larger{{$r}});
{{end -}}
sum{{$r}} = sum{{$r}} * keep{{$r}} + {{$.Sum "p" $r ""}};
{{end -}}
{{range $u := .Units}}{
{{range $c := $.Cols}}let y{{$c}} = {{$.Y $c $u "in2"}};
{{end}}{{range $r := $.Rows}}{{$.At "o" $r $u}} = {{$.At "o" $r $u}} * keep{{$r}} + {{$.Sum "p" $r "y"}};
{{end}}}
{{end -}}
{{template "close" .}}
{{- range $r := .Rows -}}
{{range $u := $.Units}}{{$.At "o" $r $u}} /= sum{{$r}};
{{end -}}
if (i{{$r}} < TQ && part == 0u) { out1[number{{$r}}] = m{{$r}} + log(sum{{$r}}); }
{{end -}}
{{.Store .Result "out0"}}
{{- end}}

{{- define "queryGrad" -}}
{{template "queries" . -}}
var q: array<U, {{.N}}>;
var g: array<U, {{.N}}>;
var dq: array<U, {{.N}}>;
{{.Load "q" "in0"}}{{.Load "g" "in5" -}}
{{range $r := .Rows -}}
let lse{{$r}} = in4[number{{$r}}];
let delta{{$r}} = select(0.0, tmp0[number{{$r}}], part == 0u);
{{end -}}
{{template "keys" .}}
{{- .CopyColumns "in1" "in2"}}
{{- range .Cols}}{{$.Segment .}}{{end}}
{{- range $r := .Rows}}{{range $c := $.Cols}}var s{{$r}}_{{$c}} = 0.0;
var dp{{$r}}_{{$c}} = -delta{{$r}};
{{end}}{{end -}}
{{range $u := .Units}}{{range $c := $.Cols}}{
let x = {{$.X $c $u "in1"}};
let y = {{$.Y $c $u "in2"}};
{{range $r := $.Rows}}s{{$r}}_{{$c}} += inner({{$.At "q" $r $u}}, x);
dp{{$r}}_{{$c}} += inner({{$.At "g" $r $u}}, y);
{{end}}}
{{end}}{{end -}}
{{.Reduce "s" "dp" -}}
{{range $r := .Rows}}{{range $c := $.Cols -}}
let ds{{$r}}_{{$c}} = exp(select(LOWEST, s{{$r}}_{{$c}} * SCALE - lse{{$r}}, j + {{$c}}u <= seen{{$r}}{{$.Sees $r $c}})) * dp{{$r}}_{{$c}};
{{end}}{{end -}}
{{range $u := .Units}}{
{{range $c := $.Cols}}let x{{$c}} = {{$.X $c $u "in1"}};
{{end}}{{range $r := $.Rows}}{{$.At "dq" $r $u}} += {{$.Sum "ds" $r "x"}};
{{end}}}
{{end -}}
{{template "close" . -}}
{{.Store "dq[x] * SCALE" "out0"}}
{{- end}}

{{- define "keyGrad" -}}
// Workgroups count [BATCH, KV, blocks of keys].
let block = group % {{.KeyBlocks}}u;
let kv = group / {{.KeyBlocks}}u % KV;
let b = group / {{.KeyBlocks}}u / KV;
let part = lane % PARTS;
let first = block * {{.Block}}u + lane / PARTS;
let origin = (b * TK * KV + kv) * UNITS;
var k: array<U, {{.N}}>;
{{.Load "k" "in1" -}}
var v: array<U, {{.N}}>;
var dk: array<U, {{.N}}>;
var dv: array<U, {{.N}}>;
{{.Load "v" "in2" -}}
{{range .Rows}}{{$.OwnSegment . (printf "first + %du * LINES" .)}}{{end}}{{.Last -}}
for (var g = 0u; g < GROUP; g++) {
let h = kv * GROUP + g;
let columns = (b * TQ * HEADS + h) * UNITS;
let numbers = (b * HEADS + h) * TQ;
{{if .Tile -}}
for (var t = block * {{.Block}}u; t < {{.End}}; t += TILE) {
  workgroupBarrier();
  for (var x = lane; x < TILE * UNITS; x += LANES) {
    let at = columns + min(t + x / UNITS, TQ - 1u) * (HEADS * UNITS) + x % UNITS; // past the end: masked later
    xs[x] = in0[at];
    ys[x] = in5[at];
  }
  for (var x = lane; x < TILE; x += LANES) {
    let c = numbers + min(t + x, TQ - 1u);
    ls[x] = {{.LSE}};
    es[x] = tmp0[c];
  }
  {{.StageSegments -}}
  workgroupBarrier();
  for (var jj = 0u; jj < min(TILE, {{.End}} - t); jj += {{.ColumnsPerIteration}}u) {
    let j = t + jj;
    {{- range .Cols}}
    let at{{.}} = (jj + {{.}}u) * UNITS + part;
    {{- end}}
{{else -}}
for (var j = block * {{.Block}}u; j < {{.End}}; j += {{.ColumnsPerIteration}}u) {
    {{- range .Cols}}
    let c{{.}} = min(j + {{.}}u, TQ - 1u);
    let at{{.}} = columns + c{{.}} * (HEADS * UNITS) + part;
    {{- end}}
{{end -}}
{{.CopyColumns "in0" "in5"}}
{{- range .Cols}}{{$.Segment .}}{{end}}
{{- range $c := .Cols}}let l{{$c}} = {{$.L $c}};
let e{{$c}} = select(0.0, {{$.E $c}}, part == 0u);
{{range $r := $.Rows}}var s{{$r}}_{{$c}} = 0.0;
var dp{{$r}}_{{$c}} = -e{{$c}};
{{end}}{{end -}}
{{range $u := .Units}}{{range $c := $.Cols}}{
let x = {{$.X $c $u "in0"}};
let y = {{$.Y $c $u "in5"}};
{{range $r := $.Rows}}s{{$r}}_{{$c}} += inner({{$.At "k" $r $u}}, x);
dp{{$r}}_{{$c}} += inner({{$.At "v" $r $u}}, y);
{{end}}}
{{end}}{{end -}}
{{.Reduce "s" "dp" -}}
{{range $r := .Rows}}{{range $c := $.Cols -}}
let p{{$r}}_{{$c}} = exp(select(LOWEST, s{{$r}}_{{$c}} * SCALE - l{{$c}}, j + {{$c}}u >= first + {{$r}}u * LINES && j + {{$c}}u < TQ{{$.Seen $r $c}}));
let ds{{$r}}_{{$c}} = p{{$r}}_{{$c}} * dp{{$r}}_{{$c}};
{{end}}{{end -}}
{{range $u := .Units}}{
{{range $c := $.Cols}}let x{{$c}} = {{$.X $c $u "in0"}};
let y{{$c}} = {{$.Y $c $u "in5"}};
{{end}}{{range $r := $.Rows}}{{$.At "dk" $r $u}} += {{$.Sum "ds" $r "x"}};
{{$.At "dv" $r $u}} += {{$.Sum "p" $r "y"}};
{{end}}}
{{end -}}
{{template "close" . -}} }
{{.Store "dk[x] * SCALE" "out1"}}{{.Store "dv[x]" "out2"}}
{{- end}}`))

// pass returns the kernel that the named template writes, for the given number of workgroups. products is the number of
// inner products that it computes for each pair of a row and a column. vectors are the arrays that it reads as units.
func (r rowKernel) pass(name, count, pitch string, products, groups int, vectors []string, scalars ...string) graph.Pass {
	var body strings.Builder
	if err := rowTexts.ExecuteTemplate(&body, name, r); err != nil {
		panic(err)
	}
	p := graph.Pass{
		Declarations: r.constants() + r.edgeArrays() + r.layout(count, pitch), Body: body.String(),
		Uses: append(vectors[:len(vectors):len(vectors)], scalars...), Workgroup: r.Lanes, Groups: groups, WorkgroupMemory: r.edgeMemory(), Inside: true,
	}
	if r.width() == 4 {
		p.Vec4 = vectors
	}
	if r.Tile > 0 {
		n := r.Tile * r.units()
		p.Declarations += fmt.Sprintf(`const TILE = %[1]du;
var<workgroup> xs: array<U, %[2]d>;
var<workgroup> ys: array<U, %[2]d>;
var<workgroup> ls: array<f32, %[1]d>;
var<workgroup> es: array<f32, %[1]d>;
`, r.Tile, n) + r.ifSegments("var<workgroup> gs: array<u32, %d>;\n", r.Tile)
		p.WorkgroupMemory += r.Tile * r.columnBytes()
	}
	if n := r.reduceMemory(products); n > 0 {
		typ, size := r.productsType()
		p.Declarations += fmt.Sprintf("var<workgroup> shares: array<%s, %d>;\n", typ, n/size)
		p.WorkgroupMemory += n
	}
	return r.unpacked(p)
}

func (r rowKernel) forward() graph.Pass {
	_, uses := r.positionExpr()
	p := r.pass("forward", "TQ", "HEADS * UNITS", 1, r.QueryBlocks()*r.heads*r.batch, []string{"in0", "in1", "in2", "out0"}, r.withSegments(append([]string{"out1"}, uses...)...)...)
	p.Declarations += r.narrowing()
	return p
}

func (r rowKernel) queryGrad() graph.Pass {
	return r.pass("queryGrad", "TQ", "HEADS * UNITS", 2, r.QueryBlocks()*r.heads*r.batch, []string{"in0", "in1", "in2", "in5", "out0"}, r.withSegments("in4", "tmp0")...)
}

func (r rowKernel) keyGrad() graph.Pass {
	_, uses := r.keyLSE("")
	return r.pass("keyGrad", "TK", "KV * UNITS", 2, r.KeyBlocks()*r.kvHeads*r.batch, []string{"in0", "in1", "in2", "in5", "out1", "out2"}, r.withSegments(append(uses, "tmp0")...)...)
}
