package coordinator

import (
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
)

// placement is where ranks are.
type placement struct {
	ranks  []protocol.Place
	stages int // of each replica, whose ranks follow each other
}

// members lists the members of the ranks, each once.
func (p placement) members() (all []string) {
	for _, place := range p.ranks {
		if !slices.Contains(all, place.Member) {
			all = append(all, place.Member)
		}
	}
	return all
}

// pair is a sending and a receiving member.
type pair struct{ from, to string }

// neighbors lists the pairs of members whose ranks send each other tensors: of neighboring stages, of the first and the
// last stage, which may share embeddings, and of the same stage of several replicas.
func (p placement) neighbors() (pairs []pair) {
	add := func(a, b int) {
		for _, x := range []pair{{p.ranks[a].Member, p.ranks[b].Member}, {p.ranks[b].Member, p.ranks[a].Member}} {
			if x.from != x.to && !slices.Contains(pairs, x) {
				pairs = append(pairs, x)
			}
		}
	}
	for rank := range p.ranks {
		first := rank / p.stages * p.stages // of its replica
		add(rank, first+(rank-first+1)%p.stages)
		add(rank, rank%p.stages)
	}
	return pairs
}

// pairs lists the pairs of members whose links are measured: all, if their order may change, or else neighbors.
func (p placement) pairs() []pair {
	all := p.neighbors()
	members := p.members()
	if len(members) > mostOrdered {
		return all
	}
	for _, from := range members {
		for _, to := range members {
			if x := (pair{from, to}); from != to && !slices.Contains(all, x) {
				all = append(all, x)
			}
		}
	}
	return all
}

// network is the members of the ranks and the links between them. A link that is not measured is as slow as the slowest
// of those that are.
func (p placement) network(links *Links) *partition.Network {
	slowest, members, n := slowestLink(p.neighbors(), links), p.members(), &partition.Network{}
	for _, from := range p.ranks {
		n.Machines = append(n.Machines, slices.Index(members, from.Member))
		row := make([]partition.Link, len(p.ranks))
		for i, to := range p.ranks {
			if link, ok := links.get(pair{from.Member, to.Member}); ok {
				row[i] = link
			} else if from.Member != to.Member {
				row[i] = slowest
			}
		}
		n.Links = append(n.Links, row)
	}
	return n
}

// reorder moves the stages of each replica: stage s goes to the place of stage order[s].
func (p *placement) reorder(order []int) {
	places := slices.Clone(p.ranks)
	for rank := range places {
		stage := rank % p.stages
		places[rank] = p.ranks[rank-stage+order[stage]]
	}
	p.ranks = places
}

// stageMembers are the members of the stages of the first replica.
func (p placement) stageMembers() (all []string) {
	for _, place := range p.ranks[:p.stages] {
		all = append(all, place.Member)
	}
	return all
}

// place assigns ranks to devices. Ranks stay where they were if the device is still offered.
func place(before, offers []protocol.Place, ranks int) []protocol.Place {
	free, places := slices.Clone(offers), make([]protocol.Place, ranks)
	for rank, p := range before[:min(ranks, len(before))] {
		if i := slices.Index(free, p); i >= 0 {
			places[rank], free = p, slices.Delete(free, i, i+1)
		}
	}
	for rank, p := range places {
		if p == (protocol.Place{}) {
			if len(free) == 0 {
				return nil
			}
			places[rank], free = free[0], free[1:]
		}
	}
	return places
}

// groupPlaces assigns the ranks of replicas that train on their own to devices. A member has ranks of one replica. One
// with a device for each stage is a replica; members with fewer devices form one together, see freeGroups. Replicas
// that are not away keep their devices. One that is away returns to its own if they are still offered and reach each
// other. It is nil if none are left for it.
func groupPlaces(before, offers []protocol.Place, stages, replicas int, away func(int) bool,
	unreachable func(a, b string) bool) [][]protocol.Place {
	groups := make([][]protocol.Place, replicas)
	taken := map[string]bool{}
	gone := func(p protocol.Place) bool { return taken[p.Member] || !slices.Contains(offers, p) }
	broken := func(x pair) bool { return unreachable(x.from, x.to) }
	placed := slices.Collect(slices.Chunk(before[:min(replicas, len(before)/stages)*stages], stages))
	for _, returning := range []bool{false, true} { // those that are not away come first
		for i, g := range placed {
			if away(i) != returning ||
				returning && (slices.ContainsFunc(g, gone) || slices.ContainsFunc(placement{g, stages}.neighbors(), broken)) {
				continue
			}
			groups[i] = g
			for _, p := range g {
				taken[p.Member] = true
			}
		}
	}
	free := freeGroups(offers, taken, stages, unreachable)
	for i := range groups {
		if away(i) && groups[i] == nil && len(free) > 0 {
			groups[i], free = free[0], free[1:]
		}
	}
	return groups
}

// freeGroups groups the devices of members that are not taken, in the order in which these joined. Members that have
// not reached each other are in no group together.
func freeGroups(offers []protocol.Place, taken map[string]bool, stages int, unreachable func(a, b string) bool) (
	groups [][]protocol.Place) {
	var open [][]protocol.Place // of members with fewer devices than stages; one group, unless some are unreachable
	for _, member := range (placement{ranks: offers}).members() {
		if taken[member] {
			continue
		}
		own := slices.DeleteFunc(slices.Clone(offers), func(p protocol.Place) bool { return p.Member != member })
		if len(own) >= stages {
			groups = append(groups, own[:stages])
			continue
		}
		i := slices.IndexFunc(open, func(g []protocol.Place) bool {
			return !slices.ContainsFunc(g, func(p protocol.Place) bool { return unreachable(p.Member, member) })
		})
		if i < 0 {
			i, open = len(open), append(open, nil)
		}
		if open[i] = append(open[i], own...); len(open[i]) >= stages {
			groups, open = append(groups, open[i][:stages]), slices.Delete(open, i, i+1)
		}
	}
	return groups
}
