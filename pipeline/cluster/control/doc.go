// Package control carries the requests of the coordinator of a run to its members, and their replies, and says who is
// alive. Both travel with the sessions of package transport, which loses and repeats nothing while connections break,
// and lets requests pass tensors. Here are what the messages say, and what the coordinator concludes.
//
// A member handles requests in the order in which they were sent, except those that [Client.HandleConcurrently] takes.
//
// # Leases
//
// Each byte of a member renews its lease, so that slow links do not end it; a ping comes each fifth of its duration. A
// member whose lease ends is [Lost]; its session is kept for a while. If it comes back in time it is [Returned], and no
// message is lost or repeated. Otherwise the session is forgotten, and the member begins a new one: see
// [ClientOptions.Restarted]. The same happens when the coordinator restarts. A member that says goodbye has [Left].
package control
