package metrics

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Events writes scalars for TensorBoard. They are in the file when Scalars returns. Events is safe for concurrent use.
type Events struct {
	mu   sync.Mutex
	file *os.File
}

// NewEvents starts an event file in a folder, and creates the folder if needed. TensorBoard shows all files of a folder
// as one run. firstStep is the first step that a resumed run will log, and 0 for a new run. TensorBoard discards the
// values that earlier files have for that step and later ones.
func NewEvents(dir string, firstStep int) (*Events, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	host = strings.NewReplacer("/", "_", string(filepath.Separator), "_").Replace(host)
	now := time.Now()
	var f *os.File
	for n := 0; ; n++ { // several files in one second and process
		name := fmt.Sprintf("events.out.tfevents.%010d.%s.%d.%d", now.Unix(), host, os.Getpid(), n)
		f, err = os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o666)
		if err == nil {
			break
		}
		if !os.IsExist(err) {
			return nil, err
		}
	}
	e := &Events{file: f}
	err = e.write(bytesField(eventHead(now, 0), 3, []byte("brain.Event:2"))) // Event.file_version
	if err == nil && firstStep > 0 {
		const start = 1                                                                     // SessionLog.START
		err = e.write(bytesField(eventHead(now, firstStep), 7, varintField(nil, 1, start))) // Event.session_log.status
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return e, nil
}

// Scalars logs a step's values under their names; a slash in a name groups charts. The precision is float32.
func (e *Events) Scalars(step int, at time.Time, values ...Value) error {
	var summary []byte
	for _, v := range values {
		var value []byte
		value = bytesField(value, 1, []byte(v.Name)) // Summary.Value.tag
		value = append(value, 2<<3|5)                // Summary.Value.simple_value
		value = binary.LittleEndian.AppendUint32(value, math.Float32bits(float32(v.Value)))
		summary = bytesField(summary, 1, value)
	}
	return e.write(bytesField(eventHead(at, step), 5, summary)) // Event.summary
}

// Close syncs and closes.
func (e *Events) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	serr := e.file.Sync()
	if err := e.file.Close(); err != nil {
		return err
	}
	return serr
}

// write frames one event as TensorFlow's record files do: length, its checksum, data, their checksum.
func (e *Events) write(data []byte) error {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(b, maskedCRC(b))
	b = append(b, data...)
	b = binary.LittleEndian.AppendUint32(b, maskedCRC(data))
	e.mu.Lock()
	defer e.mu.Unlock()
	_, err := e.file.Write(b)
	return err
}

// maskedCRC is CRC-32C, masked because a CRC of data that contain CRCs would be weak.
func maskedCRC(b []byte) uint32 {
	c := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	return (c>>15 | c<<17) + 0xa282ead8
}

// eventHead begins an Event: wall_time and step. The four message types needed are encoded by hand.
func eventHead(at time.Time, step int) []byte {
	b := binary.LittleEndian.AppendUint64([]byte{1<<3 | 1}, math.Float64bits(float64(at.Unix())+float64(at.Nanosecond())/1e9))
	return varintField(b, 2, uint64(step))
}

func varintField(b []byte, field int, v uint64) []byte {
	return binary.AppendUvarint(append(b, byte(field<<3)), v)
}

func bytesField(b []byte, field int, data []byte) []byte {
	b = binary.AppendUvarint(append(b, byte(field<<3|2)), uint64(len(data)))
	return append(b, data...)
}
