// Package sleep waits for times that something else may end.
package sleep

import "time"

// For waits until a time has passed or done is closed. It reports whether done is still open.
func For(d time.Duration, done <-chan struct{}) bool {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-done:
		}
	}
	select {
	case <-done:
		return false
	default:
		return true
	}
}
