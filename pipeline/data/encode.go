package data

import (
	"context"
	"errors"
	"fmt"
	"runtime"
)

// encoded is a piece and its tokens, the ends of documents included.
type encoded struct {
	piece
	ids       []uint32
	documents int64 // that end in it
	mapped    int64 // that hooks were given to make them
	hash      uint64
	err       error
}

// encodeFile calls sink with the encoded pieces of a file of documents and their hashes, in order.
func encodeFile(ctx context.Context, path, field string, from mark, tok Tokenizer, sink func(encoded) error) error {
	return encodeAll(ctx, func(emit func(piece) error) error { return readPieces(path, field, from, emit) },
		func(_ context.Context, p piece) encoded {
			e := encodePiece(p, path, tok)
			e.hash = hashOf(p.text)
			return e
		}, sink)
}

// groupSize is about how much text a goroutine encodes: documents may be very short.
const groupSize = 1 << 16

// encodeAll calls sink with encoded pieces, in order. Groups of pieces are encoded on all cores; the result depends on
// the pieces only. At most a few groups a core are in memory.
func encodeAll(ctx context.Context, pieces func(emit func(piece) error) error, encode func(context.Context, piece) encoded,
	sink func(encoded) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	workers := runtime.GOMAXPROCS(0)
	queue := make(chan chan []encoded, workers) // in the order of the file
	slots := make(chan struct{}, workers)
	readErr := make(chan error, 1)
	go func() {
		defer close(queue)
		var group []piece
		size := 0
		flush := func() error {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			result := make(chan []encoded, 1)
			go func(group []piece) {
				result <- encodeGroup(ctx, group, encode)
				<-slots
			}(group)
			group, size = nil, 0
			select {
			case queue <- result:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		err := pieces(func(p piece) error {
			group, size = append(group, p), size+len(p.text)+pieceOverhead
			if size < groupSize {
				return nil
			}
			return flush()
		})
		if len(group) > 0 && ctx.Err() == nil { // before the error of what follows them
			err = errors.Join(flush(), err)
		}
		readErr <- err
	}()
	err := drain(ctx, queue, sink)
	cancel()
	for range queue { // lets the reader go on to its end
	}
	for range workers { // and those who encode
		slots <- struct{}{}
	}
	if e := <-readErr; err == nil {
		err = e
	}
	return err
}

// pieceOverhead counts for what a piece costs besides its text.
const pieceOverhead = 256

// encodeGroup encodes pieces up to the first error.
func encodeGroup(ctx context.Context, group []piece, encode func(context.Context, piece) encoded) (all []encoded) {
	for _, p := range group {
		e := encode(ctx, p)
		if all = append(all, e); e.err != nil {
			return all
		}
	}
	return all
}

func drain(ctx context.Context, queue <-chan chan []encoded, sink func(encoded) error) error {
	for result := range queue {
		for _, e := range <-result {
			if e.err != nil {
				return e.err
			}
			if err := sink(e); err != nil {
				return err
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

func encodePiece(p piece, path string, tok Tokenizer) encoded {
	if p.empty() {
		return encoded{piece: p}
	}
	ids, err := tok.EncodePart(p.text, p.first)
	if err != nil {
		return encoded{err: fmt.Errorf("%s: the piece at offset %d: %w", path, p.Offset, err)}
	}
	e := encoded{piece: p, ids: ids}
	if p.last {
		e.documents = 1
		if eos, ok := tok.EOS(); ok {
			e.ids = append(e.ids, eos)
		}
	}
	return e
}
