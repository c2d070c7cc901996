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
