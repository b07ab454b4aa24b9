package life

import (
	"encoding/json"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// Notices are the messages that the server itself writes to a thread: a run goes on in the
// background, or ended without a result. The thread is the users', so a notice is short and in plain
// words. Details such as a stack trace are in the run's error and its log.
//
// A notice has the role system, and its metadata has notice set. api.Message.Notice finds notices, and
// History leaves them out.

// maxNoticeReason bounds the characters of a failure's message in a notice.
const maxNoticeReason = 200

// noticeOf makes a notice about a run. pairs are more names and values of its metadata.
func noticeOf(r *perdure.Run, text string, pairs ...any) (perdure.Message, error) {
	content, err := json.Marshal(text)
	return perdure.Message{Role: perdure.RoleSystem, Content: content,
			Metadata: json.RawMessage(perdure.Object(append([]any{"notice", true, "run_id", string(r.ID)},
				pairs...)...))},
		err
}

// addNotice appends a notice about a run to its thread. A run without a thread has none.
func addNotice(tx *kernel.Tx, r *perdure.Run, text string, pairs ...any) error {
	if r.ThreadID == "" {
		return nil
	}
	m, err := noticeOf(r, text, pairs...)
	if err != nil {
		return err
	}
	lines, err := addMessagesOf(tx, r, []perdure.Message{m})
	if err != nil || len(lines) == 0 {
		return err
	}
	return tx.Apply(r, perdure.MessagesAppended{Lines: lines})
}

// noticeOfEnd gives the words for the end of a run without a result.
func noticeOfEnd(state perdure.State, why *perdure.Failure) string {
	text := map[perdure.State]string{
		perdure.Failed:    "This run failed",
		perdure.TimedOut:  "This run ran out of time",
		perdure.Cancelled: "This run was cancelled",
	}[state]
	if why == nil {
		return text
	}
	switch why.Code {
	case "panic", "agent_misuse", perdure.CodeNondeterminism:
		// The message is about the program's code.
		return text + ": there is an error in its program"
	case perdure.CodeDeadline:
		// That no worker served it is for its operators.
		return text + ": " + perdure.DeadlineMessage
	}
	// A message of several lines has a stack trace or an output behind its first line.
	first, _, _ := strings.Cut(strings.TrimSpace(why.Message), "\n")
	if first = strings.TrimRight(strings.TrimSpace(first), ":"); first == "" {
		return text
	}
	if runes := []rune(first); len(runes) > maxNoticeReason {
		first = strings.TrimSpace(string(runes[:maxNoticeReason-1])) + "…"
	}
	return text + ": " + first
}
