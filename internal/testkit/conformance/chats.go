package conformance

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
)

// chat says something on a thread.
func (w *World) chat(th perdure.ThreadID, text string) *life.Chat {
	w.t.Helper()
	op := &life.Chat{Tenant: tenant, ThreadID: th, Kind: "chat", Message: user(text)[0]}
	w.do(op)
	return op
}

var chatScenarios = []Scenario{
	{"a retry and a redrive of a conversation take up what the user says", func(w *World) {
		for _, again := range []func(id perdure.RunID) perdure.Run{
			func(id perdure.RunID) perdure.Run {
				op := &life.Retry{Tenant: tenant, RunID: id}
				w.do(op)
				return op.Run
			},
			func(id perdure.RunID) perdure.Run {
				op := &upkeep.Redrive{Tenant: tenant, RunID: id}
				w.do(op)
				return op.Run
			},
		} {
			th := w.thread()
			first := w.chat(th, "hello")
			for w.get(first.Run.ID).State != perdure.Failed {
				w.commit(w.take("w1"), perdure.Commit{Outcome: failed("broken")})
				w.pass(time.Minute)
			}
			r := again(first.Run.ID)
			g := w.take("w1")
			w.check(g.Run.ID == r.ID && g.Run.Options.Chat, "run %s, a repetition of %s, is a conversation: %t", r.ID,
				first.Run.ID, g.Run.Options.Chat)
			next := w.chat(th, "are you there?")
			w.check(!next.Started && next.Run.ID == r.ID, "the message went to run %s (new: %t), want %s", next.Run.ID,
				next.Started, r.ID)
			// It ends without having read the message, so another run answers that.
			w.complete(g, `1`)
			more := w.get(r.ID).ContinuedBy
			w.check(more != "", "run %s ended with an unread message, and nothing continues it", r.ID)
			w.complete(w.take("w1"), `1`)
			w.state(more, perdure.Completed)
		}
		w.fsck()
	}},
	{"a decision and the withdrawal of its question: the first one counts", func(w *World) {
		for _, decided := range []bool{true, false} {
			th := w.thread()
			r := w.on(th, perdure.Submission{Class: perdure.Agent})
			w.commit(w.take("w1"), perdure.Commit{Waits: []perdure.WaitSpec{forYes("ok"), forMessage("m")},
				Outcome: suspend})
			w.say(th, "blue")
			w.state(r.ID, perdure.Queued)
			g := w.take("w1")
			id := perdure.IDOfApproval(tenant, r.ID, "ok")
			if decided {
				w.do(w.decide(id, ada, yes()))
			}
			w.commit(g, perdure.Commit{Close: []string{"ok"}})
			if !decided {
				w.refuse(perdure.CodeWaitClosed, w.decide(id, ada, yes()))
			}
			op := &life.Inbox{Tenant: tenant, RunID: r.ID, Epoch: g.Run.Epoch, After: w.itemOf(g, "m").Seq}
			w.do(op)
			answers := slices.DeleteFunc(op.Page, func(i perdure.Item) bool { return i.WaitID != "ok" })
			w.check(len(answers) == 1 == decided, "the decision came first: %t; the inbox has %+v", decided, op.Page)
			want := perdure.ApprovalClosed
			if decided {
				want = perdure.ApprovalApproved
			}
			w.check(w.approval(id).State == want, "the approval is %s, want %s", w.approval(id).State, want)
			w.complete(g, `1`)
		}
		w.fsck()
	}},
	{"a run reads its thread from the end, a page at a time", func(w *World) {
		th := w.thread()
		const messages = 230
		for n := 1; n <= messages; n++ {
			content := json.RawMessage(fmt.Sprintf(`"%d"`, n))
			if n%50 == 0 { // four of these are larger than a page
				content = json.RawMessage(`"` + strings.Repeat("x", life.GrantMax/3) + `"`)
			}
			w.do(&life.AppendMessage{Tenant: tenant, ThreadID: th,
				Message: perdure.Message{Role: "user", Content: content}})
		}
		w.on(th, perdure.Submission{})
		g := w.take("w1")
		pages := 0
		for before := int64(messages + 1); ; pages++ {
			page, err := w.E.Runs.History(w.ctx(), tenant, g.Run.ID, g.Run.Epoch,
				reads.ThreadPart{After: 20, Before: before, Limit: 1000})
			w.check(err == nil, "page before message %d: %v", before, err)
			if len(page) == 0 {
				w.check(before == 21, "the last page ends at message %d, want 21", before)
				break
			}
			bytes := 0
			for _, m := range page {
				before--
				bytes += len(m.Content)
				w.check(m.Seq == before, "message %d comes after message %d", m.Seq, before+1)
			}
			w.check(bytes <= life.GrantMax, "a page has %d bytes, want at most %d", bytes, life.GrantMax)
		}
		w.check(pages >= 3, "%d messages came in %d pages, want some", messages, pages)
		_, err := w.E.Runs.History(w.ctx(), tenant, g.Run.ID, g.Run.Epoch+1, reads.ThreadPart{Before: 5, Limit: 10})
		w.check(perdure.CodeOf(err) == perdure.CodeStaleEpoch, "with another epoch: %v", err)
	}},
}
