// Package tab serves the page that makes a browser tab a member, and connects such tabs to the run.
//
// A tab can open WebSockets to the server of its page and nothing else. So everything that a member says goes through
// them: joining, the session with the coordinator, and tensors. Inside each WebSocket runs TLS between the tab and the
// process that it wants, as on a TCP connection of another member. This package copies bytes and cannot read them. It
// needs no certificate of the run, and neither does the page: the tab pins the CA that its token names.
//
//	GET  /                       the page; its token is in the fragment of the URL, which browsers do not send
//	GET  /connect/join           WebSocket to the server that admits members
//	GET  /connect/coordinator    WebSocket to the coordinator, for the session with it
//	GET  /connect/peer/TICKET    WebSocket to another member's server for tensors
//	GET  /connect/accept/SECRET  WebSocket on which a tab waits for another tab; the secret's hash is protocol.Info.Tab
//	POST /leave                  a page that is closed; the body is that secret
//
// The coordinator issues tickets to tabs for the peers of an epoch, and sends them with the session as the
// peers' addresses: see [Server.Tickets]. A ticket opens connections to one peer, and ends with its epoch.
package tab
