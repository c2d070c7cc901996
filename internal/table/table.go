// Package table aligns text in columns by display width: a Chinese character takes two columns, a combining mark none.
package table

import (
	"bytes"
	"io"
	"strings"

	"github.com/mattn/go-runewidth"
)

// Gap separates columns.
const Gap = "  "

// Width is the number of terminal columns that a text takes.
func Width(text string) int { return runewidth.StringWidth(text) }

// Pad appends spaces until a text is as wide as width.
func Pad(text string, width int) string { return runewidth.FillRight(text, width) }

// Truncate cuts a text to a width and marks the cut with an ellipsis.
func Truncate(text string, width int) string { return runewidth.Truncate(text, width, "…") }

// Widths returns the width of each column.
func Widths(rows [][]string) []int {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], Width(cell))
		}
	}
	return widths
}

// Write writes rows in aligned columns, without spaces at the ends of lines. Rows may have different numbers of cells.
func Write(w io.Writer, rows [][]string) error {
	widths := Widths(rows)
	var b bytes.Buffer
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(Pad(cell, widths[i]) + Gap)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}

// Wrap breaks a text at spaces into lines of at most a width, unless a word is longer. Spaces within a line stay.
func Wrap(text string, width int) []string {
	var lines []string
	line := ""
	for i, word := range strings.Split(strings.TrimSpace(text), " ") {
		switch {
		case i == 0:
			line = word
		case Width(line)+1+Width(word) > width:
			lines, line = append(lines, strings.TrimSpace(line)), word
		default:
			line += " " + word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// Prose breaks the lines of a text that are wider than width at spaces. With a width of 0 the text stays.
func Prose(text string, width int) string {
	if width == 0 {
		return text
	}
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if Width(line) <= width {
			lines = append(lines, line)
		} else {
			lines = append(lines, Wrap(line, width)...)
		}
	}
	return strings.Join(lines, "\n")
}

// Narrow returns the rows if they fit a width, or if the width is 0. Else it returns the columns to keep, the widest of
// them cut so that they fit.
func Narrow(rows [][]string, width int, keep ...int) [][]string {
	if width == 0 || Total(rows) <= width {
		return rows
	}
	var kept [][]string
	for _, row := range rows {
		var cells []string
		for _, i := range keep {
			if i < len(row) {
				cells = append(cells, row[i])
			}
		}
		kept = append(kept, cells)
	}
	widths := Widths(kept)
	widest := 0
	for i, w := range widths {
		if w > widths[widest] {
			widest = i
		}
	}
	most := max(10, width-Total(kept)+widths[widest])
	for _, row := range kept {
		if widest < len(row) {
			row[widest] = Truncate(row[widest], most)
		}
	}
	return kept
}

// Total is the width of a table with these rows.
func Total(rows [][]string) int {
	total := -Width(Gap)
	for _, w := range Widths(rows) {
		total += w + Width(Gap)
	}
	return max(0, total)
}

// keptWhole is the width up to which a cell is not broken, unless it is a header.
const keptWhole = 12

// Fit returns the rows with texts broken at spaces, so that the table is no wider than width. A row may become several;
// the later ones continue the first. It reports whether the table fits.
func Fit(rows [][]string, width int) ([][]string, bool) {
	widths, least := Widths(rows), make([]int, len(Widths(rows)))
	for i, row := range rows {
		for j, cell := range row {
			if i > 0 && Width(cell) <= keptWhole {
				least[j] = max(least[j], Width(cell))
				continue
			}
			for _, word := range strings.Split(cell, " ") {
				least[j] = max(least[j], Width(word))
			}
		}
	}
	total := Total(rows)
	for total > width {
		widest := -1
		for j := range widths {
			if widths[j] > least[j] && (widest < 0 || widths[j]-least[j] > widths[widest]-least[widest]) {
				widest = j
			}
		}
		if widest < 0 {
			return rows, false
		}
		widths[widest]--
		total--
	}
	var fitted [][]string
	for _, row := range rows {
		fitted = append(fitted, broken(row, widths)...)
	}
	return fitted, true
}

// broken is a row as the lines that it takes in columns of these widths.
func broken(row []string, widths []int) (lines [][]string) {
	for j, cell := range row {
		parts := []string{cell}
		if Width(cell) > widths[j] {
			parts = Wrap(cell, widths[j])
		}
		for i, part := range parts {
			if i == len(lines) {
				lines = append(lines, make([]string, len(row)))
			}
			lines[i][j] = part
		}
	}
	return lines
}

// Turned returns the columns of a table as rows. Empty columns are left out.
func Turned(rows [][]string) (columns [][]string) {
	for j := range Widths(rows) {
		column := make([]string, len(rows))
		empty := true
		for i, row := range rows {
			if j < len(row) {
				column[i] = row[j]
				empty = empty && row[j] == ""
			}
		}
		if !empty {
			columns = append(columns, column)
		}
	}
	return columns
}
