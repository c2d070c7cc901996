//go:build !js

package control_test

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/cluster/control"
	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
)

// A coordinator and a member, from the token to a request.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	// The coordinator: a CA, a control server, an endpoint for joining, a token.
	authority := must(identity.NewAuthority())
	server := must(control.Serve(control.ServerOptions{Address: "127.0.0.1:0", Credentials: must(authority.Coordinator()), Build: "v1"}))
	defer server.Close()
	join := must(identity.ServeJoin(must(net.Listen("tcp", "127.0.0.1:0")),
		identity.JoinServerOptions{Authority: authority, Build: "v1", Control: []string{fmt.Sprintf(":%d", server.Port())}}))
	defer join.Close()
	line := must(authority.NewToken(identity.TokenOptions{Addresses: []string{join.Addr().String()}})).Reveal()
	joined := make(chan string, 1)
	server.Watch(func(c control.MemberChange) {
		if c.Change == control.Joined {
			joined <- c.Member.ID
		}
	})

	// The member: a token becomes a certificate, a certificate a connection.
	membership := must(identity.Join(ctx, identity.JoinOptions{Token: must(identity.ParseToken(line)), Name: "alice", Build: "v1"}))
	client := must(control.Connect(ctx, control.ClientOptions{Addresses: membership.Control, Credentials: membership.Credentials, Build: "v1",
		Setup: func(c *control.Client) {
			c.Handle("load", func(_ context.Context, request []byte) ([]byte, error) {
				return append([]byte("loaded "), request...), nil
			})
		}}))
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
