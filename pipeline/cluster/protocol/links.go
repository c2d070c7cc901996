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

// EncodeLinks returns the payload of LinkReport.
func EncodeLinks(links []LinkUse) [][]byte {
	text, err := json.Marshal(links)
	if err != nil {
		panic(err) // plain structs always marshal
	}
	return [][]byte{text}
}

// DecodeLinks returns what a member reports of its links to some processes.
func DecodeLinks(payload [][]byte, processes int) (links []LinkUse, err error) {
	if len(payload) != 1 {
		return nil, fmt.Errorf("a report of links in %d tensors, expected 1", len(payload))
	}
	if err := json.Unmarshal(payload[0], &links); err != nil {
		return nil, fmt.Errorf("a report of links: %w", err)
	}
	if len(links) > processes {
		return nil, fmt.Errorf("a report of %d links, expected at most %d", len(links), processes)
	}
	return links, nil
}
