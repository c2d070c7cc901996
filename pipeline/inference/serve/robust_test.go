package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/httpserver"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const testToken = "0123456789abcdef"

// guarded serves a model with a token and small limits, as gpupipe serve does.
func guarded(t *testing.T, dir string) (url string, s *Server) {
	t.Helper()
	return guardedAs(t, dir, "m", 4096)
}

func guardedAs(t *testing.T, dir, name string, maxBody int64) (url string, s *Server) {
	t.Helper()
	src, err := inference.OpenModel(dir, "")
	require.NoError(t, err)
	b, err := inference.NewBatch(src, onReference, 4, 0)
	require.NoError(t, err)
	s, err = New(b, Options{Name: name, Queue: 100})
	require.NoError(t, err)
	h, err := httpserver.Start(httpserver.Options{Address: "0", Handler: s, Token: testToken, Public: Public, Refuse: Refuse,
		MaxBody: maxBody, WriteTimeout: 200 * time.Millisecond, Shutdown: time.Second})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, h.Close())
		s.Close()
		assert.NoError(t, b.Close())
	})
	return h.URL(), s
}

// post asks for a completion and returns the status and the body.
func post(url, token, body string) (int, string, error) {
	r, err := http.NewRequest("POST", url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

func textOf(t *testing.T, body string) string {
	t.Helper()
	var out struct {
		Choices []struct {
			Text string `json:"text"`
		} `json:"choices"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &out), body)
	require.NotEmpty(t, out.Choices, body)
	return out.Choices[0].Text
}

// openStream sends a request over a connection of its own, which has a small buffer.
func openStream(t *testing.T, url, body string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	require.NoError(t, c.(*net.TCPConn).SetReadBuffer(1<<10))
	_, err = fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", testToken, len(body), body)
	require.NoError(t, err)
	return c
}

// hangUp begins a stream and disconnects after its first event.
func hangUp(t *testing.T, url string) {
	t.Helper()
	c := openStream(t, url, `{"model": "m", "prompt": "a", "max_tokens": 30, "n": 2, "stream": true}`)
	defer c.Close()
	for lines := bufio.NewReader(c); ; {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		if strings.HasPrefix(line, "data:") {
			return
		}
	}
}

// 64 clients at once get the answers that each gets alone, among clients that hang up, send too much or have no token.
// Nothing of them remains.
func TestManyClients(t *testing.T) {
	url, s := guarded(t, trained(t))
	body := func(i int) string {
		return fmt.Sprintf(`{"model": "m", "prompt": %q, "max_tokens": %d, "seed": %d, "logprobs": 1}`,
			strings.Repeat("the cat ", 2)[:3+i%8], 4+i%7, i)
	}
	alone := make([]string, 8)
	for i := range alone {
		status, text, err := post(url, testToken, body(i))
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status, text)
		alone[i] = textOf(t, text)
	}
	runtime.GC()
	goroutines, before := runtime.NumGoroutine(), heap()
	var clients sync.WaitGroup
	for i := range 64 {
		clients.Go(func() {
			status, text, err := post(url, testToken, body(i%8))
			if assert.NoError(t, err) && assert.Equal(t, http.StatusOK, status, text) {
				assert.Equal(t, alone[i%8], textOf(t, text))
			}
		})
	}
	for range 8 {
		clients.Go(func() { hangUp(t, url) })
		clients.Go(func() {
			status, _, err := post(url, testToken, `{"prompt": "`+strings.Repeat("x", 5000)+`"}`)
			if err == nil { // the server may close before all is sent
				assert.Equal(t, http.StatusRequestEntityTooLarge, status)
			}
		})
		clients.Go(func() {
			status, text, err := post(url, "0123456789abcdeX", body(0))
			if assert.NoError(t, err) {
				assert.Equal(t, http.StatusUnauthorized, status)
				assert.Contains(t, text, `"code":"invalid_api_key"`)
			}
		})
	}
	clients.Wait()
	requireIdle(t, s)
	requireGoroutines(t, goroutines)
	assert.Less(t, heap(), before+8<<20)
}

// requireGoroutines waits until there are at most n goroutines.
func requireGoroutines(t *testing.T, n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > n && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), n)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// requireIdle waits until no sequence waits or has a slot.
func requireIdle(t *testing.T, s *Server) {
	t.Helper()
	idle := make(chan bool)
	go func() {
		defer close(idle)
		for {
			s.scheduler.mu.Lock()
			n := len(s.scheduler.waiting)
			for _, q := range s.scheduler.slots {
				if q != nil {
					n++
				}
			}
			s.scheduler.mu.Unlock()
			if n == 0 {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	select {
	case <-idle:
	case <-time.After(30 * time.Second):
		require.Fail(t, "sequences remain")
	}
}

// A queue that is full refuses requests as a whole.
func TestQueueIsLimited(t *testing.T) {
	url, s := guarded(t, trained(t))
	status, text, err := post(url, testToken, `{"model": "m", "prompt": "a", "n": 101}`)
	require.NoError(t, err)
	assert.Equal(t, http.StatusTooManyRequests, status, text)
	requireIdle(t, s)
}

// A client that reads a byte now and then is disconnected once the system's buffers are full and it does not read for
// WriteTimeout. Others get their answers meanwhile, and nothing of it remains.
func TestSlowReaderIsDisconnected(t *testing.T) {
	name := strings.Repeat("m", 16<<10) // is in each event: few tokens fill the buffers
	url, s := guardedAs(t, trained(t), name, 32<<10)
	other := `{"model": "` + name + `", "prompt": "the", "max_tokens": 9, "seed": 1}`
	status, text, err := post(url, testToken, other)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, text)
	alone := textOf(t, text)
	runtime.GC()
	goroutines, before := runtime.NumGoroutine(), heap()

	c := openStream(t, url, `{"model": "`+name+`", "prompt": "a", "max_tokens": 31, "n": 20, "stream": true}`)
	defer c.Close()
	stop, stopped, read := make(chan bool), make(chan bool), []byte{}
	go func() {
		defer close(stopped)
		for b := make([]byte, 1); ; {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				n, _ := c.Read(b)
				read = append(read, b[:n]...)
			}
		}
	}()
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			status, text, err := post(url, testToken, other)
			if assert.NoError(t, err) && assert.Equal(t, http.StatusOK, status, text) {
				assert.Equal(t, alone, textOf(t, text))
			}
		})
	}
	others.Wait()
	requireIdle(t, s)
	requireGoroutines(t, goroutines+1) // that of this client's loop: the server's, which would wait for a request, has ended
	assert.Less(t, heap(), before+8<<20)
	close(stop)
	<-stopped
	assert.NotEmpty(t, read)
	assert.True(t, strings.HasPrefix("HTTP/1.1 200 OK", string(read[:min(len(read), 15)])), "%s", read)
}

// A sequence whose request has ended leaves its slot.
func TestCanceledSequenceEnds(t *testing.T) {
	_, s := guarded(t, trained(t))
	ctx, cancel := context.WithCancel(context.Background())
	q := s.sequence(ctx, []uint32{1}, settings{}, 1<<30, 1, false, -1)
	require.NoError(t, s.scheduler.submit([]*sequence{q}))
	events, more, err := q.next()
	require.NoError(t, err)
	assert.NotEmpty(t, events)
	assert.True(t, more)
	cancel()
	requireIdle(t, s)
}
