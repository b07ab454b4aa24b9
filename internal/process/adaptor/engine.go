package adaptor

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/process/jobdir"
)

// Generic is the engine of commands of which nothing is known. Its output has no facts.
const Generic = "generic"

// Bounds of an engine's file.
const (
	maxFile   = 64 << 10
	maxRules  = 200
	maxTokens = 8 // paths of one count of tokens
)

// ErrUnknown means that there is no engine of a name.
var ErrUnknown = errors.New("there is no such engine")

// An Engine is the content of an engine's file.
//
// A path names a value of a line: the names of members, joined by dots, as in "message.content". In
// the rules for elements of an array, a path starts at the element. One that begins with a slash
// starts at the line.
//
// A condition maps paths to the values that they must have: a string, a number, a boolean, null, or
// an array of these of which one must match. A path that leads nowhere is null.
type Format struct {
	// Name is that of the file, without .json.
	Name string `json:"name"`
	// Comment says for which output the rules are.
	Comment []string `json:"comment,omitempty"`
	// Rules are applied in order. All that match count.
	Rules []Rule `json:"rules,omitempty"`
	// Continue says how a command continues a session. Without it the engine has no sessions.
	Continue *Continuation `json:"continue,omitempty"`
}

// A Rule says what a line means.
type Rule struct {
	// When is the condition under which the rule applies.
	When Condition `json:"when"`

	// Each is the path of an array, whose elements Rules are applied to. The rule then has nothing
	// else.
	Each  Path   `json:"each"`
	Rules []Rule `json:"rules"`

	// Session is the path of the session's id.
	Session Path `json:"session"`
	// Text is the path of what the agent says. With Partial it is a part, and more of the same message
	// may follow; else it is a whole message.
	Text    Path `json:"text"`
	Partial bool `json:"partial"`
	// EndsText tells that a message that came in parts is complete.
	EndsText bool `json:"ends_text"`

	ToolStarted *ToolPaths  `json:"tool_started"`
	ToolEnded   *ToolPaths  `json:"tool_ended"`
	Usage       *UsagePaths `json:"usage"`
	End         *EndPaths   `json:"end"`
	// Status is what the agent is doing from here: processing, while the model works, running, while a
	// tool works, or waiting.
	Status string `json:"status"`
}

// ToolPaths are the paths of a tool call's parts.
type ToolPaths struct {
	ID     Path `json:"id"`
	Name   Path `json:"name"`
	Input  Path `json:"input"`
	Output Path `json:"output"`
	Error  Path `json:"error"`
	// FailedWhen is the condition of a call that has failed.
	FailedWhen Condition `json:"failed_when"`
}

// UsagePaths are the paths of counts. Those of tokens are added up.
type UsagePaths struct {
	InputTokens  []Path `json:"input_tokens"`
	OutputTokens []Path `json:"output_tokens"`
	CostUSD      Path   `json:"cost_usd"`
	// OfSession tells that the tokens are those of the whole session, with what it used before the
	// command continued it.
	OfSession bool `json:"of_session"`
}

// EndPaths are the paths of an agent's last words.
type EndPaths struct {
	Text Path `json:"text"`
	// Error are the paths of the error, if it has failed. The first that leads to a text counts.
	Error []Path `json:"error"`
	// FailedWhen is the condition of an agent that has failed.
	FailedWhen Condition `json:"failed_when"`
}

// A Path leads to a value. The zero value leads nowhere.
type Path struct {
	names []string
	// root tells that it starts at the line.
	root bool
}

// UnmarshalJSON reads a path: "message.content", or "/message.content" from the line.
func (p *Path) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	return p.parse(text)
}

func (p *Path) parse(text string) error {
	rest, root := strings.CutPrefix(text, "/")
	p.names, p.root = strings.Split(rest, "."), root
	if len(p.names) > 8 || slices.Contains(p.names, "") {
		return fmt.Errorf("%q is no path: one to eight names, joined by dots", text)
	}
	return nil
}

func (p *Path) set() bool { return len(p.names) > 0 }

// A Condition has the values that paths must have.
type Condition []test

// A test is met by a value that is one of several.
type test struct {
	path   Path
	values []json.RawMessage
}

// UnmarshalJSON reads a condition: an object whose names are paths.
func (c *Condition) UnmarshalJSON(b []byte) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(b, &object); err != nil {
		return err
	}
	for text, want := range object {
		t := test{values: []json.RawMessage{want}}
		if err := t.path.parse(text); err != nil {
			return err
		}
		if want[0] == '[' {
			t.values = nil
			if err := json.Unmarshal(want, &t.values); err != nil {
				return err
			}
		}
		for _, v := range t.values {
			if v[0] == '{' || v[0] == '[' {
				return fmt.Errorf("%s: a value is a string, a number, a boolean or null", text)
			}
		}
		*c = append(*c, t)
	}
	// Facts do not depend on the order, but the time that a line takes does.
	slices.SortFunc(*c, func(a, b test) int { return cmp.Compare(len(a.path.names), len(b.path.names)) })
	return nil
}

// Places of a continuation's arguments.
const (
	// placeEnd is after the command's arguments, or before a "--" among them.
	placeEnd = "end"
	// placeBeforeLast is before the last argument, the prompt.
	placeBeforeLast = "before_last"
)

// A Continuation says how a command continues a session.
type Continuation struct {
	// Args are the arguments that are added. {session} stands for the session's id.
	Args []string `json:"args"`
	// Place is where they are added: end or before_last.
	Place string `json:"place"`
}

//go:embed engines/*.json
var shipped embed.FS

// engineName is the form of an engine's name. It is that of a file, too.
var engineName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

// Load returns an adaptor for a process of an engine. An empty name means [Generic]. The engine's file
// is looked for in the folder first, if one is given, and then among those of the program.
func Load(name, folder string) (*Adaptor, error) {
	if name == "" {
		name = Generic
	}
	if !engineName.MatchString(name) {
		return nil, fmt.Errorf("%w: %.80q is no name of one", ErrUnknown, name)
	}
	b, err := readEngine(name, folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s (there are %s)", ErrUnknown, name, strings.Join(Names(folder), ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("engine %s: %w", name, err)
	}
	e, err := decode(b)
	if err == nil && e.Name != name {
		err = fmt.Errorf("the file is of the engine %.80q", e.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("engine %s: %w", name, err)
	}
	return newAdaptor(e), nil
}

// readEngine returns the content of an engine's file.
func readEngine(name, folder string) ([]byte, error) {
	if folder != "" {
		f, err := os.Open(filepath.Join(folder, name+".json"))
		if err == nil {
			defer f.Close()
			return io.ReadAll(io.LimitReader(f, maxFile+1))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return shipped.ReadFile("engines/" + name + ".json")
}

// Names returns the names of the engines in the program and in a folder, sorted.
func Names(folder string) []string {
	files, _ := fs.Glob(shipped, "engines/*.json")
	if folder != "" {
		own, _ := filepath.Glob(filepath.Join(folder, "*.json"))
		files = append(files, own...)
	}
	var names []string
	for _, f := range files {
		if n := strings.TrimSuffix(filepath.Base(f), ".json"); engineName.MatchString(n) {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// decode reads an engine's file and checks it.
func decode(b []byte) (*Format, error) {
	if len(b) > maxFile {
		return nil, fmt.Errorf("the file is larger than %d bytes", maxFile)
	}
	e := new(Format)
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(e); err != nil {
		return nil, err
	}
	if dec.More() {
		return nil, errors.New("something follows the engine")
	}
	if err := checkRules("rules", e.Rules, true); err != nil {
		return nil, err
	}
	if c := e.Continue; c != nil {
		if !slices.ContainsFunc(c.Args, func(a string) bool { return strings.Contains(a, sessionMark) }) {
			return nil, fmt.Errorf("continue.args: none has %s", sessionMark)
		}
		if c.Place != placeEnd && c.Place != placeBeforeLast {
			return nil, fmt.Errorf("continue.place: %q is neither %s nor %s", c.Place, placeEnd, placeBeforeLast)
		}
	}
	return e, nil
}

// checkRules checks rules. Rules for elements have no rules for elements in them.
func checkRules(at string, rules []Rule, outer bool) error {
	if len(rules) > maxRules {
		return fmt.Errorf("%s: more than %d rules", at, maxRules)
	}
	for i := range rules {
		if err := rules[i].check(outer); err != nil {
			return fmt.Errorf("%s[%d]: %w", at, i, err)
		}
	}
	return nil
}

func (r *Rule) check(outer bool) error {
	facts := r.Session.set() || r.Text.set() || r.EndsText || r.ToolStarted != nil || r.ToolEnded != nil ||
		r.Usage != nil || r.End != nil || r.Status != ""
	switch {
	case len(r.When) == 0 && outer:
		return errors.New("when: a rule needs a condition")
	case r.Each.set() != (len(r.Rules) > 0):
		return errors.New("each and rules go together")
	case r.Each.set() && !outer:
		return errors.New("each: the rules of an element have none")
	case r.Each.set() == facts:
		return errors.New("a rule has facts, or rules for elements")
	case r.Partial && !r.Text.set():
		return errors.New("partial: there is no text")
	}
	switch r.Status {
	case "", jobdir.StatusRunning, jobdir.StatusWaiting, jobdir.StatusProcessing:
	default:
		return fmt.Errorf("status: %q is none", r.Status)
	}
	for _, t := range []*ToolPaths{r.ToolStarted, r.ToolEnded} {
		if t != nil && !t.ID.set() {
			return errors.New("a tool call needs the path of its id")
		}
	}
	if r.Usage != nil && max(len(r.Usage.InputTokens), len(r.Usage.OutputTokens)) > maxTokens {
		return fmt.Errorf("usage: more than %d paths", maxTokens)
	}
	return checkRules("rules", r.Rules, false)
}

// names returns the names in all paths of a rule but those of its rules.
func (r *Rule) names() (all []string) {
	paths := []Path{r.Each, r.Session, r.Text}
	conditions := []Condition{r.When}
	for _, t := range []*ToolPaths{r.ToolStarted, r.ToolEnded} {
		if t != nil {
			paths = append(paths, t.ID, t.Name, t.Input, t.Output, t.Error)
			conditions = append(conditions, t.FailedWhen)
		}
	}
	if u := r.Usage; u != nil {
		paths = append(append(append(paths, u.InputTokens...), u.OutputTokens...), u.CostUSD)
	}
	if e := r.End; e != nil {
		paths = append(append(paths, e.Text), e.Error...)
		conditions = append(conditions, e.FailedWhen)
	}
	for _, c := range conditions {
		for _, t := range c {
			paths = append(paths, t.path)
		}
	}
	for _, p := range paths {
		all = append(all, p.names...)
	}
	return all
}
