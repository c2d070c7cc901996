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
	free := slices.Clone(offers)
	take := func(p protocol.Place) bool {
		i := slices.Index(free, p)
		if i >= 0 {
			free = slices.Delete(free, i, i+1)
		}
		return i >= 0
	}
	places := make([]protocol.Place, ranks)
	for rank := range places {
		if rank < len(before) && take(before[rank]) {
			places[rank] = before[rank]
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
// with a device for each stage is a replica; members with fewer devices form one together, see freeGroups. A replica
// stays where it was if its devices are still offered. It is nil if none are left for it.
func groupPlaces(before, offers []protocol.Place, stages, replicas int, apart func(a, b string) bool) [][]protocol.Place {
	groups := make([][]protocol.Place, replicas)
	taken := map[string]bool{}
	for i := range groups {
		if len(before) < (i+1)*stages {
			break
		}
		g := before[i*stages : (i+1)*stages]
		unusable := func(p protocol.Place) bool {
			return taken[p.Member] || !slices.Contains(offers, p) || isApart(g, p.Member, apart)
		}
		if !slices.ContainsFunc(g, unusable) {
			groups[i] = g
			for _, p := range g {
				taken[p.Member] = true
			}
		}
	}
	free := freeGroups(offers, taken, stages, apart)
	for i := range groups {
		if groups[i] == nil && len(free) > 0 {
			groups[i], free = free[0], free[1:]
		}
	}
	return groups
}

// isApart reports whether a member and one of a group have not reached each other.
func isApart(group []protocol.Place, member string, apart func(a, b string) bool) bool {
	return slices.ContainsFunc(group, func(p protocol.Place) bool { return apart(p.Member, member) })
}

// freeGroups groups the devices of members that are not taken, in the order in which these joined. Members that have
// not reached each other are in one group only if there is no other for them: they may reach each other by now.
func freeGroups(offers []protocol.Place, taken map[string]bool, stages int, apart func(a, b string) bool) (groups [][]protocol.Place) {
	var open [][]protocol.Place // of members with fewer devices than stages; one group, unless some are apart
	for _, member := range (placement{ranks: offers}).members() {
		if taken[member] {
			continue
		}
		own := slices.DeleteFunc(slices.Clone(offers), func(p protocol.Place) bool { return p.Member != member })
		if len(own) >= stages {
			groups = append(groups, own[:stages])
			continue
		}
		i := slices.IndexFunc(open, func(g []protocol.Place) bool { return !isApart(g, member, apart) })
		if i < 0 {
			i, open = len(open), append(open, nil)
		}
		if open[i] = append(open[i], own...); len(open[i]) >= stages {
			groups, open = append(groups, open[i][:stages]), slices.Delete(open, i, i+1)
		}
	}
	if len(open) > 1 {
		groups = append(groups, freeGroups(slices.Concat(open...), nil, stages, func(string, string) bool { return false })...)
	}
	return groups
}
