package op

import (
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
)

// wgsl is the body of a kernel that is being written.
type wgsl struct{ strings.Builder }

func (w *wgsl) add(format string, args ...any) { fmt.Fprintf(w, format, args...) }

// addQueries declares a workgroup's block of queries, its lanes' rows and the first column that they see.
func (r rowKernel) addQueries(w *wgsl) {
	w.add(`// Workgroups count [BATCH, HEADS, blocks of queries].
let block = group %% %[1]du;
let h = group / %[1]du %% HEADS;
let b = group / %[1]du / HEADS;
let position = %[2]s;
let columns = (b * TK * KV + h / GROUP) * UNITS;
let past = min((block + 1u) * %[3]du + position, TK); // the block sees no column from here on
let part = lane %% PARTS;
let first = block * %[3]du + lane / PARTS;
let origin = (b * TQ * HEADS + h) * UNITS;
`, r.QueryBlocks(), r.Position(), r.Block())
	for _, row := range r.Rows {
		w.add(`let i%[1]d = first + %[1]du * LINES;
let number%[1]d = (b * HEADS + h) * TQ + min(i%[1]d, TQ - 1u);
let seen%[1]d = min(i%[1]d + position, TK - 1u); // the last column that the row sees
`, row)
		w.WriteString(r.OwnSegment(row, fmt.Sprintf("i%d", row)))
	}
	w.WriteString(r.First())
}

// openKeys opens the loop over the keys, several in an iteration. With tiles there is a loop over tiles around it,
// which stages keys and values.
func (r rowKernel) openKeys(w *wgsl) {
	if r.Tile > 0 {
		w.add(`for (var t = %s; t < past; t += TILE) {
  workgroupBarrier();
  for (var x = lane; x < TILE * UNITS; x += LANES) {
    let at = columns + min(t + x / UNITS, TK - 1u) * (KV * UNITS) + x %% UNITS; // past the end: masked later
    xs[x] = %s;
    ys[x] = %s;
  }
  %s`, r.Start(), r.read("$in1", "at"), r.read("$in2", "at"), r.StageSegments())
		r.openTile(w, "past")
	} else {
		w.add("for (var j = %s; j < past; j += %du) {", r.Start(), r.ColumnsPerIteration())
		for _, c := range r.Cols {
			w.add("\n    let at%[1]d = columns + min(j + %[1]du, TK - 1u) * (KV * UNITS) + part;", c)
		}
		w.add("\n")
	}
	w.WriteString(r.CopyColumns("$in1", "$in2"))
	r.addSegments(w)
}

// openTile opens the loop over the columns of a tile that are before end.
func (r rowKernel) openTile(w *wgsl, end string) {
	w.add(`workgroupBarrier();
  for (var jj = 0u; jj < min(TILE, %s - t); jj += %du) {
    let j = t + jj;`, end, r.ColumnsPerIteration())
	for _, c := range r.Cols {
		w.add("\n    let at%[1]d = (jj + %[1]du) * UNITS + part;", c)
	}
	w.add("\n")
}

// closeColumns closes the loops over columns that openKeys or openQueries opened.
func (r rowKernel) closeColumns(w *wgsl) {
	if r.Tile > 0 {
		w.add("}\n")
	}
	w.add("}\n")
}

func (r rowKernel) addSegments(w *wgsl) {
	for _, c := range r.Cols {
		w.WriteString(r.Segment(c))
	}
}

// forwardBody is the body of the forward pass.
func (r rowKernel) forwardBody() string {
	var w wgsl
	r.addQueries(&w)
	w.add("var q: array<U, %[1]d>;\nvar o: array<U, %[1]d>;\n", r.N())
	w.WriteString(r.Load("q", "$in0"))
	for _, row := range r.Rows {
		w.add("var m%[1]d = LOWEST;\nvar sum%[1]d = 0.0;\n", row)
	}
	r.openKeys(&w)
	for _, row := range r.Rows {
		for _, c := range r.Cols {
			w.add("var s%d_%d = 0.0;\n", row, c)
		}
	}
	for _, u := range r.Units() {
		for _, c := range r.Cols {
			w.add("{\nlet x = %s;\n", r.X(c, u, "$in1"))
			for _, row := range r.Rows {
				w.add("s%d_%d += inner(%s, x);\n", row, c, r.At("q", row, u))
			}
			w.add("}\n")
		}
	}
	w.WriteString(r.Reduce("s"))
	for _, row := range r.Rows {
		for _, c := range r.Cols {
			w.add("s%[1]d_%[2]d = select(LOWEST, s%[1]d_%[2]d * SCALE, j + %[2]du <= seen%[1]d%[3]s);\n", row, c, r.Sees(row, c))
		}
		w.add("let larger%[1]d = %[2]s;\nlet keep%[1]d = exp(m%[1]d - larger%[1]d);\nm%[1]d = larger%[1]d;\n", row, r.Largest(row))
		for _, c := range r.Cols {
			w.add("let p%[1]d_%[2]d = exp(s%[1]d_%[2]d - larger%[1]d);\n", row, c)
		}
		w.add("sum%[1]d = sum%[1]d * keep%[1]d + %[2]s;\n", row, r.Sum("p", row, ""))
	}
	for _, u := range r.Units() {
		w.add("{\n")
		for _, c := range r.Cols {
			w.add("let y%d = %s;\n", c, r.Y(c, u, "$in2"))
		}
		for _, row := range r.Rows {
			w.add("%[1]s = %[1]s * keep%[2]d + %[3]s;\n", r.At("o", row, u), row, r.Sum("p", row, "y"))
		}
		w.add("}\n")
	}
	r.closeColumns(&w)
	for _, row := range r.Rows {
		for _, u := range r.Units() {
			w.add("%s /= sum%d;\n", r.At("o", row, u), row)
		}
		w.add("if (i%[1]d < TQ && part == 0u) { $out1[number%[1]d] = m%[1]d + log(sum%[1]d); }\n", row)
	}
	w.WriteString(r.Store(r.Result, "$out0"))
	return w.String()
}

// queryGradBody is the body of the pass for the gradient of q.
func (r rowKernel) queryGradBody() string {
	var w wgsl
	r.addQueries(&w)
	w.add("var q: array<U, %[1]d>;\nvar g: array<U, %[1]d>;\nvar dq: array<U, %[1]d>;\n", r.N())
	w.WriteString(r.Load("q", "$in0") + r.Load("g", "$in5"))
	for _, row := range r.Rows {
		w.add("let lse%[1]d = $in4[number%[1]d];\nlet delta%[1]d = select(0.0, $tmp0[number%[1]d], part == 0u);\n", row)
	}
	r.openKeys(&w)
	for _, row := range r.Rows {
		for _, c := range r.Cols {
			w.add("var s%[1]d_%[2]d = 0.0;\nvar dp%[1]d_%[2]d = -delta%[1]d;\n", row, c)
		}
	}
	r.addProducts(&w, "$in1", "$in2", "q", "g")
	for _, row := range r.Rows {
		for _, c := range r.Cols {
			w.add("let ds%[1]d_%[2]d = exp(select(LOWEST, s%[1]d_%[2]d * SCALE - lse%[1]d, j + %[2]du <= seen%[1]d%[3]s)) * dp%[1]d_%[2]d;\n",
				row, c, r.Sees(row, c))
		}
	}
	for _, u := range r.Units() {
		w.add("{\n")
		for _, c := range r.Cols {
			w.add("let x%d = %s;\n", c, r.X(c, u, "$in1"))
		}
		for _, row := range r.Rows {
			w.add("%s += %s;\n", r.At("dq", row, u), r.Sum("ds", row, "x"))
		}
		w.add("}\n")
	}
	r.closeColumns(&w)
	w.WriteString(r.Store(func(x string) string { return "dq[" + x + "] * SCALE" }, "$out0"))
	return w.String()
}

// addProducts adds the inner products of a gradient's rows and columns to s<row>_<column> and dp<row>_<column>. a and b
// are the arrays of the rows' vectors, and x and y are the arrays of the columns' vectors.
func (r rowKernel) addProducts(w *wgsl, x, y, a, b string) {
	for _, u := range r.Units() {
		for _, c := range r.Cols {
			w.add("{\nlet x = %s;\nlet y = %s;\n", r.X(c, u, x), r.Y(c, u, y))
			for _, row := range r.Rows {
				w.add("s%[1]d_%[2]d += inner(%[3]s, x);\ndp%[1]d_%[2]d += inner(%[4]s, y);\n", row, c, r.At(a, row, u), r.At(b, row, u))
			}
			w.add("}\n")
		}
	}
	w.WriteString(r.Reduce("s", "dp"))
}

// openQueries opens the loops over the queries that see a block of keys.
func (r rowKernel) openQueries(w *wgsl) {
	w.add(`for (var g = 0u; g < GROUP; g++) {
let h = kv * GROUP + g;
let columns = (b * TQ * HEADS + h) * UNITS;
let numbers = (b * HEADS + h) * TQ;
`)
	if r.Tile > 0 {
		w.add(`for (var t = block * %du; t < %s; t += TILE) {
  workgroupBarrier();
  for (var x = lane; x < TILE * UNITS; x += LANES) {
    let at = columns + min(t + x / UNITS, TQ - 1u) * (HEADS * UNITS) + x %% UNITS; // past the end: masked later
    xs[x] = %s;
    ys[x] = $in5[at];
  }
  for (var x = lane; x < TILE; x += LANES) {
    let c = numbers + min(t + x, TQ - 1u);
    ls[x] = %s;
    es[x] = $tmp0[c];
  }
  %s`, r.Block(), r.End(), r.read("$in0", "at"), r.LSE(), r.StageSegments())
		r.openTile(w, r.End())
	} else {
		w.add("for (var j = block * %du; j < %s; j += %du) {", r.Block(), r.End(), r.ColumnsPerIteration())
		for _, c := range r.Cols {
			w.add("\n    let c%[1]d = min(j + %[1]du, TQ - 1u);\n    let at%[1]d = columns + c%[1]d * (HEADS * UNITS) + part;", c)
		}
		w.add("\n")
	}
	w.WriteString(r.CopyColumns("$in0", "$in5"))
	r.addSegments(w)
}

// keyGradBody is the body of the pass for the gradients of k and v.
func (r rowKernel) keyGradBody() string {
	var w wgsl
	w.add(`// Workgroups count [BATCH, KV, blocks of keys].
let block = group %% %[1]du;
let kv = group / %[1]du %% KV;
let b = group / %[1]du / KV;
let part = lane %% PARTS;
let first = block * %[2]du + lane / PARTS;
let origin = (b * TK * KV + kv) * UNITS;
var k: array<U, %[3]d>;
%[4]svar v: array<U, %[3]d>;
var dk: array<U, %[3]d>;
var dv: array<U, %[3]d>;
%[5]s`, r.KeyBlocks(), r.Block(), r.N(), r.Load("k", "$in1"), r.Load("v", "$in2"))
	for _, row := range r.Rows {
		w.WriteString(r.OwnSegment(row, fmt.Sprintf("first + %du * LINES", row)))
	}
	w.WriteString(r.Last())
	r.openQueries(&w)
	for _, c := range r.Cols {
		w.add("let l%[1]d = %[2]s;\nlet e%[1]d = select(0.0, %[3]s, part == 0u);\n", c, r.L(c), r.E(c))
		for _, row := range r.Rows {
			w.add("var s%[1]d_%[2]d = 0.0;\nvar dp%[1]d_%[2]d = -e%[2]d;\n", row, c)
		}
	}
	r.addProducts(&w, "$in0", "$in5", "k", "v")
	for _, row := range r.Rows {
		for _, c := range r.Cols {
			w.add(`let p%[1]d_%[2]d = exp(select(LOWEST, s%[1]d_%[2]d * SCALE - l%[2]d, j + %[2]du >= first + %[1]du * LINES && j + %[2]du < TQ%[3]s));
let ds%[1]d_%[2]d = p%[1]d_%[2]d * dp%[1]d_%[2]d;
`, row, c, r.Seen(row, c))
		}
	}
	for _, u := range r.Units() {
		w.add("{\n")
		for _, c := range r.Cols {
			w.add("let x%[1]d = %[2]s;\nlet y%[1]d = %[3]s;\n", c, r.X(c, u, "$in0"), r.Y(c, u, "$in5"))
		}
		for _, row := range r.Rows {
			w.add("%s += %s;\n%s += %s;\n", r.At("dk", row, u), r.Sum("ds", row, "x"), r.At("dv", row, u), r.Sum("p", row, "y"))
		}
		w.add("}\n")
	}
	r.closeColumns(&w)
	w.WriteString("}\n" + r.Store(func(x string) string { return "dk[" + x + "] * SCALE" }, "$out1"))
	w.WriteString(r.Store(func(x string) string { return "dv[" + x + "]" }, "$out2"))
	return w.String()
}

// pass returns the kernel with the given body for the given number of workgroups. products is the number of inner
// products that it computes for each pair of a row and a column. vectors are the arrays that it reads as units.
func (r rowKernel) pass(body, count, pitch string, products, groups int, vectors []string, scalars ...string) graph.Pass {
	p := graph.Pass{
		Declarations: r.constants() + r.edgeArrays() + r.layout(count, pitch), Body: body,
		Uses: append(vectors[:len(vectors):len(vectors)], scalars...), Workgroup: r.Lanes, Groups: groups,
		WorkgroupMemory: r.edgeMemory(), Inside: true,
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
	return r.withReads(p)
}

func (r rowKernel) forward() graph.Pass {
	_, uses := r.positionExpr()
	p := r.pass(r.forwardBody(), "TQ", "HEADS * UNITS", 1, r.QueryBlocks()*r.heads*r.batch, []string{"in0", "in1", "in2", "out0"},
		r.withSegments(append([]string{"out1"}, uses...)...)...)
	p.Declarations += r.narrowing()
	return p
}

func (r rowKernel) queryGrad() graph.Pass {
	return r.pass(r.queryGradBody(), "TQ", "HEADS * UNITS", 2, r.QueryBlocks()*r.heads*r.batch,
		[]string{"in0", "in1", "in2", "in5", "out0"}, r.withSegments("in4", "tmp0")...)
}

func (r rowKernel) keyGrad() graph.Pass {
	_, uses := r.keyLSE("")
	return r.pass(r.keyGradBody(), "TK", "KV * UNITS", 2, r.KeyBlocks()*r.kvHeads*r.batch,
		[]string{"in0", "in1", "in2", "in5", "out1", "out2"}, r.withSegments(append(uses, "tmp0")...)...)
}
