package engine

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestFailureKeepsTheFirstError(t *testing.T) {
	f := newFailure()
	assert.NoError(t, f.get())
	select {
	case <-f.occurred:
		assert.Fail(t, "occurred is closed before there is an error")
	default:
	}
	first := errors.New("first")
	f.set(first)
	f.set(errors.New("second"))
	<-f.occurred
	assert.Equal(t, first, f.get())
}

func TestFailureOfManyRanksAtOnce(t *testing.T) {
	f := newFailure()
	errs := []error{errors.New("rank 0"), errors.New("rank 1"), errors.New("rank 2")}
	var seen [3]error
	var ranks sync.WaitGroup
	for i, err := range errs {
		ranks.Go(func() {
			f.set(err)
			seen[i] = f.get()
		})
	}
	ranks.Wait()
	assert.Contains(t, errs, f.get())
	for _, err := range seen {
		assert.Equal(t, f.get(), err)
	}
}
