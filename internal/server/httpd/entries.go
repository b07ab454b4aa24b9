package httpd

import (
	"encoding/json"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

// entriesPage reads the parameters of a page of a journal or an inbox.
func entriesPage(c *call) (after int64, limit int, err error) {
	if after, err = c.intParam("after", 0, 0, maxSeq); err != nil {
		return 0, 0, err
	}
	n, err := c.intParam("limit", 100, 1, reads.MaxEntries)
	return after, int(n), err
}

// entryNumber reads the number of an entry from the path.
func entryNumber(c *call) (int64, error) {
	n, err := strconv.ParseInt(c.PathValue("n"), 10, 64)
	if err != nil || n < 1 || n > maxSeq {
		return 0, perdure.Errorf(perdure.CodeNotFound, "there is nothing at this path")
	}
	return n, nil
}

func listSteps(c *call, _ *none) (int, *api.Steps, error) {
	after, limit, err := entriesPage(c)
	if err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.Runs.Steps(c.Context(), c.tenant(), c.run(), after, limit)
	out := &api.Steps{Entries: make([]api.Step, 0, len(list)), NextAfter: next}
	for i := range list {
		out.Entries = append(out.Entries, showStep(&list[i]))
	}
	return 0, out, err
}

func getStep(c *call, _ *none) (int, *api.Step, error) {
	n, err := entryNumber(c)
	if err != nil {
		return 0, nil, err
	}
	step, err := c.s.engine.Runs.Step(c.Context(), c.tenant(), c.run(), n)
	out := showStep(&step)
	return 0, &out, err
}

func listItems(c *call, _ *none) (int, *api.InboxItems, error) {
	after, limit, err := entriesPage(c)
	if err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.Runs.Items(c.Context(), c.tenant(), c.run(), after, limit)
	out := &api.InboxItems{Items: make([]api.InboxItem, 0, len(list)), NextAfter: next}
	for i := range list {
		out.Items = append(out.Items, showItem(&list[i]))
	}
	return 0, out, err
}

func getItem(c *call, _ *none) (int, *api.InboxItem, error) {
	n, err := entryNumber(c)
	if err != nil {
		return 0, nil, err
	}
	item, err := c.s.engine.Runs.Item(c.Context(), c.tenant(), c.run(), n)
	out := showItem(&item)
	return 0, &out, err
}

// replay shows all that another build needs to replay the run.
func replay(c *call, _ *none) (int, *api.Replay, error) {
	journalAfter, err := c.intParam("journal_after", -1, 0, maxSeq)
	if err != nil {
		return 0, nil, err
	}
	inboxAfter, err := c.intParam("inbox_after", -1, 0, maxSeq)
	if err != nil {
		return 0, nil, err
	}
	first := journalAfter < 0 && inboxAfter < 0
	p, err := c.s.engine.Runs.Replay(c.Context(), c.tenant(), c.run(), reads.ReplayPart{First: first,
		Journal: first || journalAfter >= 0, JournalAfter: max(journalAfter, 0),
		Inbox: first || inboxAfter >= 0, InboxAfter: max(inboxAfter, 0)})
	if err != nil {
		return 0, nil, err
	}
	r := &p.Run
	out := &api.Replay{Version: api.ReplayVersion, RunID: r.ID, Change: r.Version, Kind: r.Kind,
		Class: r.ShownClass(),
		Queue: r.Queue, State: r.State, ThreadID: r.ThreadID, ParentRunID: r.ParentID, RootRunID: r.RootID,
		OriginRunID: r.Origin(), Epoch: r.Epoch, FirstEpoch: r.FirstEpoch, Attempt: r.Attempt,
		MaxAttempts: r.MaxAttempts, DeadlineAt: r.DeadlineAt, Cancel: r.Cancel.RequestedAt != 0,
		Input: json.RawMessage(p.InputText), Journal: journal(p.Journal), JournalNext: p.JournalNext,
		Inbox: items(p.Inbox), InboxNext: p.InboxNext}
	for i := range p.Waits {
		w := &p.Waits[i]
		out.Waits = append(out.Waits, api.ReplayWait{ID: w.ID, Type: w.Type, Name: w.Name,
			Asleep: w.Named && r.State == perdure.Suspended})
	}
	return 0, out, nil
}

func showStep(s *reads.Step) api.Step {
	return api.Step{Seq: s.Seq, Key: s.Key, At: s.At, ShownValue: shownValue(&s.ShownValue)}
}

func showItem(i *reads.InboxItem) api.InboxItem {
	return api.InboxItem{Seq: i.Seq, Type: i.Type, Status: i.Status, Name: i.Name, WaitID: i.WaitID, RunID: i.From,
		Outcome: i.Outcome, MessageSeq: i.MessageSeq, At: i.CreatedAt, WatchdogError: i.WatchdogError,
		WatchdogAt: optional(i.WatchdogAt), ShownValue: shownValue(&i.ShownValue)}
}

func shownValue(v *reads.ShownValue) api.ShownValue {
	out := api.ShownValue{Size: v.Size, Preview: v.Head, Damaged: v.Damaged}
	if v.Value != "" {
		out.Value, _ = v.Value.MarshalJSON()
	}
	return out
}
