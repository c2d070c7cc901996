package replicas

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Course is a replica, or the ranks of it that are in this process, on its way from one exchange to the next. The Owner
// is in another process: what a replica sends and the changes of the base are messages, which may take their time.
type Course struct {
	*replica
	plan    schedule.Exchanges
	flights flights
	changes []change  // by fragment
	copying []copying // by fragment
	waited  func(fragment string, since time.Time)
	overdue func(fragment int)
	timeout time.Duration // between two calls of overdue
}

// change is what a replica awaits of a fragment.
type change struct {
	mu      sync.Mutex
	awaited int           // the step after which the fragment was sent; 0: nothing is awaited
	arrived chan [][]byte // the payload of the change
}

// CourseOptions describe a Course.
type CourseOptions struct {
	Settings
	Number  int // of the replica
	Weights Weights
	Owns    func(param string) bool // reports whether a rank of this process owns a parameter
	Copies  Copies                  // nil: no rank of another process holds what one of this process does
	// Waited is told how long the replica has waited for an exchange of a fragment; nil: nobody is.
	Waited func(fragment string, since time.Time)
	// Overdue is called each ChangeTimeout while the replica waits for an exchange that is due; nil: nothing is.
	Overdue       func(fragment int)
	ChangeTimeout time.Duration // 0: 5 s
}

const defaultTimeout = 5 * time.Second

// NewCourse makes the course of a replica. Its base is zero.
func NewCourse(o CourseOptions) *Course {
	fragments := fragmentsOf(o.Model)
	c := &Course{plan: o.plan(fragments), flights: flights{}, waited: o.Waited, overdue: o.Overdue,
		timeout: cmp.Or(o.ChangeTimeout, defaultTimeout)}
	var base [][]byte
	for i, f := range fragments {
		fragments[i] = f.of(o.Owns)
		c.copying = append(c.copying, newCopying(o.Copies, f))
		base = append(base, f.zeros())
		c.changes = append(c.changes, change{arrived: make(chan [][]byte, 1)})
	}
	c.replica = newReplica(o.Number, o.Settings, o.Weights, fragments, base)
	return c
}

// Load loads the programs of exchanges on a device.
func (c *Course) Load(dev device.Device, execute engine.Executor) (err error) {
	c.machine, err = newMachine(c.config, dev, execute, c.fragments, append([]string{applyProgram}, replicaPrograms...)...)
	return err
}

// Close releases the programs.
func (c *Course) Close() error {
	m := c.machine
	c.machine = nil
	return m.close()
}

// Resume takes over the exchanges that have not landed, of a replica that goes on or joins. The base has their changes.
func (c *Course) Resume(all []Flight) error {
	c.flights = flights{}
	for _, flight := range all {
		if flight.Fragment < 0 || flight.Fragment >= len(c.fragments) {
			return fmt.Errorf("an exchange of fragment %d, expected 0 to %d", flight.Fragment, len(c.fragments)-1)
		}
		c.flights[flight.Fragment] = flight.Lands
		if c.sent[flight.Fragment] == nil { // it begins at the base
			c.sent[flight.Fragment] = c.base[flight.Fragment]
		}
	}
	return nil
}

// Next is the first step after one at which something is sent or lands, at most a limit.
func (c *Course) Next(after, limit int) int { return c.flights.next(c.plan, after, limit) }

// Take takes the change of a fragment that was sent after a step, for when it lands.
func (c *Course) Take(fragment, step int, payload [][]byte) error {
	if fragment < 0 || fragment >= len(c.changes) {
		return fmt.Errorf("a change of fragment %d, expected 0 to %d", fragment, len(c.changes)-1)
	}
	x := &c.changes[fragment]
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.awaited != step {
		return fmt.Errorf("a change of %s after step %d: expected one after step %d", c.fragments[fragment].name, step, x.awaited)
	}
	x.awaited = 0
	x.arrived <- payload // there is room: it is awaited once
	return nil
}

// MessageBytes is the size of a message of a fragment, of the parameters that this process owns; 0: there is no such
// fragment.
func (c *Course) MessageBytes(fragment int) int64 {
	if fragment < 0 || fragment >= len(c.fragments) {
		return 0
	}
	blocks := 0
	for _, rows := range c.fragments[fragment].rows() {
		blocks += rows[1] - rows[0]
	}
	return c.config.Bytes(blocks)
}

// MostBytes is the size of the largest message of a fragment.
func (c *Course) MostBytes() (bytes int64) {
	for i := range c.fragments {
		bytes = max(bytes, c.MessageBytes(i))
	}
	return bytes
}

// ErrStopped is the error of an exchange that waits for a change when the replica is stopped.
var ErrStopped = errors.New("replicas: stopped while waiting for an exchange")

// Exchange lands and sends what the plan has after a step, while the ranks of this process are at rest. It waits for
// the changes of what lands. send must not block.
func (c *Course) Exchange(step int, send func(fragment int, payload [][]byte), stopped <-chan struct{}) error {
	arrived := func(land func(f int) error) func(f int) error {
		return func(f int) error { return c.arrive(f, land, stopped) }
	}
	depart := func(f int) error {
		err := c.depart(f, step, send)
		if late := c.plan.Lands(step) > step; err == nil && late && c.config.Estimates() {
			err = c.share(f, engine.Newest, stopped)
		}
		return err
	}
	return c.flights.exchange(c.plan, c.fragments, step, arrived(c.land), depart, arrived(c.landAtOnce))
}

// arrive lands a fragment when its change is there.
func (c *Course) arrive(f int, land func(f int) error, stopped <-chan struct{}) error {
	if err := c.await(f, stopped); err != nil {
		return err
	}
	if err := land(f); err != nil {
		return err
	}
	return c.share(f, engine.Newest, stopped)
}

// depart sends a fragment after a step.
func (c *Course) depart(f, step int, send func(fragment int, payload [][]byte)) error {
	c.flights[f] = c.plan.Lands(step)
	if len(c.fragments[f].params) == 0 {
		return nil // all of it is in other processes
	}
	m, err := c.send(f, step, c.flights[f] > step)
	if err != nil {
		return err
	}
	if err := m.check(c.fragments[f].name); err != nil {
		return fmt.Errorf("the weights have moved too far: %w; a smaller learning rate may help", err)
	}
	x := &c.changes[f]
	x.mu.Lock()
	x.awaited = step
	x.mu.Unlock()
	send(f, m.encode(c.config, c.fragments[f]))
	return nil
}

// await waits for the change of a fragment, if one is under way, and applies it to the base.
func (c *Course) await(f int, stopped <-chan struct{}) error {
	x := &c.changes[f]
	x.mu.Lock()
	none := x.awaited == 0 && len(x.arrived) == 0
	x.mu.Unlock()
	if none {
		return nil
	}
	var payload [][]byte
	since, tick := time.Now(), time.NewTicker(c.timeout)
	defer tick.Stop()
	for waits := true; waits; {
		select {
		case payload = <-x.arrived:
			waits = false
		case <-tick.C:
			if c.overdue != nil {
				c.overdue(f)
			}
		case <-stopped:
			return ErrStopped
		}
	}
	if c.waited != nil {
		c.waited(c.fragments[f].name, since)
	}
	return c.apply(f, payload)
}

// apply applies a change to the base.
func (c *Course) apply(f int, payload [][]byte) error {
	fragment, m := c.fragments[f], newMessage(c.config, c.fragments[f])
	if err := m.decode(c.config, fragment, payload); err != nil {
		return err
	}
	base := make([]byte, 0, len(c.base[f]))
	err := fragment.each(func(piece, n, from, to int) error {
		next, err := c.machine.apply(n, c.base[f][from:to], m.pieces[piece])
		base = append(base, next...)
		return err
	})
	if err == nil {
		c.base[f] = base
	}
	return err
}

// Follow applies a change of the base to a replica that has not begun, and moves it there.
func (c *Course) Follow(fragment int, payload [][]byte) error {
	if fragment < 0 || fragment >= len(c.fragments) {
		return fmt.Errorf("a change of fragment %d, expected 0 to %d", fragment, len(c.fragments)-1)
	}
	if err := c.apply(fragment, payload); err != nil {
		return err
	}
	for _, v := range c.versions() {
		if err := c.writeVersion(c.fragments[fragment], c.base[fragment], v); err != nil {
			return err
		}
	}
	return nil
}
