package data

import (
	"context"
	"fmt"
	"runtime"
)

// encoded is a piece and its tokens, the end of the document included.
type encoded struct {
	piece
	ids []uint32
	err error
}

// encodeFile calls sink with the encoded pieces of a text or jsonl file, in order. Pieces are encoded on all cores; what
// comes out depends only on the file. At most a few pieces a core are in memory.
func encodeFile(ctx context.Context, path, field string, from mark, tok Tokenizer, sink func(encoded) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	workers := runtime.GOMAXPROCS(0)
	queue := make(chan chan encoded, workers) // in the order of the file
	slots := make(chan struct{}, workers)
	readErr := make(chan error, 1)
	go func() {
		defer close(queue)
		readErr <- readPieces(path, field, from, func(p piece) error {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			result := make(chan encoded, 1)
			go func() {
				result <- encodePiece(p, path, tok)
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
	if eos, ok := tok.EOS(); ok && p.last {
		ids = append(ids, eos)
	}
	return encoded{piece: p, ids: ids}
}
