package store

import (
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// The records beside the run, and how each becomes a row. A record that belongs to a run is written only
// together with that run's row, whose version guards both.
type (
	// An EventRow is a line of a run's log.
	EventRow struct {
		Tenant perdure.TenantID
		RunID  perdure.RunID
		perdure.Line
	}
	// A JournalRow is a recorded step.
	JournalRow struct {
		Tenant perdure.TenantID
		RunID  perdure.RunID
		Seq    int64
		Key    string
		Value  perdure.Value
		Digest string
		At     perdure.Instant
	}
	// A CommitRow is a commit that was not its run's last.
	CommitRow struct {
		Tenant perdure.TenantID
		RunID  perdure.RunID
		perdure.Taken
		At perdure.Instant
	}
	// A KeyRow is an idempotency key and what it led to.
	KeyRow struct {
		Tenant    perdure.TenantID
		Key       string
		Digest    string
		Ref       string
		ExpiresAt perdure.Instant
	}
	// A MemberRow says that a gathering waits for a run.
	MemberRow struct {
		Tenant perdure.TenantID
		RunID  perdure.RunID
		ID     perdure.GroupID
	}
	// A WaiterRow is a node's word that somebody there waits for a run.
	WaiterRow struct {
		Tenant    perdure.TenantID
		RunID     perdure.RunID
		Node      string
		ExpiresAt perdure.Instant
	}
	// A TenantRow is an isolation boundary.
	TenantRow struct {
		ID        perdure.TenantID
		CreatedAt perdure.Instant
		Limits    perdure.TenantLimits
		Signed    bool // its runs are granted only with a valid signature
	}
	// A QueueRow is a queue that runs were put into.
	QueueRow struct {
		Tenant    perdure.TenantID
		Name      string
		CreatedAt perdure.Instant
	}
	blobRow struct {
		Tenant  perdure.TenantID
		Hash    string
		Size    int64
		Content string
	}
	blobRefRow struct {
		Tenant perdure.TenantID
		Owner  string
		Hash   string
	}
)

// ids joins run ids for a column; splitIDs is its inverse.
func joinIDs(ids []perdure.RunID) string {
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(string(id))
	}
	return b.String()
}

type idList struct{ ids *[]perdure.RunID }

func (l idList) Scan(v any) error {
	s, _ := v.(string)
	*l.ids = nil
	if s != "" {
		for part := range strings.SplitSeq(s, "\n") {
			*l.ids = append(*l.ids, perdure.RunID(part))
		}
	}
	return nil
}

type scopeList struct{ s *[]perdure.Scope }

func (l scopeList) Scan(v any) error {
	text, _ := v.(string)
	*l.s = nil
	for _, part := range strings.Fields(text) {
		*l.s = append(*l.s, perdure.Scope(part))
	}
	return nil
}

var (
	eventTable = &table[EventRow]{
		name: "events", once: true, keys: []string{"tenant", "run_id", "seq"},
		cols: []string{"tenant", "run_id", "seq", "type", "at", "attempt", "epoch", "data"},
		bind: func(e *EventRow) []any {
			return []any{string(e.Tenant), string(e.RunID), e.Seq, e.Type, int64(e.At), int64(e.Attempt), e.Epoch, string(e.Data)}
		},
		scan: func(e *EventRow) []any {
			return []any{&e.Tenant, &e.RunID, &e.Seq, &e.Type, &e.At, &e.Attempt, &e.Epoch, &e.Data}
		},
	}
	journalTable = &table[JournalRow]{
		name: "journal", once: true, keys: []string{"tenant", "run_id", "seq"},
		cols: []string{"tenant", "run_id", "seq", "key", "value", "digest", "at"},
		bind: func(j *JournalRow) []any {
			return []any{string(j.Tenant), string(j.RunID), j.Seq, j.Key, string(j.Value), j.Digest, int64(j.At)}
		},
		scan: func(j *JournalRow) []any {
			return []any{&j.Tenant, &j.RunID, &j.Seq, &j.Key, &j.Value, &j.Digest, &j.At}
		},
	}
	commitTable = &table[CommitRow]{
		name: "commits", once: true, keys: []string{"tenant", "run_id", "commit_id"},
		cols: []string{"tenant", "run_id", "commit_id", "digest", "answer", "at"},
		bind: func(c *CommitRow) []any {
			return []any{string(c.Tenant), string(c.RunID), c.ID, c.Digest, c.Answer, int64(c.At)}
		},
		scan: func(c *CommitRow) []any { return []any{&c.Tenant, &c.RunID, &c.ID, &c.Digest, &c.Answer, &c.At} },
	}
	waitTable = &table[perdure.Wait]{
		name: "waits", keys: []string{"tenant", "run_id", "id"},
		cols: []string{"tenant", "run_id", "id", "type", "mode", "name", "targets", "on_stall", "state", "named", "opened_at",
			"timeout_at", "ended_at", "ended", "ok"},
		bind: func(w *perdure.Wait) []any {
			return []any{string(w.Tenant), string(w.RunID), w.ID, w.Type, w.Mode, w.Name, joinIDs(w.Targets), toBit(w.OnStall), w.State,
				toBit(w.Named), int64(w.OpenedAt), int64(w.TimeoutAt), int64(w.EndedAt), int64(w.Ended), int64(w.OK)}
		},
		scan: func(w *perdure.Wait) []any {
			return []any{&w.Tenant, &w.RunID, &w.ID, &w.Type, &w.Mode, &w.Name, idList{&w.Targets}, bit{&w.OnStall}, &w.State,
				bit{&w.Named}, &w.OpenedAt, &w.TimeoutAt, &w.EndedAt, &w.Ended, &w.OK}
		},
		sound: func(w *perdure.Wait) { countable(&w.Ended, &w.OK) },
	}
	itemTable = &table[perdure.Item]{
		name: "inbox", keys: []string{"tenant", "run_id", "seq"},
		cols: []string{"tenant", "run_id", "seq", "type", "status", "epoch", "wait_id", "name", "from_run", "outcome", "data", "created_at", "alarm_at", "error", "watchdog_at"},
		bind: func(i *perdure.Item) []any {
			return []any{string(i.Tenant), string(i.RunID), i.Seq, i.Type, i.Status, i.Epoch, i.WaitID, i.Name, string(i.From), i.Outcome, string(i.Data),
				int64(i.CreatedAt), orNull(i.AlarmAt), i.WatchdogError, orNull(i.WatchdogAt)}
		},
		scan: func(i *perdure.Item) []any {
			return []any{&i.Tenant, &i.RunID, &i.Seq, &i.Type, &i.Status, &i.Epoch, &i.WaitID, &i.Name, &i.From, &i.Outcome, &i.Data, &i.CreatedAt,
				nullable[perdure.Instant]{&i.AlarmAt}, &i.WatchdogError, nullable[perdure.Instant]{&i.WatchdogAt}}
		},
	}
	threadTable = &table[perdure.Thread]{
		name: "threads", versioned: true, keys: []string{"tenant", "id"},
		cols: []string{"tenant", "id", "metadata", "created_at", "version", "active", "seq", "updated_at", "title"},
		bind: func(t *perdure.Thread) []any {
			return []any{string(t.Tenant), string(t.ID), string(t.Metadata), int64(t.CreatedAt), t.Version, string(t.Active), t.Seq,
				int64(t.UpdatedAt), t.Title}
		},
		scan: func(t *perdure.Thread) []any {
			return []any{&t.Tenant, &t.ID, &t.Metadata, &t.CreatedAt, &t.Version, &t.Active, &t.Seq, &t.UpdatedAt, &t.Title}
		},
	}
	messageTable = &table[perdure.ThreadMessage]{
		name: "messages", once: true, keys: []string{"tenant", "thread_id", "seq"},
		cols: []string{"tenant", "thread_id", "seq", "role", "content", "metadata", "run_id", "at"},
		bind: func(m *perdure.ThreadMessage) []any {
			return []any{string(m.Tenant), string(m.ThreadID), m.Seq, m.Role, string(m.Content), string(m.Metadata), string(m.RunID), int64(m.At)}
		},
		scan: func(m *perdure.ThreadMessage) []any {
			return []any{&m.Tenant, &m.ThreadID, &m.Seq, &m.Role, &m.Content, &m.Metadata, &m.RunID, &m.At}
		},
	}
	groupTable = &table[perdure.Group]{
		name: "gatherings", versioned: true, keys: []string{"tenant", "id"},
		cols:  append(slices.Clone(groupHead), "members"),
		bind:  func(g *perdure.Group) []any { return append(bindGroup(g), joinIDs(g.Members)) },
		scan:  func(g *perdure.Group) []any { return append(scanGroup(g), idList{&g.Members}) },
		sound: soundGroup,
	}
	// groupHeads are gatherings without their members, which may be a thousand and never change: counting an
	// end neither reads nor writes them.
	groupHeads = &table[perdure.Group]{
		name: "gatherings", versioned: true, keys: []string{"tenant", "id"}, cols: groupHead, bind: bindGroup, scan: scanGroup, sound: soundGroup,
	}
	memberTable = &table[MemberRow]{
		name: "members", quiet: true, keys: []string{"tenant", "run_id", "gathering_id"},
		cols: []string{"tenant", "run_id", "gathering_id"},
		bind: func(m *MemberRow) []any { return []any{string(m.Tenant), string(m.RunID), string(m.ID)} },
		scan: func(m *MemberRow) []any { return []any{&m.Tenant, &m.RunID, &m.ID} },
	}
	lateTable = &table[perdure.LateResult]{
		name: "late_results", keys: []string{"tenant", "run_id", "n"},
		cols: []string{"tenant", "run_id", "n", "commit_id", "epoch", "from_run", "result", "summary", "state", "at", "attempt", "worker"},
		bind: func(l *perdure.LateResult) []any {
			return []any{string(l.Tenant), string(l.RunID), int64(l.N), l.CommitID, l.Epoch, string(l.FromRun), string(l.Result), l.Summary, l.State, int64(l.At),
				int64(l.Attempt), l.Worker}
		},
		scan: func(l *perdure.LateResult) []any {
			return []any{&l.Tenant, &l.RunID, &l.N, &l.CommitID, &l.Epoch, &l.FromRun, &l.Result, &l.Summary, &l.State, &l.At, &l.Attempt, &l.Worker}
		},
	}
	deadTable = &table[perdure.DeadLetter]{
		name: "dead_letters", keys: []string{"tenant", "run_id"},
		cols: []string{"tenant", "run_id", "kind", "queue", "cause", "message", "at", "expires_at", "redriven_by"},
		bind: func(d *perdure.DeadLetter) []any {
			return []any{string(d.Tenant), string(d.RunID), d.Kind, d.Queue, d.Cause, d.Message, int64(d.At), int64(d.ExpiresAt), string(d.RedrivenBy)}
		},
		scan: func(d *perdure.DeadLetter) []any {
			return []any{&d.Tenant, &d.RunID, &d.Kind, &d.Queue, &d.Cause, &d.Message, &d.At, &d.ExpiresAt, &d.RedrivenBy}
		},
	}
	keyTable = &table[KeyRow]{
		name: "idempotency", once: true, keys: []string{"tenant", "key"},
		cols: []string{"tenant", "key", "digest", "ref", "expires_at"},
		bind: func(k *KeyRow) []any {
			return []any{string(k.Tenant), k.Key, k.Digest, k.Ref, int64(k.ExpiresAt)}
		},
		scan: func(k *KeyRow) []any { return []any{&k.Tenant, &k.Key, &k.Digest, &k.Ref, &k.ExpiresAt} },
	}
	workerTable = &table[perdure.Worker]{
		name: "workers", keys: []string{"tenant", "id"},
		cols: []string{"tenant", "id", "queues", "slots", "seen_at", "offline"},
		bind: func(w *perdure.Worker) []any {
			return []any{string(w.Tenant), w.ID, string(w.Queues), int64(w.Slots), int64(w.SeenAt), toBit(w.Offline)}
		},
		scan: func(w *perdure.Worker) []any {
			return []any{&w.Tenant, &w.ID, &w.Queues, &w.Slots, &w.SeenAt, bit{&w.Offline}}
		},
	}
	waiterTable = &table[WaiterRow]{
		name: "waiters", keys: []string{"tenant", "run_id", "node"},
		cols: []string{"tenant", "run_id", "node", "expires_at"},
		bind: func(w *WaiterRow) []any {
			return []any{string(w.Tenant), string(w.RunID), w.Node, int64(w.ExpiresAt)}
		},
		scan: func(w *WaiterRow) []any { return []any{&w.Tenant, &w.RunID, &w.Node, &w.ExpiresAt} },
	}
	tenantTable = &table[TenantRow]{
		name: "tenants", quiet: true, keys: []string{"id"},
		cols: []string{"id", "created_at", "max_live_runs", "require_signatures", "limits"},
		bind: func(t *TenantRow) []any {
			return []any{string(t.ID), int64(t.CreatedAt), t.Limits.MaxLiveRuns, toBit(t.Signed), limitsText(t.Limits)}
		},
		scan: func(t *TenantRow) []any {
			return []any{&t.ID, &t.CreatedAt, &t.Limits.MaxLiveRuns, bit{&t.Signed}, limitsOf{&t.Limits}}
		},
	}
	queueTable = &table[QueueRow]{
		name: "queues", quiet: true, keys: []string{"tenant", "name"},
		cols: []string{"tenant", "name", "created_at"},
		bind: func(q *QueueRow) []any { return []any{string(q.Tenant), q.Name, int64(q.CreatedAt)} },
		scan: func(q *QueueRow) []any { return []any{&q.Tenant, &q.Name, &q.CreatedAt} },
	}
	keysTable = &table[perdure.Key]{
		name: "keys", keys: []string{"id"},
		cols: []string{"id", "tenant", "name", "hash", "platform", "scopes", "created_at", "expires_at", "revoked_at"},
		bind: func(k *perdure.Key) []any {
			scopes := make([]string, len(k.Scopes))
			for i, s := range k.Scopes {
				scopes[i] = string(s)
			}
			return []any{k.ID, string(k.Tenant), k.Name, k.Hash, toBit(k.Platform), strings.Join(scopes, " "), int64(k.CreatedAt), int64(k.ExpiresAt), int64(k.RevokedAt)}
		},
		scan: func(k *perdure.Key) []any {
			return []any{&k.ID, &k.Tenant, &k.Name, &k.Hash, bit{&k.Platform}, scopeList{&k.Scopes}, &k.CreatedAt, &k.ExpiresAt, &k.RevokedAt}
		},
	}
	blobTable = &table[blobRow]{
		name: "blobs", quiet: true, held: "size", keys: []string{"tenant", "hash"},
		cols: []string{"tenant", "hash", "size", "content"},
		bind: func(b *blobRow) []any { return []any{string(b.Tenant), b.Hash, b.Size, b.Content} },
		scan: func(b *blobRow) []any { return []any{&b.Tenant, &b.Hash, &b.Size, &b.Content} },
	}
	blobRefTable = &table[blobRefRow]{
		name: "blob_refs", quiet: true, keys: []string{"tenant", "owner", "hash"},
		cols: []string{"tenant", "owner", "hash"},
		bind: func(b *blobRefRow) []any { return []any{string(b.Tenant), b.Owner, b.Hash} },
		scan: func(b *blobRefRow) []any { return []any{&b.Tenant, &b.Owner, &b.Hash} },
	}
)

func (m MemberRow) run() runKey { return runKey{m.Tenant, m.RunID} }

// groupHead are the columns of a gathering but its members.
var groupHead = []string{"tenant", "id", "kind", "mode", "on_losers", "state", "version", "created_at", "alarm_at", "ended_at", "total", "ended",
	"ok", "made", "next"}

func bindGroup(g *perdure.Group) []any {
	return []any{string(g.Tenant), string(g.ID), g.Kind, g.Mode, g.OnLosers, g.State, g.Version, int64(g.CreatedAt), orNull(g.AlarmAt),
		int64(g.EndedAt), int64(g.Total), int64(g.Ended), int64(g.OK), string(g.Made), int64(g.Next)}
}

func scanGroup(g *perdure.Group) []any {
	return []any{&g.Tenant, &g.ID, &g.Kind, &g.Mode, &g.OnLosers, &g.State, &g.Version, &g.CreatedAt, nullable[perdure.Instant]{&g.AlarmAt},
		&g.EndedAt, &g.Total, &g.Ended, &g.OK, &g.Made, &g.Next}
}

func soundGroup(g *perdure.Group) { countable(&g.Ended, &g.OK) }
