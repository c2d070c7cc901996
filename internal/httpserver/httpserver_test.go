package httpserver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// started serves a handler that returns the length of the body, and closes the server after the test.
func started(t *testing.T, o Options) *Server {
	t.Helper()
	if o.Address == "" {
		o.Address = "0"
	}
	if o.Handler == nil {
		o.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			if err != nil {
				w.WriteHeader(http.StatusRequestEntityTooLarge)
			}
			fmt.Fprint(w, n)
		})
	}
	s, err := Start(o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// dial connects to a server until the end of the test.
func dial(t *testing.T, s *Server) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// request sends a request with changes and returns the status and the body.
func request(t *testing.T, s *Server, method, body string, change func(*http.Request)) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, s.URL()+"/x", strings.NewReader(body))
	require.NoError(t, err)
	if change != nil {
		change(r)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	answer, err := client.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	assert.Empty(t, answer.Header.Get("Access-Control-Allow-Origin"))
	return answer.StatusCode, string(text)
}

func TestOtherMachinesNeedAToken(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0"} {
		_, err := Start(Options{Address: address})
		assert.ErrorContains(t, err, "it needs a token")
	}
	_, err := Start(Options{Address: "nowhere"})
	assert.ErrorContains(t, err, `address: found "nowhere", expected host:port or a port`)
	s := started(t, Options{Address: "0.0.0.0:0", Token: "0123456789abcdef"})
	status, _ := request(t, s, "GET", "", func(r *http.Request) { r.Host = "elsewhere.example" })
	assert.Equal(t, http.StatusUnauthorized, status)
}

func TestToken(t *testing.T) {
	s := started(t, Options{Token: "0123456789abcdef", Public: func(r *http.Request) bool { return r.Method == "HEAD" }})
	for header, want := range map[string]int{
		"": 401, "Bearer": 401, "Bearer 0123456789abcdeg": 401, "Bearer 0123456789abcdef0": 401, "Basic 0123456789abcdef": 401,
		"0123456789abcdef": 401, "Bearer 0123456789abcdef": 200, "bearer  0123456789abcdef": 200,
	} {
		status, _ := request(t, s, "POST", "{}", func(r *http.Request) { r.Header.Set("Authorization", header) })
		assert.Equal(t, want, status, header)
	}
	status, _ := request(t, s, "HEAD", "", nil)
	assert.Equal(t, http.StatusOK, status)
}

func TestForeignHostsAndOriginsAreRefused(t *testing.T) {
	s := started(t, Options{Hosts: []string{"proxy.example"}})
	for host, want := range map[string]int{"": 200, "localhost": 200, "LOCALHOST:1": 200, "127.0.0.9:80": 200, "[::1]:80": 200,
		"proxy.example": 200, "evil.example": 403, "localhost.evil.example": 403, "10.0.0.1": 403} {
		status, _ := request(t, s, "GET", "", func(r *http.Request) { r.Host = host })
		assert.Equal(t, want, status, host)
	}
	for origin, want := range map[string]int{"https://evil.example": 403, "null": 403, s.URL(): 200} {
		status, _ := request(t, s, "POST", "", func(r *http.Request) { r.Header.Set("Origin", origin) })
		assert.Equal(t, want, status, origin)
	}
}

func TestBodiesAreLimited(t *testing.T) {
	s := started(t, Options{MaxBody: 10})
	status, text := request(t, s, "POST", "0123456789", nil)
	assert.Equal(t, "200 10", fmt.Sprint(status, " ", text))
	status, _ = request(t, s, "POST", "0123456789a", nil)
	assert.Equal(t, http.StatusRequestEntityTooLarge, status)
	status, _ = request(t, s, "POST", "", func(r *http.Request) { // of unknown length
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader("0123456789a")), -1
	})
	assert.Equal(t, http.StatusRequestEntityTooLarge, status)
	c := dial(t, s)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", maxHeader+8<<10))
	line, err := bufio.NewReader(c).ReadString('\n')
	require.NoError(t, err)
	assert.Contains(t, line, "431")
}

// A client that does not read is disconnected, and a response may take longer than the timeout of a write.
func TestSlowClients(t *testing.T) {
	ended := make(chan error, 1)
	s := started(t, Options{WriteTimeout: 50 * time.Millisecond, BodyTimeout: 50 * time.Millisecond,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "GET" {
				time.Sleep(120 * time.Millisecond)
				fmt.Fprint(w, r.Context().Err())
				return
			}
			chunk := make([]byte, 1<<20)
			for {
				if _, err := w.Write(chunk); err != nil {
					ended <- err
					return
				}
			}
		})})
	status, text := request(t, s, "GET", "", nil)
	assert.Equal(t, "200 <nil>", fmt.Sprint(status, " ", text))
	c := dial(t, s)
	_, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
	require.NoError(t, err)
	assert.ErrorIs(t, <-ended, os.ErrDeadlineExceeded)
}

func TestSlowBodiesEnd(t *testing.T) {
	ended := make(chan error, 1)
	s := started(t, Options{BodyTimeout: 50 * time.Millisecond, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		ended <- err
	})})
	c := dial(t, s)
	_, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx")
	require.NoError(t, err)
	assert.ErrorIs(t, <-ended, os.ErrDeadlineExceeded)
}

func TestConnectionsAreLimited(t *testing.T) {
	s := started(t, Options{MaxConnections: 1})
	connect := func() net.Conn {
		c := dial(t, s)
		_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		require.NoError(t, err)
		return c
	}
	first := connect()
	_, err := bufio.NewReader(first).ReadString('\n')
	require.NoError(t, err)
	second := connect()
	require.NoError(t, second.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	_, err = second.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, first.Close())
	require.NoError(t, second.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = second.Read(make([]byte, 1))
	assert.NoError(t, err)
}

// Close lets requests in progress finish, ends endless ones, and leaves no goroutine.
func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	begun := make(chan bool)
	s, err := Start(Options{Address: "0", Shutdown: 200 * time.Millisecond,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			begun <- true
			switch r.Method {
			case "GET":
				<-Closing(r.Context())
				fmt.Fprint(w, "done")
			default:
				<-r.Context().Done()
			}
		})})
	require.NoError(t, err)
	answers := make(chan string, 2)
	for _, method := range []string{"GET", "DELETE"} {
		go func() {
			r, _ := http.NewRequest(method, s.URL(), nil)
			answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
			if err != nil {
				answers <- "ended"
				return
			}
			defer answer.Body.Close()
			text, _ := io.ReadAll(answer.Body)
			answers <- string(text)
		}()
		<-begun
	}
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	assert.Equal(t, "done", <-answers)
	assert.Equal(t, "ended", <-answers)
	_, err = net.Dial("tcp", strings.TrimPrefix(s.URL(), "http://"))
	assert.Error(t, err)
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	assert.LessOrEqual(t, runtime.NumGoroutine(), before)
}

func TestReadToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	for text, good := range map[string]bool{"0123456789abcdef\n": true, "short": false, "": false, "0123456789 abcdef": false,
		strings.Repeat("x", 2000): false} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		token, err := ReadToken(path)
		assert.Equal(t, good, err == nil, "%q", text)
		if good {
			assert.Equal(t, strings.TrimSpace(text), token)
		}
	}
	_, err := ReadToken(path + "x")
	assert.ErrorContains(t, err, "no such file")
	assert.NotEqual(t, NewToken(), NewToken())
	require.NoError(t, os.WriteFile(path, []byte(NewToken()), 0o600))
	_, err = ReadToken(path)
	assert.NoError(t, err)
}

// A client that sends all of a body before it reads gets the response, whatever refused the request.
func TestLargeBodiesGetAResponse(t *testing.T) {
	s := started(t, Options{MaxBody: 10, Token: "0123456789abcdef"})
	const size = 20 << 20 // more than the system buffers
	send := func(head string) string {
		c := dial(t, s)
		_, err := io.WriteString(c, "POST /x HTTP/1.1\r\nHost: localhost\r\n"+head+"\r\n")
		require.NoError(t, err)
		chunk := strings.Repeat("x", 1<<20)
		for range size >> 20 {
			if strings.Contains(head, "chunked") {
				_, err = fmt.Fprintf(c, "%x\r\n%s\r\n", len(chunk), chunk)
			} else {
				_, err = io.WriteString(c, chunk)
			}
			require.NoError(t, err)
		}
		if strings.Contains(head, "chunked") {
			_, err = io.WriteString(c, "0\r\n\r\n")
			require.NoError(t, err)
		}
		line, err := bufio.NewReader(c).ReadString('\n')
		require.NoError(t, err)
		return strings.TrimSpace(line)
	}
	const token = "Authorization: Bearer 0123456789abcdef\r\n"
	assert.Equal(t, "HTTP/1.1 413 Request Entity Too Large", send(fmt.Sprintf("%sContent-Length: %d\r\n", token, size)))
	assert.Equal(t, "HTTP/1.1 413 Request Entity Too Large", send(token+"Transfer-Encoding: chunked\r\n"))
	assert.Equal(t, "HTTP/1.1 401 Unauthorized", send(fmt.Sprintf("Content-Length: %d\r\n", size)))
}

// Pages of permitted origins may ask and read; their browser asks first, without the token.
func TestOrigins(t *testing.T) {
	_, err := Start(Options{Address: "0", Origins: []string{"chat.example"}})
	assert.ErrorContains(t, err, `origin: found "chat.example"`)
	for _, permitted := range []string{"https://chat.example", "*"} {
		s := started(t, Options{Token: "0123456789abcdef", Origins: []string{permitted}})
		for origin, want := range map[string]bool{"https://chat.example": true, "https://evil.example": permitted == "*", "": true} {
			for _, method := range []string{"OPTIONS", "POST"} {
				r, err := http.NewRequest(method, s.URL()+"/x", strings.NewReader("{}"))
				require.NoError(t, err)
				if origin != "" {
					r.Header.Set("Origin", origin)
				}
				if method == "OPTIONS" {
					r.Header.Set("Access-Control-Request-Method", "POST")
					r.Header.Set("Access-Control-Request-Headers", "authorization")
				} else {
					r.Header.Set("Authorization", "Bearer 0123456789abcdef")
				}
				answer, err := http.DefaultClient.Do(r)
				require.NoError(t, err)
				require.NoError(t, answer.Body.Close())
				if allowed := answer.Header.Get("Access-Control-Allow-Origin"); want {
					assert.Equal(t, origin, allowed)
				} else {
					assert.Empty(t, allowed)
				}
				if method == "POST" {
					assert.Equal(t, want, answer.StatusCode == http.StatusOK, "%s %d", origin, answer.StatusCode)
				} else if want && origin != "" {
					assert.Equal(t, "authorization", answer.Header.Get("Access-Control-Allow-Headers"))
				}
			}
		}
	}
}
