package feed

import (
	"bytes"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// looks is a Looker that a test answers for.
type looks func(ctx context.Context, snapshot bool) (news, whole *Message, more bool, err error)

func (f looks) Look(ctx context.Context, snapshot bool) (news, whole *Message, more bool, err error) {
	return f(ctx, snapshot)
}

// newHub makes a hub whose loops end with the test.
func newHub(t *testing.T) (*Hub, *doorbell.Local) {
	closing := make(chan struct{})
	var wg sync.WaitGroup
	t.Cleanup(func() {
		close(closing)
		wg.Wait()
	})
	bell := &doorbell.Local{}
	return NewHub(Options{Bell: bell, Fallback: time.Hour, Logger: slog.New(slog.DiscardHandler), Closing: closing,
		Go: func(f func()) bool {
			wg.Go(f)
			return true
		}}), bell
}

// next waits for a client's next message.
func next(t *testing.T, c *Client) Delivery {
	t.Helper()
	limit := time.After(eventually.Within)
	for {
		if d, ok := c.Next(); ok {
			return d
		}
		select {
		case <-c.Ready():
		case <-limit:
			t.Fatal("no message has come")
		}
	}
}

// number is a question whose messages are the numbers of looks.
func number(tenant perdure.TenantID, key string) Question {
	return Question{Tenant: tenant, Key: key, New: func() Looker {
		n := 0
		return looks(func(_ context.Context, snapshot bool) (news, whole *Message, more bool, err error) {
			n++
			m := newMessage("n", fmt.Appendf(nil, `{"n":%d}`, n))
			if snapshot {
				whole = m
			}
			return m, whole, false, nil
		})
	}}
}

// A tenant whose looks never end, with as many questions as it may have, keeps no other one from
// its answers.
func TestBusyTenantStarvesNoOther(t *testing.T) {
	h, bell := newHub(t)
	stuck := make(chan struct{})
	defer close(stuck)
	var refused error
	for i := 0; refused == nil && i <= maxQuestions; i++ {
		c := h.Open()
		defer c.Close()
		refused = c.Watch("x", false, Question{Tenant: "busy", Key: fmt.Sprint(i), New: func() Looker {
			return looks(func(context.Context, bool) (news, whole *Message, more bool, err error) {
				<-stuck
				return nil, nil, false, errors.New("over")
			})
		}})
	}
	if perdure.CodeOf(refused) != perdure.CodeTooMany {
		t.Errorf("watch of question %d = %v, want it refused", maxQuestions+1, refused)
	}
	c := h.Open()
	defer c.Close()
	if err := c.Watch("x", false, number("calm", "n")); err != nil {
		t.Fatal(err)
	}
	next(t, c)
	bell.Ring(doorbell.Run("calm", kernel.AnyRun))
	next(t, c)
}

// A tenant without watches has no loop, and a hub without clients does nothing.
func TestHubForgetsQuestionsWithoutClients(t *testing.T) {
	h, bell := newHub(t)
	for range 3 {
		c := h.Open()
		for i := range 4 {
			if err := c.Watch(fmt.Sprint(i), false, number("a", fmt.Sprint(i%2))); err != nil {
				t.Fatal(err)
			}
		}
		next(t, c)
		if !c.Unwatch("0") || c.Unwatch("0") {
			t.Error("unwatch of a watch = false, or true twice")
		}
		c.Close()
		if err := c.Watch("late", false, number("a", "late")); err != nil {
			t.Errorf("watch of a closed client = %v, want it ignored", err)
		}
		eventually.True(t, "the loop ends", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return len(h.loops) == 0
		})
	}
	before := h.Looks()
	bell.Ring(doorbell.Run("a", kernel.AnyRun))
	if n := h.Looks() - before; n != 0 {
		t.Errorf("%d looks without a client, want none", n)
	}
}

// A look that panics or fails ends new watches with an error, and the others go on.
func TestFailedLookEndsNewWatchesOnly(t *testing.T) {
	h, bell := newHub(t)
	var mu sync.Mutex
	broken := false
	q := Question{Tenant: "a", Key: "k", New: func() Looker {
		return looks(func(_ context.Context, snapshot bool) (news, whole *Message, more bool, err error) {
			mu.Lock()
			defer mu.Unlock()
			if broken {
				panic("broken")
			}
			m := newMessage("n", []byte(`{"n":1}`))
			return m, m, false, nil
		})
	}}
	set := func(b bool) {
		mu.Lock()
		broken = b
		mu.Unlock()
	}
	old, fresh := h.Open(), h.Open()
	defer old.Close()
	defer fresh.Close()
	if err := old.Watch("x", false, q); err != nil {
		t.Fatal(err)
	}
	next(t, old)
	set(true)
	if err := fresh.Watch("y", false, q); err != nil {
		t.Fatal(err)
	}
	if d := next(t, fresh); d.Err == nil || d.ID != "y" {
		t.Errorf("first message of a watch that can't be read = %+v, want an error", d)
	}
	set(false)
	bell.Ring(doorbell.Run("a", kernel.AnyRun))
	if d := next(t, old); d.Err != nil {
		t.Errorf("message after the store is back = %+v, want no error", d)
	}
}

// Frames have the id of each client, whatever it is, and the same text with and without compression.
func TestMessageIsWrittenInEachForm(t *testing.T) {
	long := strings.Repeat("x", 70_000)
	m := newMessage("change", []byte(`{"run_id":"1","text":"`+long+`"}`))
	m.add("gone", []byte(`{"run_id":"2","why":"deleted"}`))
	for i := range maxForms + 3 {
		id := fmt.Sprintf(`a"%d`, i)
		want := fmt.Sprintf(`{"type":"changes","id":"a\"%d","changes":[{"type":"change","run_id":"1","text":"%s"},`+
			`{"type":"gone","run_id":"2","why":"deleted"}]}`, i, long)
		for _, deflated := range []bool{false, true} {
			texts, _ := unframe(t, m.Frames(id, false, deflated))
			if len(texts) != 1 || texts[0] != want {
				t.Errorf("id %s, deflated %t: %.100q, want %.100q", id, deflated, texts, want)
			}
		}
	}
	texts, short := unframe(t, m.Frames("", true, true))
	if len(texts) != 2 || !strings.HasPrefix(texts[0], `{"type":"change","run_id":"1",`) ||
		texts[1] != `{"type":"gone","run_id":"2","why":"deleted"}` {
		t.Errorf("plain form = %.200q, want a message for each entry", texts)
	}
	if short {
		t.Error("a short message is compressed, want it as it is")
	}
}

// unframe gives the texts of frames, and whether the last one was compressed.
func unframe(t *testing.T, b []byte) (texts []string, deflated bool) {
	t.Helper()
	for len(b) > 0 {
		n, at := int(b[1]), 2
		switch n {
		case 126:
			n, at = int(b[2])<<8|int(b[3]), 4
		case 127:
			n, at = int(b[6])<<24|int(b[7])<<16|int(b[8])<<8|int(b[9]), 10
		}
		text := b[at : at+n]
		if deflated = b[0]&0x40 != 0; deflated {
			in := io.MultiReader(bytes.NewReader(text), strings.NewReader("\x00\x00\xff\xff\x01\x00\x00\xff\xff"))
			plain, err := io.ReadAll(flate.NewReader(in))
			if err != nil {
				t.Fatal(err)
			}
			text = plain
		}
		texts, b = append(texts, string(text)), b[at+n:]
	}
	return texts, deflated
}
