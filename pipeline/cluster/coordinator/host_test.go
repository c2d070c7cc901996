package coordinator_test

import (
	"slices"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/gpupipe/gpupipe/internal/testing/testdevice"
	"github.com/gpupipe/gpupipe/pipeline/cluster/coordinator"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/member"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A host with all its parts, and a member, may be closed more than once, and by several goroutines at the same time.
func TestCloseTwice(t *testing.T) {
	var announced notes
	h, err := coordinator.NewHost(t.Context(), coordinator.HostOptions{Dir: t.TempDir(), Address: "127.0.0.1:0",
		Hosts: []string{"127.0.0.1"}, Build: "test", Token: identity.TokenOptions{Lifetime: time.Minute},
		Local:     &member.ProcessOptions{Options: member.Options{OpenDevice: testdevice.Open}, Devices: []string{"cpu:0/1"}},
		Browser:   &coordinator.BrowserOptions{Address: "127.0.0.1:0", Files: fstest.MapFS{"program.wasm.gz": {}, "wasm_exec.js": {}}},
		OnMembers: func(all []coordinator.MemberState) { announced.note("%d members, ended %v", len(all), ended(all)) }, Note: t.Logf})
	require.NoError(t, err)
	joined, err := identity.Join(t.Context(), identity.JoinOptions{Token: h.Token(), Name: "a", Build: "test"})
	require.NoError(t, err)
	p, err := member.Start(t.Context(), member.ProcessOptions{Options: member.Options{OpenDevice: testdevice.Open, Note: t.Logf},
		Credentials: joined.Credentials, Control: joined.Control, Build: "test", Devices: []string{"cpu:0/1"}})
	require.NoError(t, err)
	require.NoError(t, h.Wait(t.Context(), func(_, members int) bool { return members == 2 }))
	for _, end := range []func() error{h.Close, p.Close} {
		var closing sync.WaitGroup
		for range 3 {
			closing.Go(func() { assert.NoError(t, end()) })
		}
		closing.Wait()
		assert.NoError(t, end())
	}
	assert.Regexp(t, `\A(\d members, ended false\n)*2 members, ended true\n\z`, announced.all())
}

// ended reports whether all members are known to have ended with the run.
func ended(all []coordinator.MemberState) bool {
	return len(all) > 0 && !slices.ContainsFunc(all, func(m coordinator.MemberState) bool { return m.State != coordinator.Ended })
}
