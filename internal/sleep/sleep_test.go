package sleep

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestForEndsAtTheTimeOrWithDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, done := time.Now(), make(chan struct{})
		assert.True(t, For(0, done))
		assert.True(t, For(time.Hour, done))
		assert.Equal(t, time.Hour, time.Since(began))
		time.AfterFunc(time.Minute, func() { close(done) })
		assert.False(t, For(time.Hour, done))
		assert.Equal(t, time.Hour+time.Minute, time.Since(began))
		assert.False(t, For(0, done))
		assert.True(t, For(time.Hour, nil))
	})
}
