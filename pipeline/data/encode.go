package data

import (
	"context"
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

// encodeAll calls sink with encoded pieces, in order. Pieces are encoded on all cores; what comes out depends on the
// pieces only. At most a few of them a core are in memory.
func encodeAll(ctx context.Context, pieces func(emit func(piece) error) error, encode func(context.Context, piece) encoded, sink func(encoded) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	workers := runtime.GOMAXPROCS(0)
	queue := make(chan chan encoded, workers) // in the order of the file
	slots := make(chan struct{}, workers)
	readErr := make(chan error, 1)
	go func() {
		defer close(queue)
		readErr <- pieces(func(p piece) error {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			result := make(chan encoded, 1)
			go func() {
				result <- encode(ctx, p)
				<-slots
			}()
			select {
			case queue <- result:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
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

func drain(ctx context.Context, queue <-chan chan encoded, sink func(encoded) error) error {
	for result := range queue {
		e := <-result
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
	return nil
}

func encodePiece(p piece, path string, tok Tokenizer) encoded {
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
