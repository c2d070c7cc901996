package op

import (
	"fmt"
	"strings"
)

// A window bounds the loops over columns: the loop of a block of queries begins at the first key in the window of its
// first query, and the loop of a block of keys ends after the last query whose window holds its last key. Columns
// outside add nothing. Columns in between that are outside a row's window are masked.
//
// With segments, the loop of a block of queries begins at the first of these keys whose segment lies between the
// smallest and the largest segment of the block. The loop of a block of keys ends after the last such query. Columns of
// other segments in between are masked, since a segment number may occur again.

// firstSeen declares start, the multiple of step at which the loop of a block of queries begins. top is the block's
// first row.
func (k attentionKernels) firstSeen(top string, rows, step int) string {
	if k.segments != "" {
		from := k.ifWindow("%s + ", k.oldest(top+" + 1u")) + "lane"
		return fmt.Sprintf("%slet start = workgroupUniformLoad(&bound) / %[2]du * %[2]du;\n",
			k.edge(top, rows, top, from, top, "Min", "x"), step)
	}
	position, _ := k.positionExpr()
	return k.ifWindow("let start = %s / %[2]du * %[2]du;\n", k.oldest(top+" + "+position+" + 1u"), step)
}

// pastSeen declares end, the column before which the loop of a block of keys ends.
func (k attentionKernels) pastSeen(top string, rows int) string {
	newest := fmt.Sprintf("min(%s + %du + WINDOW, TQ)", top, rows-1)
	if k.segments == "" {
		return k.ifWindow("let end = %s;\n", newest)
	}
	if k.window == 0 {
		newest = "TK"
	}
	past := fmt.Sprintf("min(%s + %du, TK)", top, rows)
	return fmt.Sprintf("%slet end = workgroupUniformLoad(&bound);\n", k.edge(top, rows, past, past+" + lane", newest, "Max", "x + 1u"))
}

// oldest is the expression of the first key in the window of a query; next is the place after the query's.
func (k attentionKernels) oldest(next string) string {
	if k.window == 0 {
		return "0u"
	}
	return fmt.Sprintf("(max(%s, WINDOW) - WINDOW)", next)
}

func (k attentionKernels) ifWindow(format string, args ...any) string {
	if k.window == 0 {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// edge emits the code that stores to bound the minimum or maximum of own and of the expression at for all columns x in
// [from, to) whose segment lies in the range of the block's segments. Loops over columns contain barriers, so their
// bounds must be uniform, as the result of workgroupUniformLoad is.
func (k attentionKernels) edge(top string, rows int, own, from, to, extreme, at string) string {
	return fmt.Sprintf(`if (lane == 0u) {
  atomicStore(&least, 0xffffffffu);
  atomicStore(&most, 0u);
  atomicStore(&edge, %[4]s);
}
workgroupBarrier();
for (var x = lane; x < %[3]du; x += LANES) {
  let segment = $%[1]s[b * TK + min(%[2]s + x, TK - 1u)];
  atomicMin(&least, segment);
  atomicMax(&most, segment);
}
workgroupBarrier();
{
  let low = atomicLoad(&least);
  let high = atomicLoad(&most);
  var mine = %[4]s;
  for (var x = %[5]s; x < %[6]s; x += LANES) {
    let segment = $%[1]s[b * TK + x];
    if (segment >= low && segment <= high) { mine = %[8]s(mine, %[9]s); }
  }
  atomic%[7]s(&edge, mine);
}
workgroupBarrier();
if (lane == 0u) { bound = atomicLoad(&edge); }
`, k.segments, top, rows, own, from, to, extreme, strings.ToLower(extreme), at)
}

func (k attentionKernels) edgeArrays() string {
	return k.ifSegments("var<workgroup> least: atomic<u32>;\nvar<workgroup> most: atomic<u32>;\nvar<workgroup> edge: atomic<u32>;\nvar<workgroup> bound: u32;\n")
}

// edgeMemory is the size of these arrays in bytes.
func (k attentionKernels) edgeMemory() int {
	if k.segments == "" {
		return 0
	}
	return 16
}

// Start and End are the bounds of the loops over columns: with segments or a window, the variables that firstSeen and
// pastSeen declare.
func (k attentionKernels) Start() string {
	if k.segments == "" && k.window == 0 {
		return "0u"
	}
	return "start"
}

func (k attentionKernels) End() string {
	if k.segments == "" && k.window == 0 {
		return "TQ"
	}
	return "end"
}
