package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// A user asks for the disk space, stops waiting, and the server is killed while a worker has run df and
// thinks about it. The next server finishes the answer, and df runs once.
func TestChatSurvivesItsServer(t *testing.T) {
	args := append([]string{"--supervisor", "scripted"}, short...)
	t.Run("SQLite", func(t *testing.T) { chatSurvives(t, newNode(t, args...)) })
	t.Run("PostgreSQL", func(t *testing.T) { chatSurvives(t, newNode(t, append(args, "--store", pgtest.New(t))...)) })
}

func chatSurvives(t *testing.T, n *node) {
	var asked struct {
		ThreadID string `json:"thread_id"`
		RunID    string `json:"run_id"`
		Status   string `json:"status"`
		Message  string `json:"message"`
	}
	if status := n.insist("POST", "/api/v1/chat", "ask", obj{"message": "check disk space", "wait": "100ms"},
		&asked); status != 202 ||
		asked.Status != "deferred" || asked.Message == "" {
		t.Fatalf("chat = %d %+v, want 202, deferred, with an explanation", status, asked)
	}
	var worker string
	eventually.True(t, "the worker has run df", func() bool {
		var page struct {
			Runs []runView `json:"runs"`
		}
		n.insist("GET", "/api/v1/runs?parent_run_id="+asked.RunID, "", nil, &page)
		if len(page.Runs) == 0 {
			return false
		}
		worker = page.Runs[0].RunID
		return n.counts(worker)["worker:tool_completed"] == 1
	})
	n.kill(syscall.SIGKILL)
	n.start()
	eventually.True(t, "the answer is in the thread", func() bool {
		return strings.Contains(n.lastMessage(asked.ThreadID), "df says: Filesystem")
	})
	if seen := n.counts(worker); seen["worker:tool_started"] != 1 || seen["worker:tool_completed"] != 1 {
		t.Errorf("events of the worker = %v, want df started and completed once", seen)
	}
	// The same question again, by its key, is the same run, which has its answer.
	var again struct {
		RunID  string `json:"run_id"`
		Answer struct {
			Answer string `json:"answer"`
		} `json:"answer"`
	}
	if status := n.insist("POST", "/api/v1/chat", "ask", obj{"message": "check disk space", "wait": "10s"},
		&again); status != 200 ||
		again.RunID != asked.RunID || !strings.Contains(again.Answer.Answer, "df says") {
		t.Errorf("chat again = %d %+v, want 200 and the answer of run %s", status, again, asked.RunID)
	}
}

// counts counts the events of a run by type.
func (n *node) counts(id string) map[string]int { return n.countsUntil(id, "") }

// countsUntil counts the lines of a run's log by their types, up to the first one of a type.
func (n *node) countsUntil(id, last string) map[string]int {
	n.t.Helper()
	var page struct {
		Events []struct {
			Type string `json:"type"`
		} `json:"events"`
	}
	n.insist("GET", fmt.Sprintf("/api/v1/runs/%s/events?limit=1000", id), "", nil, &page)
	out := map[string]int{}
	for _, e := range page.Events {
		if e.Type == last {
			break
		}
		out[e.Type]++
	}
	return out
}

// lastMessage returns the last message of a thread.
func (n *node) lastMessage(thread string) string {
	n.t.Helper()
	var page struct {
		Messages []struct {
			Content any `json:"content"`
		} `json:"messages"`
	}
	n.insist("GET", "/api/v1/threads/"+thread+"/messages?limit=1000", "", nil, &page)
	if len(page.Messages) == 0 {
		return ""
	}
	return fmt.Sprint(page.Messages[len(page.Messages)-1].Content)
}
