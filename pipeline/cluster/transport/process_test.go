//go:build unix

package transport

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// childVariable names the environment variable that makes the test binary a member instead. It holds a child.
const childVariable = "TRANSPORT_TEST_CHILD"

// child says what the other process needs to join: its certificate, and where to dial.
type child struct {
	CA, Certificate, Key []byte
	Address              string
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		if err := runChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	if stacks := leaked(); len(stacks) > 0 && code == 0 {
		fmt.Fprintf(os.Stderr, "goroutines are left:\n%s\n", strings.Join(stacks, "\n\n"))
		code = 1
	}
	os.Exit(code)
}

// runChild is member b of the run. It sends each message back.
func runChild(text string) error {
	var c child
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ca, err := x509.ParseCertificate(c.CA)
	if err != nil {
		return err
	}
	key, err := x509.ParsePKCS8PrivateKey(c.Key)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	a := &authority{run: "run"}
	var n *Node
	ready := make(chan struct{})
	n, err = Listen("", Options{Self: "b", Identify: a.identify, Grace: waitLimit,
		TLS: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{c.Certificate}, PrivateKey: key}}, RootCAs: pool,
			ServerName: "member", ClientAuth: tls.RequireAndVerifyClientCert},
		Receive: func(from string, m Message) { <-ready; _ = n.Send(from, m) }})
	if err != nil {
		return err
	}
	close(ready)
	if err := n.Connect(1, []Peer{{ID: "a", Addresses: []string{c.Address}}}); err != nil {
		return err
	}
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the parent is gone
	return nil
}

// spawnChild starts member b in another process.
func spawnChild(t *testing.T, ca *authority, address string) *os.Process {
	t.Helper()
	config := ca.issue("b")
	key, err := x509.MarshalPKCS8PrivateKey(config.Certificates[0].PrivateKey)
	require.NoError(t, err)
	text, err := json.Marshal(child{ca.cert.Raw, config.Certificates[0].Certificate[0], key, address})
	require.NoError(t, err)
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(program)
	cmd.Env, cmd.Stderr = append(os.Environ(), childVariable+"="+string(text)), os.Stderr
	_, err = cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process
}

// TestStoppedProcessIsFound stops a peer with the timing that runs have, and lets it go on.
func TestStoppedProcessIsFound(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "run")
	a := start(t, ca, "a", "127.0.0.1:0", func(o *Options) { o.timing = timing{} })
	require.NoError(t, a.Connect(1, []Peer{{ID: "b"}}))
	p := spawnChild(t, ca, a.address())
	require.NoError(t, a.Send("b", message(Hot, 0, 1<<20)))
	a.awaitMessages(1)

	require.NoError(t, p.Signal(syscall.SIGSTOP))
	require.NoError(t, a.Send("b", message(Hot, 1, 8<<20)))
	a.awaitNote("no byte from member b for 5s")
	assert.False(t, a.connected())
	require.NoError(t, p.Signal(syscall.SIGCONT))
	requireSeries(t, a.awaitMessages(2), "b", Hot, 1<<20, 8<<20)
	assert.Empty(t, a.allLost())
}

func TestKilledProcessIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "run")
	a := start(t, ca, "a", "127.0.0.1:0", func(o *Options) { o.timing = timing{} })
	p := spawnChild(t, ca, a.address())
	require.NoError(t, a.Connect(1, []Peer{{ID: "b"}}))
	poll(t, "a connection", a.connected)
	require.NoError(t, p.Kill())
	a.awaitNote("the connection with member b broke")
}
