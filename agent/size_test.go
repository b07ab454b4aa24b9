package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/internal/testkit/storetest"
	"github.com/perdure/perdure/worker"
)

// prose returns a pseudo-random text of a number of tokens of four bytes.
func prose(seed string, tokens int) string {
	h := fnv.New64a()
	h.Write([]byte(seed))
	r := rand.New(rand.NewPCG(h.Sum64(), 1))
	var b strings.Builder
	for range tokens {
		b.WriteString([]string{"the ", "run ", "goes", " on ", "and ", "it's", " not", " yet", " end",
			"ed, "}[r.IntN(10)])
	}
	return b.String()[:4*tokens]
}

// A conversation has a hundred calls of a model, 200 000 tokens in all, and each call reads
// everything before it. The store grows with the new text only, and not with the square of the
// calls.
func TestLongConversationIsStoredOnce(t *testing.T) {
	stage.NoRace(t)
	t.Parallel()
	const tokens = 2000 // of a call, question and answer together
	sizes := map[int]int{}
	var mu sync.Mutex
	t.Run("", func(t *testing.T) {
		for _, calls := range []int{25, 100} {
			t.Run(fmt.Sprint(calls), func(t *testing.T) {
				t.Parallel()
				size := converse(t, calls, tokens)
				mu.Lock()
				defer mu.Unlock()
				sizes[calls] = size
			})
		}
	})
	if t.Failed() {
		return
	}
	text := func(calls int) int { return calls * tokens * 4 }
	for calls, size := range sizes {
		t.Logf("%d calls: %d bytes of text, %d bytes in the store: %.2f times", calls, text(calls), size,
			float64(size)/float64(text(calls)))
		if per, first := float64(size)/float64(calls), float64(sizes[25])/25; per > 1.1*first || per < first/1.1 {
			t.Errorf("stored bytes per call = %.0f in a conversation of %d, want within 10 %% of %.0f, as in one of 25",
				per, calls, first)
		}
		if size > 3*text(calls) {
			t.Errorf("%d bytes of text take %d bytes in the store, want at most 3 times as many", text(calls), size)
		}
	}
}

// converse executes an agent that calls a model a number of times, and returns the size of the
// store.
func converse(t *testing.T, calls, tokens int) (size int) {
	t.Helper()
	at, opt := storetest.Address(t), embedded.Options{Policy: steady()}
	if opt.Store = at; at == "" {
		opt.Dir = t.TempDir()
	}
	srv, err := embedded.Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	w := &scene{t: t, ctx: t.Context(), nodes: []*embedded.Server{srv}}
	w.c = w.client(nil)
	stop := w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "chat", func(ctx *agent.Context, _ json.RawMessage) (int, error) {
			read := 0
			for n := range calls {
				if err := agent.Message(ctx, "user", prose(fmt.Sprint("question ", n), tokens/4)); err != nil {
					return 0, err
				}
				messages, err := ctx.History()
				if err != nil {
					return 0, err
				}
				answer, err := agent.Step(ctx, "model", func(context.Context) (string, error) {
					prompt := 0
					for _, m := range messages {
						prompt += len(m.Content)
					}
					return prose(fmt.Sprint("answer ", n, " to ", prompt), tokens*3/4), nil
				})
				if err != nil {
					return 0, err
				}
				if err := agent.Message(ctx, "assistant", answer); err != nil {
					return 0, err
				}
				read += len(messages)
				if n%20 == 19 { // a wait now and then causes a replay
					if err := agent.Sleep(ctx, time.Millisecond); err != nil {
						return 0, err
					}
				}
			}
			return read, nil
		})
	})
	run := w.end(w.start(perdure.Submission{Kind: "chat", ThreadID: w.thread()}))
	completed(t, run, fmt.Sprint(calls*calls)) // 1 + 3 + 5 + …
	stop()
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(store.Options{URL: at, Path: path(at, opt.Dir)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.View(t.Context(), func(v *store.View) error {
		rows, err := storetest.Dump(v, "")
		for _, row := range rows {
			size += len(row)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// path returns the path of the store's file, or nothing on PostgreSQL.
func path(at, dir string) string {
	if at != "" {
		return ""
	}
	return filepath.Join(dir, "perdure.db")
}

// A journal that is too large for a grant is read in pages and replayed like any other.
func TestLongJournalIsReplayed(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	const parts, size = 8, 400 << 10
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "long", func(ctx *agent.Context, _ struct{}) (string, error) {
			out := ""
			for n := range parts {
				text, err := agent.Step(ctx, "part", func(context.Context) (string, error) {
					done.add("part")
					return strings.Repeat(string(rune('a'+n)), size), nil
				})
				if err != nil {
					return "", err
				}
				if len(text) != size {
					return "", perdure.Permanent(fmt.Errorf("part %d has %d bytes, want %d", n, len(text), size))
				}
				out += text[:1]
				if n%2 == 1 {
					if err := agent.Sleep(ctx, time.Millisecond); err != nil {
						return "", err
					}
				}
			}
			return out, nil
		})
		worker.Agent(wk, "many", func(ctx *agent.Context, n int) (int, error) {
			sum := 0
			for i := range n {
				v, err := agent.Step(ctx, "one", func(context.Context) (int, error) { done.add("one"); return i, nil })
				if err != nil {
					return 0, err
				}
				sum += v
			}
			return sum, agent.Sleep(ctx, time.Millisecond)
		})
	})
	completed(t, w.ends("long", nil), `"abcdefgh"`)
	completed(t, w.ends("many", 1200), fmt.Sprint(1200*1199/2))
	if done.of("part") != parts || done.of("one") != 1200 {
		t.Errorf("calls of the steps' functions = %v, want %d of part and 1200 of one", done.n, parts)
	}
}
