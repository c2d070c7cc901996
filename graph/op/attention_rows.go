package op

import (
	"fmt"
	"strings"
)

// rowKernel is a kernel of the kind rows or tiles. The LANES lanes of a workgroup iterate over the columns, several at
// a time. A lane has several rows, LINES rows apart, or a slice of the units of one row, PARTS units apart.
type rowKernel struct {
	attentionKernels
	Lanes       int
	LanesPerRow int   // lanes that share a row
	Rows        []int // 0, 1, …: the rows of a lane
	Cols        []int // 0, 1, …: the columns of one iteration
	Tile        int   // columns staged in workgroup memory; 0: kernels read them from global memory
	// Loops makes the kernel load and store in loops over arrays. Software adapters take a tenth of a second to compile
	// each load outside of a loop, and keep arrays that variables index in memory, which suits them. On GPUs constant
	// indices let arrays stay in registers. The loops start at a value that is not constant, so that compilers do not
	// unroll them.
	Loops bool
}

// kind is the kind of the kernel.
func (r rowKernel) kind() string {
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

func (r rowKernel) unitsPerLane() int        { return r.units() / r.LanesPerRow } // units of a row that a lane has
func (r rowKernel) Units() []int             { return upTo(r.unitsPerLane()) }
func (r rowKernel) ColumnsPerIteration() int { return len(r.Cols) }
func (r rowKernel) Block() int               { return r.Lanes / r.LanesPerRow * len(r.Rows) } // rows of a workgroup
func (r rowKernel) blocks(n int) int         { return (n + r.Block() - 1) / r.Block() }

// QueryBlocks and KeyBlocks are the numbers of workgroups for one head.
func (r rowKernel) QueryBlocks() int { return r.blocks(r.queries) }
func (r rowKernel) KeyBlocks() int   { return r.blocks(r.keys) }

func (r rowKernel) Position() string {
	e, _ := r.positionExpr()
	return e
}

// Largest is the expression of the maximum of m<row> and the row's scores in this iteration.
func (r rowKernel) Largest(row int) string {
	e := fmt.Sprintf("m%d", row)
	for _, c := range r.Cols {
		e = fmt.Sprintf("max(%s, s%d_%d)", e, row, c)
	}
	return e
}

// Sum is the expression Σ <a><row>_<column> · <b><column> over the columns of an iteration. If b is empty the terms are
// <a><row>_<column>.
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

// X and Y are the expressions of unit u of column c in the two arrays of vectors. L and E are the expressions of the
// column's logsumexp and delta.
func (r rowKernel) X(c, u int, array string) string { return r.unit("xs", c, u, array) }
func (r rowKernel) Y(c, u int, array string) string { return r.unit("ys", c, u, array) }
func (r rowKernel) E(c int) string                  { return r.scalar("es", c, "$tmp0[numbers + c%d]") }
func (r rowKernel) L(c int) string {
	expr, _ := r.keyLSE("numbers + c%d")
	return r.scalar("ls", c, expr)
}

// LSE is the expression of column c's logsumexp in global memory, from which it is staged.
func (r rowKernel) LSE() string {
	expr, _ := r.keyLSE("c")
	return expr
}

// OwnSegment emits the load of the segment of a row, given its position in the sequence. StageSegments emits the loads
// of the segments of a tile's columns to workgroup memory.
func (r rowKernel) OwnSegment(row int, at string) string {
	return r.ifSegments("let own%d = $%s[b * TK + min(%s, TK - 1u)];\n", row, r.segments, at)
}
func (r rowKernel) StageSegments() string {
	return r.ifSegments("for (var x = lane; x < TILE; x += LANES) { gs[x] = $%s[b * TK + min(t + x, TK - 1u)]; }\n", r.segments)
}

// Result is the expression of unit x of the results in the dtype in which it is stored.
func (r rowKernel) Result(x string) string {
	if r.result.Float16() {
		return "narrowed(o[" + x + "])"
	}
	return "o[" + x + "]"
}

// First and Last declare the column at which a block's loop begins or ends.
func (r rowKernel) First() string {
	return r.firstSeen(fmt.Sprintf("block * %du", r.Block()), r.Block(), max(r.Tile, r.ColumnsPerIteration()))
}
func (r rowKernel) Last() string { return r.pastSeen(fmt.Sprintf("block * %du", r.Block()), r.Block()) }

// Segment emits the load of the segment of column c.
func (r rowKernel) Segment(c int) string {
	if r.Tile > 0 {
		return r.ifSegments("let segment%d = gs[jj + %du];\n", c, c)
	}
	return r.ifSegments("let segment%d = $%s[b * TK + min(j + %du, TK - 1u)];\n", c, r.segments, c)
}

// Sees and Seen are the conditions, besides causality, for a row to attend to a column, where the row is a query or a
// key. In the forward pass a query may first meet only masked columns, which have the lowest score. What they
// contribute to its sum is multiplied by 0 as soon as a column is not masked, at the latest its last.
func (r rowKernel) Sees(row, c int) string {
	return r.ifWindow(" && j + %du + WINDOW > i%d + position", c, row) + r.sameSegment(row, c)
}
func (r rowKernel) Seen(row, c int) string {
	return r.ifWindow(" && j + %du < first + %du * LINES + WINDOW", c, row) + r.sameSegment(row, c)
}

func (r rowKernel) sameSegment(row, c int) string {
	return r.ifSegments(" && own%d == segment%d", row, c)
}

func (r rowKernel) unit(staged string, c, u int, array string) string {
	if r.Loops {
		return fmt.Sprintf("%s[%d]", staged, c*r.unitsPerLane()+u)
	}
	if r.Tile > 0 {
		array = staged
	}
	return r.read(array, fmt.Sprintf("at%d + %du", c, u*r.LanesPerRow))
}

func (r rowKernel) scalar(staged string, c int, expr string) string {
	if r.Tile > 0 {
		return fmt.Sprintf("%s[jj + %du]", staged, c)
	}
	return fmt.Sprintf(expr, c)
}

// CopyColumns emits, if Loops is set, the copy of the iteration's columns into the arrays xs and ys; x and y are the
// arrays of vectors.
func (r rowKernel) CopyColumns(x, y string) string {
	if !r.Loops {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "var xs: array<U, %[1]d>;\nvar ys: array<U, %[1]d>;\n", len(r.Cols)*r.units())
	for _, c := range r.Cols {
		fmt.Fprintf(&b, "for (var x = at%[1]d; x < at%[1]d + UNITS; x++) {\nxs[x - at%[1]d + %[2]du] = %[3]s;\nys[x - at%[1]d + %[2]du] = %[4]s;\n}\n", c, c*r.units(), r.read(x, "x"), r.read(y, "x"))
	}
	return b.String()
}

// At is the expression of unit u of a row in an array of the rows' vectors.
func (r rowKernel) At(array string, row, u int) string {
	return fmt.Sprintf("%s[%d]", array, row*r.unitsPerLane()+u)
}

// Load emits the loads of an array of the rows' vectors from global memory.
func (r rowKernel) Load(array, from string) string {
	return r.eachUnit(func(x string) string {
		return array + "[" + x + "] = " + r.read(from,
			"origin + min(first + "+x+" / OWN * LINES, COUNT - 1u) * PITCH + part + "+x+" % OWN * PARTS") + ";\n"
	})
}

// Store emits the stores of an array of the rows' vectors to global memory; value is the expression at an index in it.
func (r rowKernel) Store(value func(x string) string, to string) string {
	return r.eachUnit(func(x string) string {
		return "if (first + " + x + " / OWN * LINES < COUNT) { " + to + "[origin + (first + " + x + " / OWN * LINES) * PITCH + part + " +
			x + " % OWN * PARTS] = " + value(x) + "; }\n"
	})
}

// eachUnit emits the statements for each index in an array of the rows' vectors.
func (r rowKernel) eachUnit(statements func(x string) string) string {
	n := r.N()
	if r.Loops {
		return fmt.Sprintf("for (var y = lane; y < lane + %du; y++) {\nlet x = y - lane;\n%s}\n", n, statements("x"))
	}
	var b strings.Builder
	for x := range n {
		b.WriteString(statements(fmt.Sprintf("%du", x)))
	}
	return b.String()
}

// N is the number of units in all rows of a lane.
func (r rowKernel) N() int { return len(r.Rows) * r.unitsPerLane() }
