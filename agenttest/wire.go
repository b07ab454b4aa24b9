package agenttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/embedded"
)

// front is the transport to the current server. It fails while the server restarts.
type front struct{ s *Trial }

func (f front) RoundTrip(req *http.Request) (*http.Response, error) {
	f.s.mu.Lock()
	srv := f.s.srv
	f.s.mu.Unlock()
	if srv == nil {
		return nil, errAway
	}
	res, err := srv.Transport().RoundTrip(req)
	if errors.Is(err, http.ErrServerClosed) {
		return nil, errAway // it comes back, so the call is sent again
	}
	return res, err
}

var errAway = errors.New("the server is away")

// A workerConn is the transport of one worker. It observes its calls and answers, and can be cut.
type workerConn struct {
	s    *Trial
	id   string
	stop context.CancelFunc // ends the worker
	dead bool               // guarded by the session's mutex
}

var errCut = errors.New("the connection was cut")

// RoundTrip makes a call, and crashes at the trial's point.
func (l *workerConn) RoundTrip(req *http.Request) (*http.Response, error) {
	s := l.s
	if s.isDead(l) {
		return nil, errCut
	}
	verb := req.URL.Path[strings.LastIndexByte(req.URL.Path, '/')+1:]
	worker := strings.Contains(req.URL.Path, "/workers/")
	var commits api.Commits
	if worker && verb == "commit" {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		req.Body.Close()
		if err := json.Unmarshal(body, &commits); err != nil {
			return nil, fmt.Errorf("read a commit: %w", err)
		}
		if s.reportDefects(commits.Commits) {
			if body, err = json.Marshal(commits); err != nil {
				return nil, fmt.Errorf("write a commit: %w", err)
			}
			req.ContentLength = int64(len(body))
		}
		// The server's answer has to be observed even if the worker is dead by then.
		req = req.Clone(context.WithoutCancel(req.Context()))
		req.Body = io.NopCloser(bytes.NewReader(body))
		if s.committing(l, commits.Commits) {
			return nil, errCut
		}
	}
	if worker && verb == "poll" {
		s.onPoll()
		select {
		case <-s.begun.Done():
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		req.Body.Close()
		req = req.Clone(req.Context())
		req.Body = io.NopCloser(bytes.NewReader(body))
		s.polling(body)
	}
	s.mu.Lock()
	srv := s.srv
	s.mu.Unlock()
	res, err := front{s}.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(answer))
	if worker && res.StatusCode == http.StatusOK {
		cut := false
		switch verb {
		case "commit":
			cut = s.committed(l, commits.Commits, answer)
		case "poll":
			cut = s.granted(l, answer)
		}
		if cut || s.isDead(l) || s.replaced(srv) {
			return nil, errCut
		}
	}
	return res, nil
}

// replaced tells whether a server is no longer the current one. An answer of an old server is lost:
// it must not arrive after the restart.
func (s *Trial) replaced(srv *embedded.Server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.srv != srv
}

// isDead tells whether a worker is dead.
func (s *Trial) isDead(l *workerConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.dead
}

// polling observes a poll.
func (s *Trial) polling(body []byte) {
	var poll api.Poll
	if err := json.Unmarshal(body, &poll); err != nil {
		s.t.Errorf("read a poll: %v", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range poll.Kinds {
		s.polledKinds[kind] = true
	}
}

// reportDefects fails the test for each defect of an agent's code, such as nondeterminism. The server
// would hold the run for a fixed release, and no release comes here. So it gets an ordinary failure
// that ends the run.
func (s *Trial) reportDefects(commits []perdure.Commit) (any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range commits {
		out := commits[i].Outcome
		if out == nil || !out.Defect || out.Error == nil {
			continue
		}
		s.t.Errorf("%s: a defect of the agent's code: %s: %s", s.name(commits[i].RunID), out.Error.Code,
			out.Error.Message)
		out.Defect, out.Retryable, any = false, new(bool), true
	}
	return any
}

// committing observes commits before they arrive. It returns true if the crash keeps them from
// arriving.
func (s *Trial) committing(l *workerConn, commits []perdure.Commit) (cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range commits {
		if b, first := s.sawCommit(&commits[i]); first && s.isCrashPoint(b, false) {
			cut = true
		}
	}
	if cut {
		s.crashNow(l)
	}
	return cut
}

// committed observes the answer to commits. It returns true if the crash loses it.
func (s *Trial) committed(l *workerConn, commits []perdure.Commit, answer []byte) (cut bool) {
	var out api.CommitResults
	if err := json.Unmarshal(answer, &out); err != nil {
		s.t.Errorf("read the answer to a commit: %v", err)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range min(len(commits), len(out.Results)) {
		b, err := s.sawResult(&commits[i], &out.Results[i])
		if err != nil {
			s.t.Error(err)
		}
		for _, c := range out.Results[i].Callbacks {
			if !s.tokens[c.Token] {
				s.tokens[c.Token] = true
				select {
				case s.callbacks <- c.Token:
				default: // a script with so many callbacks answers them in its own way
				}
			}
		}
		if s.isCrashPoint(b, true) {
			cut = true
		}
	}
	if cut {
		s.crashNow(l)
	}
	return cut
}

// granted observes the answer to a poll. It returns true if the crash loses it.
func (s *Trial) granted(l *workerConn, answer []byte) (cut bool) {
	var out api.Polled
	if err := json.Unmarshal(answer, &out); err != nil {
		s.t.Errorf("read the answer to a poll: %v", err)
		return false
	}
	for i := range out.Runs {
		g := &out.Runs[i]
		if _, err := s.learnName(g.RunID, g.Kind, g.ParentRunID); err != nil && s.ctx.Err() == nil {
			s.t.Errorf("learn the name of a run: %v", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range out.Runs {
		if s.isCrashPoint(s.sawGrant(&out.Runs[i]), true) {
			cut = true
		}
	}
	if cut {
		s.crashNow(l)
	}
	return cut
}

// isCrashPoint tells whether the crash is to happen here.
func (s *Trial) isCrashPoint(b boundary, after bool) bool {
	return s.crash != nil && !s.crashed && s.crash.boundary == b && s.crash.after == after
}

// crashNow crashes the server, or the worker of a connection.
func (s *Trial) crashNow(l *workerConn) {
	s.crashed = true
	fmt.Fprintf(s.log, "---- %s\n", s.crash)
	if s.crash.server {
		old := s.srv
		s.srv = nil
		s.goroutines.Go(func() { s.reopen(old) })
		return
	}
	// The worker is told to stop, but its calls fail from here on, also the release of its runs.
	// The server has to notice the loss by its leases.
	l.dead = true
	l.stop()
	s.goroutines.Go(s.startWorker)
}

// restartTime is how long the server is away.
const restartTime = 3 * time.Second

// reopen restarts the server on the same files.
func (s *Trial) reopen(old *embedded.Server) {
	err := old.Close()
	time.Sleep(restartTime)
	var srv *embedded.Server
	if err == nil {
		srv, err = embedded.Open(s.options())
	}
	if err != nil {
		s.t.Errorf("restart the server: %v", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.srv = srv
}
