package identity

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	defaultJoinTimeout = 5 * time.Second
	maxHeader          = 4 << 10  // bytes of HTTP headers
	maxJoinMessage     = 16 << 10 // bytes of a request or an answer
	maxBuildLength     = 200
	joinPath           = "/join"
	renewPath          = "/renew"
)

// JoinServerOptions configures a [JoinServer].
type JoinServerOptions struct {
	Authority *Authority
	Build     string   // of the coordinator; members must have the same
	Control   []string // addresses of the coordinator's node, host:port; without a host: the one where the member reached us
	Joined    func(member, remote string)
	Note      func(format string, args ...any) // refusals, without secrets; at most about ten a second
	Timeout   time.Duration                    // of a handshake, and of a request; 0: 5 s

	protocol int // 0: Protocol
}

// JoinServer admits members: it is the HTTPS endpoint that a token's addresses name.
type JoinServer struct {
	o        JoinServerOptions
	http     *http.Server
	listener *secureListener
	failures failureLimiter
	serving  sync.WaitGroup
}

// joinRequest is what a member sends, to /join with a token's secret, to /renew with its certificate.
type joinRequest struct {
	Protocol int    `json:"protocol"`
	Build    string `json:"build"`
	Name     string `json:"name,omitempty"`
	Secret   string `json:"secret,omitempty"`
	CSR      []byte `json:"csr"` // DER
}

// joinAnswer is what the coordinator answers: an error, or all else.
type joinAnswer struct {
	Run         string   `json:"run,omitempty"`
	Member      string   `json:"member,omitempty"`
	Certificate []byte   `json:"certificate,omitempty"` // DER
	Control     []string `json:"control,omitempty"`

	Code              Code           `json:"code,omitempty"`
	Error             string         `json:"error,omitempty"`
	RetryAfterSeconds int            `json:"retry_after_seconds,omitempty"`
	Mismatch          *MismatchError `json:"mismatch,omitempty"`
}

// ServeJoin admits members through a listener until Close. It owns the listener.
func ServeJoin(l net.Listener, o JoinServerOptions) (*JoinServer, error) {
	o.Timeout = cmp.Or(o.Timeout, defaultJoinTimeout)
	o.protocol = cmp.Or(o.protocol, Protocol)
	o.Note = LimitNotes(o.Note)
	credentials, err := o.Authority.Coordinator()
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	config := credentials.TLS(RoleMember)
	config.ClientAuth = tls.VerifyClientCertIfGiven
	config.NextProtos = []string{"http/1.1"}
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return nil // a member that joins
		}
		return credentials.checkPeer(state, []Role{RoleMember})
	}
	s := &JoinServer{o: o}
	s.listener = newSecureListener(l, config, o.Timeout, o.Note)
	s.http = &http.Server{
		Handler:        s.handler(),
		ReadTimeout:    2 * o.Timeout, // the deadline of connContext comes first and says why
		WriteTimeout:   2 * o.Timeout,
		MaxHeaderBytes: maxHeader,
		ConnContext:    s.connContext,
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	s.http.SetKeepAlivesEnabled(false)
	s.serving.Go(func() { _ = s.http.Serve(s.listener) })
	return s, nil
}

// Addr returns the address that the server listens on.
func (s *JoinServer) Addr() net.Addr { return s.listener.Addr() }

// Close stops admitting members and waits until nothing of the server runs.
func (s *JoinServer) Close() error {
	err := s.http.Close()
	s.serving.Wait()
	return err
}

type deadlineKey struct{}

// errAnswered is the error of a request that its deadline has answered.
var errAnswered = errors.New("the deadline has answered this request")

// connContext starts the deadline of a connection's only request. A request that is not complete by then is answered
// with the reason.
func (s *JoinServer) connContext(ctx context.Context, c net.Conn) context.Context {
	timer := time.AfterFunc(s.o.Timeout, func() {
		reason := fmt.Sprintf("no complete request within %v", s.o.Timeout)
		s.o.Note("%s: refused: %s", c.RemoteAddr(), reason)
		body, _ := json.Marshal(joinAnswer{Code: TooSlow, Error: reason})
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = fmt.Fprintf(c, "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		_ = c.Close()
	})
	return context.WithValue(ctx, deadlineKey{}, timer)
}

func stopDeadline(r *http.Request) (inTime bool) {
	timer, ok := r.Context().Value(deadlineKey{}).(*time.Timer)
	return !ok || timer.Stop()
}

func (s *JoinServer) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+joinPath, func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, s.join) })
	mux.HandleFunc("POST "+renewPath, func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, s.renew) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mux.ServeHTTP(w, r)
		stopDeadline(r)
	})
}

// answer reads a request, has it handled, and sends the answer or the reason of the refusal.
func (s *JoinServer) answer(w http.ResponseWriter, r *http.Request, handle func(*http.Request, joinRequest) (joinAnswer, error)) {
	remote := remoteIP(r.RemoteAddr)
	var answer joinAnswer
	err := s.checkRate(r)
	if err == nil {
		var request joinRequest
		if request, err = s.read(w, r); err == nil {
			answer, err = handle(r, request)
		}
		if err != nil {
			s.failures.failed(remote, time.Now())
		}
	}
	if errors.Is(err, errAnswered) {
		return
	}
	status := http.StatusOK
	if err != nil {
		s.o.Note("%s: refused: %v", r.RemoteAddr, err)
		answer, status = refusal(err)
	}
	body, err := json.Marshal(answer)
	if err != nil {
		status = http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func (s *JoinServer) checkRate(r *http.Request) error {
	wait := s.failures.wait(remoteIP(r.RemoteAddr), time.Now())
	if wait == 0 {
		return nil
	}
	refused := refuse(TooMany, "too many failed attempts from this address: try again in %v", wait.Round(time.Second)+time.Second)
	refused.RetryAfter = wait
	return refused
}

// read reads the body of a request. The deadline of its connection is over then.
func (s *JoinServer) read(w http.ResponseWriter, r *http.Request) (joinRequest, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJoinMessage))
	if !stopDeadline(r) {
		return joinRequest{}, errAnswered
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return joinRequest{}, refuse(TooLarge, "the request is larger than %d bytes", maxJoinMessage)
	case err != nil:
		return joinRequest{}, refuse(Malformed, "the request ends early")
	}
	return decodeRequest(body)
}

// decodeRequest reads a request. It ignores unknown fields, so that a newer member learns that its protocol is another.
func decodeRequest(body []byte) (joinRequest, error) {
	var r joinRequest
	decoder := json.NewDecoder(bytes.NewReader(body))
	if err := decoder.Decode(&r); err != nil {
		return r, refuse(Malformed, "the request is not the expected JSON") // the cause could quote the secret
	}
	if len(r.Build) > maxBuildLength || strings.ContainsFunc(r.Build, func(c rune) bool { return c < ' ' }) {
		return r, refuse(Malformed, "build: expected a line of at most %d bytes", maxBuildLength)
	}
	return r, nil
}

func (s *JoinServer) checkBuild(r joinRequest) error {
	return CheckBuild(s.o.protocol, s.o.Build, r.Protocol, r.Build)
}

// join admits a new member. The token is checked first: a stranger does not learn the coordinator's build.
func (s *JoinServer) join(r *http.Request, request joinRequest) (joinAnswer, error) {
	key, err := parseSecret(request.Secret)
	if err != nil {
		return joinAnswer{}, refuse(Malformed, "secret: %v", err)
	}
	a := s.o.Authority
	if err := a.validToken(key); err != nil {
		return joinAnswer{}, err
	}
	if err := s.checkBuild(request); err != nil {
		return joinAnswer{}, err
	}
	if _, err := parseRequest(request.CSR); err != nil {
		return joinAnswer{}, err
	}
	answer := joinAnswer{Run: a.run, Control: s.o.Control}
	token, err := a.useToken(key, func() (err error) {
		answer.Member, answer.Certificate, err = a.admit(request.CSR, request.Name, "")
		return err
	})
	if err != nil {
		return joinAnswer{}, err
	}
	s.o.Note("%s: joins as %s with token %s", r.RemoteAddr, answer.Member, token)
	if s.o.Joined != nil {
		s.o.Joined(answer.Member, r.RemoteAddr)
	}
	return answer, nil
}

// renew replaces the certificate of a member that proves its identity with the present one.
func (s *JoinServer) renew(r *http.Request, request joinRequest) (joinAnswer, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return joinAnswer{}, refuse(NoCertificate, "renewing a certificate takes the present one")
	}
	peer, err := Identify(r.TLS.PeerCertificates[0]) // TLS has checked its run and role
	if err != nil {
		return joinAnswer{}, err
	}
	if err := s.checkBuild(request); err != nil {
		return joinAnswer{}, err
	}
	answer := joinAnswer{Run: s.o.Authority.run, Control: s.o.Control}
	answer.Member, answer.Certificate, err = s.o.Authority.admit(request.CSR, "", peer.ID)
	return answer, err
}

// refusal returns the answer to a refused request. Errors of no known kind stay in the coordinator's log.
func refusal(err error) (joinAnswer, int) {
	var refused *Refused
	var mismatch *MismatchError
	switch {
	case errors.As(err, &mismatch):
		return joinAnswer{Code: OtherBuild, Error: mismatch.Error(), Mismatch: mismatch}, http.StatusConflict
	case !errors.As(err, &refused):
		refused = refuse(Unavailable, "the coordinator could not issue a certificate: see its log")
	}
	answer := joinAnswer{Code: refused.Code, Error: refused.Reason, RetryAfterSeconds: int(refused.RetryAfter/time.Second) + 1}
	status, ok := map[Code]int{TooMany: http.StatusTooManyRequests, TooLarge: http.StatusRequestEntityTooLarge,
		TooSlow:   http.StatusRequestTimeout,
		Malformed: http.StatusBadRequest, Unavailable: http.StatusInternalServerError}[refused.Code]
	if !ok {
		status = http.StatusForbidden
	}
	return answer, status
}

// retryAfter is the inverse of what refusal writes.
func (a joinAnswer) retryAfter() time.Duration {
	if a.Code != TooMany {
		return 0
	}
	return time.Duration(min(max(a.RetryAfterSeconds, 0), 3600)) * time.Second
}

// joinHost adds the host where a member reached the coordinator to an address without one.
func joinHost(address, reached string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("control address %.80q: expected host:port", address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("control address %.80q: expected a port from 1 to 65535", address)
	}
	return net.JoinHostPort(cmp.Or(host, reached), port), nil
}
