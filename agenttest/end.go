package agenttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

// An End is what came of a scenario, when its run and all runs that belong to it have ended.
type End struct {
	Crash       string                                // what happened, in words; empty: nothing
	Run         api.Run                               // the run
	Tree        map[string]api.Run                    // all of its tree, by name: "trip", "trip/hotel#1"
	Deliverable *api.Deliverable                      // what it hands over: its result, or a fallback
	Events      []api.Event                           // its log
	Messages    []api.Message                         // of its thread
	Steps       map[string]map[string]json.RawMessage // what was recorded, by run and key
	Notes       map[string]int                        // what handlers noted, and how often

	boundaries []point
	fields     map[string]string // what is compared
}

// gather waits for the end of everything, and collects it.
func (s *Session) gather() *End {
	s.t.Helper()
	end := &End{Tree: make(map[string]api.Run), Steps: make(map[string]map[string]json.RawMessage)}
	fatal := func(what string, err error) {
		s.t.Helper()
		s.t.Fatalf("%s: %v", what, err)
	}
	for _, run := range s.tree() {
		name, err := s.introduce(run.RunID, run.Kind, run.ParentRunID)
		if err != nil {
			fatal("learn the name of a run", err)
		}
		end.Tree[name] = run
		s.mu.Lock()
		if s.nobodys(&run) {
			s.t.Errorf("%s: no handler is registered for the kind %q; a child that nobody is to execute has a Timeout", name, run.Kind)
		}
		s.mu.Unlock()
		if run.RunID == s.id {
			end.Run = run
		}
	}
	var err error
	if end.Deliverable, err = s.c.Deliverable(s.ctx, s.id); err != nil && client.CodeOf(err) != perdure.CodeNotFound {
		fatal("get what the run hands over", err)
	}
	for e, err := range s.c.Events(s.ctx, s.id, 0) {
		if err != nil {
			fatal("read the log", err)
		}
		end.Events = append(end.Events, e)
	}
	for after := int64(0); end.Run.ThreadID != ""; {
		page, err := s.c.Messages(s.ctx, end.Run.ThreadID, after)
		if err != nil {
			fatal("read the thread", err)
		}
		if len(page.Messages) == 0 {
			break
		}
		end.Messages = append(end.Messages, page.Messages...)
		after = page.NextAfter
	}
	if s.common == nil {
		found, err := s.admin.Invariants(s.ctx)
		if err != nil {
			fatal("check the invariants", err)
		}
		for _, v := range found.Violations {
			s.t.Errorf("the server breaks its invariant %s: %s: %s", v.ID, v.Statement, v.Row)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for run, steps := range s.steps {
		end.Steps[run] = make(map[string]json.RawMessage)
		for key, value := range steps {
			end.Steps[run][key] = result([]byte(value))
		}
	}
	end.Notes, end.boundaries = maps.Clone(s.notes), slices.Clone(s.boundaries)
	end.fields = s.compared(end)
	return end
}

// tree gives all runs of the run's tree, each with its result, once they have all ended.
func (s *Session) tree() []api.Run {
	s.t.Helper()
	for {
		var all []api.Run
		live := false
		for cursor := ""; ; {
			page, err := s.c.Tree(s.ctx, s.id, cursor)
			if err != nil {
				s.t.Fatalf("read the tree: %v", err)
			}
			for _, r := range page.Runs {
				if r.State.Terminal() {
					run, err := s.c.Get(s.ctx, r.RunID)
					if err != nil {
						s.t.Fatalf("look at a run: %v", err)
					}
					all = append(all, *run)
					continue
				}
				live = true
				until, _ := s.ctx.Deadline()
				if _, deferred, err := s.c.Join(s.ctx, r.RunID, time.Hour); err != nil || deferred && time.Until(until) <= time.Second {
					s.t.Fatalf("%s, a %s, has not ended in time: it is %s (%v)", r.RunID, r.Kind, r.State, err)
				}
			}
			if cursor = page.NextCursor; cursor == "" {
				break
			}
		}
		if !live {
			return all
		}
	}
}

// compared is what has to be the same in every telling, field by field.
func (s *Session) compared(end *End) map[string]string {
	var ids []string
	for id, name := range s.names {
		ids = append(ids, string(id), "<"+name+">")
	}
	if end.Run.ThreadID != "" {
		ids = append(ids, string(end.Run.ThreadID), "<thread>")
	}
	named := strings.NewReplacer(ids...)
	scrub := s.sc.Scrub
	if scrub == nil {
		scrub = scrubbed
	}
	f := make(map[string]string)
	put := func(field string, value []byte) {
		if text := scrub(field, named.Replace(string(compact(value)))); text != "" {
			f[field] = text
		}
	}
	for name, r := range end.Tree {
		put(name+": state", []byte(r.State))
		put(name+": kind", []byte(r.Kind))
		put(name+": result", r.Result)
		put(name+": continued by", []byte(s.names[r.ContinuedByRunID]))
		if r.Error != nil {
			put(name+": error", []byte(string(r.Error.Code)+": "+r.Error.Message))
		}
	}
	if d := end.Deliverable; d != nil {
		put("deliverable: "+d.Kind, lasting(d))
	}
	for run, steps := range end.Steps {
		for key, value := range steps {
			put(run+": "+key, value)
		}
	}
	for i, m := range end.Messages {
		put("thread: message "+strconv.Itoa(i+1), slices.Concat([]byte(m.Role+": "), m.Content))
	}
	for what := range end.Notes {
		put("noted: "+what, []byte("yes")) // how often is nothing to rely on: a step that was not recorded is done again
	}
	return f
}

// result is what a step's entry in the journal says that it resulted in; the entry itself if it is of another make.
func result(entry []byte) json.RawMessage {
	var step struct {
		OK json.RawMessage `json:"ok"`
	}
	if json.Unmarshal(entry, &step) != nil || len(step.OK) == 0 {
		return entry
	}
	return step.OK
}

// lasting is what a deliverable says, without what a fallback says of the way there.
func lasting(d *api.Deliverable) []byte {
	var fallback map[string]any
	if d.Kind == "result" || json.Unmarshal(d.Content, &fallback) != nil {
		return d.Content
	}
	delete(fallback, "attempts")
	delete(fallback, "journal_entries")
	return client.JSON(fallback)
}

func compact(value []byte) []byte {
	var b bytes.Buffer
	if json.Compact(&b, value) != nil {
		return value
	}
	return b.Bytes()
}

var (
	anInstant = regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?`)
	aUUID     = regexp.MustCompile(`[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`)
)

// scrubbed is the default of Scrub.
func scrubbed(_, text string) string {
	return aUUID.ReplaceAllString(anInstant.ReplaceAllString(text, "<instant>"), "<uuid>")
}

// same fails the test where an end is not what it was without a crash.
func (e *End) same(t *testing.T, got *End) {
	t.Helper()
	var diff []string
	all := maps.Clone(e.fields)
	maps.Copy(all, got.fields)
	for _, field := range slices.Sorted(maps.Keys(all)) {
		want, had := e.fields[field]
		is, has := got.fields[field]
		switch {
		case !has:
			diff = append(diff, fmt.Sprintf("%s is missing; without the crash it was %s", field, want))
		case !had:
			diff = append(diff, fmt.Sprintf("%s is there, and was not without the crash: %s", field, is))
		case want != is:
			diff = append(diff, fmt.Sprintf("%s\n    was %s\n    is  %s", field, want, is))
		}
	}
	if len(diff) > 0 {
		t.Errorf("%s: what comes of it is not the same:\n%s", got.Crash, strings.Join(diff, "\n"))
	}
}
