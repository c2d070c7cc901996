package replicas

import (
	"github.com/gpupipe/gpupipe/pipeline/engine"
)

// Copies brings weights that exchanges have changed from the process that owns them to others whose ranks hold copies,
// as the first and the last stage hold tied embeddings. All processes of a replica follow the same plan, so that each
// copy that is sent is received in its turn.
type Copies interface {
	// Sends reports whether ranks of other processes hold copies of a parameter that this one owns.
	Sends(param string) bool
	// Receives reports whether ranks of this process hold a copy of a parameter that another one owns.
	Receives(param string) bool
	Send(param string, v engine.Version, data []byte)
	// Receive waits for the next copy of a version of a parameter.
	Receive(param string, v engine.Version, stopped <-chan struct{}) ([]byte, error)
}

// copying is the parameters of a fragment that are copied: to other processes, and from them.
type copying struct {
	Copies
	from, to []span
}

// newCopying finds the parameters of a whole fragment that are copied. There may be no copies at all.
func newCopying(c Copies, whole fragment) copying {
	if c == nil {
		return copying{}
	}
	return copying{c, whole.of(c.Receives).params, whole.of(c.Sends).params}
}

// share sends a version of what this process owns of a fragment, as it is on the devices, and writes what others have
// sent.
func (c *Course) share(f int, v engine.Version, stopped <-chan struct{}) error {
	x := c.copying[f]
	for _, s := range x.to {
		pending, err := c.weights.ReadWeights(s.param.Name, v)
		if err != nil {
			return err
		}
		data, err := pending.Wait()
		if err != nil {
			return err
		}
		x.Send(s.param.Name, v, data)
	}
	for _, s := range x.from {
		data, err := x.Receive(s.param.Name, v, stopped)
		if err != nil {
			return err
		}
		if err := c.weights.WriteWeights(s.param.Name, v, data); err != nil {
			return err
		}
	}
	return nil
}

// Share brings all copies up to date, of a replica that goes on from a checkpoint or joins.
func (c *Course) Share(stopped <-chan struct{}) error { return c.shareAll(stopped, c.versions()...) }

func (c *Course) shareAll(stopped <-chan struct{}, versions ...engine.Version) error {
	for f := range c.fragments {
		for _, v := range versions {
			if err := c.share(f, v, stopped); err != nil {
				return err
			}
		}
	}
	return nil
}

// Return puts the weights back that Lend has kept, and their copies.
func (c *Course) Return(stopped <-chan struct{}) error {
	if err := c.replica.Return(); err != nil {
		return err
	}
	return c.shareAll(stopped, c.weights.Evaluated())
}
