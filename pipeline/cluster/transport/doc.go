// Package transport carries tensors between the members of a run, over gRPC and mutual TLS.
//
// A Node is a member's end of it. Connect begins an epoch: a set of peers, numbered. For each peer there is a link.
// One side of a link dials; both use the same connection. A link has two classes of messages, Hot and Bulk. Messages
// of one class arrive in the order in which they were sent, each exactly once within an epoch.
//
//	Send ──▶ outbox ──▶ writer ──▶ gRPC stream ──▶ reader ──▶ inbox ──▶ Receive
//	           ▲                                     │
//	           └───────── acknowledgments ◀──────────┘
//
// A message travels in fragments of at most 256 KiB, so that one of class Hot never waits long behind one of class
// Bulk. Fragments of a class are numbered. The receiver acknowledges them as they arrive; the sender keeps a message
// until all its fragments are acknowledged. A link outlives its connection: after a break the dialing side connects
// again, both sides state what they have received, and each sends the rest. A link without a connection for longer
// than Options.Grace is lost for the epoch.
//
// A connection has three streams: control, hot and bulk. The control stream carries the hello, acknowledgments, and a
// ping a second. A connection that brings no byte for five seconds is closed, so a stopped process, a dead machine
// and a connection that only one side believes in are all found within six.
//
// The member that a certificate names is the only one that its holder may speak for. A peer of another epoch, an
// unknown member, a false name, a message larger than agreed and a malformed fragment are refused; both sides note
// the reason. What a peer sends is checked before memory is allocated for it.
//
// Linux limits the window of a TCP connection by net.ipv4.tcp_rmem and tcp_wmem. Their usual maximum of 4 to 6 MB is
// about 400 Mbit/s at 100 ms; raise it to 32 MB for 1 Gbit/s.
package transport
