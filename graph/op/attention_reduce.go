package op

import (
	"fmt"
	"strings"
)

// layout declares the constants of a workgroup: how its lanes share rows, and which units of a row a lane has.
func (r rowKernel) layout(count, pitch string) string {
	return fmt.Sprintf(`const LANES = %du;
const PARTS = %du; // of a row, of a lane each
const LINES = %du; // lanes that have the same part
const OWN = %du; // units of a lane's part
const COUNT = %s; // rows
const PITCH = %s;
`, r.Lanes, r.LanesPerRow, r.Lanes/r.LanesPerRow, r.unitsPerLane(), count, pitch)
}

// Reduce emits the code that sums each row's partial inner products over the lanes that share the row. The products are
// the variables <name><row>_<column>, for each of the names. All lanes of a row add in the same order, so they get the
// same bits. Reduce emits nothing if each lane has whole rows.
func (r rowKernel) Reduce(names ...string) string {
	if r.LanesPerRow == 1 {
		return ""
	}
	var put, take strings.Builder
	for _, row := range r.Rows {
		for n, name := range names {
			var products []string
			for _, c := range r.Cols {
				products = append(products, fmt.Sprintf("%s%d_%d", name, row, c))
			}
			typ, _ := r.productsType()
			at := (row*len(names) + n) * r.Lanes
			fmt.Fprintf(&put, "shares[%du + lane] = %s(%s);\n", at, typ, strings.Join(products, ", "))
			fmt.Fprintf(&take, "{\nvar whole = shares[%[1]du + lane - part];\nfor (var x = 1u; x < PARTS; x++) { whole += shares[%[1]du + lane - part + x]; }\n", at)
			for c, product := range products {
				fmt.Fprintf(&take, "%s = whole%s;\n", product, r.component(c))
			}
			take.WriteString("}\n")
		}
	}
	return "workgroupBarrier();\n" + put.String() + "workgroupBarrier();\n" + take.String()
}

// productsType returns the WGSL type that holds one product for each column of an iteration, and its size in bytes.
func (r rowKernel) productsType() (typ string, size int) {
	if n := r.ColumnsPerIteration(); n > 1 {
		return fmt.Sprintf("vec%d<f32>", n), 4 * (n + n%2)
	}
	return "f32", 4
}

func (r rowKernel) component(c int) string {
	if r.ColumnsPerIteration() == 1 {
		return ""
	}
	return "." + "xyzw"[c:c+1]
}

// reduceMemory returns the bytes of workgroup memory that Reduce needs for the given number of names.
func (r rowKernel) reduceMemory(products int) int {
	if r.LanesPerRow == 1 {
		return 0
	}
	_, size := r.productsType()
	return products * len(r.Rows) * r.Lanes * size
}
