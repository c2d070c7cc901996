package tier

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// uncounted is a test whose cases do not count.
type uncounted struct {
	testing.TB
	counts []string
}

func (u *uncounted) Attr(_, value string) { u.counts = append(u.counts, value) }

// The core and the others are all cases, each once.
func TestDivide(t *testing.T) {
	cases := []string{"a", "b", "c", "d", "e"}
	tried := map[string][]string{}
	u := &uncounted{TB: t}
	for _, tier := range []string{Core, Others, ""} {
		t.Setenv(Variable, tier)
		tried[tier] = Divide(u, cases, Every[string](2))
	}
	assert.Equal(t, map[string][]string{Core: {"a", "c", "e"}, Others: {"b", "d"}, "": cases}, tried)
	assert.Equal(t, []string{"3 of 5", "5 of 5", "5 of 5"}, u.counts)
}
