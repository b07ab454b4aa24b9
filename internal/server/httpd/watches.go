package httpd

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/httpd/feed"
)

// obey does what a message of the client asks for. It returns a refusal, or nil.
func (w *socket) obey(b []byte) []byte {
	// The id is read first, so that a refusal of anything else can name it.
	var head struct {
		Type string
		ID   string
	}
	if err := json.Unmarshal(b, &head); err != nil {
		head.Type, head.ID = "", ""
	}
	if head.Type == "" && w.plain {
		return nil // such sockets have ignored all messages before there were watches
	}
	if len(head.ID) > perdure.MaxName {
		head.ID = ""
	}
	var m api.Watch
	err := decodeStrict(w.s.opt.Secrets.JSON(b), &m)
	switch {
	case err != nil:
	case m.Type == api.SocketWatch:
		err = w.watch(&m)
	case m.Type != api.SocketUnwatch:
		err = perdure.Invalid("type", "takes %s or %s", api.SocketWatch, api.SocketUnwatch)
	case !w.client.Unwatch(m.ID):
		err = perdure.Errorf(perdure.CodeNotFound, "there is no watch with this id")
	}
	if err == nil {
		return nil
	}
	return w.s.socketProblem(head.ID, err)
}

// watch begins a watch.
func (w *socket) watch(m *api.Watch) error {
	if len(m.ID) > perdure.MaxName {
		return perdure.Invalid("id", "has at most %d bytes", perdure.MaxName)
	}
	q, err := w.question(m)
	if err != nil {
		return err
	}
	w.mu.Lock()
	delete(w.after, m.ID)
	if len(m.After) > 0 {
		if w.after == nil {
			w.after = make(map[string]cursors)
		}
		w.after[m.ID] = cursors{q.Tenant, m.Filter.RootRunID, m.After}
	}
	w.mu.Unlock()
	if err = w.client.Watch(m.ID, false, q); err != nil {
		w.mu.Lock()
		delete(w.after, m.ID)
		w.mu.Unlock()
	}
	return err
}

// question turns a watch into a question, after it has checked whether the key may ask it.
func (w *socket) question(m *api.Watch) (q feed.Question, err error) {
	t, err := w.tenantOf(m.Tenant)
	if err != nil {
		return q, err
	}
	if m.Of != api.WatchRuns {
		for name, given := range map[string]bool{"ids": len(m.IDs) > 0, "after": len(m.After) > 0, "events": m.Events,
			"cursor": m.Cursor != ""} {
			if given {
				return q, perdure.Invalid(name, "goes with runs only")
			}
		}
	}
	if err := checkFields(m); err != nil {
		return q, err
	}
	switch m.Of {
	case api.WatchRuns:
		return w.s.watchRuns(t, m)
	case api.WatchCounts:
		return w.s.watchCounts(t, m)
	}
	if _, ok := watchedLists[m.Of]; ok {
		return w.watchList(t, m)
	}
	return q, perdure.Invalid("of", "%q is none of the lists that can be watched", shortened(m.Of, 100))
}

// tenantOf returns the tenant of a watch: that of the key, or with a key of the platform another
// one.
func (w *socket) tenantOf(name string) (perdure.TenantID, error) {
	switch {
	case name == "":
		return w.key.Tenant, nil
	case !w.key.Platform || !w.key.Allows(perdure.ScopePlatformRead):
		return "", perdure.Errorf(api.CodeForbidden, "tenant takes a key of the platform with the scope %s",
			perdure.ScopePlatformRead)
	case name == "*":
		return kernel.AllTenants, nil
	}
	return perdure.TenantID(name), perdure.CheckName("tenant", name)
}

// plainRuns is the question of a socket with filters in its address.
func (s *Server) plainRuns(t perdure.TenantID, f reads.RunFilter, lines bool) feed.Question {
	first := f.Limit
	f.Limit = feed.MaxPlain
	return feed.Question{Tenant: t, Key: keyOf("plain", filterKey(&f), first, lines), New: func() feed.Looker {
		return &feed.Runs{Engine: s.engine, Show: s.showRow, Tenant: t, Page: f, First: first, Lines: lines,
			Plain: true}
	}}
}

// watchRuns is the question of a page of runs, or of runs by their ids.
func (s *Server) watchRuns(t perdure.TenantID, m *api.Watch) (q feed.Question, err error) {
	l := feed.Runs{Engine: s.engine, Show: s.showRow, Tenant: t, Lines: m.Events}
	if err = checkAfter(m); err != nil {
		return q, err
	}
	if m.IDs == nil {
		if l.Page, err = runFilterOf(&m.Filter); err != nil {
			return q, within("filter", err)
		}
		most := feed.MaxShown
		if l.Page.RootID != "" {
			most = feed.MaxTree
		}
		if l.Page.Limit, err = limitOf(m.Limit, most); err != nil {
			return q, err
		}
		if m.Cursor != "" {
			if !isID.MatchString(m.Cursor) {
				return q, perdure.Invalid("cursor", "takes the next_cursor of a page")
			}
			l.Page.Before = perdure.RunID(min(m.Cursor, cmp.Or(string(l.Page.Before), "~")))
		}
		l.First = l.Page.Limit
	} else if l.IDs, err = watchedIDs(m); err != nil {
		return q, err
	}
	if l.IDs != nil {
		l.First = len(l.IDs)
	}
	q = feed.Question{Tenant: t, Key: keyOf(m.Of, filterKey(&l.Page), l.IDs, l.Lines), New: func() feed.Looker {
		fresh := l
		return &fresh
	}}
	if l.Page.Searches() {
		q.Every = listEvery // each look examines many runs
	}
	if l.Lines && (l.IDs != nil || l.Page.RootID != "") {
		q.Every = feed.FollowEvery
	}
	return q, nil
}

// checkAfter checks the last lines that a client says it has.
func checkAfter(m *api.Watch) error {
	switch {
	case len(m.After) == 0:
		return nil
	case !m.Events:
		return perdure.Invalid("after", "goes with events")
	case m.IDs == nil && m.Filter.RootRunID == "":
		return perdure.Invalid("after", "goes with ids, or with the filter root_run_id")
	case len(m.After) > feed.MaxTree:
		return perdure.Invalid("after", "names at most %d runs", feed.MaxTree)
	}
	for id, seq := range m.After {
		if seq < 0 || !isID.MatchString(string(id)) || m.IDs != nil && !slices.Contains(m.IDs, id) {
			return perdure.Invalid("after", "names runs of the watch, with the last line that you have")
		}
	}
	return nil
}

// watchedIDs checks the runs of a watch by ids, and returns them in order.
func watchedIDs(m *api.Watch) ([]perdure.RunID, error) {
	switch {
	case len(m.IDs) == 0 || len(m.IDs) > feed.MaxIDs:
		return nil, perdure.Invalid("ids", "names from 1 to %d runs", feed.MaxIDs)
	case keyOf(m.Filter) != keyOf(api.WatchFilter{}) || m.Limit != 0 || m.Cursor != "":
		return nil, perdure.Invalid("ids", "give either ids, or filter, limit and cursor")
	}
	if err := checkIDs("ids", m.IDs); err != nil {
		return nil, err
	}
	return slices.Sorted(slices.Values(m.IDs)), nil
}

// watchCounts is the question of counts of runs.
func (s *Server) watchCounts(t perdure.TenantID, m *api.Watch) (q feed.Question, err error) {
	f, err := runFilterOf(&m.Filter)
	if err != nil {
		return q, within("filter", err)
	}
	if m.Limit != 0 {
		return q, perdure.Invalid("limit", "does not go with counts")
	}
	return feed.Question{Tenant: t, Key: keyOf(m.Of, filterKey(&f)), New: func() feed.Looker {
		return &feed.Counts{Engine: s.engine, Tenant: t, Filter: f}
	}}, nil
}

// runFields are the fields of a filter of runs.
var runFields = []string{"status", "state", "kind", "queue", "thread_id", "root_run_id", "parent_run_id", "metadata",
	"created_after", "created_before", "id_part", "kind_prefix", "metadata_value", "worker_id", "error_code", "held",
	"deadline_before", "finished_after", "class", "seen_before"}

// checkFields refuses fields of a filter that the list does not have.
func checkFields(m *api.Watch) error {
	var given map[string]any
	b, err := json.Marshal(m.Filter)
	if err == nil {
		err = json.Unmarshal(b, &given)
	}
	if err != nil {
		return perdure.Invalid("filter", "can't be read")
	}
	fields := watchedLists[m.Of].fields
	if m.Of == api.WatchRuns || m.Of == api.WatchCounts {
		fields = runFields
	}
	for name := range given {
		if !slices.Contains(fields, name) {
			return perdure.Invalid("filter."+name, "does not go with %s", m.Of)
		}
	}
	return nil
}
