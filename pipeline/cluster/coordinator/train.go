package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/gpupipe/gpupipe/runtime/device"
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
	o.Devices.Remote = func(ctx context.Context, t train.RemoteTask) (train.Pipeline, error) {
		if t.Config.Pipeline.Independent() {
			return h.openReplicas(ctx, t, o)
		}
		return h.open(ctx, t)
	}
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
	places, peers := h.roster.place(need)
	o := h.pipelineOptions(h.nextEpoch(), places, peers)
	o.Opened = h.use
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

// nextEpoch is the number of a new epoch. The one before it measures links.
func (h *Host) nextEpoch() uint64 { return h.epoch.Add(2) }

// pipelineOptions are the options of a pipeline on some members.
func (h *Host) pipelineOptions(epoch uint64, places []protocol.Place, peers []protocol.Peer) Options {
	return Options{Control: h.services.control, Node: h.services.node, Epoch: epoch, Places: places,
		Peers: append([]protocol.Peer{{ID: identity.CoordinatorID}}, peers...), PeersOf: h.peersOf, Modelled: h.options.Modelled,
		Links: &h.links, Measured: h.options.Measured, Expel: h.expelled.expel}
}

// use makes a pipeline the one that messages are for.
func (h *Host) use(p *Pipeline) {
	p.reports.changed = h.announcements.soon
	h.run(p)
}

// run makes something what messages are for.
func (h *Host) run(x running) { h.pipeline.Store(&x) }

// openReplicas opens replicas that train on their own, once there are enough devices for all of them, or after
// HostOptions.Rejoin with those that are here.
func (h *Host) openReplicas(ctx context.Context, t train.RemoteTask, o train.Options) (train.Pipeline, error) {
	if t.Config.Pipeline.Depth == config.DepthAuto {
		t.Config.Pipeline.Depth = config.DepthNumber(0) // one number for all replicas
	}
	p := t.Config.Pipeline
	here, err := h.awaitReplicas(ctx, p.Stages, p.Replicas)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	} else if here == 0 {
		return nil, &tooFewError{h.Devices(), p.Stages}
	} else if err != nil {
		t.Report.Note("%d of %d replicas are here; the others may join later", here, p.Replicas)
	}
	h.roster.placeGroups(p.Stages, p.Replicas, func(int) bool { return true })
	return OpenReplicas(ctx, ReplicaOptions{Task: t, Open: h.openReplica, Offer: h.offerTo(p.Stages, p.Replicas),
		Execute: o.Devices.Execute, Direct: &Direct{Peer: h.neighbor, NextEpoch: h.nextEpoch},
		Opened: func(r *Replicas) { h.run(r) }, Failed: func(replica int) { h.roster.failed(replica, p.Stages) },
		Device: func() (device.Device, error) { return o.Devices.Open(h.ownDevice()) }})
}

// awaitReplicas waits until there are devices for all replicas, but not longer than HostOptions.Rejoin, and returns how
// many have devices. If none has, no members count as unreachable any longer: by now they may not be.
func (h *Host) awaitReplicas(ctx context.Context, stages, replicas int) (here int, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.options.Rejoin)
	defer cancel()
	enough := func(offers []protocol.Place) bool {
		groups := groupPlaces(h.roster.placed, offers, stages, replicas, func(int) bool { return true }, h.links.unreachable)
		here = len(slices.DeleteFunc(groups, func(g []protocol.Place) bool { return g == nil }))
		return here == replicas
	}
	if err = h.roster.waitOffers(ctx, enough); errors.Is(err, context.DeadlineExceeded) && here == 0 {
		h.links.forget("")
		err = h.roster.waitOffers(ctx, enough)
	}
	return here, err
}

// mostAddresses is how many of a member's addresses others learn.
const mostAddresses = 16

// neighbor describes a member for members of other replicas. The one in this process and browser tabs relay nothing:
// it would use the coordinator's link.
func (h *Host) neighbor(member string) (protocol.Peer, bool) {
	info, ok := h.roster.info(member)
	local := h.services.local != nil && h.services.local.ID() == member
	addresses := info.Addresses[:min(len(info.Addresses), mostAddresses)]
	return protocol.Peer{ID: member, Addresses: addresses}, ok && !local && info.Tab == ""
}

// openReplica opens the pipeline of a replica on its members; nil: it has none.
func (h *Host) openReplica(ctx context.Context, t train.RemoteTask, of *ofReplica, opened func(*Pipeline)) (*Pipeline, error) {
	places, peers := h.roster.group(of.number, t.Config.Pipeline.Stages)
	if len(places) == 0 {
		return nil, nil
	}
	o := h.pipelineOptions(h.nextEpoch(), places, peers)
	o.Node, o.Opened, o.replica = extending{h.services.node}, opened, of
	p, err := Open(ctx, t, o)
	if err == nil {
		h.roster.setGroup(of.number, p.placement.stages, p.placement.ranks)
	}
	return p, err
}

// offerTo returns the Offer of ReplicaOptions.
func (h *Host) offerTo(stages, replicas int) func(ctx context.Context, away []int) (replica int, err error) {
	return func(ctx context.Context, away []int) (replica int, err error) {
		isAway := func(i int) bool { return slices.Contains(away, i) }
		err = h.roster.waitOffers(ctx, func(offers []protocol.Place) bool {
			for i, g := range groupPlaces(h.roster.placed, offers, stages, replicas, isAway, h.links.unreachable) {
				if g != nil && isAway(i) {
					replica = i
					return true
				}
			}
			return false
		})
		if err == nil {
			h.roster.placeGroups(stages, replicas, isAway)
		}
		return replica, err
	}
}

// extending is a node in several epochs, one for each replica.
type extending struct{ *transport.Node }

// Connect implements Node.
func (n extending) Connect(epoch uint64, peers []transport.Peer) error { return n.Extend(epoch, peers) }

// ownDevice is the device of this process for the outer optimizer: the first that it offers, or a CPU.
func (h *Host) ownDevice() string {
	if l := h.options.Local; l != nil && len(l.Devices) > 0 {
		return l.Devices[0]
	}
	return "cpu:0"
}
