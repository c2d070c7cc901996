package runs

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/jsonfile"
	"github.com/gpupipe/gpupipe/internal/table"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

// WriteJSON writes a value into a file.
func WriteJSON(path string, v any) error {
	return usererror.New(jsonfile.Write(path, v, "  "))
}

// WriteFile writes a file at once. Its errors are the user's.
func WriteFile(path string, text []byte) error {
	return usererror.New(atomicfile.WriteBytes(path, text))
}

// Number is x for JSON: null unless finite.
func Number(x float64) *float64 {
	if !metrics.Finite(x) {
		return nil
	}
	return &x
}

// Exact is a number as text with all its digits; nil is empty.
func Exact(x *float64) string {
	if x == nil {
		return ""
	}
	return strconv.FormatFloat(*x, 'g', -1, 64)
}

// MarkdownTable aligns the columns, so that the source is readable too. The first row is the head.
func MarkdownTable(rows [][]string) string {
	widths := table.Widths(rows)
	var b strings.Builder
	for n, row := range rows {
		for i, text := range row {
			fmt.Fprintf(&b, "| %s ", table.Pad(text, widths[i]))
		}
		b.WriteString("|\n")
		if n == 0 {
			for _, w := range widths {
				fmt.Fprintf(&b, "| %s ", strings.Repeat("-", max(3, w)))
			}
			b.WriteString("|\n")
		}
	}
	return b.String()
}
