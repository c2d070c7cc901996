package coordinator_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/homelink"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/pipeline/cluster/coordinator"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/member"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Four members of two places join in turn. Each reaches the coordinator and the other member of its place alone. Two of
// different places cannot be a replica: the coordinator finds that, and makes replicas of those that reach each other.
func TestReplicasAreOfMembersThatReachEachOther(t *testing.T) {
	tier.Rest(t)
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
		for i := range 4 {
			m := network.Add(all.link())
			place[m.Host()] = i%2 + 1
			dial := func(ctx context.Context, address string) (net.Conn, error) {
				to, _, _ := strings.Cut(address, ":")
				if place[to] != 0 && place[to] != place[m.Host()] {
					return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
				}
				return m.Dial(ctx, address)
			}
			name := fmt.Sprint("place", place[m.Host()])
			joined, err := identity.Join(t.Context(), identity.JoinOptions{Token: host.Token(), Name: name, Build: "test", Dial: dial})
			require.NoError(t, err)
			process, err := member.Start(t.Context(), member.ProcessOptions{Options: member.Options{OpenDevice: all.device},
				Credentials: joined.Credentials, Control: joined.Control, Build: "test", Devices: []string{"null:0"}, Dial: dial,
				Bind: m.Listen, Listen: m.Host(), Hosts: []string{m.Host()}})
			require.NoError(t, err)
			defer func() { assert.NoError(t, process.Close()) }()
			require.NoError(t, host.Wait(t.Context(), func(_, members int) bool { return members == i+1 }))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour) // of virtual time
		defer cancel()
		c := all.config(t, dir, 2, "train={batch_size: 4, microbatches: 4, steps: 6, eval_every: 0, save_every: 0}",
			"pipeline={stages: 2, replicas: 2, local_steps: 3, watchdog: 10m, outer: {wire: int4, late: 1}}")
		var r report
		_, err = host.Train(ctx, func(int, bool) (config.Config, error) { return c, nil }, train.Options{Report: &r,
			Devices: train.DeviceOptions{Open: all.device}})
		require.NoError(t, err, strings.Join(r.notes, "\n"))
		assert.Len(t, r.times, 6)
		of := map[string]string{} // by replica: its place
		for _, m := range host.Members() {
			require.Len(t, m.Ranks, 1)
			replica, name := fmt.Sprint(m.Ranks[0]/2), m.ID[:len("place1")]
			assert.Contains(t, []string{"", name}, of[replica], "replica %s", replica)
			of[replica] = name
		}
	})
}
