package replicate

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
)

// Exchange is how replicas exchange what they have learned.
type Exchange struct {
	Period      int       `json:"local_steps"` // steps between two exchanges of a fragment; 0: one replica, which exchanges nothing
	Late        int       `json:"late"`        // steps that an exchange takes
	Needed      int       `json:"needed_late"` // the least lateness at which nothing waits
	StepSeconds float64   `json:"step_seconds"`
	Message     int64     `json:"message"` // bytes that a replica sends, and receives, in a period
	Waiting     float64   `json:"waiting"` // the largest share of its time that a replica waits for exchanges
	Working     float64   `json:"working"` // the largest share of its time that exchanges take a replica
	Copies      float64   `json:"copies"`  // that the coordinator sends of what others relay, on average; 0: it sends all
	Links       []LinkUse `json:"links"`   // of the sites that send
	Limit       int       `json:"-"`       // the site whose connection is too slow for more replicas, or for its own; −1: none is
}

// LinkUse is the use of a site's connection: bytes a second, and their share of what it carries.
type LinkUse struct {
	Site      string  `json:"site"`
	Up        float64 `json:"up_bytes_per_s"`
	Down      float64 `json:"down_bytes_per_s"`
	UpShare   float64 `json:"up_share"`
	DownShare float64 `json:"down_share"`
}

const (
	// busy is the share of a connection that exchanges may take: the rest is for headers, for what else uses it, and
	// for its worse hours.
	busy = 0.8
	// working is the share of a replica's time that exchanges may take its devices.
	working = 0.01
	// spare is the lateness that is planned, over what the links need.
	spare = 1.25
	// mostPeriod is the longest period that is planned. Published runs have up to 500 steps.
	mostPeriod = 512
	// hostPasses is how often the weights of a fragment pass between host and device for an exchange: send reads them,
	// uploads them with base and residue and reads the residue; land reads them, uploads them with base and what was
	// sent, reads and writes them.
	hostPasses = 11
	// periods are simulated.
	periods = 3
)

// costs are the costs of the replicas' exchanges. The coordinator owns all fragments. All replicas have the pace of the
// slowest one: faster ones wait for it.
func (p Problem) costs(replicas []Replica) schedule.ExchangeCosts {
	c, step := schedule.ExchangeCosts{Bytes: p.Messages}, pace(replicas)
	for _, s := range p.Sites {
		c.Sites = append(c.Sites, s.Site)
	}
	rate := math.Inf(1)
	for _, r := range replicas {
		c.Replicas = append(c.Replicas, schedule.ReplicaCost{Step: step, Drain: r.FillSeconds, Site: r.site,
			Port: p.Sites[r.site].Port})
		if r.HostRate > 0 {
			rate = min(rate, r.HostRate)
		}
	}
	for _, bytes := range p.Weights {
		c.Work = append(c.Work, hostPasses*bytes/rate/2)
	}
	c.Replicas = append(c.Replicas, schedule.ReplicaCost{Share: 1, Site: p.Owner})
	if p.Direct {
		c.Copies = p.copies(c)
	}
	return c
}

// copies is how many copies of a result the coordinator should send itself, so that the busiest connection is busy for
// the shortest time; 0: all, since that is about as good. With c of n copies sent by the coordinator, whose connection
// needs A for each, the others need W·(1 + (n − c)/n) for what they send, which is c·A at the best c.
func (p Problem) copies(c schedule.ExchangeCosts) float64 {
	all, _ := p.busiest(c)
	n, coordinator, others := c.Passed(), 0.0, 0.0
	_, down := c.Traffic(p.Owner)
	for site, s := range p.Sites {
		up, _ := c.Traffic(site)
		if site == p.Owner {
			coordinator = transfer(up, s.Up) / n
			continue
		}
		others = max(others, transfer(up, s.Up))
	}
	if n < 2 || coordinator == 0 {
		return 0
	}
	best := max(2*others/(coordinator+others/n), transfer(down, p.Sites[p.Owner].Down)/coordinator)
	c.Copies = min(max(1, best), n)
	if seconds, _ := p.busiest(c); seconds > worthPassing*all {
		return 0
	}
	return c.Copies
}

// worthPassing is the share of the time of the busiest connection from which replicas pass results on.
const worthPassing = 0.95

// pace is the time of a step of the slowest replica.
func pace(replicas []Replica) (step float64) {
	for _, r := range replicas {
		step = max(step, r.StepSeconds)
	}
	return step
}

// exchange plans the exchanges of replicas. It reports whether a period that is short enough fits the links.
func (p Problem) exchange(replicas []Replica) (x Exchange, ok bool, err error) {
	step := pace(replicas)
	if len(replicas) == 1 {
		return Exchange{StepSeconds: step, Limit: -1}, true, nil
	}
	c := p.costs(replicas)
	seconds, limit := p.busiest(c)
	x.Limit, x.Period, x.Late = limit, p.Period, p.Late
	if p.Period == 0 {
		work := 0.0
		for _, w := range c.Work {
			work += 2 * w
		}
		x.Period = max(1, int(math.Ceil(seconds/busy/step)), min(mostPeriod, int(math.Ceil(work/working/step))))
	}
	for {
		if p.Period == 0 && x.Period > mostPeriod {
			return x, false, nil
		}
		r, err := p.simulate(c, x.Period, x.Period)
		if err != nil {
			return x, false, err
		}
		if x.Needed = r.Lateness; p.Period == 0 {
			if r.Lateness > x.Period {
				x.Period += 1 + x.Period/16
				continue
			}
			x.Late = min(x.Period, int(math.Ceil(spare*float64(r.Lateness))))
		}
		if r, err = p.simulate(c, x.Period, x.Late); err == nil {
			p.describe(&x, c, r)
		}
		return x, true, err
	}
}

// Exchanges plans the exchanges of a plan's replicas anew, for other messages. It reports whether a period that is
// short enough fits the links; if not, the period suits the links alone.
func (p Problem) Exchanges(plan Plan) (x Exchange, ok bool, err error) {
	return p.exchange(plan.Replicas)
}

func (p Problem) simulate(c schedule.ExchangeCosts, period, late int) (*schedule.ExchangeResult, error) {
	return schedule.SimulateExchanges(schedule.Exchanges{Fragments: len(p.Messages), Period: period, Late: late, Last: schedule.Endless},
		p.merged(c), max(periods*period, 2*period+late+1))
}

// mostApart is how many sites are simulated each by itself, besides the coordinator's.
const mostApart = 12

// merged are the costs with few sites: those with the slowest connections, and one for all others with as many
// replicas, which is as slow as the slowest of them.
func (p Problem) merged(c schedule.ExchangeCosts) schedule.ExchangeCosts {
	at := make([][]schedule.ReplicaCost, len(c.Sites))
	for _, r := range c.Replicas {
		at[r.Site] = append(at[r.Site], r)
	}
	slowness := func(site int) float64 {
		up, down := c.Traffic(site)
		return max(transfer(up, c.Sites[site].Up), transfer(down, c.Sites[site].Down))
	}
	seconds, order := make([]float64, len(at)), []int{}
	for site := range at {
		if len(at[site]) > 0 {
			seconds[site], order = slowness(site), append(order, site)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(seconds[b], seconds[a]) })
	out := schedule.ExchangeCosts{Bytes: c.Bytes, Work: c.Work, Copies: c.Copies}
	add := func(s schedule.Site, replicas []schedule.ReplicaCost) int {
		for _, r := range replicas {
			r.Site = len(out.Sites)
			out.Replicas = append(out.Replicas, r)
		}
		out.Sites = append(out.Sites, s)
		return len(out.Replicas)
	}
	classes, apart := map[int]int{}, 0 // a class by its number of replicas: the last of out.Replicas + 1
	for _, site := range order {
		n, one := len(at[site]), c.Sites[site]
		last, known := classes[n]
		switch {
		case site == p.Owner:
			add(one, at[site])
		case apart < mostApart:
			apart++
			add(one, at[site])
		case !known:
			classes[n] = add(one, at[site])
		default:
			class := &out.Sites[out.Replicas[last-1].Site]
			class.Count = max(1, class.Count) + 1
			class.Up, class.Down = LeastKnown(class.Up, one.Up), LeastKnown(class.Down, one.Down)
			class.Latency = max(class.Latency, one.Latency)
			for i, r := range at[site] {
				like := &out.Replicas[last-n+i]
				like.Step, like.Drain, like.Port = max(like.Step, r.Step), max(like.Drain, r.Drain), LeastKnown(like.Port, r.Port)
			}
		}
	}
	return out
}

// busiest is how long the busiest connection is busy in a period, and its site; −1: none is.
func (p Problem) busiest(c schedule.ExchangeCosts) (seconds float64, at int) {
	at = -1
	for site, s := range p.Sites {
		up, down := c.Traffic(site)
		if t := max(transfer(up, s.Up), transfer(down, s.Down)); t > seconds {
			seconds, at = t, site
		}
	}
	return seconds, at
}

// transfer is the time of bytes at a rate; 0: any.
func transfer(bytes, rate float64) float64 {
	if rate == 0 {
		return 0
	}
	return bytes / rate
}

// describe adds what a simulation says of exchanges.
func (p Problem) describe(x *Exchange, c schedule.ExchangeCosts, r *schedule.ExchangeResult) {
	x.StepSeconds = r.Step
	for _, one := range r.Replicas {
		x.Waiting, x.Working = max(x.Waiting, one.Waited/r.Makespan), max(x.Working, one.Work/r.Makespan)
	}
	message := 0.0
	for _, b := range c.Bytes {
		message += b
	}
	x.Message, x.Copies = int64(message), c.Copies
	seconds := float64(x.Period) * x.StepSeconds
	for site, s := range p.Sites {
		up, down := c.Traffic(site)
		if up+down == 0 {
			continue
		}
		x.Links = append(x.Links, LinkUse{s.Name, up / seconds, down / seconds, transfer(up, s.Up) / seconds,
			transfer(down, s.Down) / seconds})
	}
}

// LeastKnown is the smaller of two numbers; 0 is an unknown number.
func LeastKnown[T int64 | float64](a, b T) T {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}
