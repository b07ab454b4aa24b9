package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

const approveAbout = `Lists what runs want to be approved; with an id, shows that one and, on a terminal, asks.
What is approved is the action as it is shown: if it were another one by then, nothing would be approved.

  perdure approve                        list what waits for a decision
  perdure approve --platform             list what the platform decides about, of all tenants
  perdure approve ID                     show it, and ask
  perdure approve ID --yes               approve it
  perdure approve ID --reject --comment "not on a Friday"
  perdure approve ID --yes --answer '{"where":"eu"}'`

func approve(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("approve [ID]", approveAbout, stderr)
	conn := addConnFlags(f)
	var filter client.ApprovalFilter
	run := f.String("run", "", "list only those of this `run`")
	state := f.String("state", "",
		"list those that are open (default), approved, rejected, timed_out, closed, or all")
	f.IntVar(&filter.Limit, "limit", 20, "list at most so many")
	f.BoolVar(&filter.Platform, "platform", false,
		"list the open ones of all tenants that a key of the platform decides about")
	yes := f.Bool("yes", false, "approve it")
	no := f.Bool("reject", false, "reject it")
	comment := f.String("comment", "", "a `text` for who asks")
	answer := f.String("answer", "", "the answer to its form: `JSON`, @file, or - for standard input")
	asJSON := f.Bool("json", false, "print JSON")
	ids, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	switch {
	case *yes && *no:
		fmt.Fprintln(stderr, "perdure approve: --yes or --reject, not both")
		return errUsage
	case len(ids) == 0 && (*yes || *no || *comment != "" || *answer != ""):
		fmt.Fprintln(stderr, "perdure approve: say which: perdure approve ID --yes")
		return errUsage
	case filter.Platform && (len(ids) > 0 || *run != "" || *state != ""):
		fmt.Fprintln(stderr, "perdure approve: --platform lists all of them: it goes with --limit alone")
		return errUsage
	case filter.Limit < 1:
		fmt.Fprintln(stderr, "perdure approve: --limit has to be positive")
		return errUsage
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		filter.State = perdure.ApprovalState(*state)
		return conn.listApprovals(ctx, c, filter, *run, stdout, *asJSON)
	}
	a, err := c.Approval(ctx, perdure.ApprovalID(ids[0]))
	if err != nil {
		return err
	}
	decision := perdure.Decision{Comment: *comment}
	if decision.Answer, err = readJSON("--answer", *answer); err != nil {
		return err
	}
	if !*asJSON {
		if err := printApproval(stdout, a, time.Now(), wholeAction); err != nil {
			return err
		}
	}
	switch {
	case *yes:
		decision.Decision = perdure.Approve
	case *no:
		decision.Decision = perdure.Reject
	case *asJSON:
		return printJSON(stdout, a)
	case a.State != perdure.ApprovalOpen:
		return nil
	case platformDecides(ctx, c, a):
		return errors.New("nothing is decided: the platform decides about this, and your key is none of the platform")
	case !isTerminal(os.Stdin):
		return errors.New("nothing is decided: say --yes or --reject")
	default:
		if err := askPerson(ctx, newKeyboard(os.Stdin), stderr, a, &decision); err != nil || decision.Decision == "" {
			return err
		}
	}
	// The hash is of the action that was shown here, and not the one that the server names.
	if decision.ActionHash, err = perdure.ActionHash(json.RawMessage(a.Action)); err != nil {
		return err
	}
	if a, err = c.Decide(ctx, a.ID, decision); err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, a)
	}
	_, err = fmt.Fprintf(stdout, "%s is %s\n", a.ID, a.State)
	return err
}

// platformDecides tells whether the platform decides about an approval, and the key of the client may
// not. If the server does not tell whose key it is, the server refuses the decision.
func platformDecides(ctx context.Context, c *client.Client, a *perdure.Approval) bool {
	if a.Approvers != perdure.ApproversPlatform {
		return false
	}
	k := ownKey(ctx, c)
	return k != nil && !mayDecide(k, a)
}

// listApprovals prints a page of approvals, of all runs or of the one that is named.
func (c *connFlags) listApprovals(ctx context.Context, conn *client.Client, filter client.ApprovalFilter, run string,
	stdout io.Writer, asJSON bool) (err error) {
	if filter.RunID, err = c.runID(run); err != nil {
		return err
	}
	page, err := conn.Approvals(ctx, filter)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(stdout, page)
	}
	return printApprovals(stdout, page, time.Now())
}

func printApprovals(w io.Writer, page *api.Approvals, now time.Time) error {
	if len(page.Approvals) == 0 {
		_, err := fmt.Fprintln(w, "Nothing waits for a decision.")
		return err
	}
	for i := range page.Approvals {
		if err := printApproval(w, &page.Approvals[i], now, 20); err != nil {
			return err
		}
	}
	text := "perdure approve ID decides.\n"
	if page.NextCursor != "" {
		text = "There are more: --limit shows them. " + text
	}
	_, err := io.WriteString(w, text)
	return err
}

// wholeAction is a limit of lines that no action reaches.
const wholeAction = 1 << 30

// printApproval prints an approval, with a limited number of lines of its action. Text from an
// agent is escaped, so that it can't look like something else.
func printApproval(w io.Writer, a *perdure.Approval, now time.Time, lines int) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s  %s\n", a.ID, literal(a.Name))
	field := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&b, "  %-9s %s\n", name, text)
		}
	}
	field("title", literal(a.Title))
	field("asked by", fmt.Sprintf("%s, run %s, %s ago", literal(a.Kind), a.RunID,
		formatDuration(now.Sub(a.OpenedAt.Time()))))
	if a.Owner != "" {
		field("tenant", fmt.Sprintf("%s: perdure approve %s --tenant %s", a.Owner, a.ID, a.Owner))
	}
	if a.Approvers == perdure.ApproversPlatform {
		field("decides",
			"the platform: it touches the server's own machine, and takes a platform key with runs:approve")
	}
	if a.State == perdure.ApprovalOpen {
		field("left", timeLeft(a, now))
	} else {
		field("state", string(a.State))
	}
	if a.DecidedBy != nil {
		field("by", fmt.Sprintf("%s (key %s), %s", literal(a.DecidedBy.Name), a.DecidedBy.KeyID,
			formatTime(a.DecidedAt)))
	}
	field("comment", literal(a.Comment))
	for _, x := range []struct {
		name string
		v    perdure.Value
	}{{"answer", a.Answer}, {"action", a.Action}} {
		if x.v == "" {
			continue
		}
		fmt.Fprintf(&b, "  %s\n", x.name)
		all := strings.Split(pretty(x.v), "\n")
		for _, line := range all[:min(lines, len(all))] {
			fmt.Fprintf(&b, "    %s\n", literal(line))
		}
		if more := len(all) - lines; more > 0 {
			fmt.Fprintf(&b, "    … and %d more lines: perdure approve %s\n", more, a.ID)
		}
	}
	if len(a.Form) > 0 {
		fmt.Fprintln(&b, "  form")
		for i := range a.Form {
			fmt.Fprintf(&b, "    %s\n", fieldLine(&a.Form[i]))
		}
	}
	b.WriteByte('\n')
	_, err := w.Write(b.Bytes())
	return err
}

// timeLeft describes how long an approval is open, and what happens then. Where the run's deadline
// comes first, the run ends, and there is nothing to approve any more.
func timeLeft(a *perdure.Approval, now time.Time) string {
	if a.ExpiresBy == perdure.ExpiresByDeadline {
		d := a.ExpiresAt.Time().Sub(now)
		if d <= 0 {
			return "none: the run's deadline has passed"
		}
		return fmt.Sprintf("%s, until the run's deadline: it then ends unapproved", formatDuration(d))
	}
	silence := "rejected"
	if a.Default == perdure.Approve {
		silence = "approved"
	}
	d := a.ExpiresAt.Time().Sub(now)
	if d <= 0 {
		return "none: it counts as " + silence
	}
	if a.ExpiresBy == perdure.ExpiresByTimeout {
		return fmt.Sprintf("%s, until its own timeout: it then counts as %s", formatDuration(d), silence)
	}
	return fmt.Sprintf("%s, then it counts as %s", formatDuration(d), silence)
}

// fieldLine returns a field of a form in one line.
func fieldLine(f *perdure.FormField) string {
	of := string(f.Type)
	if f.Type == perdure.FieldChoice {
		options := make([]string, len(f.Options))
		for i, o := range f.Options {
			options[i] = literal(o)
		}
		of = strings.Join(options, " | ")
	}
	text := fmt.Sprintf("%s (%s", literal(f.Name), of)
	if f.Required {
		text += "; required"
	}
	text += ")"
	if f.Label != "" {
		text += ": " + literal(f.Label)
	}
	return text
}

// pretty indents JSON.
func pretty(v perdure.Value) string {
	var b bytes.Buffer
	if json.Indent(&b, []byte(v), "", "  ") != nil {
		return string(v)
	}
	return b.String()
}

// askPerson asks for the decision on a terminal, and for the fields of the form. Any answer but the
// ones that it names decides nothing, and neither does anything that was typed before the question.
func askPerson(ctx context.Context, in *keyboard, out io.Writer, a *perdure.Approval,
	decision *perdure.Decision) error {
	discarded, end := in.question()
	defer end()
	if discarded {
		fmt.Fprintln(out, "What you typed before this question was left out.")
	}
	prompt := func(text string) (string, error) {
		fmt.Fprint(out, text)
		return in.answer(ctx)
	}
	if asksForAnswer(a) {
		text, err := prompt("Your answer (n declines; an empty line leaves it open): ")
		switch {
		case err != nil:
			return err
		case text == "":
			fmt.Fprintln(out, "Nothing is decided.")
		case isNo(text):
			decision.Decision, decision.Answer = perdure.Reject, nil
		default:
			decision.Decision = perdure.Approve
			decision.Answer, err = json.Marshal(map[string]string{a.Form[0].Name: text})
		}
		return err
	}
	question, word := "Approve? [y/n, anything else decides nothing] ", wordOf(a)
	if word != "" {
		question = fmt.Sprintf("Approve? [type %s to approve, n to reject; anything else decides nothing] ", word)
	}
	text, err := prompt(question)
	if err != nil {
		return err
	}
	switch {
	case isNo(text):
		decision.Decision, decision.Answer = perdure.Reject, nil
		return nil
	case word != "" && text == word, word == "" && isYes(text):
		decision.Decision = perdure.Approve
	default:
		fmt.Fprintln(out, "Nothing is decided.")
		return nil
	}
	if len(a.Form) == 0 || len(decision.Answer) > 0 {
		return nil
	}
	answer := make(map[string]any)
	for i := range a.Form {
		f := &a.Form[i]
		text, err := prompt(fieldLine(f) + " = ")
		if err != nil {
			return err
		}
		if text != "" {
			answer[f.Name] = asType(f.Type, text)
		}
	}
	decision.Answer, err = json.Marshal(answer)
	return err
}

func isYes(text string) bool { text = strings.ToLower(text); return text == "y" || text == "yes" }
func isNo(text string) bool  { text = strings.ToLower(text); return text == "n" || text == "no" }

// asksForAnswer tells whether an approval is a question of the supervisor's tool ask_human: there is
// nothing to approve, and the person says something.
func asksForAnswer(a *perdure.Approval) bool {
	return a.Name == "ask_human" && len(a.Form) == 1 && a.Form[0].Type == perdure.FieldText
}

var words = regexp.MustCompile(`[A-Za-z0-9][A-Za-z0-9_.-]*`)

// wordOf returns the word that approves an action which executes something: the name of its program or
// its tool. Who types it has read the action. It is empty for others, and for tools that only read.
func wordOf(a *perdure.Approval) string {
	var action struct {
		Program  string          `json:"program"`
		Command  json.RawMessage `json:"command"`
		Tool     string          `json:"tool"`
		ReadOnly bool            `json:"read_only"`
	}
	if json.Unmarshal([]byte(a.Action), &action) != nil {
		return "" // it is no object, and so none of those
	}
	text := cmp.Or(action.Program, action.Tool)
	var line string
	var list []string
	switch {
	case text != "":
	case json.Unmarshal(action.Command, &line) == nil:
		text, _, _ = strings.Cut(strings.TrimSpace(line), " ")
	case json.Unmarshal(action.Command, &list) == nil && len(list) > 0:
		text = list[0]
	}
	if text == "" || action.ReadOnly && action.Tool != "" {
		return ""
	}
	found := words.FindAllString(text[strings.LastIndexByte(text, '/')+1:], -1)
	if len(found) == 0 || isNo(found[0]) || isYes(found[0]) || len(found[0]) > 60 {
		return "approve"
	}
	return found[0]
}

// asType converts what was typed to the type of the field. If that is not possible it stays text,
// and the server refuses it.
func asType(typ perdure.FieldType, text string) any {
	switch typ {
	case perdure.FieldBoolean:
		switch strings.ToLower(text) {
		case "y", "yes", "true":
			return true
		case "n", "no", "false":
			return false
		}
	case perdure.FieldNumber:
		if json.Valid([]byte(text)) {
			return json.RawMessage(text)
		}
	}
	return text
}

// isTerminal tells whether a file is a terminal.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
