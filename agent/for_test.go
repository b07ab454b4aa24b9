package agent_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

// paragraphs is an agent that writes a paragraph for each heading, with steps of one name. The
// paragraph of a heading that begins with "bad" is an error.
func paragraphs(done *tally, about bool, headings ...string) code {
	return func(ctx *agent.Context, _ int) (string, error) {
		var report []string
		for _, heading := range headings {
			var opts []agent.StepOption
			if about {
				opts = append(opts, agent.For(heading))
			}
			text, err := agent.Step(ctx, "paragraph", func(context.Context) (string, error) {
				done.add(heading)
				if strings.HasPrefix(heading, "bad") {
					return "", perdure.Permanent(perdure.Errorf("bad", "no %s", heading))
				}
				return "about " + heading, nil
			}, opts...)
			if err != nil {
				text = err.Error()
			}
			report = append(report, heading+": "+text)
		}
		if err := wait(ctx); err != nil {
			return "", err
		}
		return strings.Join(report, ", "), nil
	}
}

// Steps of one name that say what they are about keep their results. A release that inserts, removes
// or swaps some is held, and the one before goes on.
func TestStepsAboutSomethingElseAreFound(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, before, after, says string }{
		{"errors swap", "bad1 bad2", "bad2 bad1", "paragraph#1: its record is about something else"},
		{"the last is gone", "a b", "a", "the step paragraph#2"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := openHeld(t)
			var done tally
			before := strings.Fields(row.before)
			message, run := w.rollsBack(paragraphs(&done, true, before...),
				paragraphs(&done, true, strings.Fields(row.after)...))
			contains(t, message, row.says)
			reached(t, run, perdure.Completed)
			done.expect(t, before...)
		})
	}
}

// A value that has no JSON, and a For where items say it, are misuses.
func TestMisuseOfFor(t *testing.T) {
	t.Parallel()
	w := open(t)
	one := func(context.Context) (int, error) { return 1, nil }
	of := func(context.Context, int) (int, error) { return 1, nil }
	for says, misuse := range map[string]func(ctx *agent.Context) error{
		"step one#1: the value of For, a chan int, can't be written as JSON": func(ctx *agent.Context) error {
			_, err := agent.Step(ctx, "one", one, agent.For(make(chan int)))
			return err
		},
		"step two#1: the value of For, a json.RawMessage, can't be": func(ctx *agent.Context) error {
			_, err := agent.Step(ctx, "two", one, agent.For(json.RawMessage(`{`)))
			return err
		},
		"Parallel of#1: For is for a step by itself": func(ctx *agent.Context) error {
			_, err := agent.Parallel(ctx, "of", numbers(2), of, agent.MapOptions{Step: agent.For(1)})
			return err
		},
	} {
		stop := w.release("", func(ctx *agent.Context, _ int) (string, error) { return "", misuse(ctx) })
		contains(t, w.defect(w.start(perdure.Submission{Kind: "changes"}), agent.CodeMisuse), says)
		stop()
	}
}
