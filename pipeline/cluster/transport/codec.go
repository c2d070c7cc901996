package transport

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// arrived is a gRPC message that was received. Its owner frees data.
type arrived struct{ data mem.BufferSlice }

// rawCodec passes bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "gpupipe" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	data, ok := v.(mem.BufferSlice)
	if !ok {
		return nil, fmt.Errorf("type %T, expected mem.BufferSlice", v)
	}
	return data, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	a, ok := v.(*arrived)
	if !ok {
		return fmt.Errorf("type %T, expected *arrived", v)
	}
	data.Ref()
	a.data = data
	return nil
}

// stream is what client and server streams of gRPC share.
type stream interface {
	SendMsg(m any) error
	RecvMsg(m any) error
}

func sendControl(s stream, b []byte) error {
	return s.SendMsg(mem.BufferSlice{mem.SliceBuffer(b)})
}

func receiveControl(s stream) (any, error) {
	var a arrived
	if err := s.RecvMsg(&a); err != nil {
		return nil, err
	}
	defer a.data.Free()
	return decodeControl(a.data.Materialize())
}

const service = "gpupipe.Transport"

// description describes the stream of a method: Control, Urgent, Hot or Bulk.
func description(method string, handler grpc.StreamHandler) grpc.StreamDesc {
	return grpc.StreamDesc{StreamName: method, Handler: handler, ServerStreams: true, ClientStreams: true}
}
