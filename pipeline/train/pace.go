package train

import "time"

// pace estimates the speed and the time left from the last steps. Measurements may arrive several at a time, so it
// looks at some steps together.
type pace struct {
	began  time.Time // later by every pause
	recent []moment
	best   float64 // tokens per second over paceSteps
}

type moment struct {
	at     time.Duration // since began
	tokens int64
}

// paceSteps is the number of steps that the speed is averaged over.
const paceSteps = 8

// start starts the clock.
func (p *pace) start() { p.began, p.recent = time.Now(), []moment{{}} }

// pause excludes a time.
func (p *pace) pause(d time.Duration) { p.began = p.began.Add(d) }

// step adds one step's tokens. It returns the speed and the time of the tokens that are left; both are 0 if unknown.
func (p *pace) step(tokens, left int64) (perSec float64, remaining time.Duration) {
	first, last := p.recent[0], p.recent[len(p.recent)-1]
	now := moment{time.Since(p.began), last.tokens + tokens}
	p.recent = append(p.recent, now)
	if len(p.recent) > paceSteps {
		p.recent = p.recent[1:]
	}
	if now.at <= first.at {
		return 0, 0
	}
	perSec = float64(now.tokens-first.tokens) / (now.at - first.at).Seconds()
	if len(p.recent) == paceSteps {
		p.best = max(p.best, perSec)
	}
	return perSec, timeFor(left, perSec)
}

// timeFor is the time of some tokens; 0 if the speed is unknown.
func timeFor(tokens int64, perSec float64) time.Duration {
	if perSec <= 0 {
		return 0
	}
	return time.Duration(float64(tokens) / perSec * float64(time.Second))
}
