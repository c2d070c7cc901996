package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// apiError is an error as OpenAI's API reports it.
type apiError struct {
	status  int
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (e *apiError) Error() string { return e.Message }

// invalid is the error of a field of a request; "" is the whole request.
func invalid(field, format string, args ...any) *apiError {
	e := &apiError{status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...), Type: "invalid_request_error"}
	if field != "" {
		e.Param, e.Message = &field, field+": "+e.Message
	}
	return e
}

// withStatus is an error of another status, with a code.
func withStatus(status int, code, format string, args ...any) *apiError {
	e := &apiError{status: status, Message: fmt.Sprintf(format, args...), Type: "invalid_request_error"}
	if status >= http.StatusInternalServerError {
		e.Type = "server_error"
	}
	if code != "" {
		e.Code = &code
	}
	return e
}

// about names the field that an error is about.
func (e *apiError) about(field string) *apiError {
	e.Param = &field
	return e
}

// asAPI is an error as the API reports it.
func asAPI(err error) *apiError {
	var e *apiError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &tooLarge):
		return withStatus(http.StatusRequestEntityTooLarge, "request_too_large", "the body: found more than %d bytes", tooLarge.Limit)
	case errors.Is(err, errBusy):
		return withStatus(http.StatusTooManyRequests, "rate_limit_exceeded", "%v", err)
	case errors.Is(err, errClosed):
		return withStatus(http.StatusServiceUnavailable, "", "%v", err)
	}
	return withStatus(http.StatusInternalServerError, "", "%v", err)
}

// writeError writes the response of a request that failed before it wrote anything.
func writeError(w http.ResponseWriter, err error) {
	e := asAPI(err)
	if e.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, e.status, map[string]any{"error": e})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"error":{"message":"the response cannot be written as JSON"}}`)
	}
	text = append(text, '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client may be gone
}

// Refuse writes an error of the HTTP server.
func Refuse(w http.ResponseWriter, status int, message string) {
	code := map[int]string{http.StatusUnauthorized: "invalid_api_key", http.StatusRequestEntityTooLarge: "request_too_large"}[status]
	writeError(w, withStatus(status, code, "%s", message))
}
