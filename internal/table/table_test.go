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
	require.NoError(t, table.Write(&b, [][]string{{"NAME", "LOSS"}, {"模型", "1.5"}, {"e\u0301te\u0301", "2", "diverged"}, {"", ""}, {"one"}}))
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
