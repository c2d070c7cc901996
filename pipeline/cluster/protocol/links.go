package protocol

import (
	"encoding/json"
	"fmt"
)

// LinkUse is what a member's link to another process has carried since its epoch began. It is an element of the payload
// of LinkReport.
type LinkUse struct {
	Peer       string  `json:"peer"`
	Connected  bool    `json:"connected"`
	RoundTrip  float64 `json:"round_trip_s"`   // seconds, smoothed; 0: not measured yet
	Sent       int64   `json:"bytes_sent"`     // those sent again included
	Received   int64   `json:"bytes_received"` // those sent again included
	Waiting    int64   `json:"bytes_waiting"`  // not acknowledged
	Messages   int64   `json:"messages"`       // acknowledged
	Wait       float64 `json:"wait_s"`         // seconds of all messages, from sending to their acknowledgment
	Resent     int64   `json:"resent"`         // messages sent again after a break
	Reconnects int64   `json:"reconnects"`
}

// MeanWait is the mean time in seconds from sending a message to its acknowledgment.
func (u LinkUse) MeanWait() float64 {
	if u.Messages == 0 {
		return 0
	}
	return u.Wait / float64(u.Messages)
}

// DecodeLinks returns what a member reports of its links to some processes.
func DecodeLinks(payload [][]byte, processes int) ([]LinkUse, error) {
	links, err := DecodeList[LinkUse]("a report of links", payload)
	if len(links) > processes {
		return nil, fmt.Errorf("a report of %d links, expected at most %d", len(links), processes)
	}
	return links, err
}

// EncodeList returns the payload of a message that lists something.
func EncodeList[T any](all []T) [][]byte {
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // plain structs always marshal
	}
	return [][]byte{text}
}

// DecodeList is the inverse of EncodeList. what names the list in errors.
func DecodeList[T any](what string, payload [][]byte) (all []T, err error) {
	if len(payload) != 1 {
		return nil, fmt.Errorf("%s in %d tensors, expected 1", what, len(payload))
	}
	if err := json.Unmarshal(payload[0], &all); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return all, nil
}
