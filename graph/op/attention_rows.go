package op

import (
	"fmt"
	"regexp"
	"strings"
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
