// Package transport carries tensors and requests between the processes of a run, over gRPC and mutual TLS.
//
// A Node is the end of it in one process. What connects two nodes is a link, over one connection after the other, which
// one side dials. There are two kinds:
//
//   - A session connects a member with its coordinator, from joining to leaving: see Sessions.
//   - Connect begins an epoch: a set of peers, numbered. Each peer without a session gets a link for that epoch.
//
// A link has three classes of messages, Hot, Bulk and Urgent. Messages of one class arrive in the order in which they
// were sent, each exactly once within a session or an epoch.
//
//	Send ──▶ outbox ──▶ writer ──▶ gRPC stream ──▶ reader ──▶ inbox ──▶ Receive
//	           ▲                                     │
//	           └───────── acknowledgments ◀──────────┘
//
// A message travels in fragments of at most 256 KiB, so that one of class Hot never waits long behind one of class
// Bulk, and one of class Urgent behind none. Fragments of a class are numbered. The receiver acknowledges them as they
// arrive; the sender keeps a message until all its fragments are acknowledged. A link outlives its connection: after a
// break the dialing side connects again, both sides state what they have received, and each sends the rest. A link of
// an epoch without a connection for longer than Options.Grace is lost. A session waits until one side ends it: package
// control decides when a member is lost. At a new epoch it drops the tensors of the one before.
//
// A connection has a control stream and one for each class. The control stream carries the hello, acknowledgments, and
// a ping a second. A connection that brings no byte for five seconds is closed, so a stopped process, a dead machine
// and a connection that only one side believes in are all found within six.
//
// The member that a certificate names is the only one that its holder may speak for. A hello for another epoch,
// an unknown member, a false name, a message larger than agreed and a malformed fragment are refused; both sides note
// the reason. In a session, tensors of another epoch, or of a peer that is not in the present one, are dropped. What a
// peer sends is checked before memory is allocated for it.
//
// Linux limits the window of a TCP connection by net.ipv4.tcp_rmem and tcp_wmem. Their usual maximum of 4 to 6 MB is
// about 400 Mbit/s at 100 ms; raise it to 32 MB for 1 Gbit/s.
package transport
