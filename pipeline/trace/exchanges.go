package trace

import (
	"fmt"
	"strings"
)

// ExchangeUse is the exchanges of replicas that train on their own.
type ExchangeUse struct {
	Count int     `json:"exchanges"`
	Late  int     `json:"late"`  // the most steps from sending to landing
	Bytes int64   `json:"bytes"` // of a replica's messages, in all
	Waits int     `json:"waits"` // for an exchange that was due and had not arrived
	Wait  float64 `json:"wait"`  // the largest share of its time that a stage waited for them
	On    string  `json:"on,omitempty"`
}

// exchangeLog gathers the events of exchanges.
type exchangeLog struct {
	ExchangeUse
	waited map[string]float64 // by track
}

// add takes an event. It reports whether no stage needs it.
func (l *exchangeLog) add(e Event) (taken bool) {
	if e.Category == Exchange {
		l.Count++
		l.Bytes += e.Args.Bytes
		if e.Args.Lands != nil && e.Args.Step != nil {
			l.Late = max(l.Late, *e.Args.Lands-*e.Args.Step)
		}
		return true
	}
	if e.Category == Wait && strings.HasPrefix(e.Name, ExchangeWait) {
		if l.waited == nil {
			l.waited = map[string]float64{}
		}
		l.Waits++
		l.waited[e.Track] += e.End - e.Start
	}
	return false
}

// summarize returns nil if there were no exchanges.
func (l *exchangeLog) summarize(all window) *ExchangeUse {
	if l.Count == 0 && l.Waits == 0 {
		return nil
	}
	for track, time := range l.waited {
		if share := time / (all.end - all.start); share > l.Wait || share == l.Wait && track < l.On {
			l.Wait, l.On = share, track
		}
	}
	return &l.ExchangeUse
}

// advice says whether exchanges were waited for, and what would help.
func (x *ExchangeUse) advice() []string {
	switch {
	case x == nil:
		return nil
	case x.Waits == 0:
		return []string{fmt.Sprintf("exchanges: %d, at most %d steps late; none was waited for", x.Count, x.Late)}
	}
	return []string{fmt.Sprintf("exchanges: %d, at most %d steps late; %d times one was waited for, %.1f %% of the time of %s: a larger "+
		"pipeline.outer.late, fewer bytes (pipeline.outer.wire) or more pipeline.local_steps would help, see gpupipe plan --members", x.Count,
		x.Late, x.Waits, 100*x.Wait, x.On)}
}
