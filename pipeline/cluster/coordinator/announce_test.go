package coordinator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A function that takes long delays no change. It gets the newest state, and in the end that the run has ended.
func TestAnnouncements(t *testing.T) {
	members := make(chan []MemberState, 1)
	entered, release := make(chan []MemberState), make(chan struct{})
	a := announce(func() []MemberState { return <-members }, func(m []MemberState) {
		entered <- m
		<-release
	})
	state := func(id string) []MemberState { return []MemberState{{ID: id}} }
	a.now()
	members <- state("a")
	require.Equal(t, state("a"), <-entered)
	for range 100 {
		a.now() // does not wait for the function
	}
	release <- struct{}{}
	members <- state("b")
	require.Equal(t, state("b"), <-entered, "once for all changes")
	release <- struct{}{}

	a.soon()
	select {
	case <-entered:
		assert.Fail(t, "what links carry is announced too often")
	case <-time.After(50 * time.Millisecond):
	}
	closed := make(chan struct{})
	go func() {
		a.close()
		close(closed)
	}()
	members <- state("c")
	require.Equal(t, []MemberState{{ID: "c", State: Ended}}, <-entered)
	close(release)
	<-closed
}
