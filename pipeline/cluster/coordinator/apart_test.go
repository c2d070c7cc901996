package coordinator_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/homelink"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/cluster/coordinator"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/member"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// trainInPlaces trains two replicas of two stages on members that join in turn, each at a place, with a device each.
// Each reaches the coordinator and, while places are apart, the members of its place alone. It returns the members at
// the end and the run's events.
func trainInPlaces(t *testing.T, places []int, apart func() bool, set ...string) (members []coordinator.MemberState, events string) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		network := homelink.New(4<<10, 16<<10)
		defer network.Close()
		all := homes{factor: 6}
		first := network.Add(all.link())
		host, err := coordinator.NewHost(t.Context(), coordinator.HostOptions{Dir: dir + "/cluster", Address: first.Host() + ":0",
			Hosts: []string{first.Host()}, Build: "test", Modelled: true, Listen: first.Listen})
		require.NoError(t, err)
		defer func() { assert.NoError(t, host.Close()) }()
		place := map[string]int{}
		for i, at := range places {
			m := network.Add(all.link())
			place[m.Host()] = at
			dial := func(ctx context.Context, address string) (net.Conn, error) {
				to, _, _ := strings.Cut(address, ":")
				if place[to] != 0 && place[to] != at && apart() {
					return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
				}
				return m.Dial(ctx, address)
			}
			name := fmt.Sprint("place", at)
			joined, err := identity.Join(t.Context(), identity.JoinOptions{Token: host.Token(), Name: name, Build: "test", Dial: dial})
			require.NoError(t, err)
			process, err := member.Start(t.Context(), member.ProcessOptions{Options: member.Options{OpenDevice: all.device},
				Credentials: joined.Credentials, Control: joined.Control, Build: "test", Devices: []string{"null:0"},
				Network: transport.Network{Dial: dial, Bind: m.Listen}, Listen: m.Host(), Hosts: []string{m.Host()}})
			require.NoError(t, err)
			defer func() { assert.NoError(t, process.Close()) }()
			require.NoError(t, host.Wait(t.Context(), func(_, members int) bool { return members == i+1 }))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour) // of virtual time
		defer cancel()
		c := all.config(t, dir, 2, append(set, "pipeline.stages=2", "pipeline.replicas=2", "pipeline.watchdog=10m")...)
		var r report
		_, err = host.Train(ctx, func(int, bool) (config.Config, error) { return c, nil }, train.Options{Report: &r,
			Devices: train.DeviceOptions{Open: all.device}})
		require.NoError(t, err, strings.Join(r.notes, "\n"))
		assert.Len(t, r.times, c.Train.Steps)
		text, err := os.ReadFile(c.Run.Dir + "/events.jsonl")
		require.NoError(t, err)
		members, events = host.Members(), string(text)
	})
	return members, events
}

// Two members of different places cannot be a replica: the coordinator finds that, and makes replicas of those that
// reach each other.
func TestReplicasAreOfMembersThatReachEachOther(t *testing.T) {
	tier.Rest(t)
	members, _ := trainInPlaces(t, []int{1, 2, 1, 2}, func() bool { return true }, "train.steps=6", "train.batch_size=4",
		"train.microbatches=4", "pipeline.local_steps=3", "pipeline.outer={wire: int4, late: 1}")
	of := map[string]string{} // by replica: its place
	for _, m := range members {
		require.Len(t, m.Ranks, 1)
		replica, name := fmt.Sprint(m.Ranks[0]/2), m.ID[:len("place1")]
		assert.Contains(t, []string{"", name}, of[replica], "replica %s", replica)
		of[replica] = name
	}
}

// A replica whose members do not reach each other at first joins those that train, some time after its members do.
func TestReplicaJoinsWhenItsMembersReachEachOther(t *testing.T) {
	tier.Rest(t)
	var tried atomic.Int64 // when the two were to connect at first
	apart := func() bool {
		now := time.Now().UnixNano()
		tried.CompareAndSwap(0, now)
		return now-tried.Load() < int64(5*time.Minute)
	}
	members, events := trainInPlaces(t, []int{1, 1, 2, 3}, apart, "train.steps=50", "train.batch_size=32", "train.microbatches=32",
		"pipeline.local_steps=20", "pipeline.outer={wire: int4, late: 5}")
	for _, m := range members {
		assert.Len(t, m.Ranks, 1)
	}
	assert.Equal(t, 1, strings.Count(events, "no connection for 20s"), events)
	assert.Contains(t, events, "replica 1 begins after step ")
	assert.NotContains(t, events, `"event":"restart"`)
}
