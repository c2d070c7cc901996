package schedule

import (
	"fmt"
	"math"
	"slices"
)

// ExchangeCosts are the costs of replicas that train on their own, and of their exchanges, in any unit of time and in
// bytes. Every fragment is divided among owners. Each replica sends each owner its part of the message; the owner takes
// the mean and sends each replica the result, which has as many bytes. If one owns all, replicas may relay the
// result.
type ExchangeCosts struct {
	Bytes    []float64 // by fragment: of a message
	Work     []float64 // by fragment: the time that sending it takes a replica, and landing it takes as long; nil: none
	Replicas []ReplicaCost
	Sites    []Site
	// Copies is how many copies of a result the owner of all fragments sends to other sites, on average. Replicas at
	// these relay the others, in as many chains, whose heads rotate. 0: the owner sends all.
	Copies float64
}

// ReplicaCost is the cost of a replica, or of an owner that does not train.
type ReplicaCost struct {
	Step  float64 // the time of a step; 0: it owns a share and does not train
	Drain float64 // the time that its pipeline loses to be empty after a step with an exchange
	Share float64 // of each fragment that it owns; the shares sum to 1
	Site  int
	Port  float64 // bytes per unit of time that it sends, and receives, at most; 0: any
}

// Site is a place whose replicas share a connection to other places. Messages within the site do not use it.
type Site struct {
	Up, Down float64 // bytes per unit of time; 0: any
	Latency  float64 // from or to this site; between two sites it is the larger of theirs
	Count    int     // how many sites it stands for that are alike and own nothing; 0: one
}

// count is how many sites it stands for.
func (s Site) count() float64 { return float64(max(1, s.Count)) }

func (c ExchangeCosts) check(e Exchanges) error {
	if len(c.Bytes) != e.Fragments || c.Work != nil && len(c.Work) != e.Fragments {
		return fmt.Errorf("exchanges: found the bytes of %d fragments and the work of %d, expected %d", len(c.Bytes), len(c.Work), e.Fragments)
	}
	training, owned := 0, 0.0
	valid := func(values ...float64) bool {
		return !slices.ContainsFunc(values, func(v float64) bool { return !(v >= 0 && v <= maxCost) })
	}
	for i, r := range c.Replicas {
		if !valid(r.Step, r.Drain, r.Share, r.Port) || r.Site < 0 || r.Site >= len(c.Sites) {
			return fmt.Errorf("exchanges: replica %d: found %+v, expected numbers from 0 to %v and one of %d sites", i, r, maxCost, len(c.Sites))
		}
		if owned += r.Share; r.Step > 0 {
			training++
		}
		if r.Share > 0 && c.Sites[r.Site].Count > 1 {
			return fmt.Errorf("exchanges: replica %d: found a share at one of %d sites that are alike, expected none", i, c.Sites[r.Site].Count)
		}
	}
	for i, s := range c.Sites {
		if !valid(s.Up, s.Down, s.Latency) {
			return fmt.Errorf("exchanges: site %d: found %+v, expected numbers from 0 to %v", i, s, maxCost)
		}
	}
	if !valid(c.Bytes...) || !valid(c.Work...) {
		return fmt.Errorf("exchanges: found bytes %v and work %v, expected numbers from 0 to %v", c.Bytes, c.Work, maxCost)
	}
	if most := c.Passed(); c.Copies != 0 && !(c.Copies >= 1 && c.Copies <= most) {
		return fmt.Errorf("exchanges: found %v copies of a result, expected 1 to %v, and one owner of all fragments", c.Copies, most)
	}
	if training == 0 || math.Abs(owned-1) > 1e-6 {
		return fmt.Errorf("exchanges: found %d replicas that own %v of each fragment, expected at least one replica, and all", training, owned)
	}
	return nil
}

// Training is the number of replicas that train.
func (c ExchangeCosts) Training() (n int) {
	for _, r := range c.Replicas {
		if r.Step > 0 {
			n += int(c.Sites[r.Site].count())
		}
	}
	return n
}

// Traffic is the bytes that a site sends, and receives, for an exchange of all fragments. Each replica sends the owners
// at other sites their shares of its message; each owner sends its share of the results to the replicas at other sites.
func (c ExchangeCosts) Traffic(site int) (up, down float64) {
	training, owned, message := c.at(site)
	all := float64(c.Training())
	down = message * (training*(1-owned) + owned*(all-training))
	if up = down; c.Copies > 0 && owned > 0 {
		return message * c.Copies, down
	} else if c.Copies > 0 {
		up += message * training * c.share()
	}
	return up, down
}

// Passed is the number of replicas that get results from another site; 0: no replica owns all fragments.
func (c ExchangeCosts) Passed() float64 {
	for i, r := range c.Replicas {
		if r.Share == 1 {
			at, _, _ := c.at(c.Replicas[i].Site)
			return float64(c.Training()) - at
		}
	}
	return 0
}

// share is how many copies of a result a replica relays, on average.
func (c ExchangeCosts) share() float64 {
	most := c.Passed()
	return (most - c.Copies) / most
}

// hops is how many replicas, one after the other, relay a result.
func (c ExchangeCosts) hops() float64 { return math.Ceil(c.Passed()/c.Copies) - 1 }

// at are the replicas that train at a site, the share of each fragment that is owned there, and the bytes of a message
// of all fragments.
func (c ExchangeCosts) at(site int) (training, owned, message float64) {
	for _, r := range c.Replicas {
		if r.Site != site {
			continue
		}
		if owned += r.Share; r.Step > 0 {
			training++
		}
	}
	for _, b := range c.Bytes {
		message += b
	}
	return training, owned, message
}
