package model

// Canonical returns the one way to write a config among those that compute the same: derived values are absent, and
// patterns are as short as they can be.
func (c Config) Canonical() Config {
	c = c.Completed()
	if !c.Norm.Weight || c.Norm.QK == QKNone {
		c.Norm.QKWeight = true
	}
	var kinds []string
	var rope []int
	for i := range min(c.NLayers, maxLayers) {
		kind, on := FullLayer, 0
		if c.Attention.local(i) {
			kind = LocalLayer
		}
		if c.Layer(i).Rope {
			on = 1
		}
		kinds, rope = append(kinds, kind), append(rope, on)
	}
	c.Attention.Pattern, c.Attention.Rope = period(kinds), period(rope)
	switch p := c.Attention.Pattern; {
	case len(p) == 1 && p[0] == FullLayer:
		c.Attention.Window, c.Attention.Pattern = 0, nil
	case len(p) == 1:
		c.Attention.Pattern = nil
	}
	if c.Attention.Window == 0 {
		c.Rope.Scaling.Layers = "" // all layers are full
	}
	if r := c.Attention.Rope; len(r) == 1 && r[0] == 1 {
		c.Attention.Rope = nil
	}
	return c
}

// period is the shortest list that gives another one when it is repeated.
func period[T comparable](list []T) []T {
	for n := 1; n < len(list); n++ {
		repeats := true
		for i := n; i < len(list) && repeats; i++ {
			repeats = list[i] == list[i-n]
		}
		if repeats {
			return list[:n:n]
		}
	}
	return list
}
