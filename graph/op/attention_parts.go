package op

import (
	"fmt"
	"strings"
)

// layout is the constants by which lanes share rows and units.
func (r rowKernel) layout(count, pitch string) string {
	return fmt.Sprintf(`const LANES = %du;
const PARTS = %du; // of a row, of a lane each
const LINES = %du; // lanes that have the same part
const OWN = %du; // units of a lane's part
const COUNT = %s; // rows
const PITCH = %s;
`, r.Lanes, r.Parts, r.Lanes/r.Parts, r.own(), count, pitch)
}

// Whole makes the inner products of a row whole where each lane has a part of them: name<row>_<column> for each of the
// names. All lanes of a row add the parts in one order, and go on with the same bits.
func (r rowKernel) Whole(names ...string) string {
	if r.Parts == 1 {
		return ""
	}
	var put, take strings.Builder
	for _, row := range r.Rows {
		for n, name := range names {
			var parts []string
			for _, c := range r.Cols {
				parts = append(parts, fmt.Sprintf("%s%d_%d", name, row, c))
			}
			share, _ := r.share()
			at := (row*len(names) + n) * r.Lanes
			fmt.Fprintf(&put, "shares[%du + lane] = %s(%s);\n", at, share, strings.Join(parts, ", "))
			fmt.Fprintf(&take, "{\nvar whole = shares[%[1]du + lane - part];\nfor (var x = 1u; x < PARTS; x++) { whole += shares[%[1]du + lane - part + x]; }\n", at)
			for c, part := range parts {
				fmt.Fprintf(&take, "%s = whole%s;\n", part, r.component(c))
			}
			take.WriteString("}\n")
		}
	}
	return "workgroupBarrier();\n" + put.String() + "workgroupBarrier();\n" + take.String()
}

// share is the type of a lane's parts of the products with the columns abreast, and its bytes.
func (r rowKernel) share() (typ string, size int) {
	if n := r.Abreast(); n > 1 {
		return fmt.Sprintf("vec%d<f32>", n), 4 * (n + n%2)
	}
	return "f32", 4
}

func (r rowKernel) component(c int) string {
	if r.Abreast() == 1 {
		return ""
	}
	return "." + "xyzw"[c:c+1]
}

// sharesMemory is the bytes of the parts of so many products.
func (r rowKernel) sharesMemory(products int) int {
	if r.Parts == 1 {
		return 0
	}
	_, size := r.share()
	return products * len(r.Rows) * r.Lanes * size
}
