package table_test

import (
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/table"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestColumnsAlignByDisplayWidth(t *testing.T) {
	var b strings.Builder
	require.NoError(t, table.Write(&b, [][]string{{"NAME", "LOSS"}, {"模型", "1.5"}, {"e\u0301te\u0301", "2", "diverged"}, {"", ""},
		{"one"}}))
	assert.Equal(t, "NAME  LOSS\n模型  1.5\ne\u0301te\u0301   2     diverged\n\none\n", b.String())
	for line := range strings.Lines(b.String()) {
		if at := strings.IndexAny(line, "L12"); at > 0 {
			assert.Equal(t, 6, table.Width(line[:at]), line)
		}
	}
}

func TestTruncateCutsByDisplayWidth(t *testing.T) {
	assert.Equal(t, "模型…", table.Truncate("模型很大", 5))
	assert.Equal(t, "模…", table.Truncate("模型很大", 4), "no character is cut in half")
	assert.Equal(t, "short", table.Truncate("short", 5))
}

func TestWrapBreaksAtSpaces(t *testing.T) {
	assert.Equal(t, []string{"one two", "three 模", "型", "averylongword", "end"}, table.Wrap("one two three 模 型 averylongword end", 8))
	assert.Equal(t, []string{"lr  1", "decay"}, table.Wrap("lr  1   decay", 8))
	assert.Empty(t, table.Wrap(" ", 8))
	assert.Equal(t, 8, table.Total([][]string{{"a", "模型"}, {"ab"}}))
}

func TestNarrowKeepsColumnsAndCutsTheWidest(t *testing.T) {
	rows := [][]string{{"SHARE", "CALLS", "KERNEL", "TIME"}, {"1 %", "2000", "layers.0: matmul add", "3 ms"}, {"2 %"}}
	assert.Equal(t, rows, table.Narrow(rows, 0, 0, 2))
	assert.Equal(t, rows, table.Narrow(rows, table.Total(rows), 0, 2))
	narrow := table.Narrow(rows, 24, 0, 2, 3)
	assert.Equal(t, [][]string{{"SHARE", "KERNEL", "TIME"}, {"1 %", "layers.0: …", "3 ms"}, {"2 %"}}, narrow)
	assert.LessOrEqual(t, table.Total(narrow), 24)
}

func TestProseKeepsLinesThatFit(t *testing.T) {
	assert.Equal(t, "a  b\none two\nthree", table.Prose("a  b\none two three", 8))
	assert.Equal(t, "one two three", table.Prose("one two three", 0))
}
