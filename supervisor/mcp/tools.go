package mcp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// A Tool is a tool of a server, as a model gets it.
type Tool struct {
	// Name is the server's name, _, and the name of the tool. What no name of a tool can have is
	// replaced, and then a part of a hash makes the name unique.
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
	// Server and Tool are the input of a call.
	Server string `json:"server"`
	Tool   string `json:"tool"`
	// Timeout is the longest time that a call takes, with a question to a person.
	Timeout time.Duration `json:"timeout"`
}

// A tool is a tool as its server lists it.
type tool struct {
	name        string
	description string
	parameters  json.RawMessage
	in, out     schema
	hasOut      bool
	repeatable  bool
	readOnly    bool
}

// Tools lists the tools of all servers, and the servers that have none to offer with the reason. It takes
// ten seconds at most, and it waits once for a server that fails: after that the server is tried in the
// background, and does not delay others until it has answered.
func (c *Client) Tools(ctx context.Context) (out []Tool, down map[string]string) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	lists, errs := make([][]*tool, len(c.servers)), make([]error, len(c.servers))
	var all sync.WaitGroup
	for i, s := range c.servers {
		all.Go(func() { lists[i], errs[i] = s.offer(ctx) })
	}
	all.Wait()
	down = make(map[string]string)
	left := maxAll
	for i, s := range c.servers {
		if errs[i] != nil {
			down[s.Name] = cut(clean(errs[i].Error()), maxError)
			continue
		}
		for _, t := range lists[i] {
			if left -= t.size(); left < 0 {
				down[s.Name] = "its tools are too many beside those of the other servers"
				break
			}
			out = append(out, Tool{Name: modelName(s.Name, t.name), Description: t.description,
				Parameters: t.parameters, Server: s.Name, Tool: t.name, Timeout: s.longest(t.name)})
		}
	}
	return out, down
}

// longest returns the longest time that a run of a call takes.
func (s *server) longest(tool string) time.Duration {
	d := s.Timeout + 2*connectTimeout + probeTimeout
	if s.asked(tool) {
		d += s.SuspendTimeout
	}
	return d
}

func (t *tool) size() int { return len(t.name) + len(t.description) + len(t.parameters) }

var legal = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// maxModelName is the longest name that models take.
const maxModelName = 64

// modelName returns the name of a tool for the model.
func modelName(server, tool string) string {
	name := server + "_" + tool
	if legal.MatchString(tool) && len(name) <= maxModelName {
		return name
	}
	plain := []byte(name)
	for i, b := range plain {
		if !legal.Match([]byte{b}) {
			plain[i] = '_'
		}
	}
	hash := sha256.Sum256([]byte(tool))
	return fmt.Sprintf("%s_%x", plain[:min(len(plain), maxModelName-9)], hash[:4])
}

// A refresh connects to a server and lists its tools, in the background. Callers share it.
type refresh struct {
	done  chan struct{}
	tools []*tool
	err   error
}

// offer returns the tools of a server. It waits for them, unless the last one who did so waited in vain.
func (s *server) offer(ctx context.Context) ([]*tool, error) {
	s.mu.Lock()
	if s.conn != nil {
		if tools, ok := s.conn.recent(); ok {
			s.mu.Unlock()
			return tools, nil
		}
	}
	failing, r := s.failing, s.refresh
	if s.closed {
		failing = errClosed
	}
	if r == nil && !s.closed && (failing == nil || time.Now().After(s.notTill)) {
		r = &refresh{done: make(chan struct{})}
		s.refresh = r
		go s.run(r)
	}
	s.mu.Unlock()
	if failing != nil {
		return nil, failing
	}
	select {
	case <-r.done:
		return r.tools, r.err
	case <-ctx.Done():
		if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			return nil, context.Cause(ctx) // the caller has no more interest
		}
		err := fmt.Errorf("it has not listed its tools within %s", listTimeout)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.refresh == r {
			s.failing = err
		}
		return nil, err
	}
}

// run executes a refresh.
func (s *server) run(r *refresh) {
	ctx, cancel := context.WithTimeout(s.ctx, connectTimeout+listTimeout)
	defer cancel()
	r.tools, r.err = s.list(ctx)
	s.mu.Lock()
	s.refresh, s.failing = nil, r.err
	s.mu.Unlock()
	close(r.done)
}

// list returns the tools of a server that may be called. It asks the server if the last list is old.
func (s *server) list(ctx context.Context) ([]*tool, error) {
	c, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	if tools, ok := c.recent(); ok {
		return tools, nil
	}
	done, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if tools, ok := c.recent(); ok {
		return tools, nil
	}
	version := c.version()
	began := time.Now()
	tools, err := inTime(ctx, func() ([]*tool, error) { return s.fetch(ctx, c) })
	if err != nil {
		if ctx.Err() != nil {
			go c.probe(ctx)
		}
		return nil, fmt.Errorf("list its tools: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes == version {
		c.tools, c.listed = tools, began
	}
	return tools, nil
}

// version returns the number of changes that the server has told.
func (c *connection) version() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes
}

// recent returns the last list, if it is recent.
func (c *connection) recent() ([]*tool, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tools, !c.listed.IsZero() && time.Since(c.listed) < listFor
}

// changed makes the next call ask for the list again.
func (c *connection) changed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	c.listed = time.Time{}
}

// fetch asks a server for its tools. Those that can't be offered are left out.
func (s *server) fetch(ctx context.Context, c *connection) (out []*tool, err error) {
	c.refill()
	left, seen := maxSchemas, make(map[string]bool)
	params := &sdk.ListToolsParams{}
	for page := 0; ; page++ {
		res, err := c.ListTools(ctx, params)
		if err != nil {
			return nil, err
		}
		for _, t := range res.Tools {
			if !s.offered(t.Name) {
				continue
			}
			got, err := newTool(t)
			switch {
			case err == nil && seen[t.Name]:
				err = errors.New("it is listed twice")
			case err == nil && len(out) == maxTools:
				err = fmt.Errorf("the server has more than %d tools", maxTools)
			case err == nil && left < got.size():
				err = fmt.Errorf("the tools of the server have more than %d bytes", maxSchemas)
			}
			if err != nil {
				if len(seen) <= 2*maxTools {
					s.log.Warn("mcp tool left out", "tool", cut(clean(t.Name), maxName), "error", err)
				}
				seen[cut(t.Name, maxName)] = true
				continue
			}
			seen[t.Name] = true
			left -= got.size()
			out = append(out, got)
		}
		if res.NextCursor == "" || page+1 == maxPages || len(out) == maxTools {
			slices.SortStableFunc(out, func(a, b *tool) int { return strings.Compare(a.name, b.name) })
			return out, nil
		}
		params = &sdk.ListToolsParams{Cursor: res.NextCursor}
	}
}

// newTool checks a tool of a list.
func newTool(t *sdk.Tool) (*tool, error) {
	if t.Name == "" || len(t.Name) > maxName || clean(t.Name) != t.Name {
		return nil, fmt.Errorf("its name is empty, too long or no text")
	}
	out := &tool{name: t.Name, description: cut(clean(t.Description), maxDescription)}
	if a := t.Annotations; a != nil {
		out.repeatable, out.readOnly = a.ReadOnlyHint || a.IdempotentHint, a.ReadOnlyHint
	}
	var err error
	if out.parameters, err = json.Marshal(t.InputSchema); err != nil {
		return nil, fmt.Errorf("its input schema: %w", err)
	}
	if bytes.Contains(out.parameters, []byte(`\u0000`)) {
		return nil, errors.New("its input schema has a NUL character")
	}
	if out.in, err = newSchema(out.parameters, true); err != nil {
		return nil, fmt.Errorf("its input schema: %w", err)
	}
	if t.OutputSchema != nil {
		raw, err := json.Marshal(t.OutputSchema)
		if err == nil {
			out.out, err = newSchema(raw, false)
		}
		if err != nil {
			return nil, fmt.Errorf("its output schema: %w", err)
		}
		out.hasOut = true
	}
	return out, nil
}

// refill allows the server's program to write again.
func (c *connection) refill() {
	if c.process != nil {
		c.process.refill()
	}
}

// clean removes what the stores can't keep: NUL characters, and bytes that are no UTF-8.
func clean(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "\ufffd")
}

// cut shortens a text to a number of bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const dots = "…"
	n := max(most-len(dots), 0)
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + dots
}
