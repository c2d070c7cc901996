// Package control carries the requests of the coordinator of a run to its members, and their replies, and says who is
// alive. It is for small things: tensors travel with package transport.
//
// The coordinator runs a NATS server inside its process ([Serve]). It stores nothing on disk, and nothing in it outlives
// the process. Members connect with mutual TLS 1.3 ([Connect]). A member whose certificate has the ID x may publish on
// the subject "up.x" and read "down.x", and nothing else. It cannot see other members' subjects or the server's own.
//
// # Sessions
//
// NATS delivers a message at most once, and loses what is in flight when a connection breaks. A session between the
// coordinator and a member repairs that. In each direction it is a stream of numbered frames. The receiver acknowledges
// them, the sender keeps what is not acknowledged and sends it again after a reconnection, and the receiver drops
// duplicates. A message larger than a frame travels in several pieces. At most one megabyte is in flight in each
// direction, so that a large message does not delay others and the renewals of a lease for long. Each frame of a member
// renews its lease, so that slow links do not end it.
//
// A member handles requests in the order in which they were sent, except those that [Client.HandleConcurrently] takes.
//
// # Leases
//
// A member renews its lease each fifth of its duration. A member whose lease ends is [Lost]; its session is kept for a
// while. If it comes back in time it is [Returned], and no message is lost or repeated. Otherwise the session is
// forgotten, and the member begins a new one: see [ClientOptions.Restarted]. The same happens when the coordinator
// restarts. A member that says goodbye has [Left].
package control
