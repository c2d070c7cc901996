package replicas

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Each fragment is sent once in a period, evenly spread, and lands before it is sent again. At the end of the run all land.
func TestPlan(t *testing.T) {
	for _, p := range []Plan{{1, 1, 0, 5}, {4, 8, 3, 50}, {5, 3, 3, 20}, {6, 32, 32, 100}, {3, 7, 6, 1000}} {
		last, landed := make([]int, p.Fragments), make([]int, p.Fragments)
		for s := 1; s <= p.Last; s++ {
			sent := p.Sent(s)
			assert.LessOrEqual(t, len(sent), max(p.Fragments, 1), "%+v", p)
			if s < p.Last {
				assert.LessOrEqual(t, len(sent), (p.Fragments+p.Period-1)/p.Period, "%+v: step %d", p, s)
			}
			for _, f := range sent {
				if last[f] > 0 && s < p.Last {
					assert.Equal(t, p.Period, s-last[f], "%+v: fragment %d", p, f)
					assert.LessOrEqual(t, landed[f], s, "%+v: fragment %d", p, f)
				}
				last[f], landed[f] = s, p.Lands(s)
				assert.LessOrEqual(t, landed[f], p.Last)
			}
		}
		assert.Equal(t, slices.Repeat([]int{p.Last}, p.Fragments), last, "%+v", p)
		assert.Equal(t, p.Last, p.Lands(p.Last))
		assert.Equal(t, p.Last+1, Plan{p.Fragments, p.Period, 0, p.Last}.Lands(p.Last+1), "a run that goes on after its end")
		if p.Last > p.Period {
			assert.Contains(t, p.Sent(p.Period), p.Fragments-1, "the last one at the end of the period")
		}
	}
	assert.Empty(t, Plan{2, 4, 0, 0}.Sent(-1))
}
