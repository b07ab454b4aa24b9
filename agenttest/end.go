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
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
)

// An End is the end of a trial, when its run and all runs of its tree have ended.
type End struct {
	// Crash describes the crash. It is empty in the trial without one.
	Crash string
	// Run is the scenario's run.
	Run api.Run
	// Tree has all runs of its tree, by name: "trip", "trip/hotel#1"; and those that continue it.
	Tree map[string]api.Run
	// Deliverable is the run's result, or a fallback.
	Deliverable *api.Deliverable
	// Events is the run's log.
	Events []api.Event
	// Messages are those of the run's thread.
	Messages []api.Message
	// Steps has the recorded results, by run and key.
	Steps map[string]map[string]json.RawMessage
	// Notes counts the notes of handlers.
	Notes map[string]int

	boundaries []point
	// missed tells that the trial did not come to the boundary of its crash.
	missed bool
	// fields has the texts that are compared.
	fields map[string]string
	// noters has the names of the runs that made each note.
	noters map[string][]string
}

// gather waits until all runs have ended, and collects the end.
func (s *Trial) gather() *End {
	s.t.Helper()
	end := &End{Tree: make(map[string]api.Run), Steps: make(map[string]map[string]json.RawMessage)}
	fatal := func(what string, err error) {
		s.t.Helper()
		s.t.Fatalf("%s: %v", what, err)
	}
	for _, run := range s.tree() {
		name, err := s.learnName(run.RunID, run.Kind, run.ParentRunID)
		if err != nil {
			fatal("learn the name of a run", err)
		}
		end.Tree[name] = run
		s.mu.Lock()
		if s.unhandled(&run) {
			s.t.Errorf("%s: no handler is registered for the kind %q; a child that nobody is to execute has a Timeout",
				name, run.Kind)
		}
		s.mu.Unlock()
		if run.RunID == s.id {
			end.Run = run
		}
	}
	var err error
	if end.Deliverable, err = s.c.Deliverable(s.ctx, s.id); err != nil && client.CodeOf(err) != perdure.CodeNotFound {
		fatal("get the deliverable", err)
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
	if s.shared == nil {
		found, err := admin.New(s.admin).Invariants(s.ctx)
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
	end.noters = make(map[string][]string)
	for what, runs := range s.noters {
		for id := range runs {
			end.noters[what] = append(end.noters[what], s.name(id))
		}
	}
	end.fields = s.compared(end)
	return end
}

// tree waits until all runs of the run's tree have ended, and those that continue one of them, and
// returns them with their results.
func (s *Trial) tree() []api.Run {
	s.t.Helper()
	for {
		var all []api.Run
		live, seen := false, make(map[perdure.RunID]bool)
		for trees := []perdure.RunID{s.id}; len(trees) > 0; trees = trees[1:] {
			if seen[trees[0]] {
				continue // in the tree of the run that it continues
			}
			for _, r := range s.treeOf(trees[0]) {
				seen[r.RunID] = true
				if !r.State.Terminal() {
					live = true
					s.await(&r)
					continue
				}
				run, err := s.c.Get(s.ctx, r.RunID)
				if err != nil {
					s.t.Fatalf("look at a run: %v", err)
				}
				if all = append(all, *run); run.ContinuedByRunID != "" {
					trees = append(trees, run.ContinuedByRunID)
				}
			}
		}
		if !live {
			return all
		}
	}
}

// treeOf returns the runs of the tree that a run is in.
func (s *Trial) treeOf(id perdure.RunID) (all []api.Run) {
	s.t.Helper()
	for cursor := ""; ; {
		page, err := s.c.Tree(s.ctx, id, cursor)
		if err != nil {
			s.t.Fatalf("read the tree: %v", err)
		}
		all = append(all, page.Runs...)
		if cursor = page.NextCursor; cursor == "" {
			return all
		}
	}
}

// await waits for the end of a run.
func (s *Trial) await(r *api.Run) {
	s.t.Helper()
	until, _ := s.ctx.Deadline()
	_, deferred, err := s.c.Join(s.ctx, r.RunID, time.Hour)
	if err != nil || deferred && time.Until(until) <= time.Second {
		s.t.Fatalf("%s, a %s, has not ended in time: it is %s (%v)", r.RunID, r.Kind, r.State, err)
	}
}

// compared returns the fields that have to be the same in every trial.
func (s *Trial) compared(end *End) map[string]string {
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
		scrub = defaultScrub
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
		put("deliverable: "+d.Kind, stableContent(d))
	}
	for run, steps := range end.Steps {
		for key, value := range steps {
			put(run+": "+key, value)
		}
	}
	for i, m := range end.Messages {
		put("thread: message "+strconv.Itoa(i+1), slices.Concat([]byte(string(m.Role)+": "), m.Content))
	}
	for what := range end.Notes {
		put("noted: "+what, []byte("yes")) // not the count: a step that was not recorded is executed again
	}
	return f
}

// result returns the result in a step's journal entry, or the entry itself if it has another form.
func result(entry []byte) json.RawMessage {
	var step struct {
		OK json.RawMessage `json:"ok"`
	}
	if json.Unmarshal(entry, &step) != nil || len(step.OK) == 0 {
		return entry
	}
	return step.OK
}

// stableContent returns the content of a deliverable, without the fields of a fallback that depend
// on crashes.
func stableContent(d *api.Deliverable) []byte {
	var fallback map[string]any
	if d.Kind == "result" || json.Unmarshal(d.Content, &fallback) != nil {
		return d.Content
	}
	delete(fallback, "attempts")
	delete(fallback, "journal_entries")
	return client.JSON(fallback)
}

// compact removes white space from JSON. Any other text stays as it is.
func compact(value []byte) []byte {
	var b bytes.Buffer
	if json.Compact(&b, value) != nil {
		return value
	}
	return b.Bytes()
}

var (
	instantPattern = regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?`)
	uuidPattern    = regexp.MustCompile(`[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`)
)

// defaultScrub is the default of Scrub.
func defaultScrub(_, text string) string {
	return uuidPattern.ReplaceAllString(instantPattern.ReplaceAllString(text, "<instant>"), "<uuid>")
}

// differences returns how the end of another trial differs from this one, which had no crash.
func (e *End) differences(got *End) (diff []string) {
	all := maps.Clone(e.fields)
	maps.Copy(all, got.fields)
	excuses := excusesOf(e, got)
	for _, field := range slices.Sorted(maps.Keys(all)) {
		want, had := e.fields[field]
		is, has := got.fields[field]
		switch {
		case want == is && had == has, excuses.cover(field, want, is):
		case !has:
			diff = append(diff, fmt.Sprintf("%s is missing; without the crash it was %s", field, want))
		case !had:
			diff = append(diff, fmt.Sprintf("%s is there, and was not without the crash: %s", field, is))
		default:
			diff = append(diff, fmt.Sprintf("%s\n    was %s\n    is  %s", field, want, is))
		}
	}
	return diff
}
