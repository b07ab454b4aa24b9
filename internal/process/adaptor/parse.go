package adaptor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// Bounds of what a line states.
const (
	// MaxLine is the size of the longest line that is looked at.
	MaxLine = 1 << 20
	// maxFacts bounds the facts of one line.
	maxFacts = 512
	// maxElements bounds the elements of an array that are looked at.
	maxElements = 256
	// maxText bounds the text of one fact. It is that of a line of a run's log.
	maxText = perdure.MaxDelta
	// maxValue bounds the input and the output of a tool call, as JSON.
	maxValue = 8 << 10
	// maxName bounds ids and names.
	maxName = 200
)

// A Fact is what a line of output states: a Session, a Text, a ToolStarted, a ToolEnded, a Usage, a
// Status or an End.
type Fact interface{ fact() }

// A Session is the id with which a session of the agent can be continued. A later one replaces it.
type Session string

// A Text is something that the agent says.
type Text struct {
	// Delta is appended to the text so far. It ends with a line break where a message ends.
	Delta string
	// Message is the message that is now complete, or its beginning if it is long. It is empty within a
	// message.
	Message string
}

// A ToolStarted is the beginning of a tool call.
type ToolStarted struct {
	ID, Name string
	// Input is JSON, or nil.
	Input json.RawMessage
}

// A ToolEnded is the end of a tool call.
type ToolEnded struct {
	ID, Name string
	// Output is JSON, or nil.
	Output json.RawMessage
	Failed bool
	Error  string
}

// A Usage has what the agent has used so far. It replaces an earlier one.
type Usage struct {
	InputTokens, OutputTokens int64
	CostUSD                   float64
	// OfSession tells that the tokens are those of the whole session.
	OfSession bool
}

// A Status is what the agent is doing, see jobdir.StatusRunning.
type Status string

// An End is the agent's own account of its end. The command goes on until it exits.
type End struct {
	// Text is the agent's answer, if the end has it.
	Text   string
	Failed bool
	Error  string
}

func (Session) fact()     {}
func (Text) fact()        {}
func (ToolStarted) fact() {}
func (ToolEnded) fact()   {}
func (Usage) fact()       {}
func (Status) fact()      {}
func (End) fact()         {}

// sessionID is the form of a session's id. It can be no option of a command.
var sessionID = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}$`)

// An Adaptor reads the output of one process. It is not for several goroutines.
type Adaptor struct {
	engine *Format
	// wanted has the names of all members that the engine's paths lead through.
	wanted map[string]bool
	// parts is the beginning of the message that is coming in parts. With partsFull there is more of it.
	parts     strings.Builder
	partsFull bool
	// inMessage tells that parts have come since the last message was complete.
	inMessage bool
	// tools has the names of tool calls that have begun, by id.
	tools map[string]string
}

func newAdaptor(e *Format) *Adaptor {
	a := &Adaptor{engine: e, wanted: make(map[string]bool), tools: make(map[string]string)}
	a.want(e.Rules)
	return a
}

// want collects the names in the paths of rules.
func (a *Adaptor) want(rules []Rule) {
	for i := range rules {
		for _, name := range rules[i].names() {
			a.wanted[name] = true
		}
		a.want(rules[i].Rules)
	}
}

// Engine returns the name of the engine.
func (a *Adaptor) Engine() string { return a.engine.Name }

// Reads tells whether the engine has rules. The output of one without rules need not be parsed.
func (a *Adaptor) Reads() bool { return len(a.engine.Rules) > 0 }

// Parse returns the facts that a line of output states.
func (a *Adaptor) Parse(line []byte) []Fact {
	line = bytes.TrimSpace(line)
	if !a.Reads() || len(line) < 2 || len(line) > MaxLine || line[0] != '{' || !json.Valid(line) {
		return nil
	}
	p := &parser{a: a, root: &node{raw: line}}
	for i := range a.engine.Rules {
		r := &a.engine.Rules[i]
		if !p.match(r.When, p.root) {
			continue
		}
		if !r.Each.set() {
			p.apply(r, p.root)
			continue
		}
		n := 0
		elements(p.at(r.Each, p.root), func(v []byte) bool {
			el := &node{raw: v}
			for j := range r.Rules {
				if p.match(r.Rules[j].When, el) {
					p.apply(&r.Rules[j], el)
				}
			}
			n++
			return n < maxElements && len(p.facts) < maxFacts
		})
	}
	if len(p.facts) > maxFacts {
		p.facts = p.facts[:maxFacts]
	}
	return p.facts
}

// A parser is at work on one line.
type parser struct {
	a     *Adaptor
	root  *node
	facts []Fact
}

func (p *parser) add(f Fact) { p.facts = append(p.facts, f) }

// at returns the value that a path leads to, or nil.
func (p *parser) at(path Path, n *node) []byte {
	if !path.set() {
		return nil
	}
	if path.root {
		n = p.root
	}
	for _, name := range path.names {
		if n = n.member(name, p.a.wanted); n == nil {
			return nil
		}
	}
	return n.raw
}

// text returns the text that a path leads to, at most max bytes of it.
func (p *parser) text(path Path, n *node, max int) string { return cut(textOf(p.at(path, n)), max) }

// match tells whether a condition is met.
func (p *parser) match(c Condition, n *node) bool {
	for i := range c {
		raw := p.at(c[i].path, n)
		if !slices.ContainsFunc(c[i].values, func(v json.RawMessage) bool { return isValue(raw, v) }) {
			return false
		}
	}
	return true
}

// failed tells whether the condition of a failure is met. Without one there are no failures.
func (p *parser) failed(c Condition, n *node) bool { return len(c) > 0 && p.match(c, n) }

// apply adds the facts of a rule.
func (p *parser) apply(r *Rule, n *node) {
	if id := p.text(r.Session, n, maxName+1); sessionID.MatchString(id) {
		p.add(Session(id))
	}
	if r.Text.set() {
		p.say(textOf(p.at(r.Text, n)), r.Partial)
	}
	if r.EndsText {
		p.endMessage()
	}
	if t := r.ToolStarted; t != nil {
		p.toolStarted(t, n)
	}
	if t := r.ToolEnded; t != nil {
		p.toolEnded(t, n)
	}
	if u := r.Usage; u != nil {
		p.usage(u, n)
	}
	if r.Status != "" {
		p.add(Status(r.Status))
	}
	if e := r.End; e != nil {
		end := End{Text: p.text(e.Text, n, maxText), Failed: p.failed(e.FailedWhen, n)}
		for i := 0; end.Failed && end.Error == "" && i < len(e.Error); i++ {
			end.Error = p.text(e.Error[i], n, maxText)
		}
		p.add(end)
	}
}

// say adds something that the agent says. A whole message that has come in parts is not said again.
func (p *parser) say(text string, partial bool) {
	a := p.a
	if text == "" {
		return
	}
	if partial {
		a.inMessage = true
		if part := cut(text, maxText-a.parts.Len()); !a.partsFull {
			a.parts.WriteString(part)
			a.partsFull = len(part) < len(text)
		}
		p.deltas(text)
		return
	}
	said := a.inMessage && strings.HasPrefix(text, a.parts.String()) && (a.partsFull || len(text) == a.parts.Len())
	p.endMessage()
	if said {
		return
	}
	p.deltas(text)
	p.add(Text{Delta: lineEnd(text), Message: cut(text, maxText)})
}

// deltas adds a text in parts that fit a line of a log.
func (p *parser) deltas(text string) {
	for text != "" {
		part := cut(text, maxText)
		text = text[len(part):]
		p.add(Text{Delta: part})
	}
}

// endMessage adds that the message that came in parts is complete.
func (p *parser) endMessage() {
	a := p.a
	if !a.inMessage {
		return
	}
	message := a.parts.String()
	p.add(Text{Delta: lineEnd(message), Message: message})
	a.parts.Reset()
	a.inMessage, a.partsFull = false, false
}

// lineEnd returns the line break that a message lacks.
func lineEnd(message string) string {
	if strings.HasSuffix(message, "\n") {
		return ""
	}
	return "\n"
}

// maxOpenTools bounds the tool calls whose names are remembered.
const maxOpenTools = 1024

func (p *parser) toolStarted(t *ToolPaths, n *node) {
	f := ToolStarted{ID: p.text(t.ID, n, maxName), Name: p.text(t.Name, n, maxName),
		Input: clip(p.at(t.Input, n), maxValue)}
	if f.ID == "" {
		return
	}
	if len(p.a.tools) < maxOpenTools {
		p.a.tools[f.ID] = f.Name
	}
	p.add(f)
}

func (p *parser) toolEnded(t *ToolPaths, n *node) {
	f := ToolEnded{ID: p.text(t.ID, n, maxName), Name: p.text(t.Name, n, maxName),
		Output: clip(p.at(t.Output, n), maxValue), Failed: p.failed(t.FailedWhen, n)}
	if f.ID == "" {
		return
	}
	if f.Failed {
		f.Error = p.text(t.Error, n, maxValue)
	}
	if f.Name == "" {
		f.Name = p.a.tools[f.ID]
	}
	delete(p.a.tools, f.ID)
	p.add(f)
}

func (p *parser) usage(u *UsagePaths, n *node) {
	sum := func(paths []Path) (total int64) {
		for _, path := range paths {
			total += int64(numberOf(p.at(path, n)))
		}
		return total
	}
	f := Usage{InputTokens: sum(u.InputTokens), OutputTokens: sum(u.OutputTokens)}
	f.CostUSD = numberOf(p.at(u.CostUSD, n))
	if f != (Usage{}) {
		f.OfSession = u.OfSession
		p.add(f)
	}
}

// sessionMark stands for the session's id in the arguments of a continuation.
const sessionMark = "{session}"

// Continue returns a command that continues a session. If arguments of the command have {session} in
// them, they get the id; else the arguments of the engine are added.
func (a *Adaptor) Continue(command []string, session string) ([]string, error) {
	if !sessionID.MatchString(session) {
		return nil, fmt.Errorf("%.80q is no id of a session", session)
	}
	if len(command) == 0 {
		return nil, fmt.Errorf("there is no command")
	}
	fill := func(args []string) []string {
		out := make([]string, len(args))
		for i, arg := range args {
			out[i] = strings.ReplaceAll(arg, sessionMark, session)
		}
		return out
	}
	if slices.ContainsFunc(command, func(arg string) bool { return strings.Contains(arg, sessionMark) }) {
		return fill(command), nil
	}
	c := a.engine.Continue
	if c == nil {
		return nil, fmt.Errorf("the engine %s has no sessions: write %s where the command takes the id",
			a.engine.Name, sessionMark)
	}
	at := len(command)
	switch c.Place {
	case placeEnd:
		if i := slices.Index(command, "--"); i > 0 {
			at = i
		}
	case placeBeforeLast:
		if at = len(command) - 1; at == 0 {
			at = 1
		}
	}
	return slices.Insert(slices.Clone(command), at, fill(c.Args)...), nil
}
