package transport

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/gpupipe/gpupipe/internal/sleep"
)

// uplink bounds the bytes that a node sends a second.
type uplink struct{ limiter *rate.Limiter }

// newUplink makes an uplink of some bytes a second; 0: without a limit. It may send a fragment at once.
func newUplink(bytes float64) uplink {
	if bytes <= 0 {
		return uplink{}
	}
	return uplink{rate.NewLimiter(rate.Limit(bytes), 2*fragmentPayload)}
}

// wait waits until a fragment of a class may be sent, or done is closed.
func (u uplink) wait(class Class, bytes int, done <-chan struct{}) {
	if u.limiter == nil {
		return
	}
	delay := u.limiter.ReserveN(time.Now(), min(bytes, 2*fragmentPayload)).Delay()
	if class != Urgent {
		sleep.For(delay, done)
	}
}
