package graphhook

import (
	"maps"
	"slices"
)

// Kinds lists the ops that modules can apply.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }
