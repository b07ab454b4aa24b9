package httpd

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

func listRuns(c *call, _ *none) (int, *api.Runs, error) {
	f, err := runFilter(c, 50)
	if err != nil {
		return 0, nil, err
	}
	cursor, err := c.cursorParam()
	if err != nil {
		return 0, nil, err
	}
	if cursor != "" && (f.Before == "" || cursor < f.Before) {
		f.Before = cursor
	}
	return runsPage(c, f)
}

// runFilters are the parameters that select runs.
var runFilters = []string{"status", "state", "kind", "queue", "thread_id", "parent_run_id", "root_run_id",
	"created_after", "created_before", "metadata.*", "id_part", "kind_prefix", "metadata_value", "worker_id",
	"error_code", "held", "deadline_before", "finished_after", "class", "seen_before"}

// severalOf are the parameters that may be given more than once.
var severalOf = []string{"status", "state"}

// runFilter reads the limit and the parameters that select runs.
func runFilter(c *call, def int64) (f reads.RunFilter, err error) {
	limit, err := c.intParam("limit", def, 1, maxPage)
	if err != nil {
		return f, err
	}
	f, err = runFilterParams(c)
	f.Limit = int(limit)
	return f, err
}

// runFilterParams reads the parameters that select runs.
func runFilterParams(c *call) (f reads.RunFilter, err error) {
	q := c.URL.Query()
	w := api.WatchFilter{Status: listParam(q["status"]), State: listParam(q["state"]), Kind: q.Get("kind"),
		Queue: q.Get("queue"), ThreadID: perdure.ThreadID(q.Get("thread_id")),
		ParentRunID: perdure.RunID(q.Get("parent_run_id")), RootRunID: perdure.RunID(q.Get("root_run_id")),
		CreatedAfter: q.Get("created_after"), CreatedBefore: q.Get("created_before"), IDPart: q.Get("id_part"),
		KindPrefix: q.Get("kind_prefix"), MetadataValue: q.Get("metadata_value"), WorkerID: q.Get("worker_id"),
		ErrorCode: q.Get("error_code"), Held: q.Get("held"), DeadlineBefore: q.Get("deadline_before"),
		FinishedAfter: q.Get("finished_after"), Class: q.Get("class"), SeenBefore: q.Get("seen_before")}
	w.Metadata = metadataParams(q)
	return runFilterOf(&w)
}

// metadataParams reads the entries of metadata that a list is filtered by: metadata.name=value.
func metadataParams(q url.Values) (out map[string]string) {
	for name := range q {
		if key, ok := strings.CutPrefix(name, "metadata."); ok {
			if out == nil {
				out = make(map[string]string)
			}
			out[key] = q.Get(name)
		}
	}
	return out
}

// checkEntries checks the entries of metadata that a list is filtered by.
func checkEntries(entries map[string]string) error {
	for name := range entries {
		if err := perdure.CheckName("metadata."+name, name); err != nil {
			return err
		}
	}
	if len(entries) > perdure.MaxMetadata {
		return perdure.Errorf(perdure.CodeTooLarge,
			"a list is filtered by at most %d entries of metadata", perdure.MaxMetadata)
	}
	return nil
}

// listParam returns the values of a parameter that may be repeated, and may have several values
// separated by commas.
func listParam(values []string) (out []string) {
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if part != "" {
				out = append(out, part)
			}
		}
	}
	return out
}

// runFilterOf checks what selects runs.
func runFilterOf(w *api.WatchFilter) (f reads.RunFilter, err error) {
	f = reads.RunFilter{Status: w.Status, Kind: w.Kind, Queue: w.Queue, ThreadID: w.ThreadID, ParentID: w.ParentRunID,
		RootID: w.RootRunID, Metadata: w.Metadata}
	if err := checkEntries(w.Metadata); err != nil {
		return f, err
	}
	if len(w.Status) > len(perdure.States)+1 || len(w.State) > len(perdure.States) {
		return f, perdure.Invalid("status", "names each status once")
	}
	for _, s := range w.State {
		if f.State = append(f.State, perdure.State(s)); !slices.Contains(perdure.States, perdure.State(s)) {
			return f, perdure.Invalid("state", "%q is none of %v", s, perdure.States)
		}
	}
	for _, s := range w.Status {
		if s != perdure.StatusDeferred && !slices.Contains(perdure.States, perdure.State(s)) {
			return f, perdure.Invalid("status", "%q is neither deferred nor one of %v", s, perdure.States)
		}
	}
	// Ids begin with the time at which they were made, and runs are read in the order of their ids.
	if f.After, err = firstRunAt("created_after", w.CreatedAfter); err != nil {
		return f, err
	}
	if f.Before, err = firstRunAt("created_before", w.CreatedBefore); err != nil {
		return f, err
	}
	return f, searchOf(w, &f)
}

// isIDPart matches a part of the id of a run. Fewer letters would match most runs.
var isIDPart = regexp.MustCompile(`^[0-9a-f-]{4,36}$`)

// searchOf checks the fields that runs are searched by.
func searchOf(w *api.WatchFilter, f *reads.RunFilter) (err error) {
	f.IDPart, f.KindPrefix, f.Value, f.Worker = w.IDPart, w.KindPrefix, w.MetadataValue, w.WorkerID
	f.Code, f.Held = perdure.Code(w.ErrorCode), w.Held != ""
	if w.IDPart != "" && !isIDPart.MatchString(w.IDPart) {
		return perdure.Invalid("id_part", "takes 4 to 36 letters of an id: 0 to 9, a to f, and hyphens")
	}
	if f.Held && w.Held != "true" {
		return perdure.Invalid("held", "takes true")
	}
	for name, v := range map[string]string{"kind_prefix": w.KindPrefix, "metadata_value": w.MetadataValue,
		"worker_id": w.WorkerID, "error_code": w.ErrorCode} {
		if len(v) > maxSearched {
			return perdure.Invalid(name, "has at most %d bytes", maxSearched)
		}
	}
	if f.DeadlineBefore, err = instantOf("deadline_before", w.DeadlineBefore); err != nil {
		return err
	}
	if f.FinishedAfter, err = instantOf("finished_after", w.FinishedAfter); err != nil {
		return err
	}
	f.Class = perdure.Class(w.Class)
	classes := []perdure.Class{"", perdure.Task, perdure.Agent, perdure.Process}
	if !slices.Contains(classes, f.Class) {
		return perdure.Invalid("class", "%q is none of %v", shortened(w.Class, 100), classes[1:])
	}
	f.SeenBefore, err = instantOf("seen_before", w.SeenBefore)
	return err
}

// maxSearched bounds a text that runs are searched by.
const maxSearched = 1024

// instantOf reads a time, or returns zero if there is none.
func instantOf(name, text string) (perdure.Instant, error) {
	if text == "" {
		return 0, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || at.Year() < 1970 || at.Year() > 9999 {
		return 0, perdure.Invalid(name, "takes a time such as 2026-01-31T12:00:00Z")
	}
	return max(1, perdure.At(at)), nil
}

// firstRunAt returns the lower bound of the ids of runs that were created at a time or later.
func firstRunAt(name, text string) (perdure.RunID, error) {
	at, err := instantOf(name, text)
	if err != nil || at == 0 {
		return "", err
	}
	return perdure.RunID(perdure.FirstID(at)), nil
}

// pageTime bounds the search for the rows of a page. The caller continues with the cursor.
const pageTime = 30 * time.Millisecond

// runsPage reads a page of runs. It may be short, or empty, and still have a cursor.
func runsPage(c *call, f reads.RunFilter) (int, *api.Runs, error) {
	began := time.Now()
	f.Over = func() bool { return c.Context().Err() != nil || time.Since(began) > c.s.pageTime }
	p, err := c.s.engine.Runs.Page(c.Context(), c.tenant(), f)
	if err != nil {
		return 0, nil, err
	}
	out := &api.Runs{Runs: []api.Run{}, NextCursor: string(p.Next)}
	if p.Cut {
		at := perdure.IDTime(string(p.Next))
		out.SearchedTo = &at
	}
	now := c.s.engine.Now()
	for i := range p.Runs {
		out.Runs = append(out.Runs, *c.s.show(&reads.Detail{Run: p.Runs[i], WaitingFor: p.WaitingFor[i]}, now))
	}
	return 0, out, nil
}

func runTree(c *call, _ *none) (int, *api.Runs, error) {
	limit, err := c.intParam("limit", 200, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	before, err := c.cursorParam()
	if err != nil {
		return 0, nil, err
	}
	d, err := c.s.engine.Runs.Get(c.Context(), c.tenant(), c.run())
	if err != nil {
		return 0, nil, err
	}
	return runsPage(c, reads.RunFilter{RootID: d.RootID, Before: before, Limit: int(limit)})
}

// filterKey returns a text that is equal for filters that select the same.
func filterKey(f *reads.RunFilter) string {
	return keyOf(slices.Sorted(slices.Values(f.Status)), slices.Sorted(slices.Values(f.State)), f.Kind, f.Queue,
		f.ThreadID, f.ParentID, f.RootID, f.Metadata, f.Before, f.After, f.Limit, f.IDPart, f.KindPrefix, f.Value,
		f.Worker, f.Code, f.Held, f.DeadlineBefore, f.FinishedAfter, f.Class, f.SeenBefore)
}

// keyOf returns the key of a question: the same text for equal questions.
func keyOf(parts ...any) string {
	b, err := json.Marshal(parts) // maps are sorted
	if err != nil {
		return fmt.Sprintf("%#v", parts)
	}
	return string(b)
}
