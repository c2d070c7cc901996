package table_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/internal/table"
	"github.com/stretchr/testify/assert"
)

func TestFit(t *testing.T) {
	rows := [][]string{{"SCHEDULE", "LARGEST STAGE", "NOTE"}, {"1f1b", "12.52 MiB", ""}, {"2bw", "16.1 MiB", "the fastest of all of them"}}
	same, ok := table.Fit(rows, 80)
	assert.True(t, ok)
	assert.Equal(t, rows, same)
	fitted, ok := table.Fit(rows, 40)
	assert.True(t, ok)
	assert.LessOrEqual(t, table.Total(fitted), 40)
	assert.Equal(t, [][]string{{"SCHEDULE", "LARGEST STAGE", "NOTE"}, {"1f1b", "12.52 MiB", ""}, {"2bw", "16.1 MiB", "the fastest of"},
		{"", "", "all of them"}}, fitted)
	fitted, ok = table.Fit(rows, 32)
	assert.True(t, ok)
	assert.Equal(t, []string{"", "STAGE", ""}, fitted[1], "headers are broken, too")
	_, ok = table.Fit(rows, 20)
	assert.False(t, ok, "words are not broken")
}

func TestTurned(t *testing.T) {
	assert.Equal(t, [][]string{{"A", "1", "2"}, {"C", "", "3"}}, table.Turned([][]string{{"A", "", "C"}, {"1"}, {"2", "", "3"}}))
}
