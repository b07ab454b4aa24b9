package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

const webhooksUsage = `Usage:

  perdure webhooks                             list them
  perdure webhooks add URL [--events LIST] [--thread ID] [--format FORM] [--description TEXT]
  perdure webhooks show ID
  perdure webhooks rm ID
  perdure webhooks rotate ID                   give it a new secret; for a day both sign
  perdure webhooks enable ID
  perdure webhooks disable ID
  perdure webhooks test ID                     send it a message and see what comes of it
  perdure webhooks deliveries ID [--state dead]
  perdure webhooks attempts DELIVERY_ID
  perdure webhooks redeliver DELIVERY_ID

Every one takes --json. What a webhook is told, and how to verify it, is in docs/webhooks.md.
`

// webhooksCommand implements "perdure webhooks".
func webhooksCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	h := &hooksCall{subcommandCall{ctx: ctx, args: args, stdout: stdout, stderr: stderr}}
	return h.dispatch("webhooks", webhooksUsage, "list", []subcommand{
		{"list", "Lists the registered webhooks.", h.list},
		{"add URL",
			"Registers a webhook. Its secret is printed once, and stored nowhere.\n\n  perdure webhooks add URL",
			h.add},
		{"show ID", "Shows a webhook.\n\n  perdure webhooks show ID", h.show},
		{"rm ID", "Deletes a webhook. What it was told can still be looked at.\n\n  perdure webhooks rm ID", h.remove},
		{"rotate ID",
			"Gives a webhook a new secret. For a day messages are signed with the one before as well.\n\n" +
				"  perdure webhooks rotate ID", h.rotate},
		{"enable ID", "Has a webhook told of things again.\n\n  perdure webhooks enable ID", func() error {
			return h.setDisabled(false)
		}},
		{"disable ID",
			"Has a webhook told of nothing any more; what is on its way to it is given up.\n\n" +
				"  perdure webhooks disable ID", func() error {
				return h.setDisabled(true)
			}},
		{"test ID",
			"Sends a webhook a message that is about nothing, and says what came of it.\n\n  perdure webhooks test ID",
			h.test},
		{"deliveries ID", "Lists what a webhook was told, newest first.\n\n  perdure webhooks deliveries ID",
			h.deliveries},
		{"attempts DELIVERY_ID", "Lists every attempt of a delivery.\n\n  perdure webhooks attempts DELIVERY_ID",
			h.attempts},
		{"redeliver DELIVERY_ID",
			"Has a delivery sent again, now: with the same id and the same body.\n\n" +
				"  perdure webhooks redeliver DELIVERY_ID", h.redeliver},
	})
}

// A hooksCall is one call of "perdure webhooks".
type hooksCall struct{ subcommandCall }

func (h *hooksCall) list() error {
	_, c, err := h.begin()
	if err != nil {
		return err
	}
	list, err := c.Webhooks(h.ctx)
	if err != nil {
		return err
	}
	return h.print(list, func(w io.Writer) {
		if len(list) == 0 {
			fmt.Fprintln(w, "No webhooks.")
			return
		}
		fmt.Fprintln(w, "WEBHOOK\tOF\tSTATE\tURL")
		for i := range list {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", list[i].WebhookID, hookScope(&list[i]), hookState(&list[i]),
				literal(list[i].URL))
		}
	})
}

func hookScope(h *api.Webhook) string {
	if h.ThreadID != "" {
		return "thread " + literal(string(h.ThreadID))
	}
	return h.Scope
}

func hookState(h *api.Webhook) string {
	switch {
	case h.Disabled:
		return "disabled"
	case h.FailingAt != 0:
		return "failing"
	}
	return "active"
}

func (h *hooksCall) add() error {
	var in api.CreateWebhook
	events := h.flags.String("events", "",
		"`types` of events, separated by commas, such as run:completed,x:* (default: ends, stalls, and what "+
			"follows an end)")
	thread := h.flags.String("thread", "", "only runs of this `thread`")
	format := h.flags.String("format", "", "the `form` of what it is sent: perdure, openai or langgraph")
	h.flags.StringVar(&in.Description, "description", "", "what it is for")
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	in.URL, in.ThreadID, in.Format = args[0], perdure.ThreadID(*thread), perdure.WebhookFormat(*format)
	if *events != "" {
		in.Events = strings.Split(*events, ",")
	}
	made, err := c.CreateWebhook(h.ctx, in)
	if err != nil {
		return err
	}
	return h.secret(made)
}

// secret prints a secret to stdout, so that a script can read it, and the explanation to stderr.
func (h *hooksCall) secret(made *api.NewWebhook) error {
	if *h.asJSON {
		return printJSON(h.stdout, made)
	}
	fmt.Fprintf(h.stderr, "Webhook %s. This is the only time its secret is shown:\n", made.WebhookID)
	_, err := fmt.Fprintln(h.stdout, made.Secret)
	return err
}

func (h *hooksCall) rotate() error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	made, err := c.RotateWebhook(h.ctx, perdure.WebhookID(args[0]))
	if err != nil {
		return err
	}
	return h.secret(made)
}

func (h *hooksCall) show() error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	hook, err := c.Webhook(h.ctx, perdure.WebhookID(args[0]))
	if err != nil {
		return err
	}
	return h.printHook(hook)
}

func (h *hooksCall) printHook(hook *api.Webhook) error {
	return h.print(hook, func(w io.Writer) {
		state := hookState(hook)
		switch {
		case hook.Disabled:
			state += " since " + formatTime(hook.DisabledAt) + ": " + hook.DisabledReason
		case hook.FailingAt != 0:
			state += " since " + formatTime(hook.FailingAt)
		}
		events := strings.Join(hook.Events, " ")
		if events == "" {
			events = "as each run says"
		}
		for _, line := range [][2]string{{"webhook", string(hook.WebhookID)}, {"url", hook.URL},
			{"of", hookScope(hook)}, {"state", state}, {"events", events},
			{"format", string(hook.Format)},
			{"description", hook.Description}, {"created", formatTime(hook.CreatedAt)},
			{"rotated", formatTime(hook.RotatedAt)}} {
			if line[1] != "" {
				fmt.Fprintf(w, "%s\t%s\n", line[0], literal(line[1]))
			}
		}
	})
}

func formatTime(i perdure.Instant) string {
	if i == 0 {
		return ""
	}
	return i.Time().Format("2006-01-02 15:04:05")
}

func (h *hooksCall) remove() error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	if err := c.DeleteWebhook(h.ctx, perdure.WebhookID(args[0])); err != nil {
		return err
	}
	return h.print(map[string]any{"webhook_id": args[0]}, func(w io.Writer) {
		fmt.Fprintf(w, "%s is deleted\n", literal(args[0]))
	})
}

func (h *hooksCall) setDisabled(disabled bool) error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	hook, err := c.ChangeWebhook(h.ctx, perdure.WebhookID(args[0]), api.ChangeWebhook{Disabled: &disabled})
	if err != nil {
		return err
	}
	return h.printHook(hook)
}

func (h *hooksCall) test() error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	r, err := c.TestWebhook(h.ctx, perdure.WebhookID(args[0]))
	if err != nil {
		return err
	}
	err = h.print(r, func(w io.Writer) {
		fmt.Fprintln(w, outcomeOf(r.Status, r.Error, r.Response), "after",
			formatDuration(time.Duration(r.TookMS)*time.Millisecond))
	})
	if err == nil && !r.Delivered {
		err = exitError(exitFail)
	}
	return err
}

// outcomeOf describes the result of a delivery attempt.
func outcomeOf(status int, problem, response string) string {
	if status == 0 {
		return literal(problem)
	}
	if response != "" {
		return fmt.Sprintf("%d %+.60q", status, response)
	}
	return fmt.Sprint(status)
}

func (h *hooksCall) deliveries() error {
	var filter client.DeliveryFilter
	h.flags.StringVar(&filter.State, "state", "", "only those that are pending, delivered, dead or dropped")
	h.flags.IntVar(&filter.Limit, "limit", 20, "at most so many")
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	if filter.Limit < 1 {
		fmt.Fprintln(h.stderr, "perdure webhooks deliveries: --limit has to be positive")
		return errUsage
	}
	page, err := c.Deliveries(h.ctx, perdure.WebhookID(args[0]), filter)
	if err != nil {
		return err
	}
	return h.print(page, func(w io.Writer) {
		if len(page.Deliveries) == 0 {
			fmt.Fprintln(w, "No deliveries.")
			return
		}
		fmt.Fprintln(w, "DELIVERY\tRUN\tEVENT\tSTATE\tTRIED\tLAST\tNEXT")
		for _, d := range page.Deliveries {
			last := literal(d.LastError)
			if d.LastStatus != 0 {
				last = fmt.Sprint(d.LastStatus)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", literal(d.DeliveryID), d.RunID,
				literal(string(d.Type)), d.State, d.Attempts, last, formatTime(d.NextAttemptAt))
		}
	})
}

func (h *hooksCall) attempts() error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	d, err := c.Delivery(h.ctx, args[0])
	if err != nil {
		return err
	}
	return h.print(d, func(w io.Writer) {
		fmt.Fprintf(w, "%s of %s: %s\n", literal(string(d.Type)), d.RunID, d.State)
		for _, a := range d.History {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", a.N, formatTime(a.At),
				formatDuration(time.Duration(a.TookMS)*time.Millisecond), outcomeOf(a.Status, a.Error, a.Response))
		}
	})
}

func (h *hooksCall) redeliver() error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	d, err := c.Redeliver(h.ctx, args[0])
	if err != nil {
		return err
	}
	return h.print(d, func(w io.Writer) { fmt.Fprintf(w, "%s is %s\n", d.DeliveryID, d.State) })
}
