//go:build !js

package control_test

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
)

// A coordinator and a member, from the token to a request.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	// The coordinator: a CA, a node with sessions, an endpoint for joining, a token.
	authority := must(identity.NewAuthority())
	coordinator := must(authority.Coordinator())
	server := control.NewServer(control.ServerOptions{Build: "v1"})
	node := must(transport.Listen("127.0.0.1:0", transport.Options{Self: identity.CoordinatorID, TLS: coordinator.TLS(identity.RoleMember),
		Identify: coordinator.Identify, Receive: func(string, transport.Message) {}, Sessions: server.Sessions()}))
	defer node.Close()
	defer server.End(control.Ending{})
	join := must(identity.ServeJoin(must(net.Listen("tcp", "127.0.0.1:0")),
		identity.JoinServerOptions{Authority: authority, Build: "v1", Control: []string{fmt.Sprintf(":%d", node.Port())}}))
	defer join.Close()
	line := must(authority.NewToken(identity.TokenOptions{Addresses: []string{join.Addr().String()}})).Reveal()
	joined := make(chan string, 1)
	server.Watch(func(c control.MemberChange) {
		if c.Change == control.Joined {
			joined <- c.Member.ID
		}
	})

	// The member: a token becomes a certificate, a certificate a session.
	membership := must(identity.Join(ctx, identity.JoinOptions{Token: must(identity.ParseToken(line)), Name: "alice", Build: "v1"}))
	own := membership.Credentials
	client := control.NewClient(control.ClientOptions{Build: "v1"})
	client.Handle("load", func(_ context.Context, request []byte) ([]byte, error) {
		return append([]byte("loaded "), request...), nil
	})
	alice := must(transport.Listen("", transport.Options{Self: own.Identity().ID, TLS: own.TLS(), Identify: own.Identify,
		Receive: func(string, transport.Message) {}, Sessions: client.Sessions()}))
	defer alice.Close()
	if err := client.Connect(ctx, alice, transport.Peer{ID: identity.CoordinatorID, Addresses: membership.Control},
		[]byte("two GPUs")); err != nil {
		panic(err)
	}
	defer client.Close()

	fmt.Printf("%s\n", must(server.Request(ctx, <-joined, "load", []byte("ranks 2 and 3"))))
	// Output: loaded ranks 2 and 3
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
