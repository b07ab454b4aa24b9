package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

// An asker asks the person in a chat about approvals that the run waits for, or a run below it: a worker
// that wants to execute a program, or a call of an MCP server. The log of the run tells of its own, and that
// of the root of those below; each line has the asker look at the list of approvals.
type asker struct {
	ch   *conversation
	run  perdure.RunID
	root perdure.RunID
	t    *ticker

	now   chan struct{} // asks for a look at once
	end   context.CancelFunc
	ended chan struct{}
	once  sync.Once
}

const (
	// askEvery is the time between two looks without a line: a question may have been opened by a node of
	// the release before, which writes none.
	askEvery = 30 * time.Second
	// maxAncestors limits how many runs above the one that asks are named.
	maxAncestors = 4
	// maxTaskShown is how many characters of a worker's task are shown.
	maxTaskShown = 100
)

// startAsker starts one for a run.
func (ch *conversation) startAsker(ctx context.Context, run perdure.RunID, t *ticker) *asker {
	ctx, end := context.WithCancel(ctx)
	a := &asker{ch: ch, run: run, t: t, now: make(chan struct{}, 1), end: end, ended: make(chan struct{})}
	a.look() // at what was asked before
	go a.loop(ctx)
	return a
}

// look asks for a look at once.
func (a *asker) look() {
	select {
	case a.now <- struct{}{}:
	default:
	}
}

// stop waits until the person has answered the question that is on the screen, and ends the asker.
func (a *asker) stop() {
	a.once.Do(func() {
		a.ch.screen.Lock()
		a.end()
		a.ch.screen.Unlock()
		<-a.ended
	})
}

func (a *asker) loop(ctx context.Context) {
	defer close(a.ended)
	every := time.NewTicker(askEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.now:
		case <-every.C:
		}
		for _, q := range a.open(ctx) {
			if err := a.ask(ctx, &q); err != nil {
				return // the chat has ended
			}
		}
	}
}

// open returns the approvals that nobody has been asked about. A server that does not answer is asked
// again at the next look.
func (a *asker) open(ctx context.Context) (out []perdure.Approval) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if a.root == "" {
		r, err := a.ch.c.Get(ctx, a.run)
		if err != nil {
			return nil
		}
		if a.root = r.RootRunID; a.root == "" {
			a.root = r.RunID
		}
	}
	f := client.ApprovalFilter{RootRunID: a.root}
	for {
		page, err := a.ch.c.Approvals(ctx, f)
		if err != nil {
			return out
		}
		for _, q := range page.Approvals {
			if !a.ch.asked[q.ID] && a.isOfTree(ctx, q.RunID) {
				out = append(out, q)
			}
		}
		if f.Cursor = page.NextCursor; f.Cursor == "" {
			return out
		}
	}
}

// isOfTree tells whether a run is of the chat's tree. A server of release 0.1.0 lists the approvals of others
// as well.
func (a *asker) isOfTree(ctx context.Context, id perdure.RunID) bool {
	if id == a.run || id == a.root {
		return true
	}
	r, err := a.ch.c.Get(ctx, id)
	return err == nil && r.RootRunID == a.root
}

// ask asks the person about an approval. One that the person leaves open stays open for perdure approve.
func (a *asker) ask(ctx context.Context, q *perdure.Approval) error {
	by := a.askedBy(ctx, q.RunID)
	ch := a.ch
	mayDecide := ch.mayDecide(ctx, q)
	ch.screen.Lock()
	defer ch.screen.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if ch.asked == nil {
		ch.asked = make(map[perdure.ApprovalID]bool)
	}
	ch.asked[q.ID] = true
	ch.endLine(a.t)
	a.t.pause(true)
	defer a.t.pause(false)
	if by != "" {
		fmt.Fprintf(ch.stderr, "%s asks:\n", by)
	}
	if err := printQuestion(ch.stderr, q); err != nil {
		return err
	}
	if !mayDecide {
		fmt.Fprintf(ch.stderr, "The platform decides about this, and your key is none of the platform. "+
			"The agent waits for the decision.\n")
		return nil
	}
	if !ch.asks {
		fmt.Fprintf(ch.stderr, "perdure approve %s decides.\n", q.ID)
		return nil
	}
	var decision perdure.Decision
	if err := askPerson(ctx, ch.in, ch.stderr, q, &decision); err != nil {
		return err
	}
	if decision.Decision == "" {
		fmt.Fprintf(ch.stderr, "perdure approve %s decides.\n", q.ID)
		return nil
	}
	var err error
	// The hash is of the action that was shown here, and not the one that the server names.
	if decision.ActionHash, err = perdure.ActionHash(json.RawMessage(q.Action)); err != nil {
		return err
	}
	if _, err := ch.c.Decide(ctx, q.ID, decision); err != nil {
		fmt.Fprintln(ch.stderr, visible(err.Error()))
	}
	return nil
}

// mayDecide tells whether the key of this chat may decide about an approval. Only a key of the platform
// may where the platform decides. If the server does not tell whose key it is, the person is asked, and
// the server refuses the decision.
func (ch *conversation) mayDecide(ctx context.Context, q *perdure.Approval) bool {
	if q.Approvers != perdure.ApproversPlatform {
		return true
	}
	if ch.key == nil {
		if ch.key = ownKey(ctx, ch.c); ch.key == nil {
			return true
		}
	}
	return mayDecide(ch.key, q)
}

// ownKey returns the key that a client calls with, or nil if the server does not tell.
func ownKey(ctx context.Context, c *client.Client) *perdure.Key {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := c.Session(ctx)
	if err != nil {
		return nil
	}
	return &perdure.Key{Tenant: s.Tenant, Platform: s.Platform, Scopes: s.Scopes}
}

// mayDecide tells whether a key may decide about an approval.
func mayDecide(k *perdure.Key, q *perdure.Approval) bool {
	return k.MayDecide() == nil && q.MayDecide(k) == nil
}

// printQuestion prints an approval. Of a question to the person only that is shown.
func printQuestion(w io.Writer, q *perdure.Approval) error {
	var action struct{ Question string }
	if !asksForAnswer(q) || json.Unmarshal([]byte(q.Action), &action) != nil || action.Question == "" {
		return printApproval(w, q, time.Now(), wholeAction)
	}
	_, err := fmt.Fprintf(w, "? %s\n", block(action.Question))
	return err
}

// askedBy names a run below the conversation's, such as "mcp.call#1 of supervisor.worker#1 (look at the
// disk)". It is empty for the run itself, and as far as the server does not tell.
func (a *asker) askedBy(ctx context.Context, id perdure.RunID) string {
	var names []string
	for range maxAncestors {
		r, err := a.ch.c.Get(ctx, id)
		if err != nil || r.ParentRunID == "" {
			break
		}
		name := r.Kind
		if above, err := a.ch.c.Activity(ctx, r.ParentRunID); err == nil {
			name = nameAmong(above.Children, r)
		}
		var in struct{ Task string }
		if json.Unmarshal(r.Input, &in) == nil && in.Task != "" {
			name += " (" + perdure.Excerpt(in.Task, maxTaskShown) + ")"
		}
		names = append(names, visible(name))
		id = r.ParentRunID
	}
	return strings.Join(names, " of ")
}

// nameAmong returns the name that a run has among its parent's children, or its kind.
func nameAmong(children []api.ChildActivity, r *api.Run) string {
	for i := range children {
		if children[i].RunID == r.RunID && children[i].Key != "" {
			return children[i].Key
		}
	}
	return r.Kind
}
