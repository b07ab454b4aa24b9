package store

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
)

// A list of threads reads an index in the order of their last activity. Of each thread it reads the
// last message, and no more of that than an excerpt takes. The title stands in the thread's row; a
// row from before schema 17 has none, and it is looked for in the first messages.

// threadHeads are threads without their metadata.
var threadHeads = &table[perdure.Thread]{
	name: "threads", keys: []string{"tenant", "id"},
	cols: []string{"tenant", "id", "created_at", "active", "seq", "updated_at", "title"},
	scan: func(t *perdure.Thread) []any {
		return []any{&t.Tenant, &t.ID, &t.CreatedAt, &t.Active, &t.Seq, &t.UpdatedAt, &t.Title}
	},
}

// Page lists a tenant's threads, the one on which something happened last first. A thread on
// which something happens while somebody reads page after page is on the first page again.
func (repo *Threads) Page(t perdure.TenantID, p Page) ([]perdure.Thread, string, error) {
	if _, _, ok := threadPlace(p.After); !ok {
		return nil, "", perdure.Invalid("cursor", "takes the next_cursor of the page before")
	}
	out, next, err := paged(p, func(after string, n int, row func(*perdure.Thread) error) error {
		at, id, _ := threadPlace(after)
		return threadHeads.query(repo.in.sess, "WHERE tenant=? AND (updated_at,id)<(?,?) ORDER BY updated_at DESC, id DESC"+atMost,
			[]any{string(t), at, id, int64(n)}, row)
	}, func(th *perdure.Thread) string {
		return strconv.FormatInt(int64(th.UpdatedAt), 10) + "." + string(th.ID)
	}, func(th *perdure.Thread) int {
		return 512 + quoted(string(th.ID)) + quoted(th.Title) + 6*4*perdure.MaxThreadText
	})
	for i := range out {
		if err == nil && out[i].Title == "" {
			err = findTitle(repo.in.sess, &out[i])
		}
	}
	return out, next, err
}

// threadPlace reads a cursor: the instant and the id of the last entry. An empty one is before the
// first.
func threadPlace(cursor string) (at int64, id string, ok bool) {
	if cursor == "" {
		return 1 << 62, "", true
	}
	text, id, _ := strings.Cut(cursor, ".")
	at, err := strconv.ParseInt(text, 10, 64)
	return at, id, err == nil && id != ""
}

// A LastMessage is the beginning of the last message of a thread.
type LastMessage struct {
	Role, Text string
	At         perdure.Instant
}

// LastMessages gives the last messages of some threads of a tenant.
func (repo *Threads) LastMessages(t perdure.TenantID, threads []perdure.ThreadID) (map[perdure.ThreadID]LastMessage, error) {
	out := make(map[perdure.ThreadID]LastMessage, len(threads))
	large := make(map[string][]perdure.ThreadID) // by the hash of what they said
	err := eachPart(repo.in.dialect, texts(threads), func(part []string) error {
		cond, args := repo.in.dialect.anyOf("t.id", part)
		return repo.in.sess.Query("SELECT m.thread_id, m.role, m.content, m.at FROM threads t "+
			"JOIN messages m ON m.tenant=t.tenant AND m.thread_id=t.id AND m.seq=t.seq WHERE t.tenant=? AND "+cond, append([]any{string(t)}, args...), func(scan func(...any) error) error {
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
	// One character more than is looked at: what is left out can be told from what ends there.
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

// FindTitle makes out the title of a thread that is from before threads had one, if it can have
// one.
func (repo *Threads) FindTitle(th *perdure.Thread) error { return findTitle(repo.in.sess, th) }

// titleWithin is among how many of its first messages the title of an old thread is looked for.
const titleWithin = 8

// findTitle makes out the title of an old thread, from values that are small enough to stand in
// their rows.
func findTitle(s Session, th *perdure.Thread) error {
	key := []any{string(th.Tenant), string(th.ID)}
	err := threadTable.query(s, "WHERE tenant=? AND id=?", key, func(x *perdure.Thread) error {
		th.Title = perdure.MetadataTitle(string(x.Metadata))
		return nil
	})
	if err != nil || th.Seq == 0 || th.Title != "" {
		return err
	}
	first := append(key, int64(titleWithin))
	return messageTable.query(s, "WHERE tenant=? AND thread_id=? AND seq<=? ORDER BY seq", first, func(m *perdure.ThreadMessage) error {
		if _, _, large := m.Content.Ref(); th.Title == "" && m.Role == perdure.RoleUser && !large {
			th.Title = perdure.Excerpt(string(m.Content), perdure.MaxThreadTitle)
		}
		return nil
	})
}

// MetadataTitle is the title that the metadata of a thread gives it.
func (repo *Threads) MetadataTitle(t perdure.TenantID, metadata perdure.Value) (string, error) {
	if metadata == "" {
		return "", nil
	}
	text, err := repo.in.Values.Resolve(t, metadata)
	return perdure.MetadataTitle(string(text)), err
}

// A LiveRun is a run as a list of threads shows it.
type LiveRun struct {
	ID    perdure.RunID
	Kind  string
	State perdure.State
}

// Live gives those of some runs that are live.
func (repo *Runs) Live(t perdure.TenantID, ids []perdure.RunID) (map[perdure.RunID]LiveRun, error) {
	out := make(map[perdure.RunID]LiveRun, len(ids))
	err := eachPart(repo.in.dialect, texts(ids), func(part []string) error {
		cond, args := repo.in.dialect.anyOf("id", part)
		query := "SELECT id, kind, state FROM runs WHERE tenant=? AND " + cond + " AND alarm_at IS NOT NULL"
		return repo.in.sess.Query(query, append([]any{string(t)}, args...), func(scan func(...any) error) error {
			var r LiveRun
			err := scan(&r.ID, &r.Kind, &r.State)
			out[r.ID] = r
			return err
		})
	})
	return out, err
}
