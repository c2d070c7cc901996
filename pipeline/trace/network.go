package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Machines is how the stages of a run over several machines wait for each other, in the steady state where there is
// one.
type Machines struct {
	Clocks  []ClockState `json:"clocks"`
	Links   []LinkUse    `json:"links"` // links that stages waited for longest come first
	Slowest string       `json:"slowest_stage"`
	Settings
}

// Settings are the settings of a run over members that affect its links. They are also the arguments of a Network
// event.
type Settings struct {
	Schedule     string `json:"schedule"`
	Asynchronous bool   `json:"asynchronous"` // stages do not wait for the end of a batch
	Depth        int    `json:"depth"`        // microbatches in flight beyond what the schedule needs
	Wire         string `json:"wire"`
}

// Args are the arguments of the event.
func (s Settings) Args() map[string]any {
	return map[string]any{"schedule": s.Schedule, "asynchronous": s.Asynchronous, "depth": s.Depth, "wire": s.Wire}
}

func (s Settings) String() string {
	return fmt.Sprintf("pipeline: schedule %s, depth %d, wire %s", s.Schedule, s.Depth, s.Wire)
}

// ClockState is the clock of a member.
type ClockState struct {
	Member string  `json:"member"`
	Offset float64 `json:"offset_seconds"` // the newest: its clock minus the run's clock
	Error  float64 `json:"error_seconds"`  // the largest: no event of the member is further from its true time
}

// LinkUse is the use of the link from the stages of one member to the stages of another.
type LinkUse struct {
	From      string  `json:"from"`
	To        string  `json:"to"`
	Wait      float64 `json:"wait"`         // share of the time in which a stage of To waited for a transfer that was under way
	Transfers int     `json:"transfers"`    // in the whole trace
	Seconds   float64 `json:"mean_seconds"` // of a transfer, from the end of its send to its receive
	Bytes     float64 `json:"mean_bytes"`
	// Measured before the run; 0: not measured.
	Latency   float64 `json:"latency_seconds"`
	Bandwidth float64 `json:"bytes_per_second"`
}

// network gathers what a trace has of machines and links.
type network struct {
	arrows   []Arrow
	sends    map[sendKey]sent
	clocks   map[string]*ClockState
	measured map[[2]string]Args
	settings Settings // the newest
}

type sendKey struct {
	track string
	start float64
}

type sent struct {
	end   float64
	bytes int64
}

func newNetwork() *network {
	return &network{sends: map[sendKey]sent{}, clocks: map[string]*ClockState{}, measured: map[[2]string]Args{}}
}

func (n *network) addArrow(a Arrow) { n.arrows = append(n.arrows, a) }

// add takes an event. It reports whether no stage needs it.
func (n *network) add(e Event) (taken bool) {
	switch e.Category {
	case Send:
		n.sends[sendKey{e.Track, e.Start}] = sent{e.End, e.Args.Bytes}
	case Network:
		if e.Args.Source != "" {
			n.measured[[2]string{e.Args.Source, e.Args.Target}] = e.Args
		} else {
			n.settings = e.Args.Settings
		}
		return true
	case Clock:
		if e.Args.Error != nil {
			id := strings.TrimPrefix(e.Track, clockPrefix)
			c := n.clocks[id]
			if c == nil {
				c = &ClockState{Member: id}
				n.clocks[id] = c
			}
			c.Offset, c.Error = e.Args.Offset/1e6, max(c.Error, *e.Args.Error/1e6)
		}
		return true
	}
	return false
}

// transfer is an arrow that ends in a stage of another member.
type transfer struct {
	LinkUse
	sent, received float64 // when the send had ended
}

// summarize returns nil if all stages are on one machine.
func (n *network) summarize(rows []*stage, stages []Stage) *Machines {
	members := map[string]string{}
	m := &Machines{Links: []LinkUse{}, Settings: n.settings}
	for _, r := range rows {
		members[r.name] = r.member
	}
	if !slices.ContainsFunc(rows, func(r *stage) bool { return r.member != rows[0].member }) {
		return nil
	}
	for _, c := range n.clocks {
		m.Clocks = append(m.Clocks, *c)
	}
	slices.SortFunc(m.Clocks, func(a, b ClockState) int { return cmp.Compare(a.Member, b.Member) })
	links, received := map[[2]string]*LinkUse{}, map[string][]transfer{}
	for _, a := range n.arrows {
		from, to := strings.TrimSuffix(a.From, sendSuffix), strings.TrimSuffix(a.To, receiveSuffix)
		x := transfer{LinkUse: LinkUse{From: members[from], To: members[to]}, sent: a.Sent, received: a.Received}
		s, ok := n.sends[sendKey{a.From, a.Sent}]
		if ok {
			x.sent = s.end
		}
		received[to] = append(received[to], x)
		if x.From == x.To {
			continue
		}
		key := [2]string{x.From, x.To}
		l := links[key]
		if l == nil {
			l = &LinkUse{From: x.From, To: x.To, Latency: n.measured[key].Latency / 1e6, Bandwidth: n.measured[key].Bandwidth}
			links[key] = l
		}
		l.Transfers++
		l.Seconds += (max(0, x.received-x.sent)/1e6 - l.Seconds) / float64(l.Transfers)
		l.Bytes += (float64(s.bytes) - l.Bytes) / float64(l.Transfers)
	}
	for _, r := range rows {
		for link, share := range r.waitsForLinks(received[r.name]) {
			links[link].Wait = max(links[link].Wait, share)
		}
	}
	for _, l := range links {
		m.Links = append(m.Links, *l)
	}
	slices.SortFunc(m.Links, func(a, b LinkUse) int {
		return cmp.Or(cmp.Compare(b.Wait, a.Wait), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	m.Slowest = slices.MaxFunc(stages, func(a, b Stage) int { return cmp.Compare(a.busy(), b.busy()) }).Name
	return m
}

// busy is the share of the steady state, or of all, in which a stage computed.
func (s Stage) busy() float64 {
	if s.Steady != nil {
		return s.Steady.Busy
	}
	return s.All.Busy
}

// waitsForLinks returns the share of the stage's windows in which it waited for a transfer that was under way, by link.
// A wait ends with the arrival of a message: the last that was received during it.
func (s *stage) waitsForLinks(received []transfer) map[[2]string]float64 {
	slices.SortFunc(received, func(a, b transfer) int { return cmp.Compare(a.received, b.received) })
	total, waits := 0.0, map[[2]string]float64{}
	for _, w := range s.windows {
		total += w.end - w.start
	}
	for _, x := range s.runs {
		if x.category != Wait {
			continue
		}
		after, _ := slices.BinarySearchFunc(received, x.end, func(t transfer, end float64) int {
			if t.received <= end {
				return -1
			}
			return 1
		})
		if after == 0 || received[after-1].received <= x.start {
			continue // it waited for something else
		}
		t := received[after-1]
		if t.From == t.To {
			continue
		}
		for _, w := range s.windows {
			waits[[2]string{t.From, t.To}] += 1e6 * w.overlap(max(x.start, t.sent), min(x.end, t.received)) / total
		}
	}
	return waits
}
