package transport_test

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/gpupipe/gpupipe/pipeline/cluster/identity"
	"github.com/gpupipe/gpupipe/pipeline/cluster/transport"
)

// Two members of a run on one machine. The first sends an activation of two tensors.
func Example() {
	run, err := identity.NewAuthority()
	if err != nil {
		panic(err)
	}
	received := make(chan transport.Message)
	listen := func(name string) (*transport.Node, transport.Peer) {
		credentials, err := run.Member(name)
		if err != nil {
			panic(err)
		}
		id := credentials.Identity().ID
		node, err := transport.Listen("127.0.0.1:0", transport.Options{Self: id, TLS: credentials.TLS(), Identify: credentials.Identify,
			Receive: func(_ string, m transport.Message) { received <- m }})
		if err != nil {
			panic(err)
		}
		return node, transport.Peer{ID: id, Addresses: []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(node.Port()))}}
	}
	first, firstPeer := listen("first")
	second, secondPeer := listen("second")
	defer first.Close()
	defer second.Close()
	peers := []transport.Peer{firstPeer, secondPeer}
	for _, node := range []*transport.Node{first, second} {
		if err := node.Connect(1, peers); err != nil {
			panic(err)
		}
	}
	if err := first.Send(secondPeer.ID, transport.Message{Class: transport.Hot, Header: []byte("microbatch 3"),
		Payload: [][]byte{{1, 2}, {3}}}); err != nil {
		panic(err)
	}
	m := <-received
	fmt.Printf("%s: %v in epoch %d\n", m.Header, m.Payload, m.Epoch)
	if err := first.Flush(context.Background(), secondPeer.ID); err != nil {
		panic(err)
	}
	// Output: microbatch 3: [[1 2] [3]] in epoch 1
}
