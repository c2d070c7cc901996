package tokenizer

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// countShards is the number of tables of words. Texts go to the tables in turn, so that the words that are forgotten
// where there are too many do not depend on the number of cores.
const countShards = 8

// batchBytes is about how much text a table gets at once.
const batchBytes = 1 << 20

// wordCounter counts words in bounded memory.
type wordCounter struct {
	scan   scanner
	shards [countShards]wordTable
	next   int   // shard of the next batch
	seen   int64 // words
}

// wordTable is a table of words and how often they occurred. If it exceeds limit words, or limit·64 bytes, it forgets
// the rarest.
type wordTable struct {
	index  map[string]int32
	counts []int64
	words  []string
	bytes  int
	limit  int
	seen   int64
	pruned int64
}

func newWordCounter(scan scanner, most int) *wordCounter {
	c := &wordCounter{scan: scan}
	for i := range c.shards {
		c.shards[i] = wordTable{index: map[string]int32{}, limit: max(most/countShards, 1)}
	}
	return c
}

// batch is texts for one table.
type batch struct {
	texts [][]byte
	size  int
}

// add counts the words of texts. A worker a table counts; the batches of each table keep their order.
func (c *wordCounter) add(ctx context.Context, read func(emit func(text []byte) error) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var queues [countShards]chan batch
	var workers sync.WaitGroup
	for i := range queues {
		queues[i] = make(chan batch, 1)
		workers.Go(func() {
			for b := range queues[i] {
				for _, text := range b.texts {
					c.shards[i].count(string(text), c.scan)
				}
			}
		})
	}
	var pending batch
	send := func() error {
		defer func() { pending, c.next = batch{}, (c.next+1)%countShards }()
		select {
		case queues[c.next] <- pending:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := read(func(text []byte) error {
		pending.texts, pending.size = append(pending.texts, text), pending.size+len(text)
		if pending.size < batchBytes {
			return ctx.Err()
		}
		return send()
	})
	if err == nil && pending.size > 0 {
		err = send()
	}
	for _, q := range queues {
		close(q)
	}
	workers.Wait()
	c.seen = 0
	for i := range c.shards {
		c.seen += c.shards[i].seen
	}
	return errors.Join(err)
}

// count adds the words of a text.
func (t *wordTable) count(text string, scan scanner) {
	for at := 0; at < len(text); {
		end := scan(text, at)
		word := text[at:end]
		at = end
		t.seen++
		if i, ok := t.index[word]; ok {
			t.counts[i]++
			continue
		}
		word = string([]byte(word)) // not a part of the text, which would stay in memory
		t.index[word] = int32(len(t.words))
		t.words, t.counts, t.bytes = append(t.words, word), append(t.counts, 1), t.bytes+len(word)
		if len(t.words) > t.limit || t.bytes > 64*t.limit {
			t.prune()
		}
	}
}

// prune forgets the rarest words, at least half of them.
func (t *wordTable) prune() {
	sorted := slices.Sorted(slices.Values(t.counts))
	least := sorted[len(sorted)/2] // words up to this count go
	n := 0
	clear(t.index)
	t.bytes = 0
	for i, w := range t.words {
		if t.counts[i] <= least {
			t.pruned++
			continue
		}
		t.words[n], t.counts[n] = w, t.counts[i]
		t.index[w] = int32(n)
		t.bytes += len(w)
		n++
	}
	clear(t.words[n:])
	t.words, t.counts = t.words[:n], t.counts[:n]
}

// total returns all words and their counts, and empties the tables.
func (c *wordCounter) total() map[string]int64 {
	all := map[string]int64{}
	for i := range c.shards {
		t := &c.shards[i]
		for j, w := range t.words {
			all[w] += t.counts[j]
		}
		t.index, t.words, t.counts = nil, nil, nil
	}
	return all
}

// pruned is the number of words that were forgotten.
func (c *wordCounter) pruned() (n int64) {
	for i := range c.shards {
		n += c.shards[i].pruned
	}
	return n
}
