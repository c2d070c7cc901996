package op

import (
	"fmt"
	"regexp"
	"strings"
	"text/template"

	"github.com/gpupipe/gpupipe/graph"
)

// rowKernel is a kernel of the kind rows or tiles: LANES lanes walk the columns, several at a time. A lane has some
// rows (row r is LINES rows after row r-1), or a slice of the units of one row (unit u is PARTS units after unit u-1).
type rowKernel struct {
	attentionKernels
	Lanes int
	Parts int   // lanes that share a row
	Rows  []int // 0, 1, …: the rows of a lane
	Cols  []int // 0, 1, …: the columns abreast
	Tile  int   // columns in workgroup memory; 0 reads them where they are
	// Loops loads and stores in loops, through arrays. Software adapters compile a load of straight code for a tenth of
	// a second, and keep in memory what is ever indexed by a variable, which suits them; GPUs want constants, to keep
	// it in registers. The loops start at a value that is not constant, so that compilers do not unroll them.
	Loops bool
}

// name depends on how the columns are read.
func (r rowKernel) name() string {
	if r.Tile > 0 {
		return "tiles"
	}
	return "rows"
}

func upTo(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

func (r rowKernel) own() int         { return r.units() / r.Parts } // units of a row that a lane has
func (r rowKernel) Units() []int     { return upTo(r.own()) }
func (r rowKernel) Abreast() int     { return len(r.Cols) }
func (r rowKernel) Block() int       { return r.Lanes / r.Parts * len(r.Rows) } // rows of a workgroup
func (r rowKernel) blocks(n int) int { return (n + r.Block() - 1) / r.Block() }

// QueryBlocks and KeyBlocks are the workgroups of one head.
func (r rowKernel) QueryBlocks() int { return r.blocks(r.queries) }
func (r rowKernel) KeyBlocks() int   { return r.blocks(r.keys) }

func (r rowKernel) Position() string {
	e, _ := r.positionExpr()
	return e
}

// Largest is the largest of m<row> and the scores of the row.
func (r rowKernel) Largest(row int) string {
	e := fmt.Sprintf("m%d", row)
	for _, c := range r.Cols {
		e = fmt.Sprintf("max(%s, s%d_%d)", e, row, c)
	}
	return e
}

// Sum writes Σ over the columns of a<row>_<column> · <b><column>, or of a alone.
func (r rowKernel) Sum(a string, row int, b string) string {
	var terms []string
	for _, c := range r.Cols {
		t := fmt.Sprintf("%s%d_%d", a, row, c)
		if b != "" {
			t += fmt.Sprintf(" * %s%d", b, c)
		}
		terms = append(terms, t)
	}
	return "(" + strings.Join(terms, " + ") + ")"
}

// X, Y, L and E are unit u of column c of the two arrays of vectors, and its numbers in the two arrays of numbers.
func (r rowKernel) X(c, u int, array string) string { return r.unit("xs", c, u, array) }
func (r rowKernel) Y(c, u int, array string) string { return r.unit("ys", c, u, array) }
func (r rowKernel) E(c int) string                  { return r.number("es", c, "tmp0[numbers + c%d]") }
func (r rowKernel) L(c int) string {
	expr, _ := r.keyLSE("numbers + c%d")
	return r.number("ls", c, expr)
}

// LSE is the logsumexp of column c while columns are staged.
func (r rowKernel) LSE() string {
	expr, _ := r.keyLSE("c")
	return expr
}

// Own reads the segment of a row at a place of the sequence, and Staged that of a column of a tile.
func (r rowKernel) Own(row int, at string) string {
	return r.ifSegments("let own%d = %s[b * TK + min(%s, TK - 1u)];\n", row, r.segments, at)
}
func (r rowKernel) Staged() string {
	return r.ifSegments("for (var x = lane; x < TILE; x += LANES) { gs[x] = %s[b * TK + min(t + x, TK - 1u)]; }\n", r.segments)
}

// Result is unit x of the results as it is stored.
func (r rowKernel) Result() string {
	if r.result.Float16() {
		return "narrowed(o[x])"
	}
	return "o[x]"
}

// First and Last find where a block's walk may begin and end.
func (r rowKernel) First() string {
	return r.firstSeen(fmt.Sprintf("block * %du", r.Block()), r.Block(), max(r.Tile, r.Abreast()))
}
func (r rowKernel) Last() string { return r.pastSeen(fmt.Sprintf("block * %du", r.Block()), r.Block()) }

// Segment reads the segment of column c.
func (r rowKernel) Segment(c int) string {
	if r.Tile > 0 {
		return r.ifSegments("let segment%d = gs[jj + %du];\n", c, c)
	}
	return r.ifSegments("let segment%d = %s[b * TK + min(j + %du, TK - 1u)];\n", c, r.segments, c)
}

// Together is a further condition of a row to see a column. What a query of the forward pass gathers before it comes to
// its own segment, all of it of the lowest score, vanishes with the first score that counts: its own at the latest.
func (r rowKernel) Together(row, c int) string {
	return r.ifSegments(" && own%d == segment%d", row, c)
}

func (r rowKernel) unit(staged string, c, u int, array string) string {
	if r.Loops {
		return fmt.Sprintf("%s[%d]", staged, c*r.own()+u)
	}
	if r.Tile > 0 {
		array = staged
	}
	return fmt.Sprintf("%s[at%d + %du]", array, c, u*r.Parts)
}

func (r rowKernel) number(staged string, c int, expr string) string {
	if r.Tile > 0 {
		return fmt.Sprintf("%s[jj + %du]", staged, c)
	}
	return fmt.Sprintf(expr, c)
}

// Copy brings the columns at hand close where Loops says so; x and y are the arrays of vectors.
func (r rowKernel) Copy(x, y string) string {
	if !r.Loops {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "var xs: array<U, %[1]d>;\nvar ys: array<U, %[1]d>;\n", len(r.Cols)*r.units())
	for _, c := range r.Cols {
		fmt.Fprintf(&b, "for (var x = at%[1]d; x < at%[1]d + UNITS; x++) {\nxs[x - at%[1]d + %[2]du] = %[3]s[x];\nys[x - at%[1]d + %[2]du] = %[4]s[x];\n}\n", c, c*r.units(), x, y)
	}
	return b.String()
}

// At is unit u of row row in an array of the rows' vectors.
func (r rowKernel) At(array string, row, u int) string {
	return fmt.Sprintf("%s[%d]", array, row*r.own()+u)
}

// Load fills an array of the rows' vectors from memory.
func (r rowKernel) Load(array, from string) string {
	return r.eachUnit(array + "[x] = " + from + "[origin + min(first + x / OWN * LINES, COUNT - 1u) * PITCH + part + x % OWN * PARTS];\n")
}

// Store writes an array of the rows' vectors to memory; value is an expression of x, a place in it.
func (r rowKernel) Store(value, to string) string {
	return r.eachUnit("if (first + x / OWN * LINES < COUNT) { " + to + "[origin + (first + x / OWN * LINES) * PITCH + part + x % OWN * PARTS] = " + value + "; }\n")
}

func (r rowKernel) eachUnit(text string) string {
	n := r.N()
	if r.Loops {
		return fmt.Sprintf("for (var y = lane; y < lane + %du; y++) {\nlet x = y - lane;\n%s}\n", n, text)
	}
	var b strings.Builder
	for x := range n {
		b.WriteString(xWord.ReplaceAllString(text, fmt.Sprintf("%du", x)))
	}
	return b.String()
}

var xWord = regexp.MustCompile(`\bx\b`)

// N is the units of all rows of a lane.
func (r rowKernel) N() int { return len(r.Rows) * r.own() }

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
{{$.Own $r (printf "i%d" $r)}}{{end}}{{.First}}{{end}}

{{- define "keys" -}}
{{if .Tile -}}
for (var t = {{.Start}}; t < past; t += TILE) {
  workgroupBarrier();
  for (var x = lane; x < TILE * UNITS; x += LANES) {
    let at = columns + min(t + x / UNITS, TK - 1u) * (KV * UNITS) + x % UNITS; // past the end: masked later
    xs[x] = in1[at];
    ys[x] = in2[at];
  }
  {{.Staged -}}
  workgroupBarrier();
  for (var jj = 0u; jj < min(TILE, past - t); jj += {{.Abreast}}u) {
    let j = t + jj;
    {{- range .Cols}}
    let at{{.}} = (jj + {{.}}u) * UNITS + part;
    {{- end}}
{{else -}}
for (var j = {{.Start}}; j < past; j += {{.Abreast}}u) {
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
{{- .Copy "in1" "in2"}}
{{- range .Cols}}{{$.Segment .}}{{end}}
{{- range $r := .Rows}}{{range $c := $.Cols}}var s{{$r}}_{{$c}} = 0.0;
{{end}}{{end -}}
{{range $u := .Units}}{{range $c := $.Cols}}{
let x = {{$.X $c $u "in1"}};
{{range $r := $.Rows}}s{{$r}}_{{$c}} += inner({{$.At "q" $r $u}}, x);
{{end}}}
{{end}}{{end -}}
{{.Whole "s" -}}
{{range $r := .Rows -}}
{{range $c := $.Cols}}s{{$r}}_{{$c}} = select(LOWEST, s{{$r}}_{{$c}} * SCALE, j + {{$c}}u <= seen{{$r}}{{$.Together $r $c}});
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
{{- .Copy "in1" "in2"}}
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
{{.Whole "s" "dp" -}}
{{range $r := .Rows}}{{range $c := $.Cols -}}
let ds{{$r}}_{{$c}} = exp(select(LOWEST, s{{$r}}_{{$c}} * SCALE - lse{{$r}}, j + {{$c}}u <= seen{{$r}}{{$.Together $r $c}})) * dp{{$r}}_{{$c}};
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
{{range .Rows}}{{$.Own . (printf "first + %du * LINES" .)}}{{end}}{{.Last -}}
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
  {{.Staged -}}
  workgroupBarrier();
  for (var jj = 0u; jj < min(TILE, {{.End}} - t); jj += {{.Abreast}}u) {
    let j = t + jj;
    {{- range .Cols}}
    let at{{.}} = (jj + {{.}}u) * UNITS + part;
    {{- end}}
{{else -}}
for (var j = block * {{.Block}}u; j < {{.End}}; j += {{.Abreast}}u) {
    {{- range .Cols}}
    let c{{.}} = min(j + {{.}}u, TQ - 1u);
    let at{{.}} = columns + c{{.}} * (HEADS * UNITS) + part;
    {{- end}}
{{end -}}
{{.Copy "in0" "in5"}}
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
{{.Whole "s" "dp" -}}
{{range $r := .Rows}}{{range $c := $.Cols -}}
let p{{$r}}_{{$c}} = exp(select(LOWEST, s{{$r}}_{{$c}} * SCALE - l{{$c}}, j + {{$c}}u >= first + {{$r}}u * LINES && j + {{$c}}u < TQ{{$.Together $r $c}}));
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

// pass writes the kernel of that name, of so many products a score, for groups workgroups; vectors are the arrays read
// as units.
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
	if n := r.sharesMemory(products); n > 0 {
		share, size := r.share()
		p.Declarations += fmt.Sprintf("var<workgroup> shares: array<%s, %d>;\n", share, n/size)
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
