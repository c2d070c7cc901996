package coordinator

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

// tooFewError ends a run whose members have too few devices for its ranks.
type tooFewError struct{ have, need int }

func (e *tooFewError) Error() string {
	return fmt.Sprintf("the members have %d devices, expected %d, one for each rank", e.have, e.need)
}

func (e *tooFewError) Unwrap() error { return train.ErrTooFewDevices }

// Train trains on the members. configure returns the config for a number of devices, of a run that is resumed or not.
// When a member is lost, the run goes on from its newest checkpoint as soon as another device takes its place or, if
// none does in time, on the devices that are left, with another cut.
func (h *Host) Train(ctx context.Context, configure func(devices int, resumed bool) (config.Config, error),
	o train.Options) (train.Result, error) {
	o.Remote = h.open
	for {
		c, err := configure(h.Devices(), o.Resume)
		if err != nil {
			return train.Result{}, err
		}
		res, err := train.Run(ctx, c, o)
		var few *tooFewError
		if !errors.As(err, &few) || ctx.Err() != nil {
			return res, err
		}
		if err := h.Wait(ctx, func(devices, _ int) bool { return devices > 0 }); err != nil {
			return res, err
		}
		if o.Resume = true; res.Begun {
			o.From = nil
		}
		o.Report.Note("%v; going on with %d", err, h.Devices())
	}
}

// open opens a pipeline on the members, once there are enough devices.
func (h *Host) open(ctx context.Context, t train.RemoteTask) (train.Pipeline, error) {
	need := t.Config.Pipeline.Stages * t.Config.Pipeline.Replicas
	waiting, cancel := context.WithTimeout(ctx, h.options.Rejoin)
	defer cancel()
	if err := h.Wait(waiting, func(devices, _ int) bool { return devices >= need }); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &tooFewError{h.Devices(), need}
	}
	h.epoch += 2 // the first measures links
	places, peers := h.roster.place(need)
	peers = append([]protocol.Peer{{ID: identity.CoordinatorID}}, peers...)
	o := Options{Control: h.services.control, Node: h.services.node, Epoch: h.epoch, Places: places, Peers: peers, PeersOf: h.peersOf,
		Modelled: h.options.Modelled, Links: &h.links, Opened: h.use, Measured: h.options.Measured, Expel: h.expelled.expel}
	if len(o.Places) < need {
		return nil, &tooFewError{len(o.Places), need}
	}
	p, err := Open(ctx, t, o)
	if err != nil {
		return nil, err
	}
	h.roster.setPlaces(p.placement.ranks)
	return p, nil
}

// use makes a pipeline the one that messages are for.
func (h *Host) use(p *Pipeline) {
	p.reports.changed = h.announcements.soon
	h.pipeline.Store(p)
}
