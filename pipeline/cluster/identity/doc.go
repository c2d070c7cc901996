// Package identity says who is who in a run on several machines. It makes the token that admits members, the
// certificate authority (CA) of the run, the certificates of its coordinator and members, and the TLS configurations
// that demand them.
//
// A member joins in five steps:
//
//  1. The coordinator opens an [Authority] and prints a token of it: addresses, the SHA-256 of the CA, and a secret.
//  2. [Join] connects to one of the addresses. The coordinator shows its certificate and its CA. Join compares the
//     hash of that CA with the token's and closes the connection if they differ. The secret has not been sent yet.
//  3. Join makes a key pair and sends the secret, a certificate signing request, and the build of the program.
//  4. [JoinServer] checks them and issues a certificate that names the run, the role and an ID that it chooses.
//  5. Join checks the certificate and returns [Credentials]. From then on both sides use mutual TLS 1.3 with
//     [Credentials.TLS]. [Renew] replaces the certificate before it expires.
//
// A certificate holds its [Identity] as a URI: gpupipe://run/<run>/<role>/<id>.
//
// Secrets print as "redacted" through every verb of package fmt and through encoding/json. [Token.Reveal] is the only
// way to the text that a member needs. The authority keeps the SHA-256 of secrets, not the secrets.
package identity
