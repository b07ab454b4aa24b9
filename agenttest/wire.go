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

// front is the way to the server, whichever it is at the moment.
type front struct{ s *Session }

func (f front) RoundTrip(req *http.Request) (*http.Response, error) {
	f.s.mu.Lock()
	srv := f.s.srv
	f.s.mu.Unlock()
	if srv == nil {
		return nil, errors.New("the server is away")
	}
	return srv.Transport().RoundTrip(req)
}

// A life is the wire of one worker. It sees whatever the worker says and hears, and can be cut.
type life struct {
	s    *Session
	id   string
	stop context.CancelFunc // has the worker come down
	dead bool               // guarded by the session's mutex
}

var errCut = errors.New("the connection was cut")

// RoundTrip carries a call, and crashes where the telling is to crash.
func (l *life) RoundTrip(req *http.Request) (*http.Response, error) {
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
		// What the server makes of a commit is to be known, however little its sender cares: it may be dead by then.
		req = req.Clone(context.WithoutCancel(req.Context()))
		req.Body = io.NopCloser(bytes.NewReader(body))
		if s.committing(l, commits.Commits) {
			return nil, errCut
		}
	}
	if worker && verb == "poll" {
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

// replaced tells whether a server is no more. An answer that was under way then never arrives: least of all later, when
// the next server has forgotten what it was about.
func (s *Session) replaced(srv *embedded.Server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.srv != srv
}

func (s *Session) isDead(l *life) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.dead
}

// polling sees what a worker asks for.
func (s *Session) polling(body []byte) {
	var poll api.Poll
	if err := json.Unmarshal(body, &poll); err != nil {
		s.t.Errorf("read a poll: %v", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range poll.Kinds {
		s.asked[kind] = true
	}
}

// committing sees commits on their way, and tells whether they don't arrive.
func (s *Session) committing(l *life, commits []perdure.Commit) (cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range commits {
		if b, first := s.sawCommit(&commits[i]); first && s.hits(b, false) {
			cut = true
		}
	}
	if cut {
		s.strike(l)
	}
	return cut
}

// committed sees what became of commits, and tells whether the answer is lost.
func (s *Session) committed(l *life, commits []perdure.Commit, answer []byte) (cut bool) {
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
				default: // a script with so many has a way of its own to answer them
				}
			}
		}
		if s.hits(b, true) {
			cut = true
		}
	}
	if cut {
		s.strike(l)
	}
	return cut
}

// granted sees what a poll brings, and tells whether that is lost.
func (s *Session) granted(l *life, answer []byte) (cut bool) {
	var out api.Polled
	if err := json.Unmarshal(answer, &out); err != nil {
		s.t.Errorf("read the answer to a poll: %v", err)
		return false
	}
	for i := range out.Runs {
		g := &out.Runs[i]
		if _, err := s.introduce(g.RunID, g.Kind, g.ParentRunID); err != nil && s.ctx.Err() == nil {
			s.t.Errorf("learn the name of a run: %v", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range out.Runs {
		if s.hits(s.sawGrant(&out.Runs[i]), true) {
			cut = true
		}
	}
	if cut {
		s.strike(l)
	}
	return cut
}

// hits tells whether this is where the crash is to be.
func (s *Session) hits(b boundary, after bool) bool {
	return s.crash != nil && !s.struck && s.crash.boundary == b && s.crash.after == after
}

// strike has the crash happen.
func (s *Session) strike(l *life) {
	s.struck = true
	fmt.Fprintf(s.log, "---- %s\n", s.crash)
	if s.crash.server {
		old := s.srv
		s.srv = nil
		s.own.Go(func() { s.reopen(old) })
		return
	}
	// The worker learns that it is to come down, and whatever it says from here on is heard by nobody: not that it lets go
	// of its runs, either. The server has to find that out by its own clocks.
	l.dead = true
	l.stop()
	s.own.Go(s.bear)
}

// away is how long a server takes that is started again.
const away = 3 * time.Second

// reopen is a restart: what was not written is gone, what was written is there.
func (s *Session) reopen(old *embedded.Server) {
	err := old.Close()
	time.Sleep(away)
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
