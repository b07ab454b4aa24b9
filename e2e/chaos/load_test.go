package chaos

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

// A load is clients that start runs, signal, cancel, read and follow them, at any node.
type load struct {
	*fleet
	rec       *recorder
	clients   [nodeCount]*client.Client
	streams   *http.Client
	followers sync.WaitGroup

	mu       sync.Mutex
	problems []string // what should not happen, such as an answer with status 500
	refusals int      // 503 with Retry-After
}

func newLoad(f *fleet) *load {
	l := &load{fleet: f, rec: new(recorder), streams: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	for i := range f.nodes {
		wire := &http.Transport{MaxIdleConnsPerHost: 64}
		f.t.Cleanup(wire.CloseIdleConnections)
		l.clients[i] = client.New("http://"+f.lines[i]["clients"].Addr(), f.key,
			client.Options{Retries: -1, Timeout: 3 * time.Second, Transport: &inspector{next: wire, l: l}})
	}
	return l
}

// An inspector looks at the status of answers. There is no 500, and every 503 says when to try again.
type inspector struct {
	next http.RoundTripper
	l    *load
}

func (i *inspector) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := i.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	i.l.mu.Lock()
	defer i.l.mu.Unlock()
	switch {
	case res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") != "":
		i.l.refusals++
	case res.StatusCode >= 500:
		i.l.problems = append(i.l.problems, fmt.Sprintf("%s %s: %s, Retry-After %q", r.Method, r.URL.Path, res.Status,
			res.Header.Get("Retry-After")))
	}
	return res, nil
}

// sink is where effects happen: once for each key. A repetition gets the receipt of the first time.
func (l *load) serveEffects() (url string) {
	applied := make(map[string]bool)
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var o Op
		b, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(b, &o)
		}
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		l.mu.Lock()
		o.Applied, applied[o.Key] = !applied[o.Key], true
		l.mu.Unlock()
		o.Answer, o.End = ok, monotonic()
		l.rec.add(o)
		fmt.Fprint(rw, "receipt of ", o.Key)
		rw.(http.Flusher).Flush()
		worker, _, _ := strings.Cut(o.By, ".")
		if seen, waited := l.effects.LoadAndDelete(worker + "."); waited {
			close(seen.(chan struct{}))
		}
	}))
	l.t.Cleanup(s.Close)
	return s.URL
}

// try makes a call at a random node, and records it.
func (l *load) try(ctx context.Context, o Op, do func(ctx context.Context, c *client.Client, o *Op) error) (Op, bool) {
	at := rand.IntN(nodeCount)
	o.At = strconv.Itoa(at)
	done := l.rec.begin(o)
	err := do(ctx, l.clients[at], &o)
	switch {
	case err == nil:
		o.Answer = ok
	case !client.Transient(err) && client.CodeOf(err) != "":
		o.Answer, o.Code = refused, string(client.CodeOf(err))
	default:
		// Also a refusal to serve leaves it open whether an earlier attempt happened.
		if o.Code = string(client.CodeOf(err)); o.Code == "" {
			return o, false
		}
	}
	done(o)
	return o, o.Answer != unknown
}

// insist makes a call until its outcome is known.
func (l *load) insist(ctx context.Context, o Op, do func(ctx context.Context, c *client.Client, o *Op) error) Op {
	for {
		if answered, known := l.try(ctx, o, do); known || ctx.Err() != nil {
			return answered
		}
		select {
		case <-time.After(time.Duration(20+rand.IntN(80)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// A plot is what a client does.
type plot struct {
	kind    string
	share   int // of all plots
	timeout time.Duration
	takes   int // milliseconds at most
	cancel  bool
	loops   int
	once    bool
}

var plots = []plot{
	{kind: "job", share: 6, timeout: 25 * time.Second, takes: 200},
	{kind: "job", share: 4, timeout: 30 * time.Second, takes: 6000},
	{kind: "job", share: 2, timeout: 25 * time.Second, takes: 5000, cancel: true},
	{kind: "flaky", share: 2, timeout: 25 * time.Second, takes: 200},
	{kind: "once", share: 4, timeout: 25 * time.Second, takes: 1500, once: true},
	{kind: "stubborn", share: 3, timeout: 2500 * time.Millisecond, takes: 5000},
	{kind: "trip", share: 5, timeout: 30 * time.Second, takes: 400},
	{kind: "loop", share: 4, timeout: 30 * time.Second, loops: 4},
	talker,
}

// talker sends one signal after the other.
var talker = plot{kind: "loop", share: 1, timeout: 30 * time.Second, loops: 100, cancel: true}

// draw chooses a plot.
func draw() plot {
	all := 0
	for _, p := range plots {
		all += p.share
	}
	n := rand.IntN(all)
	for _, p := range plots {
		if n -= p.share; n < 0 {
			return p
		}
	}
	return plots[0]
}

// client plays plots until it is told to stop, each to its end.
func (l *load) client(ctx context.Context, stop <-chan struct{}, name string, draw func() plot) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		default:
		}
		l.play(ctx, name, fmt.Sprintf("%s-%d", name, n), draw())
	}
}

// play starts a run, does what its plot says, and waits for the end.
func (l *load) play(ctx context.Context, by, key string, p plot) {
	takes := time.Duration(0)
	if p.takes > 0 {
		takes = time.Duration(rand.IntN(p.takes)) * time.Millisecond
	}
	sub := perdure.Submission{Kind: p.kind, MaxAttempts: 50, Timeout: perdure.Duration(p.timeout),
		Input: client.JSON(input{Key: key, Takes: takes, Loops: p.loops})}
	if p.once {
		sub.MaxAttempts = 1
	}
	if p.kind == "trip" || p.kind == "loop" {
		sub.Class = perdure.Agent
	}
	started := l.insist(ctx, Op{Call: submit, By: by, Key: key, Once: p.once},
		func(ctx context.Context, c *client.Client, o *Op) error {
			run, err := c.Start(ctx, sub, client.IdempotencyKey(key))
			if err == nil {
				o.Run = string(run.RunID)
			}
			return err
		})
	if started.Answer != ok {
		l.problem("submit %s: %s %s", key, started.Answer, started.Code)
		return
	}
	id := started.Run
	for n := range rand.IntN(4) - 1 {
		l.followers.Go(func() { l.follow(ctx, id, fmt.Sprintf("%s/%d", key, n)) })
	}
	words := p.loops
	if p.kind == "trip" || p.cancel && p.loops > 0 {
		words = 1
	}
	for n := range words {
		word := fmt.Sprintf("%s-%d", key, n)
		told := l.insist(ctx, Op{Call: signal, By: by, Run: id, Key: word, Value: strconv.Quote(word)},
			func(ctx context.Context, c *client.Client, _ *Op) error {
				_, err := c.Signal(ctx, perdure.RunID(id), "word", client.JSON(word), client.IdempotencyKey(word))
				return err
			})
		if told.Answer != ok {
			break // the run has ended by its deadline
		}
	}
	if p.cancel {
		l.pause(ctx, 1000)
		l.insist(ctx, Op{Call: cancel, By: by, Run: id, Key: key},
			func(ctx context.Context, c *client.Client, _ *Op) error {
				_, err := c.Cancel(ctx, perdure.RunID(id), "changed my mind", 0, client.IdempotencyKey("cancel-"+key))
				return err
			})
	}
	for {
		l.pause(ctx, 400)
		look := Op{Call: read, By: by, Run: id}
		seen := l.insist(ctx, look, func(ctx context.Context, c *client.Client, o *Op) error {
			run, err := c.Get(ctx, perdure.RunID(id))
			if err == nil {
				o.Epoch, o.State, o.Value = run.Epoch, string(run.State), string(run.Result)
			}
			return err
		})
		if ctx.Err() != nil || seen.Answer == refused || perdure.State(seen.State).Terminal() {
			return
		}
	}
}

func (l *load) pause(ctx context.Context, most int) {
	select {
	case <-time.After(time.Duration(50+rand.IntN(most)) * time.Millisecond):
	case <-ctx.Done():
	}
}

func (l *load) problem(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.problems = append(l.problems, fmt.Sprintf(format, args...))
}

// follow reads the stream of a run to its end, over as many connections as it takes.
func (l *load) follow(ctx context.Context, id, name string) {
	for after := int64(0); ctx.Err() == nil; {
		ended, err := l.attach(ctx, id, name, &after)
		if err != nil {
			l.problem("the stream of %s for %s after %d: %v", id, name, after, err)
			return
		}
		if ended {
			return
		}
		l.pause(ctx, 50)
	}
}

// silence is how long a connection may be silent. The server sends a comment every five seconds.
const silence = 8 * time.Second

// attach reads the stream over one connection. It returns errors of the server, and not of the network.
func (l *load) attach(ctx context.Context, id, name string, after *int64) (ended bool, err error) {
	at := rand.IntN(nodeCount)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	alarm := time.AfterFunc(silence, cancel)
	defer alarm.Stop()
	url := "http://" + l.lines[at]["clients"].Addr() + "/api/v1/runs/" + id + "/stream"
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("Authorization", "Bearer "+l.key)
	req.Header.Set("Last-Event-ID", strconv.FormatInt(*after, 10))
	res, err := l.streams.Do(req)
	if err != nil {
		return false, nil
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusNoContent:
		return true, nil
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		return false, nil
	case http.StatusOK:
	default:
		return false, fmt.Errorf("status %d", res.StatusCode)
	}
	r := bufio.NewReader(res.Body)
	var event, eventID, data string
	for {
		line, err := r.ReadString('\n')
		if errors.Is(err, io.EOF) && ctx.Err() == nil {
			return false, errors.New("it ended cleanly without stream:end")
		}
		if err != nil {
			return false, nil
		}
		alarm.Reset(silence)
		field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch field {
		case "id":
			eventID = value
		case "event":
			event = value
		case "data":
			data = value
		case "":
			if data == "" {
				continue
			}
			seq, err := strconv.ParseInt(eventID, 10, 64)
			if err != nil {
				return false, fmt.Errorf("the id of %s is %q", event, eventID)
			}
			if event == api.StreamEnd {
				return true, nil
			}
			if !strings.HasPrefix(event, "stream:") {
				l.line(at, id, name, event, seq, data)
				*after = seq
			}
			event, eventID, data = "", "", ""
		}
	}
}

// line records a line that a follower got, with the digest of its content.
func (l *load) line(at int, id, name, event string, seq int64, data string) {
	sum := sha256.Sum256([]byte(data))
	l.rec.add(Op{Call: frame, By: "follower", Begin: monotonic(), End: monotonic(), Answer: ok, Run: id, Key: name,
		Seq: seq, State: event, Value: hex.EncodeToString(sum[:6]), At: strconv.Itoa(at)})
}
