package perdure

import (
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Thread is a conversation: an append-only list of messages that is kept independently of its
// runs. It has at most one active run.
type Thread struct {
	Tenant    TenantID
	ID        ThreadID
	Metadata  Value
	CreatedAt Instant
	Version   int64
	Active    RunID // the run that is claimable, leased or suspended on the thread
	Seq       int64 // number of the last message

	// TakenSeq is the number of the last message that a wait of the active run has looked at. At first
	// it is the last message from before that run became active.
	TakenSeq int64
	// Listening is set once the active run has opened a wait for messages.
	Listening bool

	UpdatedAt Instant // when something last happened on the thread: lists are in this order
	Title     string  // at most MaxThreadTitle characters; empty until there is something to make one from

	// Parent is the run that spawned the child for which the thread was created, as ParentOfThread finds
	// it. It is set in lists alone, and not stored.
	Parent RunID
}

// A ThreadMessage is a message as it is stored in its thread.
type ThreadMessage struct {
	Tenant   TenantID `json:"-"`
	ThreadID ThreadID `json:"thread_id"`
	Seq      int64    `json:"seq"`
	Role     Role     `json:"role"`
	Content  Value    `json:"content"`
	Metadata Value    `json:"metadata,omitempty"`
	RunID    RunID    `json:"run_id,omitempty"`
	At       Instant  `json:"at"`
}

// A Role says who wrote a message. It can be a word of the program's own. A thread has its title from a
// message of a user, and the server's own notices have the role system.
type Role string

const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool" // the result of a child, or of work outside
	RoleSystem    Role = "system"
)

// A ThreadStatus says what is going on on a thread.
type ThreadStatus string

const (
	ThreadIdle ThreadStatus = "idle" // without an active run, whose last one did not go wrong
	ThreadBusy ThreadStatus = "busy" // with an active run
	// ThreadWaiting is the status of a thread whose active run is suspended and waits for a person, or has a
	// run below it that asks one.
	ThreadWaiting ThreadStatus = "waiting"
	ThreadError   ThreadStatus = "error" // without an active run, whose last one failed or timed out
)

// ThreadStatuses are all of them.
var ThreadStatuses = []ThreadStatus{ThreadIdle, ThreadBusy, ThreadWaiting, ThreadError}

// ThreadParent is in the metadata of a thread that was created for a child: the run that spawned it.
const ThreadParent = "parent_run_id"

// ParentOfThread returns the run that spawned the child for which a thread was created, or an empty
// id. metadata may be cut off after ThreadParentBytes.
func ParentOfThread(metadata string) RunID {
	rest, ok := strings.CutPrefix(metadata, `{"`+ThreadParent+`":"`)
	id, _, closed := strings.Cut(rest, `"`)
	if !ok || !closed || CheckName("", id) != nil {
		return ""
	}
	return RunID(id)
}

// ThreadParentBytes is how much of a thread's metadata ParentOfThread needs.
const ThreadParentBytes = 64

// Bounds of what a list of threads shows of each, in characters.
const (
	MaxThreadTitle = 120
	MaxThreadText  = 240
)

// ExcerptBytes is how much of a value is looked at for an excerpt.
const ExcerptBytes = 16 << 10

// MetadataTitle is the title that the metadata of a thread gives it, or empty.
func MetadataTitle(metadata string) string {
	var m struct {
		Title json.RawMessage `json:"title"`
	}
	if json.Unmarshal([]byte(metadata), &m) != nil || len(m.Title) == 0 || m.Title[0] != '"' {
		return ""
	}
	return Excerpt(string(m.Title), MaxThreadTitle)
}

// Excerpt is the beginning of a message's text, on one line: its content if that is a string, and
// otherwise the strings in it that stand alone in a list or are called text or content. Where there
// are none it is the JSON itself. It has at most so many characters, the last of which says whether
// something was left out.
func Excerpt(content string, limit int) string {
	whole := len(content) <= ExcerptBytes
	if !whole {
		content = content[:ExcerptBytes]
	}
	out := cut(strings.Join(textsIn(content, limit), " "), limit, whole)
	if out == "" {
		out = cut(content, limit, whole)
	}
	return out
}

// textsIn finds the texts in the beginning of a JSON value, until there are enough characters. The
// value may break off anywhere.
func textsIn(value string, enough int) (out []string) {
	key, found := "", 0
	for at := 0; at < len(value) && found <= enough; {
		switch value[at] {
		case '"':
			end := stringEnd(value, at+1)
			text := unquote(value[at+1 : end])
			if at = end + 1; isKey(value, at) {
				key = text
				continue
			}
			if key == "" || key == "text" || key == "content" {
				out, found = append(out, text), found+utf8.RuneCountInString(text)
			}
		case '{', '}', '[', ']', ',':
			key = ""
			at++
		default:
			at++
		}
	}
	return out
}

// stringEnd is where a string ends that begins at a place: at its quote, or at the end of the
// value.
func stringEnd(value string, at int) int {
	for at < len(value) && value[at] != '"' {
		if value[at] == '\\' {
			at++
		}
		at++
	}
	return min(at, len(value))
}

// isKey tells whether a string that ends before a place is the key of an object.
func isKey(value string, at int) bool {
	for at < len(value) && strings.IndexByte(" \t\r\n", value[at]) >= 0 {
		at++
	}
	return at < len(value) && value[at] == ':'
}

// unquote gives the text of a JSON string that may break off in the middle of an escape.
func unquote(s string) (text string) {
	for range len(`\ud83d\ude0`) { // the longest that can be missing its end
		if json.Unmarshal([]byte(`"`+s+`"`), &text) == nil || s == "" {
			return text
		}
		s = s[:len(s)-1]
	}
	return ""
}

// cut puts a text on one line, without characters that can't be shown, and shortens it. whole: it
// is all there was.
func cut(text string, limit int, whole bool) string {
	var b strings.Builder
	n, space := 0, false
	for _, r := range text {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) || r == utf8.RuneError {
			space = true
			continue
		}
		if space = space && n > 0; space {
			b.WriteByte(' ')
			n++
		}
		space = false
		if b.WriteRune(r); n+1 > limit {
			whole = false
			break
		}
		n++
	}
	out := b.String()
	if utf8.RuneCountInString(out) <= limit && whole {
		return out
	}
	runes := []rune(out)
	if len(runes) == 0 {
		return ""
	}
	return strings.TrimRight(string(runes[:min(len(runes), limit-1)]), " ") + "…"
}
