package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
)

var threadTable = register(&table[perdure.Thread]{
	name: "threads", versioned: true, version: func(t *perdure.Thread) *int64 { return &t.Version },
	keys: []string{"tenant", "id"},
	columns: func(c *columns, t *perdure.Thread) {
		text(c, "tenant", &t.Tenant)
		text(c, "id", &t.ID)
		text(c, "metadata", &t.Metadata)
		number(c, "created_at", &t.CreatedAt)
		number(c, "version", &t.Version)
		text(c, "active", &t.Active)
		number(c, "seq", &t.Seq)
		number(c, "updated_at", &t.UpdatedAt)
		text(c, "title", &t.Title)
		number(c, "taken_seq", &t.TakenSeq)
		flag(c, "listening", &t.Listening)
	},
})

// threadHeads are threads without their metadata, of which the beginning names the parent.
var threadHeads = register(&table[perdure.Thread]{
	name: "threads", keys: []string{"tenant", "id"},
	columns: func(c *columns, t *perdure.Thread) {
		text(c, "tenant", &t.Tenant)
		text(c, "id", &t.ID)
		number(c, "created_at", &t.CreatedAt)
		text(c, "active", &t.Active)
		number(c, "seq", &t.Seq)
		number(c, "updated_at", &t.UpdatedAt)
		text(c, "title", &t.Title)
		computed(c, threadParentText, threadParent{&t.Parent})
	},
})

// threadParentText is the beginning of a thread's metadata.
var threadParentText = fmt.Sprintf("substr(metadata,1,%d)", perdure.ThreadParentBytes)

// threadParent scans the beginning of a thread's metadata into the run that it names.
type threadParent struct{ id *perdure.RunID }

func (x threadParent) Scan(v any) error {
	text, _ := v.(string)
	*x.id = perdure.ParentOfThread(text)
	return nil
}

type threadKey struct {
	t  perdure.TenantID
	id perdure.ThreadID
}

var messageTable = register(&table[perdure.ThreadMessage]{
	name: "messages", once: true, keys: []string{"tenant", "thread_id", "seq"},
	columns: func(c *columns, m *perdure.ThreadMessage) {
		text(c, "tenant", &m.Tenant)
		text(c, "thread_id", &m.ThreadID)
		number(c, "seq", &m.Seq)
		text(c, "role", &m.Role)
		text(c, "content", &m.Content)
		text(c, "metadata", &m.Metadata)
		text(c, "run_id", &m.RunID)
		number(c, "at", &m.At)
	},
})

// Threads holds conversations and their messages.
//
// A list of threads reads an index in the order of their last activity. Of each last message it
// reads as much as an excerpt needs. The title is a column. Rows from before schema 17 have none,
// and their title is derived from the metadata or the first messages.
type Threads struct {
	in       *base
	values   *Values
	runs     *Runs
	removals *Removals
	rows     staged[threadKey, perdure.Thread]
	messages added[perdure.ThreadMessage]
}

func (repo *Threads) open(in *base, values *Values, runs *Runs, removals *Removals) {
	repo.values, repo.runs, repo.removals = values, runs, removals
	repo.in = in
	openRows(&repo.rows, in, threadTable)
	openAdded(&repo.messages, in, messageTable)
}

// Get gives a thread.
func (repo *Threads) Get(t perdure.TenantID, id perdure.ThreadID) (perdure.Thread, bool, error) {
	return loadRow(&repo.rows, threadKey{t, id}, "WHERE tenant=? AND id=?", string(t), string(id))
}

// threadRows bounds the threads that are read for a page.
const threadRows = 5000

// Page lists a tenant's threads, the most recently active first. A thread that becomes active while
// a client pages through the list moves to the first page again. Without children, threads that were
// created for children are left out. They are read and passed over, so that a page may be short.
func (repo *Threads) Page(t perdure.TenantID, p Page, children bool) ([]perdure.Thread, string, error) {
	if _, _, ok := threadPlace(p.After); !ok {
		return nil, "", perdure.Invalid("cursor", "takes the next_cursor of the page before")
	}
	seen, far := 0, "" // the threads that were read, and the last of them if they are too many
	out, next, err := paged(p, func(after string, n int, row func(*perdure.Thread) error) error {
		for taken := 0; taken < n; {
			got := 0
			at, id, _ := threadPlace(after)
			err := threadHeads.query(repo.in.sess,
				"WHERE tenant=? AND (updated_at,id)<(?,?) ORDER BY updated_at DESC, id DESC"+atMost,
				[]any{string(t), at, id, int64(n)}, func(th *perdure.Thread) error {
					got, seen, after = got+1, seen+1, ThreadCursor(th)
					if !children && th.Parent != "" {
						return nil
					}
					taken++
					return row(th)
				})
			if err != nil || got < n {
				return err
			}
			if seen >= threadRows {
				far = after
				return errEnough
			}
		}
		return nil
	}, ThreadCursor, threadSize)
	for i := range out {
		if err == nil && out[i].Title == "" {
			err = findTitle(repo.in.sess, &out[i])
		}
	}
	return out, cmp.Or(next, far), err
}

// threadPlace parses a cursor: the instant and the id of the last entry. An empty cursor begins the
// list.
func threadPlace(cursor string) (at int64, id string, ok bool) {
	if cursor == "" {
		return 1 << 62, "", true
	}
	text, id, _ := strings.Cut(cursor, ".")
	at, err := strconv.ParseInt(text, 10, 64)
	return at, id, err == nil && id != ""
}

// Messages reads messages of a thread after a number.
func (repo *Threads) Messages(
	t perdure.TenantID, id perdure.ThreadID, after int64, limit int,
) ([]perdure.ThreadMessage, error) {
	return messageTable.list(repo.in.sess, "WHERE tenant=? AND thread_id=? AND seq>? ORDER BY seq"+atMost,
		[]any{string(t), string(id), after, int64(limit)})
}

// MessagesBefore reads the messages of a thread between two numbers, without these, the newest first.
func (repo *Threads) MessagesBefore(
	t perdure.TenantID, id perdure.ThreadID, after, before int64, limit int,
) ([]perdure.ThreadMessage, error) {
	return messageTable.list(repo.in.sess,
		"WHERE tenant=? AND thread_id=? AND seq>? AND seq<? ORDER BY seq DESC"+atMost,
		[]any{string(t), string(id), after, before, int64(limit)})
}

// NextOfUser gives the next message of a thread after TakenSeq that a user appended. Messages of runs
// do not count.
func (repo *Threads) NextOfUser(th *perdure.Thread) (m perdure.ThreadMessage, ok bool, err error) {
	if th.TakenSeq >= th.Seq {
		return m, false, nil
	}
	err = messageTable.query(repo.in.sess, repo.in.dialect.indexed("messages_user")+
		"WHERE tenant=? AND thread_id=? AND role='user' AND run_id='' AND seq>? ORDER BY seq LIMIT 1",
		[]any{string(th.Tenant), string(th.ID), th.TakenSeq}, func(x *perdure.ThreadMessage) error {
			m, ok = *x, true
			return nil
		})
	if err != nil || ok {
		return m, ok, err
	}
	// Stored messages come before those that the batch adds.
	for _, x := range repo.messages.list {
		if x.Tenant == th.Tenant && x.ThreadID == th.ID && x.Role == perdure.RoleUser && x.RunID == "" &&
			x.Seq > th.TakenSeq {
			return x, true, nil
		}
	}
	return m, false, nil
}

// A LastMessage is the beginning of the last message of a thread.
type LastMessage struct {
	Role perdure.Role
	Text string
	At   perdure.Instant
}

// LastMessages gives the last messages of some threads of a tenant.
func (repo *Threads) LastMessages(
	t perdure.TenantID, threads []perdure.ThreadID,
) (map[perdure.ThreadID]LastMessage, error) {
	out := make(map[perdure.ThreadID]LastMessage, len(threads))
	large := make(map[string][]perdure.ThreadID) // by the hash of their content
	err := eachPart(repo.in.dialect, texts(threads), func(part []string) error {
		cond, args := repo.in.dialect.anyOf("t.id", part)
		return repo.in.sess.Query("SELECT m.thread_id, m.role, m.content, m.at FROM threads t "+
			"JOIN messages m ON m.tenant=t.tenant AND m.thread_id=t.id AND m.seq=t.seq WHERE t.tenant=? AND "+cond,
			append([]any{string(t)}, args...), func(scan func(...any) error) error {
				var id perdure.ThreadID
				var m LastMessage
				var content perdure.Value
				if err := scan(&id, &m.Role, &content, &m.At); err != nil {
					return err
				}
				if hash, _, ref := content.Ref(); ref {
					large[hash] = append(large[hash], id)
				} else {
					m.Text = perdure.Excerpt(string(content), perdure.MaxThreadText)
				}
				out[id] = m
				return nil
			})
	})
	if err != nil {
		return nil, err
	}
	// One character more than an excerpt needs, to tell a cut text from one that ends there.
	begin := fmt.Sprintf("SELECT hash, substr(content,1,%d) FROM blobs WHERE tenant=? AND ", perdure.ExcerptBytes+1)
	err = eachPart(repo.in.dialect, slices.Sorted(maps.Keys(large)), func(part []string) error {
		cond, args := repo.in.dialect.anyOf("hash", part)
		return repo.in.sess.Query(begin+cond, append([]any{string(t)}, args...), func(scan func(...any) error) error {
			var hash, content string
			err := scan(&hash, &content)
			for _, id := range large[hash] {
				m := out[id]
				m.Text = perdure.Excerpt(content, perdure.MaxThreadText)
				out[id] = m
			}
			return err
		})
	})
	return out, err
}

// FindTitle sets the title of a thread from before schema 17, if one can be derived.
func (repo *Threads) FindTitle(th *perdure.Thread) error { return findTitle(repo.in.sess, th) }

// titleWithin is how many of the first messages findTitle looks at.
const titleWithin = 8

// findTitle derives the title of an old thread, from metadata and from messages that are stored
// inline.
func findTitle(s Conn, th *perdure.Thread) error {
	key := []any{string(th.Tenant), string(th.ID)}
	err := threadTable.query(s, "WHERE tenant=? AND id=?", key, func(x *perdure.Thread) error {
		th.Title = perdure.MetadataTitle(string(x.Metadata))
		return nil
	})
	if err != nil || th.Seq == 0 || th.Title != "" {
		return err
	}
	first := append(key, int64(titleWithin))
	return messageTable.query(s, "WHERE tenant=? AND thread_id=? AND seq<=? ORDER BY seq", first,
		func(m *perdure.ThreadMessage) error {
			if _, _, large := m.Content.Ref(); th.Title == "" && m.Role == perdure.RoleUser && !large {
				th.Title = perdure.Excerpt(string(m.Content), perdure.MaxThreadTitle)
			}
			return nil
		})
}

// MetadataTitle gives the title that a thread's metadata sets.
func (repo *Threads) MetadataTitle(t perdure.TenantID, metadata perdure.Value) (string, error) {
	if metadata == "" {
		return "", nil
	}
	text, err := repo.values.Resolve(t, metadata)
	return perdure.MetadataTitle(string(text)), err
}

// InUse tells why a thread can't be removed: a live run is on it, or an open chord continues there.
// It is empty if nothing uses the thread.
func (repo *Threads) InUse(t perdure.TenantID, id perdure.ThreadID) (why string, err error) {
	// The order is that of the index of live runs. Without it the index of all runs may be taken.
	live, err := repo.runs.where("WHERE tenant=? AND thread_id=? AND thread_id<>'' AND alarm_at IS NOT NULL "+
		"ORDER BY turn, place, created_at, id", []any{string(t), string(id)}, 1,
		func(r *perdure.Run) bool { return r.Tenant == t && r.ThreadID == id && r.State.Live() }, byID)
	if err != nil || len(live) > 0 {
		if len(live) > 0 {
			why = "the run " + string(live[0].ID) + " on it is live"
		}
		return why, err
	}
	err = repo.in.sess.Query("SELECT r.id FROM gatherings g JOIN runs r ON r.tenant=g.tenant AND r.id=g.id "+
		"WHERE g.tenant=? AND g.state='open' AND g.kind='chord' AND r.thread_id=? LIMIT 1",
		[]any{string(t), string(id)}, func(scan func(...any) error) error {
			var run string
			err := scan(&run)
			why = "the run " + run + " on it is to be continued"
			return err
		})
	return why, err
}

// Put stages a thread with activity now. Its version is incremented when the batch is written.
func (repo *Threads) Put(th perdure.Thread) {
	th.UpdatedAt = repo.in.Now
	putRow(&repo.rows, threadKey{th.Tenant, th.ID}, th)
}

// Guard stages a thread without activity, so that the batch conflicts with one that removes it.
func (repo *Threads) Guard(th perdure.Thread) { putRow(&repo.rows, threadKey{th.Tenant, th.ID}, th) }

// AddMessage stages a message. The caller stages the thread with the new Seq.
func (repo *Threads) AddMessage(m perdure.ThreadMessage) {
	if repo.in.tx.recount { // as renumber does for log lines
		last := int64(0)
		_ = repo.in.sess.Query("SELECT coalesce(max(seq),0) FROM messages WHERE tenant=? AND thread_id=?",
			[]any{string(m.Tenant), string(m.ThreadID)}, func(scan func(...any) error) error {
				return scan(&last)
			})
		for i := range repo.messages.list {
			if x := &repo.messages.list[i]; x.Tenant == m.Tenant && x.ThreadID == m.ThreadID {
				last = max(last, x.Seq)
			}
		}
		m.Seq = max(m.Seq, last+1)
		if th, ok, _ := getRow(&repo.rows, threadKey{m.Tenant, m.ThreadID}); ok {
			th.Seq = m.Seq
			repo.Put(th)
		}
	}
	addRows(&repo.messages, m)
}

// Drop stages the removal of a thread, provided that its row has not changed. Its messages are
// removed later; see removals.go.
func (repo *Threads) Drop(th *perdure.Thread) {
	k := threadKey{th.Tenant, th.ID}
	dropRow(&repo.rows, k)
	addRows(&repo.in.tx.later, statement{"DELETE FROM threads WHERE tenant=? AND id=? AND version=?",
		[]any{string(th.Tenant), string(th.ID), th.Version}, 1})
	addRows(&repo.removals.rows, removal{Tenant: th.Tenant, Kind: RemoveThread, ID: string(th.ID), Due: repo.in.Now,
		Lines: th.Seq})
}
